package image_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/tai/sandbox"
)

// base loads an image to commit on, and returns its digest.
func loadBase(t *testing.T, s *image.Store) string {
	t.Helper()
	infos, err := s.Load(t.Context(), bytes.NewReader(dockerArchive(t, "base:1",
		tarOf(t, dir("etc"), file("etc/keep", "k"), file("etc/gone", "g"), dir("old"), file("old/below", "b"), dir("replaced"), file("replaced/below", "b")))), "")
	if err != nil {
		t.Fatal(err)
	}
	return infos[0].Digest
}

// must ends the test on an error of the system.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// upperOf makes what an overlay leaves after a box changed its files.
func upperOf(t *testing.T) string {
	t.Helper()
	upper := filepath.Join(t.TempDir(), "upper")
	at := func(p string) string { return filepath.Join(upper, p) }
	must(t,
		os.MkdirAll(at("etc"), 0o755), os.WriteFile(at("etc/new"), []byte("new"), 0o640), os.WriteFile(at("etc/hosts"), []byte("ours"), 0o644),
		os.Chown(at("etc/new"), 12, 34), unix.Chmod(at("etc/new"), 0o4750),
		unix.Setxattr(at("etc/new"), "user.note", []byte("x"), 0), unix.Setxattr(at("etc"), "trusted.overlay.impure", []byte("y"), 0),
		unix.Mknod(at("etc/gone"), unix.S_IFCHR, 0),
		os.Mkdir(at("replaced"), 0o700), unix.Setxattr(at("replaced"), "trusted.overlay.opaque", []byte("y"), 0),
		os.WriteFile(at("replaced/mine"), nil, 0o600),
		os.Link(at("etc/new"), at("etc/second")), os.Symlink("/etc/new", at("link")), unix.Mkfifo(at("pipe"), 0o622),
		os.Mkdir(at("proc"), 0o555), os.WriteFile(at("odd\nname \xff"), []byte("o"), 0o644),
	)
	return upper
}

