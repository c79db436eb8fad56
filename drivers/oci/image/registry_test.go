package image_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/tai/sandbox"
)

// faulty is a real registry behind a handler that a test tells what to spoil.
type faulty struct {
	*httptest.Server
	real http.Handler

	mu    sync.Mutex
	spoil func(w http.ResponseWriter, r *http.Request) bool // true: the answer was given
	seen  []string                                          // "GET /v2/…"
}

func newRegistry(t *testing.T, start func(*httptest.Server)) *faulty {
	t.Helper()
	f := &faulty{real: registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)))}
	f.Server = httptest.NewUnstartedServer(f)
	f.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	start(f.Server)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// plainRegistry is one that speaks HTTP on a loopback address.
func plainRegistry(t *testing.T) *faulty { return newRegistry(t, (*httptest.Server).Start) }

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.seen = append(f.seen, r.Method+" "+r.URL.Path)
	spoil := f.spoil
	f.mu.Unlock()
	if spoil != nil && spoil(w, r) {
		return
	}
	f.serve(w, r)
}

// serve has the real registry answer, which knows no range without an end.
func (f *faulty) serve(w http.ResponseWriter, r *http.Request) {
	if from, open := strings.CutSuffix(r.Header.Get("Range"), "-"); open {
		head := httptest.NewRecorder()
		f.real.ServeHTTP(head, httptest.NewRequest(http.MethodHead, r.URL.Path, nil))
		if size, err := strconv.Atoi(head.Header().Get("Content-Length")); err == nil {
			r.Header.Set("Range", fmt.Sprintf("%s-%d", from, size-1))
		}
	}
	f.real.ServeHTTP(w, r)
}

// set changes what is spoiled, and forgets what was asked for.
func (f *faulty) set(spoil func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spoil, f.seen = spoil, nil
}

func (f *faulty) count(prefix string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, s := range f.seen {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

// host is the registry's name in references.
func (f *faulty) host() string {
	_, host, _ := strings.Cut(f.URL, "://")
	return host
}

// pushed makes an image of random layers and puts it into the registry.
func (f *faulty) pushed(t *testing.T, repo string, size int64, layers int, change ...func(*v1.ConfigFile)) v1.Image {
	t.Helper()
	img, err := random.Image(size, int64(layers))
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", goruntime.GOARCH
	for _, c := range change {
		c(cf)
	}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	f.push(t, repo, img)
	return img
}

// push puts an image into the registry, past what is spoiled.
func (f *faulty) push(t *testing.T, repo string, img v1.Image) {
	t.Helper()
	base, tag, _ := strings.Cut(repo, ":")
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	config, err := partial.ConfigLayer(img)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range append(layers, config) {
		d, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		blob, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		f.put(t, http.MethodPost, "/v2/"+base+"/blobs/uploads/?digest="+d.String(), "application/octet-stream", blob)
	}
	f.putManifest(t, base, tag, img)
}

// manifest is an image or an index.
type manifest interface {
	RawManifest() ([]byte, error)
	MediaType() (types.MediaType, error)
}

func (f *faulty) putManifest(t *testing.T, base, tag string, m manifest) {
	t.Helper()
	raw, err := m.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	mediaType, err := m.MediaType()
	if err != nil {
		t.Fatal(err)
	}
	f.put(t, http.MethodPut, "/v2/"+base+"/manifests/"+tag, string(mediaType), bytes.NewReader(raw))
}

func (f *faulty) put(t *testing.T, method, path, mediaType string, body io.Reader) {
	t.Helper()
	r := httptest.NewRequest(method, path, body)
	r.Header.Set("Content-Type", mediaType)
	w := httptest.NewRecorder()
	if f.real.ServeHTTP(w, r); w.Code != http.StatusCreated {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
}

func digestOf(t *testing.T, img v1.Image) string {
	t.Helper()
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// blobPath matches requests for the blob of a layer.
func blobPath(t *testing.T, img v1.Image, layer int) string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	d, err := layers[layer].Digest()
	if err != nil {
		t.Fatal(err)
	}
	return "/blobs/" + d.String()
}

// openFor opens a store with settings for registries.
func openFor(t *testing.T, change func(*image.Config)) *image.Store {
	t.Helper()
	needRoot(t)
	cfg := image.Config{Dir: filepath.Join(t.TempDir(), "images"), Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Stall: 20 * time.Second}
	if change != nil {
		change(&cfg)
	}
	s, err := image.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// pull pulls and waits. It checks that progress never falls and that the last
// element, and no other, says how it ended.
func pull(t *testing.T, ctx context.Context, s *image.Store, ref string, auth *sandbox.RegistryAuth) (sandbox.PullProgress, error) { //nolint:revive // as all helpers here
	t.Helper()
	ch, err := s.Pull(ctx, ref, sandbox.PullOptions{Auth: auth})
	if err != nil {
		return sandbox.PullProgress{}, err
	}
	return follow(t, ch)
}

// follow is the second half of pull.
func follow(t *testing.T, ch <-chan sandbox.PullProgress) (sandbox.PullProgress, error) {
	t.Helper()
	var last sandbox.PullProgress
	at := map[string]int64{}
	for p := range ch {
		if last.Err != nil || last.Status == sandbox.PullComplete {
			t.Errorf("%+v comes after the end %+v", p, last)
		}
		if p.Layer != "" && (p.Current < at[p.Layer] || p.Current > p.Total) {
			t.Errorf("layer %s is at %d of %d, and was at %d", p.Layer, p.Current, p.Total, at[p.Layer])
		}
		at[p.Layer] = p.Current
		last = p
	}
	if (last.Err == nil) != (last.Status == sandbox.PullComplete) || (last.Err == nil) != (last.Error == "") {
		t.Errorf("it ends with %+v", last)
	}
	return last, last.Err
}

func mustPull(t *testing.T, s *image.Store, ref string) sandbox.PullProgress {
	t.Helper()
	last, err := pull(t, t.Context(), s, ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	return last
}

func answer(w http.ResponseWriter, status int, header ...string) bool {
	for i := 0; i < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.WriteHeader(status)
	return true
}

// guarded makes the registry ask for a token of its realm, which takes a name
// and a password.
func (f *faulty) guarded(realm, user, password string) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		basic := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
		switch {
		case r.URL.Path == "/token" && r.Method == http.MethodPost:
			return answer(w, http.StatusNotFound) // as registries without OAuth
		case r.URL.Path == "/token":
			if r.Header.Get("Authorization") != basic {
				return answer(w, http.StatusUnauthorized)
			}
			fmt.Fprint(w, `{"token":"good","expires_in":1}`)
			return true
		case r.Header.Get("Authorization") == "Bearer good":
			return false
		}
		return answer(w, http.StatusUnauthorized, "WWW-Authenticate", `Bearer realm="`+realm+`",service="s"`)
	}
}

// cutting answers a GET of path with at most n bytes, then cuts the connection.
func (f *faulty) cutting(path string, n int, ranges bool) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, path) {
			return false
		}
		if !ranges {
			r.Header.Del("Range")
		}
		whole := httptest.NewRecorder()
		f.serve(whole, r)
		data := whole.Body.Bytes()
		maps.Copy(w.Header(), whole.Header())
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.WriteHeader(whole.Code)
		if len(data) <= n {
			io.Copy(w, bytes.NewReader(data))
			return true
		}
		w.Write(data[:n])
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}
