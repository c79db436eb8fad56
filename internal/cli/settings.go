package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/spf13/cobra"
)

const systemConfig = "/etc/taibox/config.yaml"

// Defaults of settings.
const (
	defaultHost    = "unix:///run/taibox/taibox.sock"
	defaultDataDir = "/var/lib/taibox"
)

// settings are the values that hold for every command: flags over environment
// over files over defaults.
type settings struct {
	Host       string
	DataDir    string
	APIKey     string
	Log        string
	Group      string
	Image      string
	Max        int
	Memory     int64
	CPUs       float64
	Registries map[string]Registry
	listenSettings
	trace map[string]string // the traceKeys that are set
	policySettings

	config  string // the file given with --config
	sources []source
}

// source is a setting with its origin.
type source struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"` // "flag --host", "env TAIBOX_HOST", "file /etc/…" or "default"
}

// key is one setting: its name in files, where else it can be set, and how its
// value gets into the settings.
type key struct {
	name, env, flag, def string
	secret               bool
	set                  func(s *settings, v string) error
}

// keys is the list of all settings, in the order in which they are shown.
var keys = append([]key{
	{name: "host", env: "TAIBOX_HOST", flag: "host", def: defaultHost, set: setHost},
	{name: "data_dir", env: "TAIBOX_DATA_DIR", flag: "data-dir", def: defaultDataDir, set: setDataDir},
	{name: "api_key", env: "TAIBOX_API_KEY", secret: true, set: func(s *settings, v string) error { s.APIKey = v; return nil }},
	{name: "log", env: "TAIBOX_LOG", flag: "log", def: "info", set: setLog},
	{name: "group", flag: "group", set: func(s *settings, v string) error { s.Group = v; return nil }},
	{name: "sandbox_image", env: "YAO_SANDBOX_IMAGE", def: "hostfs", set: func(s *settings, v string) error { s.Image = v; return nil }},
	{name: "sandbox_max", env: "YAO_SANDBOX_MAX", def: "100", set: setMax},
	{name: "sandbox_memory", env: "YAO_SANDBOX_MEMORY", flag: "memory", def: "2g", set: setMemory},
	{name: "sandbox_cpu", env: "YAO_SANDBOX_CPU", flag: "cpus", def: "1.0", set: setCPUs},
}, slices.Concat(policyKeys, listenKeys, traceKeys, []key{registryKey})...)

// maxSocketPath is what the kernel's struct sockaddr_un has room for, beside
// the byte that ends it.
const maxSocketPath = 107

func setHost(s *settings, v string) error {
	u, err := url.Parse(v)
	switch {
	case err != nil || u.Scheme != "unix" && u.Scheme != "http" && u.Scheme != "https":
		return usage("host %q: unix:///path or http(s)://host:port is expected", v)
	case u.Scheme == "unix" && (u.Host != "" || !filepath.IsAbs(u.Path)):
		return usage("host %q: a socket's path is absolute: unix:///path", v)
	case u.Scheme == "unix" && len(u.Path) > maxSocketPath:
		return usage("host %q: a socket's path has at most %d bytes, not %d", v, maxSocketPath, len(u.Path))
	case u.Scheme != "unix" && u.Host == "":
		return usage("host %q: the host is missing", v)
	}
	s.Host = v
	return nil
}

func setDataDir(s *settings, v string) error {
	if !filepath.IsAbs(v) {
		return usage("data directory %q: an absolute path is expected", v)
	}
	s.DataDir = filepath.Clean(v)
	return nil
}

func setLog(s *settings, v string) error {
	if levels := []string{"debug", "info", "warn", "error"}; !slices.Contains(levels, v) {
		return usage("log level %q: %s are possible", v, strings.Join(levels, ", "))
	}
	s.Log = v
	return nil
}

func setMax(s *settings, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		return usage("number of boxes %q: 0 (no limit) or more is expected", v)
	}
	s.Max = n
	return nil
}

func setMemory(s *settings, v string) (err error) {
	s.Memory, err = parseSize(v)
	return err
}

func setCPUs(s *settings, v string) (err error) {
	s.CPUs, err = parseCPUs(v)
	return err
}

