package image_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

// tryLoad loads what may be anything. It is refused for a reason, or is an
// image that can be resolved and removed.
func tryLoad(t *testing.T, s *image.Store, archive []byte) {
	t.Helper()
	infos, err := s.Load(t.Context(), bytes.NewReader(archive), "")
	if err != nil {
		if reason.Of(err) == "" {
			t.Errorf("%v", err)
		}
		return
	}
	for _, i := range infos {
		r, err := s.Resolve(t.Context(), i.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range r.Lowers {
			readTree(t, l)
		}
		r.Release()
		if err := s.RemoveImage(t.Context(), i.Name); err != nil {
			t.Fatal(err)
		}
	}
}

func fuzzStore(f *testing.F) *image.Store {
	f.Helper()
	s, err := image.Open(f.Context(), image.Config{Dir: filepath.Join(f.TempDir(), "images")})
	if err != nil {
		f.Skip(err)
	}
	f.Cleanup(func() { s.Close() })
	return s
}

// FuzzLoad loads mutated archives.
func FuzzLoad(f *testing.F) {
	s := fuzzStore(f)
	for _, zip := range allZip {
		f.Add(zip.do(twoLayers(f, "a:1", zip)))
	}
	f.Add(dockerArchive(f, "a:1", tarOf(f, file("f", "x"))))
	f.Fuzz(func(t *testing.T, archive []byte) {
		needRoot(t)
		tryLoad(t, s, archive)
	})
}

// FuzzLayer loads mutated layers in archives that are otherwise right.
func FuzzLayer(f *testing.F) {
	s := fuzzStore(f)
	f.Add(tarOf(f, ownedEntries()...), tarOf(f, white(".wh.home"), hardlink("x", "suid"), symlink("tmp", "/"), file("tmp/y", "y")))
	f.Add(sparseLayer(f), tarOf(f, white("a/.wh..wh..opq")))
	f.Fuzz(func(t *testing.T, below, above []byte) {
		needRoot(t)
		tryLoad(t, s, ociArchive(t, img{name: "a:1", layers: [][]byte{below, above}, zip: plain}))
	})
}

func TestTooManyEntries(t *testing.T) {
	needRoot(t)
	s := open(t)
	var entries []entry
	for range 10_001 {
		entries = append(entries, dir("d"))
	}
	_, err := s.Load(t.Context(), bytes.NewReader(tarOf(t, entries...)), "")
	wantErr(t, err, sandbox.ErrImageCorrupt, "10000 files")
}

func BenchmarkLoad(b *testing.B) {
	s := open(b)
	archive := twoLayers(b, "a:1", gzip9)
	for b.Loop() {
		load(b, s, archive, "")
		b.StopTimer()
		if err := s.RemoveImage(b.Context(), "a:1"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkResolve(b *testing.B) {
	s := open(b)
	load(b, s, twoLayers(b, "a:1", gzip9), "")
	for b.Loop() {
		r, err := s.Resolve(b.Context(), "a:1")
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
	}
}
