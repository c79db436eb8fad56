package tartree_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/tai/sandbox"
)

// archive makes a tar stream of headers; a regular file's contents are its name.
func archive(t *testing.T, hs ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range hs {
		data := []byte(nil)
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			h.Typeflag, data = tar.TypeReg, []byte(h.Name)
			h.Size = int64(len(data))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func unpack(t *testing.T, dir string, data []byte, o tartree.Options) error {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	return tartree.Unpack(t.Context(), bytes.NewReader(data), root, o)
}

// snapshot describes all that is below a directory.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		fmt.Fprintf(&b, "%q %v", rel, info.Mode())
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d %.40q", len(data), data)
		case info.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(name)
			fmt.Fprintf(&b, " -> %q", to)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// place is a destination with a canary tree beside it.
func place(t *testing.T) (dest, beside string) {
	t.Helper()
	base := t.TempDir()
	dest, beside = filepath.Join(base, "dest"), filepath.Join(base, "canary")
	for _, d := range []string{dest, beside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(beside, "secret"), []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dest, beside
}

func TestTreeComesBackTheSame(t *testing.T) {
	src := t.TempDir()
	odd := []string{"a\nb", "\xff\xfe", "-rf", "a b", `"`, "'", "%2F", "é", "e\u0301", "🚀", strings.Repeat("x", 255), ".git", "trailing ", "*"}
	for i, name := range odd { // K08
		if err := os.WriteFile(filepath.Join(src, name), bytes.Repeat([]byte{byte(i)}, i*1000), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		os.MkdirAll(filepath.Join(src, "d/e"), 0o755), os.Chmod(filepath.Join(src, "d/e"), 0o1570),
		os.Symlink("e", filepath.Join(src, "d/l")), os.Symlink("/etc/passwd", filepath.Join(src, "d/abs")),
		os.Link(filepath.Join(src, ".git"), filepath.Join(src, "d/hard")), syscall.Mkfifo(filepath.Join(src, "d/pipe"), 0o600),
		os.WriteFile(filepath.Join(src, "d/old"), nil, 0o400), os.Chtimes(filepath.Join(src, "d/old"), time.Time{}, time.Unix(1e9, 0)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var buf bytes.Buffer
	if err := tartree.Pack(&buf, src, "top"); err != nil {
		t.Fatal(err)
	}
	dest := t.TempDir()
	if err := unpack(t, dest, buf.Bytes(), tartree.Options{From: "top", To: "new"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(src, "d/pipe")); err != nil { // pipes are left out
		t.Fatal(err)
	}
	if got, want := snapshot(t, filepath.Join(dest, "new")), snapshot(t, src); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	info, err := os.Stat(filepath.Join(dest, "new/d/old"))
	if err != nil || !info.ModTime().Equal(time.Unix(1e9, 0)) {
		t.Errorf("its time is %v, %v", info.ModTime(), err)
	}
	a, _ := os.Stat(filepath.Join(dest, "new/.git"))
	b, _ := os.Stat(filepath.Join(dest, "new/d/hard"))
	if !os.SameFile(a, b) {
		t.Error("two names of one file became two files")
	}
}

func TestPackRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]error{
		"/dev/zero": unix.EINVAL, "/proc": unix.EINVAL, "/proc/self/status": unix.EINVAL, "/proc/self/mem": unix.EINVAL, // J07
		filepath.Join(dir, "none"): fs.ErrNotExist,
	} {
		var buf bytes.Buffer
		if err := tartree.Pack(&buf, name, "x"); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A tree that has /proc in it is packed without what is there.
func TestJ07MadeUpFilesAreLeftOut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc", filepath.Join(dir, "proc"), "", unix.MS_BIND, ""); err != nil {
		t.Skip(err)
	}
	defer unix.Unmount(filepath.Join(dir, "proc"), unix.MNT_DETACH)
	var buf bytes.Buffer
	if err := tartree.Pack(&buf, dir, "top"); err != nil {
		t.Fatal(err)
	}
	if n := names(t, buf.Bytes()); !slices.Equal(n, []string{"top/", "top/proc/"}) {
		t.Errorf("packed were %q", n)
	}
}

func names(t *testing.T, data []byte) []string {
	t.Helper()
	var all []string
	for tr := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h.Name)
	}
}

// J08, J10: nothing of a bad archive stays, and nothing beside is touched.
func TestJ10BadArchives(t *testing.T) {
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	hard := func(name, to string) tar.Header { return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to} }
	of := func(kind byte) tar.Header { return tar.Header{Typeflag: kind, Name: "top/x"} }
	file := func(name string) tar.Header { return tar.Header{Name: name} }
	dir := tar.Header{Typeflag: tar.TypeDir, Name: "top/", Mode: 0o755}
	for name, hs := range map[string][]tar.Header{
		"up": {file("../evil")}, "up-inside": {file("top/../../evil")}, "up-at-the-end": {file("top/..")}, "absolute": {file("/tmp/evil")},
		"dot-dot-dir":  {{Typeflag: tar.TypeDir, Name: "../canary/"}},
		"char":         {dir, of(tar.TypeChar)},
		"block":        {dir, of(tar.TypeBlock)},
		"pipe":         {dir, of(tar.TypeFifo)},
		"unknown":      {dir, of('Z')},
		"through-link": {dir, link("top/l", "/"), file("top/l/evil")}, "through-relative-link": {dir, link("top/l", "../../canary"), file("top/l/evil")},
		"through-two":    {dir, link("top/a", ".."), link("top/b", "a/../canary"), file("top/b/evil")},
		"dir-over-link":  {dir, link("top/l", "../../canary"), {Typeflag: tar.TypeDir, Name: "top/l/", Mode: 0o777}, file("top/l/evil")},
		"hard-link-up":   {dir, hard("top/h", "../canary/secret")},
		"hard-link-abs":  {dir, hard("top/h", "/etc/passwd")},
		"hard-link-late": {dir, hard("top/h", "top/later"), file("top/later")},
		"hard-link-link": {dir, link("top/l", "../../canary/secret"), hard("top/h", "top/l")},
		"hard-through":   {dir, link("top/l", "../../canary"), hard("top/h", "top/l/secret")},
		"deep":           {file("top/" + strings.Repeat("d/", 300) + "x")},
		"long":           {file("top/" + strings.Repeat(strings.Repeat("d", 250)+"/", 20) + "x")},
		"file-over-dir":  {dir, {Typeflag: tar.TypeDir, Name: "top/d/", Mode: 0o755}, file("top/d")},
		"dir-over-file":  {dir, file("top/f"), {Typeflag: tar.TypeDir, Name: "top/f/", Mode: 0o755}},
	} {
		t.Run(name, func(t *testing.T) {
			dest, beside := place(t)
			before := snapshot(t, filepath.Dir(dest))
			err := unpack(t, dest, archive(t, hs...), tartree.Options{})
			if err == nil {
				t.Error("it was taken")
			}
			if got := snapshot(t, filepath.Dir(dest)); got != before {
				t.Errorf("%v, and there is\n%s", err, got)
			}
			_ = beside
			// The same from a box: links that lead out are not even made.
			err = unpack(t, dest, archive(t, hs...), tartree.Options{From: "top", To: "new", Outside: true})
			if data, rerr := os.ReadFile(filepath.Join(beside, "secret")); rerr != nil || string(data) != "untouched" {
				t.Errorf("%v: the secret beside is %q, %v", err, data, rerr)
			}
			if entries, _ := os.ReadDir(beside); len(entries) != 1 {
				t.Errorf("%v: beside are %v", err, entries)
			}
		})
	}
}

// What a box sends has the one name that was asked for, and links in it stay
// in it.
func TestJ08FromABox(t *testing.T) {
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	dest, _ := place(t)
	data := archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "top/", Mode: 0o755}, tar.Header{Name: "top/f", Mode: 0o4755},
		tar.Header{Typeflag: tar.TypeDir, Name: "top/d/", Mode: 0o500}, link("top/d/ok", "../f"), link("top/same", "f"),
		link("top/abs", "/etc/passwd"), link("top/up", "../x"), link("top/d/up", "../../x"), link("top/climb", "d/../../x"), link("top/d/self", ".."),
	)
	var left []string
	err := unpack(t, dest, data, tartree.Options{From: "top", To: "new", Outside: true, LeftOut: func(name, _ string) { left = append(left, name) }})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"new/abs", "new/up", "new/d/up", "new/climb"}; !slices.Equal(left, want) {
		t.Errorf("left out were %q; wanted are %q", left, want)
	}
	want := `"." drwxr-xr-x
"d" dr-x------
"d/ok" Lrwxrwxrwx -> "../f"
"d/self" Lrwxrwxrwx -> ".."
"f" -rwxr-xr-x 5 "top/f"
"same" Lrwxrwxrwx -> "f"
`
	if got := snapshot(t, filepath.Join(dest, "new")); got != want {
		t.Errorf("there is\n%s", got)
	}
	// Files beside the asked one, which scp once took.
	for _, evil := range []string{".bashrc", "topx", "new"} {
		if err := unpack(t, dest, archive(t, tar.Header{Name: evil}), tartree.Options{From: "top", To: "new", Outside: true}); !errors.Is(err, sandbox.ErrArchive) {
			t.Errorf("%s: %v", evil, err)
		}
	}
	// Nothing is written through a link that lies there already.
	if err := os.Symlink(filepath.Join(filepath.Dir(dest), "canary"), filepath.Join(dest, "there")); err != nil {
		t.Fatal(err)
	}
	if err := unpack(t, dest, archive(t, tar.Header{Name: "top/evil"}), tartree.Options{From: "top", To: "there", Outside: true}); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("through a link: %v", err)
	}
}

