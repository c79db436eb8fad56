package image_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/tai/sandbox"
)

// outside is a directory that layers try to get at, with what is in it.
func outside(t *testing.T) (dir string, check func()) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	snapshot := func() string {
		var b strings.Builder
		filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if p == dir {
				return err
			}
			fmt.Fprintln(&b, describe(t, p), p, err)
			return nil
		})
		return b.String()
	}
	before := snapshot()
	return dir, func() {
		t.Helper()
		if diff := cmp.Diff(before, snapshot()); diff != "" {
			t.Errorf("something outside changed:\n%s", diff)
		}
	}
}

// TestJ08LinksInLayers: a layer's links may lead anywhere, but nothing is
// written or read through them outside of the layer.
func TestJ08LinksInLayers(t *testing.T) {
	needRoot(t)
	dir1, check := outside(t)
	up := strings.Repeat("../", 20)
	for name, layers := range map[string][][]entry{
		"write_through_absolute":  {{symlink("l", dir1), file("l/evil", "evil")}},
		"write_through_relative":  {{symlink("l", up+dir1[1:]), file("l/evil", "evil")}},
		"write_through_chain":     {{symlink("a", "b"), symlink("b", dir1), file("a/evil", "evil")}},
		"write_through_root_link": {{symlink("l", "/"), file("l"+dir1+"/evil", "evil")}},
		"overwrite_link":          {{symlink("l", dir1+"/secret"), file("l", "evil")}},
		"directory_over_link":     {{symlink("l", dir1), dir("l"), file("l/evil", "evil")}},
		"mode_through_link":       {{symlink("l", dir1+"/secret").with(func(h *tarHeader) { h.Mode = 0o777 })}},
		"hard_link_to_link":       {{symlink("l", dir1+"/secret"), hardlink("h", "l"), file("h/x", "evil")}},
		"hard_link_absolute":      {{hardlink("h", dir1+"/secret")}},
		"hard_link_up":            {{hardlink("h", up+dir1[1:]+"/secret")}},
		"hard_link_through_link":  {{symlink("l", dir1), hardlink("h", "l/secret")}},
		"link_below_write_above":  {{symlink("l", dir1)}, {file("l/evil", "evil")}},
		"link_below_delete_above": {{symlink("l", dir1)}, {white("l/.wh.secret")}},
		"link_below_opaque_above": {{symlink("l", dir1)}, {white("l/.wh..wh..opq"), dir("l")}},
		"link_below_hard_link":    {{symlink("l", dir1)}, {hardlink("h", "l/secret"), hardlink("g", "l")}},
		"link_then_delete":        {{file("x", "x")}, {symlink("l", dir1), white("l/.wh.secret")}},
		"link_then_opaque":        {{dir("l")}, {symlink("l", dir1), white("l/.wh..wh..opq")}},
		"link_to_itself":          {{symlink("l", "l"), file("l/x", "x")}},
		"directory_then_link":     {{dir("d"), file("d/f", "f"), symlink("d", dir1), file("d/evil", "evil")}},
		"time_through_link":       {{dir("d"), symlink("d", dir1)}},
		"proc":                    {{symlink("l", "/proc/self/root"), file("l"+dir1+"/evil", "evil")}},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			var tars [][]byte
			for _, l := range layers {
				tars = append(tars, tarOf(t, l...))
			}
			_, err := s.Load(t.Context(), bytes.NewReader(ociArchive(t, img{name: "evil:1", layers: tars})), "")
			if err != nil {
				wantErr(t, err, sandbox.ErrImageCorrupt)
			} else {
				for name, what := range readTree(t, resolve(t, s, "evil:1").Lowers[0]) {
					if strings.Contains(what, "secret") && !strings.HasPrefix(what, "link ") {
						t.Errorf("%s is %s", name, what)
					}
				}
			}
			check()
		})
	}
	check()
}

