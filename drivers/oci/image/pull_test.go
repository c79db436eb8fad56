package image_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/internal/tracing"
	"github.com/taibox/taibox/tai/sandbox"
)

func TestPull(t *testing.T) {
	f := plainRegistry(t)
	img := f.pushed(t, "a/b:1", 100<<10, 3)
	s := openFor(t, nil)
	ref := f.host() + "/a/b:1"
	if last := mustPull(t, s, ref); last.Digest != digestOf(t, img) {
		t.Errorf("it ends with %+v, want %s", last, digestOf(t, img))
	}
	for _, r := range []string{ref, digestOf(t, img), f.host() + "/a/b@" + digestOf(t, img)} {
		if there, err := s.Exists(t.Context(), r); !there || err != nil {
			t.Errorf("%s is there: %v, %v", r, there, err)
		}
	}
	got, err := s.Resolve(t.Context(), ref)
	if err != nil || len(got.Lowers) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	got.Release()
	f.set(nil)
	mustPull(t, s, f.host()+"/a/b@"+digestOf(t, img))
	if n := f.count("GET /v2/a/b/blobs"); n != 0 {
		t.Errorf("%d blobs were fetched that are there", n)
	}
	for _, bad := range []string{"", "UPPER", "hostfs", "sha256:" + strings.Repeat("0", 64)} {
		if _, err := s.Pull(t.Context(), bad, sandbox.PullOptions{}); !errors.Is(err, sandbox.ErrImageRef) {
			t.Errorf("pull %q: %v", bad, err)
		}
	}
}

// TestPullPlatform: of an index only what this machine runs is fetched.
func TestPullPlatform(t *testing.T) {
	f := plainRegistry(t)
	ours := f.pushed(t, "x:ours", 10<<10, 1)
	other := f.pushed(t, "x:other", 10<<10, 1, func(c *v1.ConfigFile) { c.Architecture = "s390x" })
	s := openFor(t, nil)
	if _, err := pull(t, t.Context(), s, f.host()+"/x:other", nil); !errors.Is(err, sandbox.ErrImagePlatform) {
		t.Errorf("an image for another platform: %v", err)
	}
	var index v1.ImageIndex = empty.Index
	for _, i := range []v1.Image{other, ours} {
		c, err := i.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i, Descriptor: v1.Descriptor{Platform: c.Platform()}})
	}
	for _, i := range []v1.Image{ours, other} {
		f.putManifest(t, "x", digestOf(t, i), i)
	}
	f.putManifest(t, "x", "index", index)
	f.set(nil)
	if last := mustPull(t, s, f.host()+"/x:index"); last.Digest != digestOf(t, ours) {
		t.Errorf("%s instead of %s", last.Digest, digestOf(t, ours))
	}
	if n := f.count("GET /v2/x" + blobPath(t, other, 0)); n != 0 {
		t.Error("a layer for another platform was fetched")
	}
	d, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	byIndex := f.host() + "/x@" + d.String()
	mustPull(t, s, byIndex)
	if there, err := s.Exists(t.Context(), byIndex); !there || err != nil {
		t.Errorf("by the index's digest: %v, %v", there, err)
	}
}

// TestR01_FailureIsLast: a pull that failed says so, and leaves no image.
func TestR01_FailureIsLast(t *testing.T) {
	f := plainRegistry(t)
	img := f.pushed(t, "a:1", 10<<10, 2)
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		return strings.HasSuffix(r.URL.Path, blobPath(t, img, 1)) && answer(w, http.StatusForbidden)
	})
	s := openFor(t, nil)
	last, err := pull(t, t.Context(), s, f.host()+"/a:1", nil)
	if !errors.Is(err, sandbox.ErrRegistryAuth) || !strings.Contains(last.Error, "a:1") {
		t.Errorf("it ends with %+v", last)
	}
	if there, err := s.Exists(t.Context(), f.host()+"/a:1"); there || err != nil {
		t.Errorf("the image is there: %v, %v", there, err)
	}
}

