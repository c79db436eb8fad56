package image_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

func one(t testing.TB, name, text string) img {
	t.Helper()
	return img{name: name, layers: [][]byte{tarOf(t, file("f", text))}}
}

func names(infos []sandbox.ImageInfo) string {
	var all []string
	for _, i := range infos {
		all = append(all, i.Name)
	}
	return strings.Join(all, " ")
}

func TestNames(t *testing.T) {
	needRoot(t)
	for _, c := range []struct{ inside, given, want string }{
		{"example.test/bb:1", "", "example.test/bb:1"},
		{"bb:1", "", "bb:1"},
		{"docker.io/library/bb:1", "", "bb:1"},
		{"bb", "", "bb:latest"},
		{"localhost:5000/a/b:c", "", "localhost:5000/a/b:c"},
		{"bb:1", "other", "other:latest"},
		{"", "other:2", "other:2"},
		{"Not A Name", "other:2", "other:2"},
		{"hostfs", "other:2", "other:2"},
	} {
		t.Run(c.inside+"_"+c.given, func(t *testing.T) {
			s := open(t)
			got := load(t, s, ociArchive(t, one(t, c.inside, "x")), c.given)
			if names(got) != c.want {
				t.Errorf("Load names it %q, want %q", names(got), c.want)
			}
			wantNames(t, s, c.want)
			resolve(t, s, c.want)
		})
	}
}

func TestImageWithoutNameIsKeptByDigest(t *testing.T) {
	needRoot(t)
	s := open(t)
	got := load(t, s, ociArchive(t, one(t, "", "x")), "")
	wantNames(t, s, got[0].Digest)
	resolve(t, s, got[0].Digest).Release()
	if err := s.RemoveImage(t.Context(), got[0].Digest); err != nil {
		t.Error(err)
	}
	wantNames(t, s)
}

func TestBadNames(t *testing.T) {
	needRoot(t)
	s := open(t)
	good := ociArchive(t, one(t, "a:1", "x"))
	for _, name := range []string{"Upper:1", "a b", "-x", "a:b:c", "../x", "a\nb", strings.Repeat("x", 300), "hostfs", "hostfs:latest", "docker.io/library/hostfs", "a@sha256:" + strings.Repeat("0", 64)} {
		_, err := s.Load(t.Context(), bytes.NewReader(good), name)
		wantErr(t, err, sandbox.ErrImageRef)
		if _, err := s.InspectImage(t.Context(), name); err == nil && name != sandbox.HostFS {
			t.Errorf("InspectImage(%q) found something", name)
		}
	}
	_, err := s.Load(t.Context(), bytes.NewReader(ociArchive(t, one(t, "Not A Name", "x"))), "")
	wantErr(t, err, sandbox.ErrImageRef, "Not A Name")
	if reason.Hint(err) == "" {
		t.Error("the error does not say what to do")
	}
	_, err = s.Load(t.Context(), bytes.NewReader(ociArchive(t, one(t, "a:1", "x"), one(t, "b:1", "y"))), "c:1")
	wantErr(t, err, sandbox.ErrImageRef, "2 images")
	wantNames(t, s)
}

func TestHostFSIsBuiltIn(t *testing.T) {
	needRoot(t)
	s := open(t)
	_, err := s.Load(t.Context(), bytes.NewReader(ociArchive(t, one(t, "hostfs", "x"))), "")
	wantErr(t, err, sandbox.ErrImageRef, "built-in")
	for _, ref := range []string{"hostfs", "hostfs:latest"} {
		wantErr(t, s.RemoveImage(t.Context(), ref), sandbox.ErrImageRef, "built-in")
	}
	info, err := s.InspectImage(t.Context(), "hostfs")
	if err != nil || !info.BuiltIn || info.Digest != "" {
		t.Errorf("InspectImage(hostfs) = %+v, %v", info, err)
	}
	if r := resolve(t, s, "hostfs"); !r.Info.BuiltIn || r.Lowers != nil {
		t.Errorf("Resolve(hostfs) = %+v", r)
	}
}

