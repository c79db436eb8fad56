package rmtree_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/rmtree"
)

// deep makes a chain of directories that no path can name.
func deep(t *testing.T, dir string, levels int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range levels {
		if err := unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	unix.Close(fd)
}

// A tree is deleted however deep it is, with fewer descriptors than it has
// levels: the limit is the process's.
func TestRemoveDeep(t *testing.T) {
	dir := t.TempDir()
	top := filepath.Join(dir, "top")
	if err := os.Mkdir(top, 0o700); err != nil {
		t.Fatal(err)
	}
	deep(t, top, 3_000)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 128, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	err := rmtree.Remove(top)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := rmtree.Remove(top); err != nil {
		t.Errorf("what is gone: %v", err)
	}
	if err := rmtree.Remove(filepath.Join(top, "sub")); err != nil {
		t.Errorf("below what is gone: %v", err)
	}
}

// A link goes, and what it points to stays.
func TestRemoveFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	kept, tree := filepath.Join(dir, "kept"), filepath.Join(dir, "tree")
	if err := errors.Join(os.MkdirAll(filepath.Join(tree, "sub"), 0o700), os.Mkdir(kept, 0o700), os.WriteFile(filepath.Join(kept, "f"), nil, 0o600),
		os.Symlink(kept, filepath.Join(tree, "sub", "link"))); err != nil {
		t.Fatal(err)
	}
	if err := rmtree.Remove(tree); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(kept, "f")); err != nil {
		t.Error(err)
	}
}

// What is mounted is not touched, and named.
func TestRemoveCrossesNoMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root is needed")
	}
	dir := t.TempDir()
	kept, at := filepath.Join(dir, "kept"), filepath.Join(dir, "tree", "sub", "at")
	if err := errors.Join(os.MkdirAll(at, 0o700), os.Mkdir(kept, 0o700), os.WriteFile(filepath.Join(kept, "f"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(kept, at, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("mount: %v", err)
	}
	err := rmtree.Remove(filepath.Join(dir, "tree"))
	if uerr := unix.Unmount(at, 0); uerr != nil {
		t.Fatal(uerr)
	}
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "tree/sub/at") {
		t.Errorf("remove: %v", err)
	}
	if _, err := os.Stat(filepath.Join(kept, "f")); err != nil {
		t.Error(err)
	}
}