// The one tree of an archive gets another name, and nothing else passes.
func TestRename(t *testing.T) {
	link := tar.Header{Typeflag: tar.TypeSymlink, Name: "top/l", Linkname: "top/f"}
	hard := tar.Header{Typeflag: tar.TypeLink, Name: "top/h", Linkname: "top/f"}
	dir := tar.Header{Typeflag: tar.TypeDir, Name: "top/", Mode: 0o755}
	long := strings.Repeat("long/", 60) + "\xff"
	whole := archive(t, dir, tar.Header{Name: "top/f"}, link, hard, tar.Header{Name: "top/" + long})
	var global bytes.Buffer
	tw := tar.NewWriter(&global)
	if err := errors.Join(tw.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}), tw.Flush()); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"top", "new"}, {".", "new"}} {
		var out bytes.Buffer
		if err := tartree.Rename(&out, io.MultiReader(&global, bytes.NewReader(whole)), c[0], c[1]); err != nil {
			t.Fatal(err)
		}
		want := []string{"new/", "new/f", "new/l", "new/h", "new/" + long}
		if c[0] == "." {
			want = []string{"new/top/", "new/top/f", "new/top/l", "new/top/h", "new/top/" + long}
		}
		if got := names(t, out.Bytes()); !slices.Equal(got, want) {
			t.Errorf("%v: there are %q", c, got)
		}
		dest, _ := place(t)
		if err := unpack(t, dest, out.Bytes(), tartree.Options{}); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(filepath.Join(dest, strings.TrimSuffix(want[3], "/"))); string(data) != "top/f" {
			t.Errorf("%v: the hard link has %q, %v", c, data, err)
		}
	}
	for _, evil := range []tar.Header{{Name: ".bashrc"}, {Name: "topx"}, {Name: "top/../x"}, {Name: "/top/x"}, {Typeflag: tar.TypeLink, Name: "top/h", Linkname: "x"}} {
		if err := tartree.Rename(io.Discard, bytes.NewReader(archive(t, dir, evil)), "top", "new"); !errors.Is(err, sandbox.ErrArchive) {
			t.Errorf("%q: %v", evil.Name, err)
		}
	}
	for _, n := range []int{1530, 2100, 2570} {
		if err := tartree.Rename(io.Discard, bytes.NewReader(whole[:n]), "top", "new"); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d: %v", n, err)
		}
	}
	endless := io.MultiReader(bytes.NewReader(archive(t, tar.Header{Name: "top/" + long})[:512]), rand.NewChaCha8([32]byte{}))
	if err := tartree.Rename(io.Discard, endless, "top", "new"); err == nil {
		t.Error("what is no archive was taken")
	}
}

