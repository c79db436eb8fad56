package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/api/rest"
)

// TestDockerAuth: credentials as docker login keeps them, in each of its ways.
func TestDockerAuth(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("docker-credential-tester", `#!/bin/sh
read -r server
case $server in
  helped.test) echo '{"ServerURL":"helped.test","Username":"h","Secret":"helper"}' ;;
  token.test) echo '{"Username":"<token>","Secret":"identity"}' ;;
  broken.test) echo oops; exit 1 ;;
  *) echo 'credentials not found in native keychain'; exit 1 ;;
esac
`, 0o755)
	write("config.json", `{
	  "auths": {
	    "https://index.docker.io/v1/": {"auth": "aHViOmh1YnBhc3M="},
	    "plain.test:5000": {"username": "p", "password": "x:y"},
	    "https://old.test/v2/": {"auth": "bzpvbGQ6cGFzcw=="},
	    "id.test": {"auth": "PHRva2VuPjo=", "identitytoken": "it"},
	    "empty.test": {}
	  },
	  "credHelpers": {"helped.test": "tester", "token.test": "tester", "none.test": "tester", "broken.test": "tester", "path.test": "../x"}
	}`, 0o600)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	env := &Env{LookupEnv: variables(map[string]string{"DOCKER_CONFIG": dir})}
	for ref, want := range map[string]*rest.RegistryAuth{
		"alpine":                {Username: "hub", Password: "hubpass"},
		"docker.io/a/b":         {Username: "hub", Password: "hubpass"},
		"plain.test:5000/a":     {Username: "p", Password: "x:y"},
		"plain.test/a":          nil,
		"old.test/a/b:1":        {Username: "o", Password: "old:pass"},
		"id.test/a":             {Password: "it"},
		"empty.test/a":          nil,
		"helped.test/a":         {Username: "h", Password: "helper"},
		"token.test/a":          {Password: "identity"},
		"none.test/a":           nil,
		"elsewhere.test/a":      nil,
		"docker.io.evil.test/a": nil,
		"NO":                    nil,
	} {
		got, err := env.dockerAuth(t.Context(), ref)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", ref, err, diff)
		}
	}
	for _, ref := range []string{"broken.test/a", "path.test/a"} {
		if got, err := env.dockerAuth(t.Context(), ref); err == nil {
			t.Errorf("%s: %+v", ref, got)
		}
	}
	write("config.json", "{", 0o600)
	if _, err := env.dockerAuth(t.Context(), "alpine"); err == nil {
		t.Error("a broken file is no error")
	}
	for _, env := range []*Env{{LookupEnv: variables(nil)}, {Home: dir, LookupEnv: variables(nil)}} {
		if got, err := env.dockerAuth(t.Context(), "alpine"); got != nil || err != nil {
			t.Errorf("without a file: %+v, %v", got, err)
		}
	}
}

// TestNamesRegistry: only a name that has its registry is fetched unasked.
func TestNamesRegistry(t *testing.T) {
	for ref, want := range map[string]bool{
		"alpine": false, "alpine:3": false, "library/alpine": false, "kept:1": false,
		"docker.io/library/alpine": true, "ghcr.io/a/b": true, "localhost/a": true, "localhost:5000/a": true, "127.0.0.1:5000/a@sha256:0": true, "r:5000/a": true,
	} {
		if got := namesRegistry(ref); got != want {
			t.Errorf("%s: %v", ref, got)
		}
	}
}

func TestRegistriesSetting(t *testing.T) {
	f, err := parseConfig("f", []byte("registries:\n  docker.io: {mirrors: [m.test, 'n.test:5000']}\n  lan:5000: {plain_http: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := &settings{}
	if err := setRegistries(s, f.values["registries"]); err != nil {
		t.Fatal(err)
	}
	want := map[string]Registry{"docker.io": {Mirrors: []string{"m.test", "n.test:5000"}}, "lan:5000": {PlainHTTP: true}}
	if diff := cmp.Diff(want, s.Registries); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"x", "{a: {mirror: [b]}}", "{'http://a': {}}", "{a: {mirrors: ['b/c']}}", "[a]"} {
		if err := setRegistries(s, bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
