package image_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

// TestR08_PlainHTTP: TLS everywhere but on loopback and where it is configured.
func TestR08_PlainHTTP(t *testing.T) {
	plain := plainRegistry(t)
	plain.pushed(t, "a:1", 10<<10, 1)
	tls := newRegistry(t, (*httptest.Server).StartTLS)
	_, port, _ := strings.Cut(plain.host(), ":")
	s := openFor(t, nil)
	for _, host := range []string{plain.host(), "localhost:" + port} {
		mustPull(t, s, host+"/a:1")
	}
	t.Run("mirror", func(t *testing.T) {
		s := openFor(t, func(c *image.Config) {
			c.Registries = map[string]image.Registry{"example.test": {Mirrors: []string{plain.host()}}}
		})
		mustPull(t, s, "example.test/a:1")
		if there, err := s.Exists(t.Context(), "example.test/a:1"); !there || err != nil {
			t.Errorf("%v %v", there, err)
		}
	})
	t.Run("no fallback", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Second, errors.New("too slow"))
		defer cancel()
		plain.set(nil)
		if _, err := pull(t, ctx, s, "127.0.0.1.example.invalid:"+port+"/a:1", nil); !errors.Is(err, sandbox.ErrRegistryUnavailable) {
			t.Errorf("%v", err)
		}
		if plain.count("") != 0 {
			t.Error("the registry was spoken to without TLS")
		}
	})
	// On loopback TLS is not tried.
	if _, err := pull(t, t.Context(), s, tls.host()+"/a:1", nil); err == nil {
		t.Error("a registry with TLS was understood as one without")
	}
}

// TestR08_Hint: what went wrong with TLS comes with the setting for it.
func TestR08_Hint(t *testing.T) {
	err := image.RegistryError(t.Context(), errors.New("http: server gave HTTP response to HTTPS client"))
	if !errors.Is(err, sandbox.ErrRegistryUnavailable) || !strings.Contains(reason.Hint(err), "plain_http") {
		t.Errorf("%v, hint %q", err, reason.Hint(err))
	}
}

// TestR10_TagMoves: the tag is looked up once, whatever happens to it later.
func TestR10_TagMoves(t *testing.T) {
	f := plainRegistry(t)
	old := f.pushed(t, "a:1", 50<<10, 2)
	next := f.pushed(t, "a:next", 50<<10, 2)
	s := openFor(t, nil)
	var moved atomic.Bool
	f.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") && moved.CompareAndSwap(false, true) {
			f.putManifest(t, "a", "1", next)
		}
		return false
	})
	if last := mustPull(t, s, f.host()+"/a:1"); last.Digest != digestOf(t, old) || !moved.Load() {
		t.Errorf("%s is not the image that the tag meant", last.Digest)
	}
	f.set(nil)
	if last := mustPull(t, s, f.host()+"/a:1"); last.Digest != digestOf(t, next) {
		t.Errorf("pulled again it is %s", last.Digest)
	}
}
