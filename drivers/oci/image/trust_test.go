package image_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

// caOf writes a server's certificate into a file.
func caOf(t *testing.T, f *faulty) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// otherCA writes the certificate of an authority that has signed nothing here.
func otherCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "other.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestR08_CAFile: a registry with a certificate of its own is spoken to by TLS
// where that is configured, for this registry and no other.
func TestR08_CAFile(t *testing.T) {
	f := newRegistry(t, (*httptest.Server).StartTLS)
	img := f.pushed(t, "a:1", 10<<10, 2)
	file := caOf(t, f)
	with := func(host string, r image.Registry) *image.Store {
		return openFor(t, func(c *image.Config) { c.Registries = map[string]image.Registry{host: r} })
	}
	if last := mustPull(t, with(f.host(), image.Registry{CAFile: file}), f.host()+"/a:1"); last.Digest != digestOf(t, img) {
		t.Errorf("it is %s", last.Digest)
	}
	t.Run("mirror", func(t *testing.T) {
		s := openFor(t, func(c *image.Config) {
			c.Registries = map[string]image.Registry{"example.test": {Mirrors: []string{f.host()}}, f.host(): {CAFile: file}}
		})
		mustPull(t, s, "example.test/a:1")
	})
	t.Run("for_another", func(t *testing.T) {
		// The same server by another name, whose entry has no file.
		_, port, _ := strings.Cut(f.host(), ":")
		s := openFor(t, func(c *image.Config) {
			c.Registries = map[string]image.Registry{f.host(): {CAFile: file}, "example.test": {Mirrors: []string{"localhost:" + port}}}
		})
		if _, err := pull(t, t.Context(), s, "localhost:"+port+"/a:1", nil); err == nil {
			t.Error("another registry was believed for its certificate")
		}
	})
	t.Run("wrong_ca", func(t *testing.T) {
		f.set(nil)
		_, err := pull(t, t.Context(), with(f.host(), image.Registry{CAFile: otherCA(t)}), f.host()+"/a:1", nil)
		if !errors.Is(err, sandbox.ErrRegistryUnavailable) || !strings.Contains(reason.Hint(err), "ca_file") {
			t.Errorf("%v, hint %q", err, reason.Hint(err))
		}
		if n := f.count(""); n != 0 {
			t.Errorf("%d requests were made", n)
		}
	})
	t.Run("plain_server", func(t *testing.T) {
		// With a file TLS is due, on loopback too: no silent step back.
		p := plainRegistry(t)
		p.pushed(t, "a:1", 10<<10, 1)
		p.set(nil)
		if _, err := pull(t, t.Context(), with(p.host(), image.Registry{CAFile: file}), p.host()+"/a:1", nil); !errors.Is(err, sandbox.ErrRegistryUnavailable) || p.count("") != 0 {
			t.Errorf("%v, %d requests", err, p.count(""))
		}
	})
	for name, path := range map[string]string{"no_file": "/no/such.pem", "no_pem": os.Args[0]} {
		t.Run(name, func(t *testing.T) {
			if _, err := pull(t, t.Context(), with(f.host(), image.Registry{CAFile: path}), f.host()+"/a:1", nil); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestR02_AnonymousRetry: credentials that are refused break the pull of a
// public image, unless it is configured that they do not.
func TestR02_AnonymousRetry(t *testing.T) {
	f := plainRegistry(t)
	f.pushed(t, "a:1", 10<<10, 2)
	ref := f.host() + "/a:1"
	stale := &sandbox.RegistryAuth{Username: "u", Password: secret}
	var askedWith, askedWithout atomic.Int64
	// The registry gives a token to anybody, but none for wrong credentials.
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		_, _, has := r.BasicAuth()
		switch {
		case r.URL.Path == "/token" && r.Method == http.MethodPost:
			return answer(w, http.StatusNotFound)
		case r.URL.Path == "/token" && has:
			askedWith.Add(1)
			return answer(w, http.StatusUnauthorized)
		case r.URL.Path == "/token":
			askedWithout.Add(1)
			w.Write([]byte(`{"token":"good"}`))
			return true
		case r.Header.Get("Authorization") == "Bearer good":
			return false
		}
		return answer(w, http.StatusUnauthorized, "WWW-Authenticate", `Bearer realm="`+f.URL+`/token",service="s"`)
	})
	if _, err := pull(t, t.Context(), openFor(t, nil), ref, stale); !errors.Is(err, sandbox.ErrRegistryAuth) || askedWithout.Load() != 0 {
		t.Errorf("not configured: %v, asked %d times without", err, askedWithout.Load())
	}
	configured := func(host string) *image.Store {
		return openFor(t, func(c *image.Config) { c.Registries = map[string]image.Registry{host: {AnonymousRetry: true}} })
	}
	if _, err := pull(t, t.Context(), configured("other.test"), ref, stale); !errors.Is(err, sandbox.ErrRegistryAuth) {
		t.Errorf("configured for another registry: %v", err)
	}
	askedWith.Store(0)
	if _, err := pull(t, t.Context(), configured(f.host()), ref, stale); err != nil || askedWith.Load() == 0 {
		t.Errorf("configured: %v, asked %d times with", err, askedWith.Load())
	}
	// What is not public stays closed.
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		return answer(w, http.StatusUnauthorized, "WWW-Authenticate", `Basic realm="r"`)
	})
	if _, err := pull(t, t.Context(), configured(f.host()), ref, stale); !errors.Is(err, sandbox.ErrRegistryAuth) || strings.Contains(err.Error(), secret) {
		t.Errorf("a private image: %v", err)
	}
}