func TestSeveralNamesOfOneImage(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "images")
	s := openAt(t, root, nil)
	got := load(t, s, ociArchive(t, one(t, "a:1", "x"), one(t, "a:2", "x"), one(t, "", "y")), "c:1")
	if names(got) != "a:1 a:2 c:1" {
		t.Fatalf("Load returned %s", names(got))
	}
	wantErr(t, s.RemoveImage(t.Context(), got[0].Digest), sandbox.ErrImageInUse, "a:1", "a:2")
	if err := s.RemoveImage(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	wantNames(t, s, "a:2", "c:1")
	resolve(t, s, "a:2").Release()
}

func TestImageInUse(t *testing.T) {
	needRoot(t)
	u := &users{}
	root := filepath.Join(t.TempDir(), "images")
	s := openAt(t, root, u)
	old := load(t, s, ociArchive(t, one(t, "a:1", "old")), "")[0].Digest
	u.set(old, "box2", "box1")
	wantErr(t, s.RemoveImage(t.Context(), "a:1"), sandbox.ErrImageInUse, "box1, box2")

	t.Run("name_moves_on", func(t *testing.T) {
		load(t, s, ociArchive(t, one(t, "a:1", "new")), "")
		r, err := s.ResolveDigest(t.Context(), old)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(r.Lowers[0], "f"))
		if err != nil || string(data) != "old" {
			t.Errorf("the box's layer has %q, %v", data, err)
		}
		r.Release()
		wantNames(t, s, "a:1", old)
	})
	t.Run("and_comes_back", func(t *testing.T) {
		load(t, s, ociArchive(t, one(t, "b:1", "old")), "")
		wantNames(t, s, "a:1", "b:1")
		load(t, s, ociArchive(t, one(t, "b:1", "newer")), "")
		wantNames(t, s, "a:1", "b:1", old)
	})
	t.Run("box_goes", func(t *testing.T) {
		s.Release(old) // another box still has it
		wantErr(t, s.RemoveImage(t.Context(), old), sandbox.ErrImageInUse, "box1")
		u.set("")
		s.Release(old)
		deadline := time.Now().Add(10 * time.Second)
		for time.Now().Before(deadline) {
			if _, err := s.InspectImage(t.Context(), old); err != nil {
				break
			}
		}
		wantNames(t, s, "a:1", "b:1")
		_, err := s.ResolveDigest(t.Context(), old)
		wantErr(t, err, sandbox.ErrImageNotFound, old)
	})
	for _, name := range []string{"a:1", "b:1"} {
		if err := s.RemoveImage(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	wantEmpty(t, root)
}

func TestHeldImageStays(t *testing.T) {
	needRoot(t)
	s := open(t)
	load(t, s, ociArchive(t, one(t, "a:1", "old")), "")
	r := resolve(t, s, "a:1")
	wantErr(t, s.RemoveImage(t.Context(), "a:1"), sandbox.ErrImageInUse, "being made")
	load(t, s, ociArchive(t, one(t, "a:1", "new")), "")
	if data, err := os.ReadFile(filepath.Join(r.Lowers[0], "f")); err != nil || string(data) != "old" {
		t.Errorf("the held layer has %q, %v", data, err)
	}
	wantNames(t, s, "a:1", r.Info.Digest)
	r.Release()
	r.Release()
	load(t, s, ociArchive(t, one(t, "c:1", "any")), "")
	wantNames(t, s, "a:1", "c:1")
}

func TestReopen(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "images")
	u := &users{}
	s := openAt(t, root, u)
	before := load(t, s, ociArchive(t, one(t, "a:1", "x"), img{name: "empty:1"}), "")
	lowers := resolve(t, s, "a:1").Lowers
	u.set(before[0].Digest, "box")
	load(t, s, ociArchive(t, one(t, "a:1", "y")), "")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close again: %v", err)
	}
	s = openAt(t, root, u)
	wantNames(t, s, "a:1", "empty:1", before[0].Digest)
	r, err := s.ResolveDigest(t.Context(), before[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if diff := cmp.Diff(lowers, r.Lowers); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	if fi, err := os.Stat(root); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", root, fi.Mode(), err)
	}
	if e := resolve(t, s, "empty:1"); len(e.Lowers) != 1 {
		t.Errorf("an image without layers has %v", e.Lowers)
	}
}