// TestR02_TypedErrors: what is wrong has a name, wherever it goes wrong.
func TestR02_TypedErrors(t *testing.T) {
	f := plainRegistry(t)
	img := f.pushed(t, "a:1", 10<<10, 1)
	s := openFor(t, nil)
	for where, path := range map[string]string{"manifest": "/manifests/1", "blob": blobPath(t, img, 0)} {
		for status, want := range map[int]error{
			http.StatusForbidden: sandbox.ErrRegistryAuth, http.StatusUnauthorized: sandbox.ErrRegistryAuth, http.StatusNotFound: sandbox.ErrRegistryNotFound,
		} {
			f.set(func(w http.ResponseWriter, r *http.Request) bool {
				return strings.HasSuffix(r.URL.Path, path) && answer(w, status, "WWW-Authenticate", `Basic realm="r"`)
			})
			if _, err := pull(t, t.Context(), s, f.host()+"/a:1", nil); !errors.Is(err, want) {
				t.Errorf("%d at %s: %v", status, where, err)
			}
		}
		f.set(func(w http.ResponseWriter, r *http.Request) bool {
			return strings.HasSuffix(r.URL.Path, path) && answer(w, http.StatusTooManyRequests, "Retry-After", "3600")
		})
		_, err := pull(t, t.Context(), s, f.host()+"/a:1", nil)
		if !errors.Is(err, sandbox.ErrRegistryLimit) || !strings.Contains(err.Error(), "come again at") {
			t.Errorf("limited for an hour at %s: %v", where, err)
		}
		if n := f.count("HEAD /v2/a/manifests") + f.count("GET /v2/a/blobs"); n > 3 {
			t.Errorf("the limit was answered with %d requests", n)
		}
		for name, after := range map[string]string{"seconds": "1", "date": time.Now().Add(time.Second).UTC().Format(http.TimeFormat), "nothing": ""} {
			var failed atomic.Int64
			var came atomic.Bool
			began := time.Now()
			f.set(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, path) || failed.Add(1) > 1 {
					if strings.HasSuffix(r.URL.Path, path) && name == "seconds" && time.Since(began) < time.Second {
						came.Store(true)
					}
					return false
				}
				return answer(w, http.StatusTooManyRequests, "Retry-After", after)
			})
			if _, err := pull(t, t.Context(), s, f.host()+"/a:1", nil); err != nil || came.Load() {
				t.Errorf("limited for %s at %s: %v, came early: %v", name, where, err, came.Load())
			}
			s.RemoveImage(t.Context(), f.host()+"/a:1")
			s.Prune(t.Context(), true)
		}
	}
}

const secret = "s3cr3t-w0rd"

// TestR02_Credentials: they open the door, are sent to nobody else, and are
// seen nowhere.
func TestR02_Credentials(t *testing.T) {
	f := plainRegistry(t)
	f.pushed(t, "a:1", 10<<10, 3)
	ref := f.host() + "/a:1"
	s := openFor(t, nil)
	good := &sandbox.RegistryAuth{Username: "u", Password: secret}
	var leaked atomic.Bool
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.ParseForm()
		if r.Header.Get("Authorization") != "" || r.PostForm.Get("password") != "" {
			leaked.Store(true)
		}
		fmt.Fprint(w, `{"token":"good"}`)
	}))
	defer foreign.Close()
	elsewhere := strings.Replace(foreign.URL, "127.0.0.1", "localhost", 1)
	basic := func(w http.ResponseWriter, r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		return (user != "u" || password != secret) && answer(w, http.StatusUnauthorized, "WWW-Authenticate", `Basic realm="r"`)
	}
	for _, c := range []struct {
		name  string
		spoil func(http.ResponseWriter, *http.Request) bool
		auth  *sandbox.RegistryAuth
		want  error
	}{
		{"token", f.guarded(f.URL+"/token", "u", secret), good, nil},
		{"token, wrong password", f.guarded(f.URL+"/token", "u", secret), &sandbox.RegistryAuth{Username: "u", Password: "wrong-" + secret}, sandbox.ErrRegistryAuth},
		{"token, nobody", f.guarded(f.URL+"/token", "u", secret), nil, sandbox.ErrRegistryAuth},
		{"for another registry", f.guarded(f.URL+"/token", "u", secret), &sandbox.RegistryAuth{Username: "u", Password: secret, Server: "https://other.test/v1/"}, sandbox.ErrRegistryAuth},
		{"basic", basic, good, nil},
		{"basic, nobody", basic, nil, sandbox.ErrRegistryAuth},
		{"foreign realm", f.guarded(elsewhere+"/token", "u", secret), good, sandbox.ErrRegistryInsecure},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.set(c.spoil)
			_, err := pull(t, t.Context(), s, ref, c.auth)
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("%v", err)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the password is in the error: %v", err)
			}
			if err == nil {
				s.RemoveImage(t.Context(), ref)
			}
		})
	}
	if leaked.Load() {
		t.Error("credentials were sent to a foreign realm")
	}
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %s %q", good, good, good, good, *good), fmt.Sprint(sandbox.PullOptions{Auth: good})} {
		if strings.Contains(text, secret) {
			t.Errorf("the password is printed: %s", text)
		}
	}
}