// K05: an archive that was cut, wherever, is refused and leaves nothing.
func TestK05CutArchive(t *testing.T) {
	whole := archive(t, tar.Header{Typeflag: tar.TypeDir, Name: "top/", Mode: 0o755}, tar.Header{Name: "top/f"}, tar.Header{Name: "top/g"})
	for _, n := range []int{0, 100, 512, 1024, 1536, 2048, 2560, len(whole) - 1024, len(whole) - 512} {
		dest, _ := place(t)
		if err := unpack(t, dest, whole[:n], tartree.Options{}); !errors.Is(err, sandbox.ErrArchive) {
			t.Errorf("cut after %d: %v", n, err)
		}
		if entries, _ := os.ReadDir(dest); len(entries) > 0 {
			t.Errorf("cut after %d: there is %v", n, entries)
		}
	}
	dest, _ := place(t)
	if err := unpack(t, dest, append(whole, make([]byte, 9<<10)...), tartree.Options{}); err != nil {
		t.Errorf("with padding: %v", err)
	}
	if err := unpack(t, dest, append(whole, make([]byte, 2<<20)...), tartree.Options{}); !errors.Is(err, sandbox.ErrArchive) {
		t.Errorf("with no end: %v", err)
	}
}

// A file that was there before is replaced whole, and survives a failure.
func TestOldFilesSurvive(t *testing.T) {
	dest, _ := place(t)
	old := filepath.Join(dest, "f")
	if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := archive(t, tar.Header{Name: "new"}, tar.Header{Name: "f"})
	if err := unpack(t, dest, whole[:1530], tartree.Options{}); err == nil {
		t.Error("a cut archive was taken")
	}
	if got := snapshot(t, dest); got != "\".\" drwxr-xr-x\n\"f\" -rw------- 3 \"old\"\n" {
		t.Errorf("there is\n%s", got)
	}
	if err := unpack(t, dest, whole, tartree.Options{}); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(old); string(data) != "f" {
		t.Errorf("%q, %v", data, err)
	}
}

