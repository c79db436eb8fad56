package cli

import (
	"encoding/json"
	"errors"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Registry says how the server reaches a registry.
type Registry struct {
	Mirrors   []string `json:"mirrors,omitempty" yaml:"mirrors"`       // host[:port], asked first
	PlainHTTP bool     `json:"plain_http,omitempty" yaml:"plain_http"` // no TLS
}

// registryKey is a setting of several values: "registries", in files only.
var registryKey = key{name: "registries", set: setRegistries}

func setRegistries(s *settings, v string) error {
	dec := yaml.NewDecoder(strings.NewReader(v))
	dec.KnownFields(true)
	s.Registries = map[string]Registry{}
	if err := dec.Decode(&s.Registries); err != nil && !errors.Is(err, io.EOF) {
		return usage("registries: HOST: {mirrors: [HOST…], plain_http: true} is expected: %v", err)
	}
	for host, r := range s.Registries {
		for _, h := range append([]string{host}, r.Mirrors...) {
			if h == "" || strings.ContainsAny(h, "/ @?#") {
				return usage("registries: host %q: host or host:port is expected", h)
			}
		}
	}
	return nil
}

// flow writes a tree of a file on one line.
func flow(n *yaml.Node) (string, error) {
	var v any
	if err := n.Decode(&v); err != nil {
		return "", usage("%v", err)
	}
	data, err := json.Marshal(v)
	if err != nil {
		return "", usage("line %d: names are expected to be text", n.Line)
	}
	return string(data), nil
}