// TestJ10BadMembers: what cannot be part of a layer is refused, with nothing kept.
func TestJ10BadMembers(t *testing.T) {
	needRoot(t)
	_, check := outside(t)
	special := func(name string, kind byte) entry {
		return entry{tar.Header{Name: name, Typeflag: kind, Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
	}
	deep := strings.Repeat("d/", 3000) + "f"
	for name, c := range map[string]struct {
		entries []entry
		want    model // nil: refused
	}{
		"up":                  {[]entry{file("../evil", "x")}, nil},
		"up_and_up":           {[]entry{file("a/../../../../evil", "x")}, nil},
		"absolute_up":         {[]entry{file("/../evil", "x")}, nil},
		"absolute":            {[]entry{file("/a", "x")}, model{"a": "file x"}},
		"dots_inside":         {[]entry{file("a/../b/./c", "x")}, model{"b": "dir", "b/c": "file x"}},
		"root":                {[]entry{dir("/"), dir("./"), file(".", ""), file("a", "x")}, model{"a": "file x"}},
		"twice":               {[]entry{file("a", "1"), file("a", "2"), file("./a", "3")}, model{"a": "file 3"}},
		"below_a_file":        {[]entry{file("a", "1"), file("a/b", "2")}, nil},
		"devices":             {[]entry{special("null", tar.TypeChar), special("sda", tar.TypeBlock), file("a", "x")}, model{"a": "file x"}},
		"hard_link_to_device": {[]entry{special("null", tar.TypeChar), hardlink("h", "null")}, nil},
		"hard_link_to_none":   {[]entry{hardlink("h", "none")}, nil},
		"hard_link_to_dir":    {[]entry{dir("d"), hardlink("h", "d")}, nil},
		"hard_link_to_root":   {[]entry{hardlink("h", "/")}, nil},
		"hard_link_to_itself": {[]entry{hardlink("h", "h")}, nil},
		"unknown_type":        {[]entry{special("x", 'Q')}, nil},
		"negative_owner":      {[]entry{file("a", "x").with(func(h *tarHeader) { h.Uid, h.Format = -1, tar.FormatGNU })}, nil},
		"too_deep":            {[]entry{file(deep, "x")}, nil},
		"name_too_long":       {[]entry{file(strings.Repeat("n", 300), "x")}, nil},
		"whiteout_of_nothing": {[]entry{file(".wh.", "")}, nil},
		"whiteout_of_parent":  {[]entry{file("a/.wh...", "")}, nil},
		"whiteout_of_itself":  {[]entry{file("a/.wh..", "")}, nil},
		"below_a_whiteout":    {[]entry{file(".wh.a/b", "")}, nil},
		"case":                {[]entry{file("A", "1"), file("a", "2")}, model{"A": "file 1", "a": "file 2"}},
		"old_times": {[]entry{
			file("a", "x").with(func(h *tarHeader) { h.ModTime, h.Format = unixTime(-1<<40), tar.FormatPAX }),
			file("b", "x").with(func(h *tarHeader) { h.ModTime, h.Format = unixTime(1<<50), tar.FormatPAX }),
		}, model{"a": "file x", "b": "file x"}},
		"odd_names": {[]entry{file("a\nb", "x"), file("\xff\xfe", "y"), file("-rf *", "z")}, model{"a\nb": "file x", "\xff\xfe": "file y", "-rf *": "file z"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "images")
			s := openAt(t, root, nil)
			_, err := s.Load(t.Context(), bytes.NewReader(ociArchive(t, img{name: "evil:1", layers: [][]byte{tarOf(t, c.entries...)}})), "")
			check()
			if c.want == nil {
				wantErr(t, err, sandbox.ErrImageCorrupt)
				wantEmpty(t, root)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, readTree(t, resolve(t, s, "evil:1").Lowers[0])); diff != "" {
				t.Errorf("layer (-want +got):\n%s", diff)
			}
		})
	}
}

// bomb compresses n zero bytes behind a small tar.
func bomb(t *testing.T, n int) (plainTar, packed []byte) {
	t.Helper()
	plainTar = append(tarOf(t, file("f", "x")), make([]byte, n)...)
	return plainTar, zstded(plainTar)
}

func TestJ10Bombs(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "images")
	s := openAt(t, root, nil)
	huge, packed := bomb(t, 1<<30)
	t.Run("layer", func(t *testing.T) {
		archive := ociArchive(t, img{name: "evil:1", layers: [][]byte{huge}, zip: compression{"+zstd", func([]byte) []byte { return packed }}})
		_, err := s.Load(t.Context(), bytes.NewReader(archive), "")
		wantErr(t, err, sandbox.ErrImageCorrupt, "expands")
	})
	t.Run("archive", func(t *testing.T) {
		_, err := s.Load(t.Context(), bytes.NewReader(packed), "")
		wantErr(t, err, sandbox.ErrImageCorrupt, "expands")
	})
	t.Run("sparse_file", func(t *testing.T) {
		sparse := sparseLayer(t)
		_, err := s.Load(t.Context(), bytes.NewReader(ociArchive(t, img{name: "evil:1", layers: [][]byte{sparse}})), "")
		wantErr(t, err, sandbox.ErrImageCorrupt, "more than")
	})
	wantNames(t, s)
	wantEmpty(t, root)
}

// sparseLayer has a file of a terabyte without any data, as PAX 1.0 says it.
func sparseLayer(t testing.TB) []byte {
	t.Helper()
	record := func(k, v string) string {
		n := len(k) + len(v) + 3
		for len(fmt.Sprint(n))+len(k)+len(v)+3 != n {
			n++
		}
		return fmt.Sprintf("%d %s=%s\n", n, k, v)
	}
	records := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", "big") + record("GNU.sparse.realsize", "1099511627776")
	layer := tarOf(t, entry{tar.Header{Name: "pax", Typeflag: tar.TypeReg, Mode: 0o644}, records}, file("big", "0\n"+strings.Repeat("\x00", 510)))
	// The first entry becomes the extended header of the second.
	layer[156] = tar.TypeXHeader
	sum := 0
	copy(layer[148:156], "        ")
	for _, c := range layer[:512] {
		sum += int(c)
	}
	copy(layer[148:], fmt.Sprintf("%06o\x00 ", sum))
	return layer
}