// TestCommit: what an overlay says comes back as a layer, and as the same
// overlay again.
func TestCommit(t *testing.T) {
	needRoot(t)
	s := open(t)
	base := loadBase(t, s)
	info, err := s.Commit(t.Context(), image.Commit{
		Base: base, Upper: upperOf(t), Name: "kept:2", Skip: []string{"etc/hosts", "proc"},
		Change: sandbox.ImageChange{
			Cmd: &[]string{"run", "it"}, Entrypoint: &[]string{}, Env: []string{"A=changed", "NEW=1"},
			WorkDir: new("/w"), User: new("7:8"), Labels: map[string]string{"l": "v"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := info.Config
	if info.Name != "kept:2" || !slices.Equal(c.Cmd, []string{"run", "it"}) || len(c.Entrypoint) != 0 || !slices.Contains(c.Env, "A=changed") ||
		!slices.Contains(c.Env, "NEW=1") || c.WorkDir != "/w" || c.User != "7:8" || c.Labels["l"] != "v" {
		t.Errorf("%+v", info)
	}
	got, err := s.Resolve(t.Context(), "kept:2")
	if err != nil || len(got.Lowers) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	defer got.Release()
	layer := got.Lowers[0]
	var st unix.Stat_t
	must(t, unix.Lstat(filepath.Join(layer, "etc/new"), &st))
	if st.Uid != 12 || st.Gid != 34 || st.Mode&0o7777 != 0o4750 || st.Nlink != 2 {
		t.Errorf("etc/new has owner %d:%d, mode %o, %d names", st.Uid, st.Gid, st.Mode&0o7777, st.Nlink)
	}
	must(t, unix.Lstat(filepath.Join(layer, "etc/gone"), &st))
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Error("etc/gone is not deleted")
	}
	value := make([]byte, 8)
	if n, err := unix.Getxattr(filepath.Join(layer, "replaced"), "trusted.overlay.opaque", value); err != nil || string(value[:n]) != "y" {
		t.Errorf("replaced is not opaque: %v", err)
	}
	if n, err := unix.Getxattr(filepath.Join(layer, "etc/new"), "user.note", value); err != nil || string(value[:n]) != "x" {
		t.Errorf("the attribute is gone: %v", err)
	}
	for name, there := range map[string]bool{"etc/hosts": false, "proc": false, "link": true, "pipe": true, "odd\nname \xff": true, "replaced/mine": true} {
		if _, err := os.Lstat(filepath.Join(layer, name)); (err == nil) != there {
			t.Errorf("%q is there: %v", name, err == nil)
		}
	}
	if err := s.RemoveImage(t.Context(), "base:1"); err != nil {
		t.Errorf("the base cannot be removed: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(got.Lowers[1], "etc/keep")); err != nil {
		t.Error("the base's layer went with its name")
	}
}

// TestCommitHoles: what is mostly zeros comes back as it was, here and
// elsewhere, and takes no room.
func TestCommitHoles(t *testing.T) {
	needRoot(t)
	s := open(t)
	base := loadBase(t, s)
	const size = 1<<30 + 200<<20
	upper := t.TempDir()
	f, err := os.OpenFile(upper+"/f", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	must(t, err, f.Truncate(size))
	_, err = f.WriteAt([]byte("data"), size/2)
	must(t, err, f.Close())
	if _, err := s.Commit(t.Context(), image.Commit{Base: base, Upper: upper, Name: "holes:1"}); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "archive")
	f, err = os.OpenFile(archive, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	must(t, err, s.Save(t.Context(), []string{"holes:1"}, f))
	_, err = f.Seek(0, io.SeekStart)
	must(t, err)
	other := open(t)
	if _, err := other.Load(t.Context(), f, ""); err != nil {
		t.Errorf("loaded elsewhere: %v", err)
	}
	must(t, f.Close())
	for _, s := range []*image.Store{s, other} {
		got := resolve(t, s, "holes:1").Lowers[0] + "/f"
		var st unix.Stat_t
		must(t, unix.Lstat(got, &st))
		if st.Size != size || st.Blocks*512 > 1<<20 {
			t.Errorf("it has %d bytes, %d of them on the disk", st.Size, st.Blocks*512)
		}
		data := make([]byte, 6)
		f, err := os.Open(got)
		must(t, err)
		_, err = f.ReadAt(data, size/2-1)
		must(t, err, f.Close())
		if string(data) != "\x00data\x00" {
			t.Errorf("in the middle is %q", data)
		}
	}
}

// TestCommitRefuses: what cannot be said in a layer, or has no name.
func TestCommitRefuses(t *testing.T) {
	needRoot(t)
	s := open(t)
	base := loadBase(t, s)
	for name, c := range map[string]struct {
		image string
		make  func(upper string) error
		want  error
	}{
		"digest as a name": {"x@sha256:" + strings.Repeat("0", 64), func(string) error { return nil }, sandbox.ErrImageRef},
		"hostfs":           {"hostfs", func(string) error { return nil }, sandbox.ErrImageRef},
		"whiteout's name":  {"x", func(u string) error { return os.WriteFile(u+"/.wh.a", nil, 0o600) }, sandbox.ErrUnsupported},
		"redirect": {"x", func(u string) error {
			return errors.Join(os.Mkdir(u+"/d", 0o700), unix.Setxattr(u+"/d", "trusted.overlay.redirect", []byte("/e"), 0))
		}, sandbox.ErrUnsupported},
		"holes": {"x", func(u string) error {
			for _, f := range []string{u + "/a", u + "/b"} {
				if err := errors.Join(os.WriteFile(f, nil, 0o600), os.Truncate(f, 8<<40)); err != nil {
					return err
				}
			}
			return nil
		}, sandbox.ErrUnsupported},
	} {
		upper := t.TempDir()
		must(t, c.make(upper))
		if _, err := s.Commit(t.Context(), image.Commit{Base: base, Upper: upper, Name: c.image}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := s.ListImages(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("%+v %v", list, err)
	}
	// A link is not followed, wherever it leads.
	upper := t.TempDir()
	must(t, os.Symlink("/etc", upper+"/etc"))
	if _, err := s.Commit(t.Context(), image.Commit{Base: base, Upper: upper, Name: "x"}); err != nil {
		t.Error(err)
	}
}

// TestSave: an archive of images is what Load reads, with all names and bytes.
func TestSave(t *testing.T) {
	needRoot(t)
	s := open(t)
	base := loadBase(t, s)
	if _, err := s.Commit(t.Context(), image.Commit{Base: base, Upper: upperOf(t), Name: "kept:2"}); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := s.Save(t.Context(), []string{"base:1", "kept:2"}, &buf); err != nil {
		t.Fatal(err)
	}
	var names []string
	for tr := tar.NewReader(bytes.NewReader(buf.Bytes())); ; {
		h, err := tr.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name)
	}
	for _, n := range []string{"oci-layout", "index.json"} {
		if !slices.Contains(names, n) {
			t.Errorf("no %s in the archive", n)
		}
	}
	want, err := s.ListImages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other := open(t)
	if _, err := other.Load(t.Context(), &buf, ""); err != nil {
		t.Fatal(err)
	}
	got, err := other.ListImages(t.Context())
	if err != nil || len(got) != len(want) {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range want {
		if got[i].Name != want[i].Name || got[i].Digest != want[i].Digest {
			t.Errorf("%s %s became %s %s", want[i].Name, want[i].Digest, got[i].Name, got[i].Digest)
		}
	}
	for ref, want := range map[string]error{"hostfs": sandbox.ErrUnsupported, "none:1": sandbox.ErrImageNotFound} {
		if err := s.Save(t.Context(), []string{ref}, &buf); !errors.Is(err, want) {
			t.Errorf("save %s: %v", ref, err)
		}
	}
}

// TestPrune: without a name, or all; but never what a box is made of.
func TestPrune(t *testing.T) {
	needRoot(t)
	u := &users{}
	s := openAt(t, filepath.Join(t.TempDir(), "images"), u)
	base := loadBase(t, s)
	u.set(base, "box-1")
	if removed, err := s.Prune(t.Context(), true); err != nil || len(removed) != 0 {
		t.Errorf("%+v %v", removed, err)
	}
	u.set(base)
	if removed, err := s.Prune(t.Context(), false); err != nil || len(removed) != 0 {
		t.Errorf("%+v %v", removed, err)
	}
	if removed, err := s.Prune(t.Context(), true); err != nil || len(removed) != 1 || removed[0].Name != "base:1" {
		t.Errorf("%+v %v", removed, err)
	}
}