// A file larger than the disk is refused before it fills it.
func TestL02NoRoom(t *testing.T) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 1 << 60}); err != nil {
		t.Fatal(err)
	}
	dest, _ := place(t)
	if err := unpack(t, dest, buf.Bytes(), tartree.Options{}); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	if got := snapshot(t, dest); got != "\".\" drwxr-xr-x\n" {
		t.Errorf("there is\n%s", got)
	}
}

func TestK02OwnersAreKept(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dest, _ := place(t)
	data := archive(t, tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o700, Uid: 65534, Gid: 65534}, tar.Header{Name: "d/f", Uid: 1000, Gid: 1001})
	if err := unpack(t, dest, data, tartree.Options{Owners: true}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]uint32{"d": {65534, 65534}, "d/f": {1000, 1001}} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dest, name), &st); err != nil || st.Uid != want[0] || st.Gid != want[1] {
			t.Errorf("%s is of %d:%d, %v", name, st.Uid, st.Gid, err)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	var buf bytes.Buffer
	if err := tartree.Pack(&buf, "testdata", "top"); err == nil {
		f.Add(buf.Bytes())
	}
	f.Add(make([]byte, 1024))
	f.Fuzz(func(t *testing.T, data []byte) {
		dest, beside := place(t)
		root, err := os.OpenRoot(dest)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		tartree.Unpack(t.Context(), bytes.NewReader(data), root, tartree.Options{Outside: true})
		if data, err := os.ReadFile(filepath.Join(beside, "secret")); string(data) != "untouched" {
			t.Errorf("beside: %q, %v", data, err)
		}
	})
}
