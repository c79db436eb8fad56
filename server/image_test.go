package server_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/reason"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

const usedImage = "example.test/used:1"

// archive returns a Docker archive of an image with that name.
func archive(t *testing.T, ref string) []byte {
	t.Helper()
	layer, err := random.Layer(4096, "application/vnd.docker.image.rootfs.diff.tar.gzip")
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", goruntime.GOARCH
	cf.Config.Env, cf.Config.Cmd = []string{"A=b"}, []string{"echo", "from-cmd"}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := tarball.Write(tag, img, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func (w *world) load(t *testing.T, ref string) {
	t.Helper()
	if _, err := w.LoadImage(w.ctx, bytes.NewReader(archive(t, ref)), ""); err != nil {
		t.Fatal(err)
	}
}

func TestImages(t *testing.T) {
	w := newWorld(t)
	raw := archive(t, usedImage)
	images, err := w.LoadImage(w.ctx, bytes.NewReader(raw), "example.test/team/other:2")
	if err != nil || len(images) != 1 || images[0].Digest == "" {
		t.Fatalf("%+v %v", images, err)
	}
	all, err := w.ListImages(w.ctx)
	if err != nil || len(all) < 2 || !all[0].BuiltIn || all[0].Name != "hostfs" {
		t.Errorf("%+v %v", all, err)
	}
	if !slices.ContainsFunc(all, func(i rest.Image) bool { return i.Name == "example.test/team/other:2" }) {
		t.Errorf("not listed: %+v", all)
	}
	for _, ref := range []string{"example.test/team/other:2", images[0].Digest, "hostfs"} {
		if i, err := w.GetImage(w.ctx, ref); err != nil || i.Platform == "" {
			t.Errorf("get %s: %+v %v", ref, i, err)
		}
	}
	if i, _ := w.GetImage(w.ctx, images[0].Digest); !slices.Equal(i.Config.Cmd, []string{"echo", "from-cmd"}) || !slices.Equal(i.Config.Env, []string{"A=b"}) {
		t.Errorf("config: %+v", i.Config)
	}
	if err := w.RemoveImage(w.ctx, "example.test/team/other:2"); err != nil {
		t.Error(err)
	}
	if _, err := w.GetImage(w.ctx, "example.test/team/other:2"); !errors.Is(err, taisandbox.ErrImageNotFound) || !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("%v", err)
	}
	for _, ref := range []string{"", "..", "a/../b", "/x", "x/"} {
		if err := w.RemoveImage(w.ctx, ref); !errors.Is(err, taisandbox.ErrImageRef) {
			t.Errorf("remove %q: %v", ref, err)
		}
	}
	_, err = w.LoadImage(w.ctx, bytes.NewReader(raw[:len(raw)/2]), "")
	if !errors.Is(err, taisandbox.ErrImageCorrupt) || reason.Of(err) != "IMAGE_CORRUPT" {
		t.Errorf("a cut archive: %v", err)
	}
}

// TestLoadStreams: an archive is not held in memory, and a refusal in its
// middle arrives.
func TestLoadStreams(t *testing.T) {
	w := newWorld(t)
	_, err := w.LoadImage(w.ctx, io.LimitReader(zeros{}, 1<<40), "")
	if !errors.Is(err, taisandbox.ErrImageCorrupt) {
		t.Errorf("an endless archive: %v", err)
	}
	status, _, body := w.call(http.MethodPost, "/v1/images/load", strings.Repeat("x", 64<<20), "Content-Type", "application/x-tar")
	if status != http.StatusUnprocessableEntity || failure(t, body).Code != "IMAGE_CORRUPT" {
		t.Errorf("%d %s", status, body)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