// resolve finds the value of every setting for cmd, once.
func (e *Env) resolve(cmd *cobra.Command) (*settings, error) {
	if e.settings != nil {
		return e.settings, nil
	}
	s := &settings{}
	files, err := e.configFiles(cmd, s)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, k := range keys {
		src := source{Key: k.name, Value: k.def, Origin: "default"}
		for _, f := range files {
			if v, ok := f.values[k.name]; ok {
				src.Value, src.Origin = v, "file "+f.name
			}
		}
		if v := e.Getenv(k.env); k.env != "" && v != "" {
			src.Value, src.Origin = v, "env "+k.env
		}
		if k.flag != "" {
			if f := cmd.Flag(k.flag); f != nil && f.Changed {
				src.Value, src.Origin = f.Value.String(), "flag --"+k.flag
			}
		}
		if src.Value != "" || src.Origin != "default" {
			if err := k.set(s, src.Value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", src.Origin, err))
			}
		}
		if k.secret && src.Value != "" {
			src.Value = "[redacted]"
		}
		s.sources = append(s.sources, src)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	e.settings = s
	return s, nil
}

// configFile is what a file says.
type configFile struct {
	name   string
	values map[string]string
}

// configFiles reads the files that count, the stronger one last.
func (e *Env) configFiles(cmd *cobra.Command, s *settings) ([]configFile, error) {
	names, must := []string{systemConfig}, false
	if e.Home != "" {
		names = append(names, filepath.Join(e.Home, ".config", "taibox", "config.yaml"))
	}
	if f := cmd.Flag("config"); f != nil && f.Changed {
		abs, err := filepath.Abs(f.Value.String())
		if err != nil {
			return nil, err
		}
		s.config, names, must = abs, []string{abs}, true
	}
	var files []configFile
	for _, name := range names {
		data, err := os.ReadFile(name)
		switch {
		case err == nil:
			f, err := parseConfig(name, data)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		case must:
			return nil, usage("config file: %v", err)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("read config file: %w", err)
		}
	}
	return files, nil
}

// parseConfig reads "key: value" lines of YAML. Every problem names its place.
func parseConfig(name string, data []byte) (configFile, error) {
	f := configFile{name: name, values: map[string]string{}}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return f, usage("config file %s: %v", name, err)
	}
	if len(doc.Content) == 0 {
		return f, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return f, usage("config file %s, line %d: KEY: VALUE is expected", name, top.Line)
	}
	var errs []error
	for pair := range slices.Chunk(top.Content, 2) {
		k, v := pair[0], pair[1]
		_, twice := f.values[k.Value]
		switch {
		case !slices.ContainsFunc(keys, func(known key) bool { return known.name == k.Value }):
			errs = append(errs, usage("config file %s, line %d: key %q is not known", name, k.Line, k.Value))
		case twice:
			errs = append(errs, usage("config file %s, line %d: key %q is there twice", name, k.Line, k.Value))
		case k.Value == registryKey.name:
			value, err := flow(v)
			f.values[k.Value], errs = value, append(errs, err)
		case v.Kind != yaml.ScalarNode:
			errs = append(errs, usage("config file %s, line %d: key %q: one value is expected", name, v.Line, k.Value))
		default:
			f.values[k.Value] = v.Value
		}
	}
	return f, errors.Join(errs...)
}

// newConfig returns the command that shows the settings.
func newConfig(env *Env) *cobra.Command {
	cmd := group("config", "Look at the settings")
	cmd.GroupID = groupOther
	var out format
	dump := &cobra.Command{
		Use:   "dump",
		Short: "Show every setting and where its value comes from",
		Long: `Show every setting and where its value comes from: flags over environment
over files over defaults. The files are /etc/taibox/config.yaml and
~/.config/taibox/config.yaml, of which the second wins, or the one given with
--config. Each line of a file is "KEY: VALUE" with a key that is shown here.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := env.resolve(cmd)
			if err != nil {
				return err
			}
			if out.json() {
				return printList(env.Out, s.sources)
			}
			t := newTable("KEY", "VALUE", "ORIGIN")
			for _, src := range s.sources {
				t.add(src.Key, src.Value, src.Origin)
			}
			return t.print(env.Out)
		},
	}
	out.addOutput(dump)
	cmd.AddCommand(dump)
	return cmd
}