// TestR04_SharedWork: who wants the same gets it once; one who leaves, or whose
// connection dies, spoils nothing for the rest.
func TestR04_SharedWork(t *testing.T) {
	f := plainRegistry(t)
	img := f.pushed(t, "cold:1", 300<<10, 2)
	s := openFor(t, nil)
	reached, release := make(chan struct{}, 100), make(chan struct{})
	var died atomic.Bool
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			reached <- struct{}{}
			<-release
			if died.CompareAndSwap(false, true) {
				panic(http.ErrAbortHandler)
			}
		}
		return false
	})
	first, leave := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	var failed atomic.Int64
	for i := range 50 {
		ctx := t.Context()
		if i == 0 {
			ctx = first
		}
		ch, err := s.Pull(ctx, f.host()+"/cold:1", sandbox.PullOptions{}) // which is when it joins
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if _, err := follow(t, ch); err != nil {
				failed.Add(1)
			}
		})
	}
	<-reached
	leave(errors.New("changed my mind"))
	if _, err := s.Prune(t.Context(), true); err != nil { // collects at the same time
		t.Error(err)
	}
	close(release)
	wg.Wait()
	if n := failed.Load(); n != 1 {
		t.Errorf("%d pulls failed, want the one that left", n)
	}
	for i := range 2 {
		if n := f.count("GET /v2/cold" + blobPath(t, img, i)); n < 1 || n > 2 {
			t.Errorf("layer %d was asked for %d times", i, n)
		}
	}
	if n := f.count("HEAD /v2/cold/manifests/1"); n != 1 {
		t.Errorf("the tag was looked up %d times", n)
	}
}

// TestR04_LastLeaves: a pull that nobody waits for ends, and what it has is
// there for the next one.
func TestR04_LastLeaves(t *testing.T) {
	f := plainRegistry(t)
	img := f.pushed(t, "a:1", 200<<10, 2)
	s := openFor(t, nil)
	reached, hang := make(chan struct{}, 10), make(chan struct{})
	defer close(hang)
	f.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, blobPath(t, img, 1)) {
			reached <- struct{}{}
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			return true
		}
		return false
	})
	ctx, leave := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	ch, err := s.Pull(ctx, f.host()+"/a:1", sandbox.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := strings.TrimPrefix(blobPath(t, img, 0), "/blobs/")
	for p := range ch { // until the other layer has come
		if p.Layer == first && p.Status != sandbox.PullWaiting && p.Status != sandbox.PullDownloading {
			break
		}
	}
	<-reached
	leave(gone)
	if _, err := follow(t, ch); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	f.set(nil)
	mustPull(t, s, f.host()+"/a:1")
	if n := f.count("GET /v2/a" + blobPath(t, img, 0)); n != 0 {
		t.Errorf("a layer that was there was fetched %d times more", n)
	}
}

// TestR04_SharedBlobs: images that share a layer fetch it once.
func TestR04_SharedBlobs(t *testing.T) {
	f := plainRegistry(t)
	one := f.pushed(t, "a:1", 100<<10, 1)
	var refs []string
	for i := range 4 {
		img, err := mutate.Config(one, v1.Config{Env: []string{fmt.Sprint("N=", i)}})
		if err != nil {
			t.Fatal(err)
		}
		repo := fmt.Sprintf("a:v%d", i)
		f.push(t, repo, img)
		refs = append(refs, f.host()+"/"+repo)
	}
	s := openFor(t, nil)
	var wg sync.WaitGroup
	for _, ref := range refs {
		wg.Go(func() { mustPull(t, s, ref) })
	}
	wg.Wait()
	if n := f.count("GET /v2/a" + blobPath(t, one, 0)); n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
}

// TestR07_Resume: whatever happens on the way, the layer comes whole, what was
// there is not fetched again, and what is wrong is not kept.
func TestR07_Resume(t *testing.T) {
	const size = 4 << 20
	f := plainRegistry(t)
	img := f.pushed(t, "big:1", size, 1)
	path := blobPath(t, img, 0)
	get := func(r *http.Request) bool { return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, path) }
	var calls atomic.Int64
	cut := f.cutting(path, 1<<20, true)
	for name, spoil := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"cut every megabyte": cut,
		"no ranges": func(w http.ResponseWriter, r *http.Request) bool {
			if get(r) && calls.Add(1) > 3 {
				r.Header.Del("Range")
				return false
			}
			return f.cutting(path, 1<<20, false)(w, r)
		},
		"other bytes at the second try": func(w http.ResponseWriter, r *http.Request) bool {
			if get(r) && calls.Add(1) == 2 && r.Header.Get("Range") != "" {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", 1<<20, size-1, size))
				w.WriteHeader(http.StatusPartialContent)
				w.Write(make([]byte, 16<<20))
				return true
			}
			return calls.Load() == 1 && cut(w, r)
		},
		"refuses ranges": func(w http.ResponseWriter, r *http.Request) bool {
			if get(r) && r.Header.Get("Range") != "" {
				return answer(w, http.StatusRequestedRangeNotSatisfiable)
			}
			return calls.Add(1) < 4 && cut(w, r)
		},
		"fails at times": func(w http.ResponseWriter, r *http.Request) bool {
			return get(r) && calls.Add(1)%2 == 1 && answer(w, http.StatusBadGateway)
		},
		"stalls": func(w http.ResponseWriter, r *http.Request) bool {
			if !get(r) || calls.Add(1) > 1 {
				return false
			}
			w.Header().Set("Content-Length", fmt.Sprint(size))
			w.WriteHeader(http.StatusOK)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openFor(t, func(c *image.Config) { c.Stall = 500 * time.Millisecond })
			calls.Store(0)
			f.set(spoil)
			mustPull(t, s, f.host()+"/big:1")
			if n := f.count("GET /v2/big" + path); n > 12 {
				t.Errorf("it took %d requests", n)
			}
		})
	}
}

