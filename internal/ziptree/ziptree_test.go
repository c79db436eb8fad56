package ziptree_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/internal/ziptree"
	"github.com/taibox/taibox/tai/sandbox"
)

func unpack(t testing.TB, dir string, data []byte, l ziptree.Limits) error {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	d, err := nofollow.Of(root)
	if err != nil {
		t.Fatal(err)
	}
	s := tartree.NewStage(t.Context(), d, tartree.Limits{Entries: l.Entries, Bytes: 64 << 20, Depth: 20})
	defer s.Close()
	return ziptree.Unpack(bytes.NewReader(data), int64(len(data)), s, l)
}

var someLimits = ziptree.Limits{Entries: 100_000, Ratio: 200, Free: 1 << 20}

func pack(t testing.TB, dir, as string) []byte {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var buf bytes.Buffer
	p := ziptree.NewPacker(t.Context(), &buf)
	if err := errors.Join(tartree.Walk(t.Context(), root, ".", as, nil, p), p.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// The directory is read into memory: what has too many entries is refused on
// the way, whatever it says of their number.
func TestTooManyEntries(t *testing.T) {
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	for i := range 70_000 { // more than the old form of the directory can count
		if _, err := zw.Create(fmt.Sprintf("d/%d/", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	l := someLimits
	l.Entries = 1000
	dir := t.TempDir()
	if err := unpack(t, dir, buf.Bytes(), l); !errors.Is(err, sandbox.ErrArchive) {
		t.Errorf("with a limit: %v", err)
	}
	if entries, err := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("it made %v, %v", entries, err)
	}
}

// What other systems pack has no modes, and odd names.
func TestOtherSystems(t *testing.T) {
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	for _, h := range []zip.FileHeader{
		{Name: "dos", CreatorVersion: 20},
		{Name: "dos-readonly", CreatorVersion: 20, ExternalAttrs: 1},
		{Name: "dir/", CreatorVersion: 20, ExternalAttrs: 16},
		{Name: "unix-none", CreatorVersion: 3 << 8},
		{Name: "cp437-\x82", NonUTF8: true, CreatorVersion: 20},
	} {
		if _, err := zw.CreateHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := unpack(t, dir, buf.Bytes(), someLimits); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"dos": 0o644, "dos-readonly": 0o644, "dir": os.ModeDir | 0o755, "unix-none": 0o644, "cp437-\x82": 0o644} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%q: %v, %v", name, info, err)
		}
	}
}

func FuzzUnzip(f *testing.F) {
	src := f.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(src, "d/e"), 0o755), os.WriteFile(filepath.Join(src, "d/f"), bytes.Repeat([]byte("data"), 100), 0o644),
		os.Symlink("f", filepath.Join(src, "d/l")), os.Chtimes(filepath.Join(src, "d/f"), time.Time{}, time.Unix(1e9, 0)),
	} {
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Add(pack(f, src, "top"))
	f.Add(pack(f, f.TempDir(), "."))
	f.Fuzz(func(t *testing.T, data []byte) {
		base := t.TempDir()
		dest, beside := filepath.Join(base, "dest"), filepath.Join(base, "canary")
		if err := errors.Join(os.Mkdir(dest, 0o700), os.WriteFile(beside, []byte("untouched"), 0o600)); err != nil {
			t.Fatal(err)
		}
		unpack(t, dest, data, ziptree.Limits{Entries: 1000, Ratio: 200, Free: 1 << 20})
		if data, err := os.ReadFile(beside); string(data) != "untouched" {
			t.Errorf("beside: %q, %v", data, err)
		}
		if entries, _ := os.ReadDir(base); len(entries) != 2 {
			t.Errorf("beside are %v", entries)
		}
	})
}
