package image_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/tai/sandbox"
)

// users is a Config.InUse that tests change.
type users struct {
	mu sync.Mutex
	by map[string][]string
}

func (u *users) set(digest string, boxes ...string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.by = map[string][]string{digest: boxes}
}

func (u *users) of(digest string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.by[digest])
}

func openAt(t testing.TB, dir string, u *users) *image.Store {
	t.Helper()
	cfg := image.Config{Dir: dir, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if u != nil {
		cfg.InUse = u.of
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

func open(t testing.TB) *image.Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "images"), nil)
}

func load(t testing.TB, s *image.Store, archive []byte, name string) []sandbox.ImageInfo {
	t.Helper()
	infos, err := s.Load(t.Context(), bytes.NewReader(archive), name)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return infos
}

func wantErr(t testing.TB, err, want error, text ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
	for _, s := range text {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
}

func resolve(t testing.TB, s *image.Store, ref string) image.Resolved {
	t.Helper()
	r, err := s.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatalf("Resolve(%s): %v", ref, err)
	}
	t.Cleanup(r.Release)
	return r
}

// wantNames checks what ListImages has besides hostfs.
func wantNames(t testing.TB, s *image.Store, want ...string) {
	t.Helper()
	infos, err := s.ListImages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range infos {
		got = append(got, i.Name)
	}
	if diff := cmp.Diff(append([]string{sandbox.HostFS}, want...), got); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
}

// wantEmpty checks that nothing of any image is on the disk.
func wantEmpty(t testing.TB, dir string) {
	t.Helper()
	for _, p := range []string{"snapshots/*", "content/blobs/*/*", "content/ingest/*"} {
		left, _ := filepath.Glob(filepath.Join(dir, p))
		if len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestLoadInspectListRemove(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "images")
	s := openAt(t, root, nil)
	wantNames(t, s)
	archive := ociArchive(t, img{
		name: "example.test/bb:1", layers: [][]byte{tarOf(t, dir("etc"), file("etc/a", "a"))},
		config: map[string]any{
			"Env": []string{"A=b"}, "Entrypoint": []string{"/e"}, "Cmd": []string{"c"}, "WorkingDir": "/w", "User": "u",
			"Labels": map[string]string{"k": "v"}, "StopSignal": "SIGINT", "ExposedPorts": map[string]any{"80/tcp": struct{}{}},
		},
	})
	start := time.Now()
	got := load(t, s, archive, "")
	t.Logf("load took %v", time.Since(start))
	if len(got) != 1 {
		t.Fatalf("Load returned %d images", len(got))
	}
	want := sandbox.ImageInfo{
		Name: "example.test/bb:1", Digest: got[0].Digest, Platform: got[0].Platform, SizeBytes: got[0].SizeBytes,
		CreatedAt: time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC),
		Config: sandbox.ImageConfig{
			Env: []string{"A=b"}, Entrypoint: []string{"/e"}, Cmd: []string{"c"}, WorkDir: "/w", User: "u",
			Labels: map[string]string{"k": "v"}, StopSignal: "SIGINT", Ports: []string{"80/tcp"},
		},
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(want.Platform, "linux/") || !strings.HasPrefix(want.Digest, "sha256:") || want.SizeBytes == 0 {
		t.Errorf("Load returned %+v", want)
	}
	for _, ref := range []string{"example.test/bb:1", want.Digest, want.Digest[7:], want.Digest[:19], "example.test/bb@" + want.Digest} {
		info, err := s.InspectImage(t.Context(), ref)
		if err != nil {
			t.Errorf("InspectImage(%s): %v", ref, err)
		} else if diff := cmp.Diff(want, info); diff != "" {
			t.Errorf("InspectImage(%s) (-want +got):\n%s", ref, diff)
		}
	}
	wantNames(t, s, "example.test/bb:1")
	r := resolve(t, s, "example.test/bb:1")
	if data, err := os.ReadFile(filepath.Join(r.Lowers[0], "etc/a")); err != nil || string(data) != "a" {
		t.Errorf("layer has %q, %v", data, err)
	}
	r.Release()
	if err := s.RemoveImage(t.Context(), "example.test/bb:1"); err != nil {
		t.Fatal(err)
	}
	wantNames(t, s)
	wantEmpty(t, root)
	_, err := s.InspectImage(t.Context(), "example.test/bb:1")
	wantErr(t, err, sandbox.ErrImageNotFound, "example.test/bb:1")
	wantErr(t, s.RemoveImage(t.Context(), "example.test/bb:1"), sandbox.ErrImageNotFound, "example.test/bb:1")
	load(t, s, archive, "")
	resolve(t, s, "example.test/bb:1")
}
