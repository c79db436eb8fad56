package tartree_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/tai/sandbox"
)

func stage(t testing.TB, dir string, data []byte, l tartree.Limits) error {
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
	s := tartree.NewStage(t.Context(), d, l)
	defer s.Close()
	return tartree.UnpackTo(bytes.NewReader(data), s)
}

// holed makes a file with data at some places.
func holed(t *testing.T, name string, size int64, at ...int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, n := range at {
		if _, err := f.WriteAt([]byte(fmt.Sprint("data", i)), n); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Skip(err)
	}
}

// K07: files with holes stay what they are, for us and for tar(1).
func TestK07HolesStayHoles(t *testing.T) {
	src := t.TempDir()
	long := bytes.Repeat([]byte("n"), 200)
	const size = 16 << 20
	holed(t, filepath.Join(src, "begin"), size, 0)
	holed(t, filepath.Join(src, "end"), size, size-5)
	holed(t, filepath.Join(src, string(long)), size, 0, 5<<20, 5<<20+4096*3, 10<<20, size-5)
	holed(t, filepath.Join(src, "all"), size)
	holed(t, filepath.Join(src, "\xffodd\n"), 2<<20, 1<<20)
	var buf bytes.Buffer
	if err := tartree.Pack(&buf, src, "top"); err != nil {
		t.Fatal(err)
	}
	if buf.Len() > 1<<20 {
		t.Errorf("the archive has %d bytes", buf.Len())
	}
	check := func(who, dir string) {
		t.Helper()
		entries, err := os.ReadDir(src)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			name := filepath.Join(dir, "top", e.Name())
			var st syscall.Stat_t
			if err := syscall.Stat(name, &st); err != nil {
				t.Errorf("%s: %v", who, err)
				continue
			}
			if st.Mode != syscall.S_IFREG|0o640 || st.Blocks > 4096 {
				t.Errorf("%s: %.20q has mode %o and %d blocks", who, e.Name(), st.Mode, st.Blocks)
			}
			if out, err := exec.Command("cmp", name, filepath.Join(src, e.Name())).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", who, err, out)
			}
		}
	}
	ours := t.TempDir()
	if err := stage(t, ours, buf.Bytes(), tartree.Limits{}); err != nil {
		t.Fatal(err)
	}
	check("stage", ours)
	box := t.TempDir()
	if err := unpack(t, box, buf.Bytes(), tartree.Options{}); err != nil {
		t.Error(err)
	}
	check("unpack", box)
	var renamed bytes.Buffer
	if err := tartree.Rename(&renamed, bytes.NewReader(buf.Bytes()), "top", "other"); err != nil {
		t.Error(err)
	}
	if n := renamed.Len() - buf.Len(); n > 1<<10 {
		t.Errorf("the renamed archive has %d bytes more", n)
	}
	again := t.TempDir()
	if err := unpack(t, again, renamed.Bytes(), tartree.Options{From: "other", To: "top"}); err != nil {
		t.Error(err)
	}
	check("rename", again)
	if _, err := exec.LookPath("tar"); err == nil {
		theirs := t.TempDir()
		cmd := exec.Command("tar", "-xf", "-", "-C", theirs)
		cmd.Stdin = bytes.NewReader(buf.Bytes())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		check("tar", theirs)
		// And the other way round, in all forms that tar has.
		for _, form := range [][]string{{"--format=gnu"}, {"--format=pax", "--sparse-version=1.0"}, {"--format=pax", "--sparse-version=0.1"}, {"--format=pax", "--sparse-version=0.0"}} {
			packed, err := exec.Command("tar", append(form, "-S", "-c", "-C", theirs, "top")...).Output()
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := stage(t, dir, packed, tartree.Limits{}); err != nil {
				t.Errorf("%v: %v", form, err)
				continue
			}
			check(form[len(form)-1], dir)
			dir = t.TempDir()
			if err := unpack(t, dir, packed, tartree.Options{}); err != nil {
				t.Errorf("%v: %v", form, err)
				continue
			}
			check(form[len(form)-1], dir)
			// With another name the bytes are right, whatever becomes of the holes.
			renamed.Reset()
			if err := tartree.Rename(&renamed, bytes.NewReader(packed), "top", "other"); err != nil {
				t.Errorf("%v: %v", form, err)
				continue
			}
			dir = t.TempDir()
			if err := unpack(t, dir, renamed.Bytes(), tartree.Options{}); err != nil {
				t.Errorf("%v: %v", form, err)
			}
			if out, err := exec.Command("diff", "-r", src, filepath.Join(dir, "other")).CombinedOutput(); err != nil {
				t.Errorf("%v: %v: %s", form, err, out)
			}
		}
	}
}

