package workspace_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/iotest"

	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
	"github.com/taibox/taibox/tai/workspace"
)

const id = "ws-a"

// counted counts what of files is read.
type counted struct {
	volume.Volume
	opens atomic.Int64
	bytes atomic.Int64
}

func (c *counted) Open(ctx context.Context, id, path string, o volume.OpenOptions) (io.ReadCloser, volume.FileInfo, error) {
	c.opens.Add(1)
	r, info, err := c.Volume.Open(ctx, id, path, o)
	if err != nil {
		return nil, info, err
	}
	return &countedReader{r, &c.bytes}, info, nil
}

type countedReader struct {
	io.ReadCloser
	n *atomic.Int64
}

func (r *countedReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.n.Add(int64(n))
	return n, err
}

// open makes a workspace and returns its files, its volume and its directory.
func open(t *testing.T) (workspace.FS, *counted, string) {
	t.Helper()
	v, err := local.Open(t.Context(), local.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	vol := &counted{Volume: v}
	if _, err := vol.Create(t.Context(), id, volume.Options{}); err != nil {
		t.Fatal(err)
	}
	dir, err := vol.MountPath(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	fsys := workspace.New(vol, id)
	t.Cleanup(func() {
		fsys.Close()
		vol.Close()
	})
	return fsys, vol, dir
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFS(t *testing.T) {
	fsys, _, dir := open(t)
	ok(t, fstest.TestFS(fsys))
	ok(t, fsys.MkdirAll("src/pkg/empty", 0o755))
	for name, text := range map[string]string{
		"main.go": "package main\n", "src/a b.txt": "spaces", "src/pkg/é.txt": "", "src/pkg/.hidden": strings.Repeat("x", 2000),
	} {
		ok(t, fsys.WriteFile(name, []byte(text), 0o644))
	}
	ok(t, os.Symlink("pkg/.hidden", filepath.Join(dir, "src", "link")))
	ok(t, os.Symlink("src/pkg", filepath.Join(dir, "dirlink")))
	ok(t, fstest.TestFS(fsys, "main.go", "src/a b.txt", "src/pkg/é.txt", "src/pkg/.hidden", "src/pkg/empty", "src/link"))
	if link, err := fs.ReadLink(fsys, "src/link"); err != nil || link != "pkg/.hidden" {
		t.Errorf("the link leads to %q, %v", link, err)
	}
	if info, err := fsys.Stat("src/link"); err != nil || info.Name() != "link" || !info.Mode().IsRegular() {
		t.Errorf("what the link leads to is %v, %v", info, err)
	}
	sub, err := fs.Sub(fsys, "src")
	ok(t, err)
	ok(t, fstest.TestFS(sub, "a b.txt", "pkg/.hidden"))
}

func TestWrite(t *testing.T) {
	fsys, _, dir := open(t)
	ok(t, fsys.WriteFile("f", []byte("1"), 0o600))
	ok(t, fsys.WriteFile("f", []byte("22"), 0o644)) // keeps its mode, as os.WriteFile
	info, err := fsys.Stat("f")
	if err != nil || info.Mode() != 0o600 || info.Size() != 2 || info.Name() != "f" {
		t.Errorf("it is %v, %v", info, err)
	}
	ok(t, fsys.MkdirAll("a/b", 0o700))
	if st, err := os.Stat(filepath.Join(dir, "a")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, %v", st, err)
	}
	ok(t, fsys.Rename("f", "a/b/g"))
	if data, err := fsys.ReadFile("a/b/g"); err != nil || string(data) != "22" {
		t.Errorf("moved is %q, %v", data, err)
	}
	if err := fsys.Remove("a"); err == nil {
		t.Error("a directory with something in it was removed")
	}
	ok(t, fsys.RemoveAll("a"))
	ok(t, fsys.RemoveAll("a"))
	if err := fsys.Remove("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove nothing: %v", err)
	}
}

func TestErrors(t *testing.T) {
	fsys, _, dir := open(t)
	ok(t, fsys.MkdirAll("d", 0o755))
	ok(t, fsys.WriteFile("f", []byte("x"), 0o644))
	ok(t, os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	ok(t, os.Symlink("../../..", filepath.Join(dir, "d", "up")))
	ok(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"open-absent":    {second(fsys.Open("none")), fs.ErrNotExist},
		"stat-absent":    {second(fsys.Stat("none")), fs.ErrNotExist},
		"read-absent":    {second(fsys.ReadFile("none")), fs.ErrNotExist},
		"readdir-absent": {second(fsys.ReadDir("none")), fs.ErrNotExist},
		"write-nowhere":  {fsys.WriteFile("no/dir", nil, 0o644), fs.ErrNotExist},
		"rename-absent":  {fsys.Rename("none", "other"), fs.ErrNotExist},
		"open-invalid":   {second(fsys.Open("/etc/passwd")), fs.ErrInvalid},
		"open-up":        {second(fsys.Open("../x")), fs.ErrInvalid},
		"write-invalid":  {fsys.WriteFile("a//b", nil, 0o644), fs.ErrInvalid},
		"read-dir":       {second(fsys.ReadFile("d")), fs.ErrInvalid},
		"open-out":       {second(fsys.Open("out")), fs.ErrPermission},
		"stat-out":       {second(fsys.Stat("out")), fs.ErrPermission},
		"stat-up":        {second(fsys.Stat("d/up")), fs.ErrPermission},
		"mkdir-on-file":  {fsys.MkdirAll("f", 0o755), nil},
		"loop":           {second(fsys.Open("loop")), nil},
	} {
		var pe *fs.PathError
		if c.err == nil || c.want != nil && !errors.Is(c.err, c.want) || !errors.As(c.err, &pe) {
			t.Errorf("%s: %v (%T); wanted is a PathError that is %v", name, c.err, c.err, c.want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestGone(t *testing.T) {
	fsys, vol, _ := open(t)
	ok(t, vol.Delete(t.Context(), id))
	_, err := fsys.Open("f")
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("of a workspace that is gone: %v", err)
	}
	if err := fsys.WriteFile("f", nil, 0o644); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("of a workspace that is gone: %v", err)
	}
}

func TestBroken(t *testing.T) {
	own := errors.New("why")
	for _, c := range []struct {
		fsys workspace.FS
		want error
	}{{workspace.New(nil, id), volume.ErrUnsupported}, {workspace.Broken(own), own}} {
		if _, err := c.fsys.Open("f"); !errors.Is(err, c.want) {
			t.Errorf("open: %v", err)
		}
		if err := c.fsys.MkdirAll("d", 0); !errors.Is(err, c.want) {
			t.Errorf("mkdir: %v", err)
		}
		ok(t, c.fsys.Close())
	}
}

func TestClose(t *testing.T) {
	fsys, _, _ := open(t)
	ok(t, fsys.WriteFile("f", []byte("text"), 0o644))
	f, err := fsys.Open("f")
	ok(t, err)
	if _, err := f.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	ok(t, fsys.Close())
	ok(t, fsys.Close())
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	if _, err := fsys.Stat("f"); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("stat after close: %v", err)
	}
	ok(t, f.Close())
	if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

// large writes a file of that many random bytes.
func large(t *testing.T, fsys workspace.FS, size int) []byte {
	t.Helper()
	data := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(data)
	ok(t, fsys.WriteFile("large", data, 0o644))
	return data
}

// TestLazy: a large file is not read before it is, and then not as a whole.
func TestLazy(t *testing.T) {
	fsys, vol, _ := open(t)
	data := large(t, fsys, 32<<20)
	f, err := fsys.Open("large")
	ok(t, err)
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != int64(len(data)) {
		t.Errorf("it is %v, %v", info, err)
	}
	if n := vol.opens.Load(); n != 0 {
		t.Errorf("opening it opened %d streams", n)
	}
	buf := make([]byte, 1000)
	_, err = f.(io.ReaderAt).ReadAt(buf, 30<<20)
	ok(t, err)
	if !bytes.Equal(buf, data[30<<20:30<<20+1000]) {
		t.Error("ReadAt read something else")
	}
	_, err = f.(io.Seeker).Seek(-500, io.SeekEnd)
	ok(t, err)
	rest, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(rest, data[len(data)-500:]) {
		t.Errorf("at its end there are %d bytes, %v", len(rest), err)
	}
	if n := vol.bytes.Load(); n > 1<<20 {
		t.Errorf("%d bytes were read for 1500", n)
	}
}

func TestReader(t *testing.T) {
	fsys, _, _ := open(t)
	data := large(t, fsys, 1<<20)
	ok(t, fsys.WriteFile("small", data[:2000], 0o644))
	small, err := fsys.Open("small")
	ok(t, err)
	defer small.Close()
	ok(t, iotest.TestReader(small, data[:2000]))
	f, err := fsys.Open("large")
	ok(t, err)
	defer f.Close()
	for _, off := range []int64{-1, int64(len(data)), int64(len(data)) + 10} {
		n, err := f.(io.ReaderAt).ReadAt(make([]byte, 10), off)
		if n != 0 || off >= 0 && !errors.Is(err, io.EOF) || off < 0 && !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("at %d there are %d bytes, %v", off, n, err)
		}
	}
	if _, err := f.(io.Seeker).Seek(-1, io.SeekStart); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("seek before the beginning: %v", err)
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			buf := make([]byte, 4096)
			off := int64(i) * 60_000
			if _, err := f.(io.ReaderAt).ReadAt(buf, off); err != nil || !bytes.Equal(buf, data[off:off+4096]) {
				t.Errorf("at %d: %v", off, err)
			}
		})
	}
	wg.Wait()
}

// TestReplacedWhileRead: a reader has one file or an error, never a mixture.
func TestReplacedWhileRead(t *testing.T) {
	fsys, _, _ := open(t)
	data := large(t, fsys, 1<<20)
	f, err := fsys.Open("large")
	ok(t, err)
	defer f.Close()
	head := make([]byte, 1000)
	_, err = io.ReadFull(f, head)
	ok(t, err)
	ok(t, fsys.WriteFile("large", bytes.Repeat([]byte("new"), 1<<19), 0o644))
	rest, err := io.ReadAll(f)
	if err == nil && !bytes.Equal(slices.Concat(head, rest), data) {
		t.Error("it is a mixture")
	}
	if _, err := f.(io.ReaderAt).ReadAt(head, 1000); !errors.Is(err, volume.ErrVersion) {
		t.Errorf("another read of the same file: %v", err)
	}
}

func TestDirFile(t *testing.T) {
	fsys, _, _ := open(t)
	for _, n := range []string{"a", "b", "c"} {
		ok(t, fsys.WriteFile(n, nil, 0o644))
	}
	f, err := fsys.Open(".")
	ok(t, err)
	dir := f.(fs.ReadDirFile)
	first, err := dir.ReadDir(2)
	if err != nil || len(first) != 2 || first[0].Name() != "a" {
		t.Errorf("first came %v, %v", first, err)
	}
	rest, err := dir.ReadDir(-1)
	if err != nil || len(rest) != 1 {
		t.Errorf("then came %v, %v", rest, err)
	}
	if _, err := dir.ReadDir(1); !errors.Is(err, io.EOF) {
		t.Errorf("then came %v", err)
	}
	if _, err := dir.Read(make([]byte, 1)); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a directory was read: %v", err)
	}
	ok(t, dir.Close())
	if _, err := dir.ReadDir(1); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}