// TestR07_Corrupt: a blob that is not what its digest says never counts.
func TestR07_Corrupt(t *testing.T) {
	f := plainRegistry(t)
	img := f.pushed(t, "a:1", 100<<10, 2)
	s := openFor(t, nil)
	corrupt := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, blobPath(t, img, 1)) {
			return false
		}
		rec := httptest.NewRecorder()
		r.Header.Del("Range")
		f.real.ServeHTTP(rec, r)
		data := rec.Body.Bytes()
		data[len(data)/2] ^= 1
		w.Write(data)
		return true
	}
	f.set(corrupt)
	if _, err := pull(t, t.Context(), s, f.host()+"/a:1", nil); !errors.Is(err, sandbox.ErrImageCorrupt) {
		t.Errorf("%v", err)
	}
	f.set(nil)
	mustPull(t, s, f.host()+"/a:1")
	if n := f.count("GET /v2/a" + blobPath(t, img, 0)); n != 0 {
		t.Error("the good layer was fetched again")
	}
}

// TestR07_Pruned: what a failed pull leaves takes no space for ever.
func TestR07_Pruned(t *testing.T) {
	f := plainRegistry(t)
	img := f.pushed(t, "a:1", 1<<20, 2)
	dir := filepath.Join(t.TempDir(), "images")
	s := openFor(t, func(c *image.Config) { c.Dir = dir })
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		return strings.HasSuffix(r.URL.Path, blobPath(t, img, 1)) && answer(w, http.StatusForbidden)
	})
	if _, err := pull(t, t.Context(), s, f.host()+"/a:1", nil); err == nil {
		t.Fatal("no error")
	}
	if removed, err := s.Prune(t.Context(), false); err != nil || len(removed) != 0 {
		t.Fatalf("%v %v", removed, err)
	}
	blobs, err := os.ReadDir(filepath.Join(dir, "content", "blobs", "sha256"))
	if err != nil || len(blobs) != 0 {
		t.Errorf("%d blobs are left, %v", len(blobs), err)
	}
}

// TestPullSpans: in a traced request a pull shows where its time goes, by layer.
func TestPullSpans(t *testing.T) {
	f := plainRegistry(t)
	img := f.pushed(t, "a/b:1", 10<<10, 3)
	s := openFor(t, nil)
	rec := tracetest.NewSpanRecorder()
	ctx, root := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec)).Tracer("test").Start(t.Context(), "root")
	ch, err := s.Pull(ctx, f.host()+"/a/b:1", sandbox.PullOptions{Auth: &sandbox.RegistryAuth{Username: "ann", Password: "hunter2"}})
	if err != nil {
		t.Fatal(err)
	}
	for p := range ch {
		if p.Error != "" {
			t.Fatal(p.Error)
		}
	}
	root.End()
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	var pull trace.SpanContext
	for _, span := range rec.Ended() {
		if span.Name() == "image.pull" {
			pull = span.SpanContext()
		}
		if strings.Contains(fmt.Sprint(span.Attributes()), "hunter2") {
			t.Errorf("a password is in span %s", span.Name())
		}
	}
	for _, kind := range []string{"image.layer.fetch", "image.layer.unpack"} {
		for _, l := range manifest.Layers {
			if !slices.ContainsFunc(rec.Ended(), func(s sdktrace.ReadOnlySpan) bool {
				return s.Name() == kind && s.Parent().SpanID() == pull.SpanID() && slices.Contains(s.Attributes(), tracing.Layer.String(l.Digest.String()))
			}) {
				t.Errorf("there is no %s of %s in the pull", kind, l.Digest)
			}
		}
	}
}