// A hole is not what there must be room for, nor what takes any time: at the
// pace of reading zeros, this would not end.
func TestK07HolesNeedNoRoom(t *testing.T) {
	src := t.TempDir()
	const size = 15 << 40
	holed(t, filepath.Join(src, "f"), size, 5, 9<<40, size-5)
	var ours bytes.Buffer
	if err := tartree.Pack(&ours, src, "top"); err != nil {
		t.Fatal(err)
	}
	archives := map[string][]byte{"ours": ours.Bytes()}
	if _, err := exec.LookPath("tar"); err == nil {
		for name, form := range map[string][]string{
			"gnu": {"--format=gnu"}, "1.0": {"--format=pax", "--sparse-version=1.0"},
			"0.1": {"--format=pax", "--sparse-version=0.1"}, "0.0": {"--format=pax", "--sparse-version=0.0"},
		} {
			packed, err := exec.Command("tar", append(form, "-S", "-c", "-C", src, "--transform=s,^,top/,", "f")...).Output()
			if err != nil {
				t.Fatal(err)
			}
			archives[name] = packed
		}
	}
	for name, data := range archives {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unpack(t, dir, data, tartree.Options{}); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(filepath.Join(dir, "top", "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for at, want := range map[int64]string{0: "\x00\x00\x00\x00\x00", 5: "data0", 9 << 40: "data1", size - 5: "data2"} {
				got := make([]byte, 5)
				if _, err := f.ReadAt(got, at); err != nil || string(got) != want {
					t.Errorf("at %d: %q, %v", at, got, err)
				}
			}
			info, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if blocks := info.Sys().(*syscall.Stat_t).Blocks; info.Size() != size || blocks > 1024 {
				t.Errorf("%d bytes in %d blocks", info.Size(), blocks)
			}
		})
	}
}

// A map that does not fit what follows is refused.
func TestJ10MapOfAnotherFile(t *testing.T) {
	src := t.TempDir()
	holed(t, filepath.Join(src, "f"), 4<<20, 0, 3<<20)
	var buf bytes.Buffer
	if err := tartree.Pack(&buf, src, "top"); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"longer":  {"\n3145728\n4096\n", "\n3145728\n9096\n"},
		"shorter": {"\n3145728\n4096\n", "\n3145728\n1096\n"},
	} {
		data := bytes.Replace(buf.Bytes(), []byte(change[0]), []byte(change[1]), 1)
		if bytes.Equal(data, buf.Bytes()) {
			t.Skip("the file system has other blocks")
		}
		if err := unpack(t, t.TempDir(), data, tartree.Options{}); !errors.Is(err, sandbox.ErrArchive) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An unpacking whose context has ended stops, though its source goes on.
func TestUnpackStops(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	source := bytes.NewReader(archive(t, tar.Header{Name: "a"}, tar.Header{Name: "b"}))
	read := readFunc(func(p []byte) (int, error) {
		cancel(stopped)
		return source.Read(p)
	})
	if err := tartree.Unpack(ctx, read, root, tartree.Options{}); !errors.Is(err, stopped) {
		t.Error(err)
	}
	if _, err := root.Stat("b"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// Holes are no way around the limits.
func TestK07HolesCount(t *testing.T) {
	src := t.TempDir()
	holed(t, filepath.Join(src, "f"), 1<<40, 5)
	var buf bytes.Buffer
	if err := tartree.Pack(&buf, src, "top"); err != nil {
		t.Fatal(err)
	}
	if err := stage(t, t.TempDir(), buf.Bytes(), tartree.Limits{Bytes: 1 << 30}); !errors.Is(err, sandbox.ErrArchive) {
		t.Error(err)
	}
}

// A file in too many pieces travels whole, unless that is too much.
func TestK07TooManyPieces(t *testing.T) {
	src := t.TempDir()
	var at []int64
	for i := range int64(10_100) {
		at = append(at, i*(16<<10))
	}
	holed(t, filepath.Join(src, "f"), 10_200*(16<<10), at...)
	var n counter
	if err := tartree.Pack(&n, src, "top"); err != nil || n > 200<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
	holed(t, filepath.Join(src, "f"), 1<<40, at...)
	if err := tartree.Pack(io.Discard, src, "top"); !errors.Is(err, unix.EFBIG) {
		t.Error(err)
	}
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// capped has no room for the zeros of a large hole.
type capped struct{ *bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	if c.Len()+len(p) > 8<<20 {
		return 0, unix.ENOSPC
	}
	return c.Buffer.Write(p)
}

func FuzzUntar(f *testing.F) {
	var buf bytes.Buffer
	src := f.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(src, "d/e"), 0o755), os.WriteFile(filepath.Join(src, "d/f"), []byte("data"), 0o644),
		os.Symlink("f", filepath.Join(src, "d/l")), os.Link(filepath.Join(src, "d/f"), filepath.Join(src, "d/h")),
	} {
		if err != nil {
			f.Fatal(err)
		}
	}
	if err := tartree.Pack(&buf, src, "top"); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	buf.Reset()
	if err := os.Truncate(filepath.Join(src, "d/f"), 2<<20); err != nil {
		f.Fatal(err)
	}
	if err := tartree.Pack(&buf, src, "top"); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add(make([]byte, 1024))
	f.Fuzz(func(t *testing.T, data []byte) {
		base := t.TempDir()
		dest, beside := filepath.Join(base, "dest"), filepath.Join(base, "canary")
		if err := errors.Join(os.Mkdir(dest, 0o700), os.WriteFile(beside, []byte("untouched"), 0o600)); err != nil {
			t.Fatal(err)
		}
		stage(t, dest, data, tartree.Limits{Entries: 1000, Bytes: 8 << 20, Depth: 20})
		var renamed bytes.Buffer
		if len(data) < 1<<20 && tartree.Rename(&capped{&renamed}, bytes.NewReader(data), "top", "new") == nil {
			for tr := tar.NewReader(&renamed); ; {
				h, err := tr.Next()
				if err != nil { // whoever unpacks it says so
					break
				}
				if name := path.Clean(h.Name); name != "new" && !strings.HasPrefix(name, "new/") {
					t.Errorf("%q came out of a rename", name)
				}
			}
		}
	})
}