// TestR02_TokenErrors: what goes wrong where tokens are given has a name, too.
func TestR02_TokenErrors(t *testing.T) {
	f := plainRegistry(t)
	f.pushed(t, "a:1", 10<<10, 1)
	s := openFor(t, nil)
	good := &sandbox.RegistryAuth{Username: "u", Password: secret}
	for _, c := range []struct {
		status int
		header []string
		want   error
	}{
		{http.StatusUnauthorized, nil, sandbox.ErrRegistryAuth},
		{http.StatusForbidden, nil, sandbox.ErrRegistryAuth},
		{http.StatusTooManyRequests, []string{"Retry-After", "3600"}, sandbox.ErrRegistryLimit},
		{http.StatusNotFound, nil, nil}, // any failure that is told
	} {
		for name, auth := range map[string]*sandbox.RegistryAuth{"nobody": nil, "somebody": good} {
			var asked atomic.Int64
			f.set(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/token" {
					asked.Add(1)
					return answer(w, c.status, c.header...)
				}
				return answer(w, http.StatusUnauthorized, "WWW-Authenticate", `Bearer realm="`+f.URL+`/token",service="s"`)
			})
			_, err := pull(t, t.Context(), s, f.host()+"/a:1", auth)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || reason.Of(err) == "" || strings.Contains(err.Error(), secret) {
				t.Errorf("%d for %s: %v", c.status, name, err)
			}
			if n := asked.Load(); n == 0 || n > 8 {
				t.Errorf("%d for %s: %d requests for a token", c.status, name, n)
			}
		}
	}
}

// TestR02_TokenExpires: a token that ends between two layers is replaced.
func TestR02_TokenExpires(t *testing.T) {
	f := plainRegistry(t)
	f.pushed(t, "a:1", 50<<10, 4)
	var tokens, blobs atomic.Int64
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/token" && r.Method == http.MethodPost:
			return answer(w, http.StatusNotFound)
		case r.URL.Path == "/token":
			fmt.Fprintf(w, `{"token":"t%d"}`, tokens.Add(1))
			return true
		case r.Header.Get("Authorization") == fmt.Sprintf("Bearer t%d", tokens.Load()) && tokens.Load() > 0:
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && blobs.Add(1) == 2 {
				tokens.Add(1) // from now on the old one is nothing
			}
			return false
		}
		return answer(w, http.StatusUnauthorized, "WWW-Authenticate", `Bearer realm="`+f.URL+`/token",service="s",error="invalid_token"`)
	})
	if _, err := pull(t, t.Context(), openFor(t, nil), f.host()+"/a:1", &sandbox.RegistryAuth{Username: "u", Password: secret}); err != nil {
		t.Error(err)
	}
	if tokens.Load() < 3 {
		t.Errorf("%d tokens: none was replaced", tokens.Load())
	}
}

// TestR08_Downgrade: a registry with TLS that sends us on to plain HTTP is not
// followed.
func TestR08_Downgrade(t *testing.T) {
	plain := plainRegistry(t)
	plain.pushed(t, "a:1", 10<<10, 1)
	f := newRegistry(t, (*httptest.Server).StartTLS)
	img := f.pushed(t, "a:1", 10<<10, 1)
	file := caOf(t, f)
	s := openFor(t, func(c *image.Config) { c.Registries = map[string]image.Registry{f.host(): {CAFile: file}} })
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, blobPath(t, img, 0)) &&
			answer(w, http.StatusTemporaryRedirect, "Location", plain.URL+r.URL.Path)
	})
	plain.set(nil)
	if _, err := pull(t, t.Context(), s, f.host()+"/a:1", nil); !errors.Is(err, sandbox.ErrRegistryInsecure) || plain.count("") != 0 {
		t.Errorf("%v, %d requests by plain HTTP", err, plain.count(""))
	}
}

// TestR08_IPv6: loopback is loopback in both families.
func TestR08_IPv6(t *testing.T) {
	f := newRegistry(t, func(s *httptest.Server) {
		l, err := net.Listen("tcp", "[::1]:0")
		if err != nil {
			t.Skip(err)
		}
		s.Listener.Close()
		s.Listener = l
		s.Start()
	})
	f.pushed(t, "a:1", 10<<10, 1)
	mustPull(t, openFor(t, nil), f.host()+"/a:1")
}
