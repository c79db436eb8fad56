package image

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/taibox/taibox/tai/sandbox"
)

// TestR08_Guard: what a pull may speak to without TLS, and whom it may send
// credentials.
func TestR08_Guard(t *testing.T) {
	const basic = "Basic dTpw"
	from := func(url string) *http.Response {
		return &http.Response{Request: httptest.NewRequest(http.MethodGet, url, nil)}
	}
	for _, c := range []struct {
		domain, url, auth, redirected string
		ok                            bool
	}{
		{domain: "example.com", url: "https://example.com/v2/", ok: true},
		{domain: "example.com", url: "http://example.com/v2/"},
		{domain: "localhost", url: "http://localhost/v2/", ok: true},
		{domain: "127.0.0.1:5000", url: "http://127.0.0.1:5000/v2/", ok: true},
		{domain: "127.8.9.10", url: "http://127.8.9.10/v2/", ok: true},
		{domain: "[::1]:5000", url: "http://[::1]:5000/v2/", ok: true},
		{domain: "localhost.example.com", url: "http://localhost.example.com/"},
		{domain: "127.0.0.1.example.com", url: "http://127.0.0.1.example.com/"},
		{domain: "10.0.0.1:5000", url: "http://10.0.0.1:5000/"},
		{domain: "plain.lan:5000", url: "http://plain.lan:5000/", ok: true},
		{domain: "plain.lan", url: "http://plain.lan/"}, // the port is part of the name
		{domain: "example.com", url: "https://cdn.test/blob", redirected: "https://example.com/v2/", ok: true},
		{domain: "example.com", url: "http://127.0.0.1/blob", redirected: "https://example.com/v2/"},
		{domain: "example.com", url: "http://cdn.test/blob", redirected: "https://example.com/v2/"},

		{domain: "docker.io", url: "https://auth.docker.io/token", auth: basic, ok: true},
		{domain: "docker.io", url: "https://registry-1.docker.io/v2/", auth: basic, ok: true},
		{domain: "docker.io", url: "https://auth.docker.io.evil.test/token", auth: basic},
		{domain: "a.co.uk", url: "https://b.co.uk/token", auth: basic},
		{domain: "team.github.io", url: "https://evil.github.io/token", auth: basic},
		{domain: "10.0.0.1:5000", url: "https://10.0.0.1:5001/token", auth: basic, ok: true},
		{domain: "10.0.0.1:5000", url: "https://10.0.0.2:5000/token", auth: basic},
		{domain: "example.com", url: "https://evil.test/token", auth: basic},
		{domain: "example.com", url: "http://localhost/token", auth: basic},
		{domain: "example.com", url: "https://other.test/v2/", auth: "Bearer x", ok: true}, // a mirror's own
	} {
		g := &guard{registries: map[string]Registry{"plain.lan:5000": {PlainHTTP: true}}, domain: c.domain}
		r := httptest.NewRequest(http.MethodGet, c.url, nil)
		if c.auth != "" {
			r.Header.Set("Authorization", c.auth)
		}
		if c.redirected != "" {
			r.Response = from(c.redirected)
		}
		if err := g.check(r); (err == nil) != c.ok || err != nil && !errors.Is(err, sandbox.ErrRegistryInsecure) {
			t.Errorf("image of %s, request to %s %q: %v", c.domain, c.url, c.auth, err)
		}
	}
}

// TestServerHost: servers, as people and Docker write them.
func TestServerHost(t *testing.T) {
	for in, want := range map[string]string{
		"https://index.docker.io/v1/": "docker.io", "docker.io": "docker.io", "registry-1.docker.io": "docker.io",
		"ghcr.io": "ghcr.io", "https://r.test:5000/v2/": "r.test:5000", "r.test:5000": "r.test:5000", "[::1]:5000": "[::1]:5000",
	} {
		if got := serverHost(in); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
}
