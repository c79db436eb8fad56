package oci_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/internal/testimage"
	"github.com/taibox/taibox/tai/sandbox"
)

// ofBusybox opens a fresh instance with an image to make boxes of, base:1.
func ofBusybox(t *testing.T) (*oci.Driver, oci.Config) {
	t.Helper()
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	im, err := testimage.Busybox("base:1")
	if err != nil {
		t.Skip(err)
	}
	archive, err := testimage.OCI(im)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Load(t.Context(), bytes.NewReader(archive), ""); err != nil {
		t.Fatal(err)
	}
	return d, cfg
}

// TestCommit: an image of a box has what the box has, with the image's owners,
// and nothing of ours.
func TestCommit(t *testing.T) {
	d, _ := ofBusybox(t)
	started(t, d, sandbox.Spec{ID: "b1", Image: "base:1", Tmpfs: []string{"/cache"}})
	res := sh(t, d, "b1", `set -e
echo kept >/etc/kept; chown 1000:1000 /etc/kept; chmod 4755 /etc/kept; ln /etc/kept /etc/twin; ln -s kept /etc/soft
rm /etc/made; rm -r /home; mkdir /home; echo new >/home/new; echo secret >/cache/x; mkdir -p /empty/dir`)
	if code(res) != 0 {
		t.Fatalf("%s%s", res.Stdout, res.Stderr)
	}
	if _, err := d.Commit(t.Context(), "b1", "kept:1", sandbox.ImageChange{}); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(t.Context(), "b1", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Commit(t.Context(), "b1", "stopped:1", sandbox.ImageChange{}); err != nil {
		t.Errorf("of a stopped box: %v", err)
	}
	started(t, d, sandbox.Spec{ID: "b2", Image: "kept:1"})
	res = sh(t, d, "b2", `cat /etc/kept; stat -c '%u %g %a %h' /etc/kept; readlink /etc/soft; ls /home; test -e /etc/made && echo made; test -e /cache && echo cache; test -d /empty/dir && echo empty; grep -c b1 /etc/hosts /etc/hostname`)
	want := "kept\n1000 1000 4755 2\nkept\nnew\nempty\n/etc/hosts:0\n/etc/hostname:0\n"
	if string(res.Stdout) != want {
		t.Errorf("the new image has\n%s%s\nwanted is\n%s", res.Stdout, res.Stderr, want)
	}
	started(t, d, sandbox.Spec{ID: "b3"})
	_, err := d.Commit(t.Context(), "b3", "x:1", sandbox.ImageChange{})
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "hostfs") || reason.Hint(err) == "" {
		t.Errorf("of a box made of hostfs: %v", err)
	}
	if err := d.RemoveImage(t.Context(), "kept:1"); !errors.Is(err, sandbox.ErrImageInUse) || !strings.Contains(err.Error(), "b2") {
		t.Errorf("an image in use is removed: %v", err)
	}
	for _, id := range []string{"b1", "b2", "b3"} {
		if err := d.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// TestCommitHoles: a box of which most is zeros becomes an image that runs.
func TestCommitHoles(t *testing.T) {
	d, _ := ofBusybox(t)
	started(t, d, sandbox.Spec{ID: "b1", Image: "base:1"})
	if res := sh(t, d, "b1", "truncate -s 2G /f && echo end >>/f"); code(res) != 0 {
		t.Fatalf("%s%s", res.Stdout, res.Stderr)
	}
	if _, err := d.Commit(t.Context(), "b1", "holes:1", sandbox.ImageChange{}); err != nil {
		t.Fatal(err)
	}
	started(t, d, sandbox.Spec{ID: "b2", Image: "holes:1"})
	if res := sh(t, d, "b2", "stat -c %s /f; tail -c 4 /f"); string(res.Stdout) != "2147483652\nend\n" {
		t.Errorf("it has %s%s", res.Stdout, res.Stderr)
	}
}

// TestRemoveDuringCommit: a commit, which may take long, does not hold a
// removal up.
func TestRemoveDuringCommit(t *testing.T) {
	d, cfg := ofBusybox(t)
	started(t, d, sandbox.Spec{ID: "b1", Image: "base:1"})
	if res := sh(t, d, "b1", "truncate -s 16G /f"); code(res) != 0 {
		t.Fatalf("%s%s", res.Stdout, res.Stderr)
	}
	committed := make(chan error, 1)
	go func() {
		_, err := d.Commit(t.Context(), "b1", "kept:1", sandbox.ImageChange{})
		committed <- err
	}()
	waitFor(t, func() bool {
		written, _ := filepath.Glob(filepath.Join(cfg.DataDir, "images/content/ingest/*/data"))
		return len(written) > 0
	}, "the commit to begin")
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Error(err)
	}
	if err := <-committed; !errors.Is(err, sandbox.ErrRemoving) {
		t.Errorf("the commit ends with %v", err)
	}
	if there, err := d.Exists(t.Context(), "kept:1"); there || err != nil {
		t.Errorf("the image is there: %v, %v", there, err)
	}
	if _, err := d.Commit(t.Context(), "b1", "kept:1", sandbox.ImageChange{}); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("of a box that is gone: %v", err)
	}
}

// TestR10_TagMovesBetweenStopAndStart: a box stays what it was made of.
func TestR10_TagMovesBetweenStopAndStart(t *testing.T) {
	d, cfg := ofBusybox(t)
	started(t, d, sandbox.Spec{ID: "old", Image: "base:1"})
	before, err := d.Inspect(t.Context(), "old")
	if err != nil || before.ImageDigest == "" {
		t.Fatalf("%+v, %v", before, err)
	}
	if err := d.Stop(t.Context(), "old", 0); err != nil {
		t.Fatal(err)
	}
	// Meanwhile the name comes to mean another image.
	started(t, d, sandbox.Spec{ID: "maker", Image: "base:1"})
	sh(t, d, "maker", "touch /etc/next")
	if _, err := d.Commit(t.Context(), "maker", "base:1", sandbox.ImageChange{}); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	if err := d.Start(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	after, err := d.Inspect(t.Context(), "old")
	if err != nil || after.ImageDigest != before.ImageDigest {
		t.Errorf("it is of %s, and was of %s: %v", after.ImageDigest, before.ImageDigest, err)
	}
	if res := sh(t, d, "old", "test -e /etc/next"); code(res) == 0 {
		t.Error("it has what only the new image has")
	}
	started(t, d, sandbox.Spec{ID: "new", Image: "base:1"})
	if info, err := d.Inspect(t.Context(), "new"); err != nil || info.ImageDigest == before.ImageDigest {
		t.Errorf("a new box is of the old image: %v", err)
	}
}
