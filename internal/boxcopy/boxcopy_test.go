package boxcopy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/boxcopy"
	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/tai/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// box is a box of the fake driver.
type box struct {
	*fake.Driver
	t *testing.T
}

const id = "b1"

func newBox(t *testing.T) box {
	t.Helper()
	d := fake.New()
	t.Cleanup(func() { d.Close() })
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: id, Image: sandbox.HostFS}); err != nil {
		t.Fatal(err)
	}
	b := box{d, t}
	b.write("/etc/file", "from the box")
	for _, dir := range []string{"/etc/tree", "/etc/tree/sub", "/tmp/dir"} {
		if err := d.MkDir(t.Context(), id, dir, sandbox.FileOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b.write("/etc/tree/sub/f", "deep")
	return b
}

func (b box) write(name, text string) {
	b.t.Helper()
	if _, err := b.WriteFile(b.t.Context(), id, name, strings.NewReader(text), sandbox.FileOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b box) Stat(ctx context.Context, name string, follow bool) (sandbox.FileInfo, error) {
	return b.Driver.Stat(ctx, id, name, sandbox.FileOptions{Follow: follow})
}

func (b box) CopyTo(ctx context.Context, dir string, archive io.Reader) error {
	return b.Driver.CopyTo(ctx, id, dir, archive, sandbox.FileOptions{})
}

func (b box) CopyFrom(ctx context.Context, name string, follow bool) (io.ReadCloser, error) {
	return b.Driver.CopyFrom(ctx, id, name, sandbox.FileOptions{Follow: follow})
}

// has looks at a file of the box.
func (b box) has(name string) bool {
	_, err := b.Stat(b.t.Context(), name, false)
	return err == nil
}

// home makes files of this machine, and goes there.
func home(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for _, dir := range []string{"tree/sub", "there"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"file": "from here", "tree/sub/f": "deep", "other": "old"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("file", "link"); err != nil {
		t.Fatal(err)
	}
}

func TestInto(t *testing.T) {
	for _, c := range []struct {
		src, dst string
		want     string // what is there afterwards
		err      error
	}{
		{"file", "/tmp/dir", "/tmp/dir/file", nil},
		{"file", "/tmp/dir/", "/tmp/dir/file", nil},
		{"file", "tmp/dir", "/tmp/dir/file", nil},
		{"file", "/tmp/new", "/tmp/new", nil},
		{"file", "/etc/file", "/etc/file", nil},
		{"tree", "/tmp/dir", "/tmp/dir/tree/sub/f", nil},
		{"tree/", "/tmp/dir", "/tmp/dir/tree/sub/f", nil},
		{"tree/.", "/tmp/dir", "/tmp/dir/sub/f", nil},
		{"tree", "/tmp/new", "/tmp/new/sub/f", nil},
		{"tree/.", "/tmp/new", "/tmp/new/sub/f", nil},
		{"tree", "/tmp/new/", "/tmp/new/sub/f", nil},
		{"tree/sub/..", "/tmp/dir", "/tmp/dir/tree/sub/f", nil},
		{"link", "/tmp/dir", "/tmp/dir/link", nil},
		{"file", "/tmp/new/", "", sandbox.ErrFileNotFound},
		{"file", "/tmp/no/such", "", sandbox.ErrFileNotFound},
		{"tree", "/etc/file", "", sandbox.ErrFileKind},
		{"file", "/etc/file/", "", sandbox.ErrFileKind},
		{"file/", "/tmp/dir", "", syscall.ENOTDIR},
		{"none", "/tmp/dir", "", fs.ErrNotExist},
	} {
		t.Run(strings.ReplaceAll(c.src+"_to_"+c.dst, "/", "|"), func(t *testing.T) {
			home(t)
			b := newBox(t)
			err := boxcopy.To(t.Context(), b, c.src, c.dst, boxcopy.Options{})
			if !errors.Is(err, c.err) || c.want != "" && !b.has(c.want) {
				t.Errorf("%v; %s is there: %v", err, c.want, b.has(c.want))
			}
		})
	}
}

func TestOutOf(t *testing.T) {
	for _, c := range []struct {
		src, dst string
		want     string
		err      error
	}{
		{"/etc/file", "there", "there/file", nil},
		{"etc/file", "there/", "there/file", nil},
		{"/etc/file", "other", "other", nil},
		{"/etc/file", "new", "new", nil},
		{"/etc/tree", "there", "there/tree/sub/f", nil},
		{"/etc/tree/.", "there", "there/sub/f", nil},
		{"/etc/tree", "new", "new/sub/f", nil},
		{"/etc/tree/.", "new/", "new/sub/f", nil},
		{"/", "there", "there/etc/file", nil},
		{"/etc/file", "link", "link", nil},
		{"/etc/file", "new/", "", fs.ErrNotExist},
		{"/etc/file", "no/such/place", "", fs.ErrNotExist},
		{"/etc/tree", "other", "", sandbox.ErrInvalidSpec},
		{"/etc/file", "other/", "", nil},
		{"/etc/file", "/dev/null", "", sandbox.ErrInvalidSpec},
		{"/etc/tree/..", "there", "", sandbox.ErrInvalidSpec},
		{"/none", "there", "", sandbox.ErrFileNotFound},
	} {
		t.Run(strings.ReplaceAll(c.src+"_to_"+c.dst, "/", "|"), func(t *testing.T) {
			home(t)
			err := boxcopy.From(t.Context(), newBox(t), c.src, c.dst, boxcopy.Options{})
			if c.want == "" {
				if err == nil || c.err != nil && !errors.Is(err, c.err) {
					t.Error(err)
				}
				return
			}
			data, rerr := os.ReadFile(c.want)
			if err != nil || rerr != nil || path.Base(c.want) != "f" && string(data) != "from the box" {
				t.Errorf("%v; %s is %q, %v", err, c.want, data, rerr)
			}
			if kept, _ := os.ReadFile("file"); string(kept) != "from here" {
				t.Errorf("what the link at the destination leads to is %q", kept)
			}
		})
	}
}

// J01: a link of a box is not made where it could lead out.
func TestJ01LinksThatLeadOut(t *testing.T) {
	home(t)
	b := newBox(t)
	if err := os.Symlink("/etc/passwd", "abs"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"abs", "link"} {
		if err := boxcopy.To(t.Context(), b, name, "/etc/tree", boxcopy.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	var left *boxcopy.LeftOutError
	err := boxcopy.From(t.Context(), b, "/etc/tree", "out", boxcopy.Options{})
	if !errors.As(err, &left) || left.Count != 1 || left.Links[0] != `"out/abs" -> "/etc/passwd"` {
		t.Errorf("%v", err)
	}
	if to, err := os.Readlink(filepath.Join("out", "link")); to != "file" {
		t.Errorf("the harmless link leads to %q, %v", to, err)
	}
	if data, err := os.ReadFile("out/sub/f"); string(data) != "deep" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestMoved(t *testing.T) {
	home(t)
	var most int64
	o := boxcopy.Options{Moved: func(n int64) { most = max(most, n) }}
	if err := boxcopy.To(t.Context(), newBox(t), "tree", "/tmp/dir", o); err != nil || most < 2048 {
		t.Errorf("%d bytes, %v", most, err)
	}
}

// dirBox is a directory as a box, whose files are packed and unpacked as its
// bridge does it.
type dirBox struct {
	root  string
	taken int64 // of the stream that came in
}

func (b *dirBox) Stat(_ context.Context, name string, _ bool) (sandbox.FileInfo, error) {
	info, err := os.Lstat(filepath.Join(b.root, name))
	if errors.Is(err, fs.ErrNotExist) {
		return sandbox.FileInfo{}, sandbox.ErrFileNotFound
	}
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	return sandbox.FileInfo{Mode: info.Mode()}, nil
}

func (b *dirBox) CopyTo(ctx context.Context, dir string, archive io.Reader) error {
	root, err := os.OpenRoot(filepath.Join(b.root, dir))
	if err != nil {
		return err
	}
	defer root.Close()
	return tartree.Unpack(ctx, &counting{archive, &b.taken}, root, tartree.Options{})
}

func (b *dirBox) CopyFrom(_ context.Context, name string, _ bool) (io.ReadCloser, error) {
	var buf bytes.Buffer
	err := tartree.Pack(&buf, filepath.Join(b.root, name), path.Base(name))
	return io.NopCloser(&buf), err
}

type counting struct {
	io.Reader
	n *int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	*c.n += int64(n)
	return n, err
}

// K07: a hole is one everywhere, and nowhere on the way.
func TestK07HolesStayHoles(t *testing.T) {
	home(t)
	const size = 1 << 30
	from, to := &dirBox{root: t.TempDir()}, &dirBox{root: t.TempDir()}
	want := filepath.Join(from.root, "h")
	if err := errors.Join(os.WriteFile(want, []byte("data"), 0o640), os.Truncate(want, size)); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		boxcopy.From(t.Context(), from, "/h", "here", boxcopy.Options{}),
		boxcopy.To(t.Context(), to, "here", "/first", boxcopy.Options{}),
		boxcopy.Between(t.Context(), from, "/h", to, "/second", boxcopy.Options{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"here", filepath.Join(to.root, "first"), filepath.Join(to.root, "second")} {
		var st syscall.Stat_t
		if err := syscall.Stat(name, &st); err != nil || st.Size != size || st.Blocks*512 > 1<<20 {
			t.Errorf("%s: %d bytes, of which %d are on the disk, %v", name, st.Size, st.Blocks*512, err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(io.LimitReader(f, 5))
		if f.Close(); string(data) != "data\x00" {
			t.Errorf("%s begins with %q, %v", name, data, err)
		}
	}
	if to.taken > 1<<20 {
		t.Errorf("%d bytes went into the box", to.taken)
	}
}
