package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// dump runs config dump and returns the sources by key.
func dump(t *testing.T, home string, vars map[string]string, flags ...string) (map[string]source, string, int) {
	t.Helper()
	var out, errs bytes.Buffer
	env := Env{In: strings.NewReader(""), Out: &out, Err: &errs, Home: home, LookupEnv: variables(vars)}
	code := Main(context.Background(), env, append(flags, "config", "dump", "-o", "json"))
	got := map[string]source{}
	if code == exitOK {
		var list []source
		if err := json.Unmarshal(out.Bytes(), &list); err != nil {
			t.Fatalf("%v in %s", err, out.String())
		}
		for _, s := range list {
			got[s.Key] = s
		}
	}
	return got, errs.String(), code
}

func writeConfig(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSettingsPrecedence(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, ".config/taibox/config.yaml")
	writeConfig(t, file, "host: unix:///from/file\nlog: debug\ndata_dir: /from/file\nsandbox_cpu: 2.0\n")
	got, _, code := dump(t, home, map[string]string{"TAIBOX_DATA_DIR": "/from/env", "TAIBOX_HOST": "unix:///from/env", "TAIBOX_API_KEY": "hush"}, "--host", "unix:///from/flag")
	if code != exitOK {
		t.Fatalf("code %d", code)
	}
	for _, want := range []source{
		{"host", "unix:///from/flag", "flag --host"},
		{"data_dir", "/from/env", "env TAIBOX_DATA_DIR"},
		{"log", "debug", "file " + file},
		{"sandbox_cpu", "2.0", "file " + file},
		{"sandbox_memory", "2g", "default"},
		{"api_key", "[redacted]", "env TAIBOX_API_KEY"},
	} {
		if got[want.Key] != want {
			t.Errorf("got %v, want %v", got[want.Key], want)
		}
	}
}

func TestConfigFlagReplacesFiles(t *testing.T) {
	home, other := t.TempDir(), filepath.Join(t.TempDir(), "other.yaml")
	writeConfig(t, filepath.Join(home, ".config/taibox/config.yaml"), "log: debug\n")
	writeConfig(t, other, "data_dir: /other\n")
	got, _, code := dump(t, home, nil, "--config", other)
	if code != exitOK || got["log"].Origin != "default" || got["data_dir"].Value != "/other" {
		t.Errorf("code %d, %v", code, got)
	}
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown_key":  {"log: info\nlogg: info\n", `line 2: key "logg" is not known`},
		"twice":        {"log: info\nlog: warn\n", `"log" is there twice`},
		"no_scalar":    {"log: [info]\n", `key "log": one value is expected`},
		"no_mapping":   {"- log\n", "KEY: VALUE is expected"},
		"no_yaml":      {"log: [\n", "config file"},
		"bad_value":    {"log: loud\n", `log level "loud"`},
		"bad_host":     {"host: tcp://x\n", `host "tcp://x"`},
		"relative_dir": {"data_dir: data\n", "an absolute path"},
		"negative":     {"sandbox_max: -1\n", `"-1"`},
		"bad_idle":     {"sandbox_idle_timeout: soon\n", `idle timeout "soon"`},
		"bad_count":    {"sandbox_max_per_owner: many\n", `number "many"`},
		"no_execs":     {"exec_keep: 0\n", `finished execs "0"`},
		"no_output":    {"exec_keep_bytes: 0\n", `finished execs "0"`},
		"bad_size":     {"sandbox_memory: lots\n", `size "lots"`},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			writeConfig(t, filepath.Join(home, ".config/taibox/config.yaml"), c.text)
			_, errs, code := dump(t, home, nil)
			if code != exitUsage || !strings.Contains(errs, c.want) || !strings.Contains(errs, filepath.Join(home, ".config")) {
				t.Errorf("code %d, stderr %q; want code 2 and %q with the file's name", code, errs, c.want)
			}
		})
	}
	if _, errs, code := dump(t, "", nil, "--config", "/no/such.yaml"); code != exitUsage || !strings.Contains(errs, "/no/such.yaml") {
		t.Errorf("a missing --config: code %d, stderr %q", code, errs)
	}
	if _, errs, code := dump(t, "", map[string]string{"TAIBOX_LOG": "loud"}); code != exitUsage || !strings.Contains(errs, "env TAIBOX_LOG") {
		t.Errorf("a bad variable: code %d, stderr %q", code, errs)
	}
}

func TestEmptyConfig(t *testing.T) {
	home := t.TempDir()
	writeConfig(t, filepath.Join(home, ".config/taibox/config.yaml"), "# nothing\n")
	if _, errs, code := dump(t, home, nil); code != exitOK {
		t.Errorf("code %d, stderr %q", code, errs)
	}
}

// TestServeSettings: what is set reaches the server.
func TestServeSettings(t *testing.T) {
	got, errs, code := served(t, "listen: localhost\nexec_keep: 7\n", map[string]string{"TAIBOX_DATA_DIR": "/other", "TAIBOX_EXEC_KEEP_BYTES": "10m"})
	if code != exitOK || got.Listen != "localhost:0" || got.KeepExecs != 7 || got.KeepExecBytes != 10<<20 {
		t.Errorf("code %d, %q, %+v", code, errs, got)
	}
	got, errs, code = served(t, "", nil, "--listen", "localhost")
	if code != exitOK || got.Listen != "localhost:7600" || got.KeepExecs != 1000 || got.KeepExecBytes != 1<<30 {
		t.Errorf("defaults: code %d, %q, %+v", code, errs, got)
	}
}
