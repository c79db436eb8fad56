package nofollow_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/nofollow"
)

func open(t *testing.T, dir string) *nofollow.Dir {
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
	t.Cleanup(func() { d.Close() })
	return d
}

// No call takes more than a single name, or goes through a link.
func TestNamesAndLinks(t *testing.T) {
	base := t.TempDir()
	in, out := filepath.Join(base, "in"), filepath.Join(base, "out")
	for _, err := range []error{
		os.Mkdir(in, 0o755), os.Mkdir(out, 0o755), os.WriteFile(filepath.Join(out, "f"), []byte("x"), 0o644),
		os.Symlink("../out", filepath.Join(in, "dir")), os.Symlink("../out/f", filepath.Join(in, "file")), unix.Mkfifo(filepath.Join(in, "pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d := open(t, in)
	calls := map[string]func(name string) error{
		"open":     func(n string) error { _, err := d.Open(n); return err },
		"openFile": func(n string) error { _, err := d.OpenFile(n, unix.O_RDWR, 0); return err },
		"regular":  func(n string) error { _, _, err := d.OpenRegular(n); return err },
		"chmod":    func(n string) error { return d.Chmod(n, 0o600) },
		"lstat":    func(n string) error { _, err := d.Lstat(n); return err },
		"readlink": func(n string) error { _, err := d.Readlink(n); return err },
		"mkdir":    func(n string) error { return d.Mkdir(n, 0o755) },
		"symlink":  func(n string) error { return d.Symlink("x", n) },
		"rename":   func(n string) error { return d.Rename(n, d, n) },
		"remove":   func(n string) error { return d.Remove(n) },
		"chtimes":  func(n string) error { return d.Chtimes(n, time.Unix(1, 0)) },
	}
	for what, call := range calls {
		for _, name := range []string{"", ".", "..", "../out", "dir/f", "/etc/passwd", "a\x00b"} {
			if err := call(name); !errors.Is(err, unix.EINVAL) {
				t.Errorf("%s %q: %v", what, name, err)
			}
		}
	}
	for _, c := range []struct {
		what, name string
		want       error
	}{
		{"open", "dir", unix.ENOTDIR},
		{"open", "file", unix.ENOTDIR},
		{"openFile", "file", unix.ELOOP},
		{"regular", "file", nofollow.ErrKind},
		{"regular", "dir", nofollow.ErrKind},
		{"regular", "pipe", nofollow.ErrKind},
		{"chmod", "file", unix.ELOOP},
		{"chmod", "dir", unix.ELOOP},
		{"open", "none", fs.ErrNotExist},
	} {
		if err := calls[c.what](c.name); !errors.Is(err, c.want) {
			t.Errorf("%s %s: %v, want %v", c.what, c.name, err, c.want)
		}
	}
	if err := calls["chtimes"]("file"); err != nil { // of the link itself
		t.Error(err)
	}
	info, err := os.Stat(filepath.Join(out, "f"))
	if err != nil || info.Mode() != 0o644 || info.ModTime().Unix() == 1 {
		t.Errorf("outside: %v, %v", info, err)
	}
}

func TestCursor(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	d, err := open(t, dir).Again()
	if err != nil {
		t.Fatal(err)
	}
	c := nofollow.NewCursor(d)
	defer c.Close()
	var made []string
	create := func(in *nofollow.Dir, path, name string) error {
		made = append(made, path)
		return in.Mkdir(name, 0o755)
	}
	for _, name := range []string{"a/b/c", "a/b", "a/d", ".", "a/b/c"} {
		if _, err := c.To(name, create); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := strings.Join(made, " "); got != "a a/b a/b/c a/d" {
		t.Errorf("made were %s", got)
	}
	if _, err := c.To("link/b", create); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("through a link: %v", err)
	}
	if _, err := c.To(strings.Repeat("d/", nofollow.MaxDepth)+"d", create); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("too deep: %v", err)
	}
	// What is forgotten is looked up again.
	if _, err := c.To("a/b/c", nil); err != nil {
		t.Fatal(err)
	}
	c.Forget("a/b")
	if err := os.RemoveAll(filepath.Join(dir, "a/b")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.To("a/b/c", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is gone: %v", err)
	}
}
