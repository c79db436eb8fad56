package cli

import (
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Registry says how the server reaches a registry.
type Registry struct {
	Mirrors   []string `json:"mirrors,omitempty" yaml:"mirrors"`       // host[:port], asked first
	PlainHTTP bool     `json:"plain_http,omitempty" yaml:"plain_http"` // no TLS
	CAFile    string   `json:"ca_file,omitempty" yaml:"ca_file"`       // PEM; trusted for this registry too
	// AnonymousRetry has a pull whose credentials are refused tried without.
	AnonymousRetry bool `json:"anonymous_retry,omitempty" yaml:"anonymous_retry"`
}

// registryKey is a setting of several values: "registries", in files only.
var registryKey = key{name: "registries", set: setRegistries}

func setRegistries(s *settings, v string) error {
	dec := yaml.NewDecoder(strings.NewReader(v))
	dec.KnownFields(true)
	s.Registries = map[string]Registry{}
	if err := dec.Decode(&s.Registries); err != nil && !errors.Is(err, io.EOF) {
		return usage("registries: HOST: {mirrors: [HOST…], plain_http: true, ca_file: FILE, anonymous_retry: true} is expected: %v", err)
	}
	for host, r := range s.Registries {
		switch {
		case r.CAFile != "" && r.PlainHTTP:
			return usage("registries: %s: with plain_http there is no certificate to check against ca_file", host)
		case r.CAFile != "" && !filepath.IsAbs(r.CAFile):
			return usage("registries: %s: ca_file %q: an absolute path is expected", host, r.CAFile)
		}
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
