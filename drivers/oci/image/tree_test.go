package image_test

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/drivers/oci/image"
)

// model is what an image should look like: names and what is there, "dir",
// "file CONTENTS" or "link TARGET". The root is not in it.
type model map[string]string

// below reports whether name lies in dir.
func below(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }

// apply does what the image specification says of a layer: what it deletes is
// of the layers below, and its own entries are put over what is left.
func (m model) apply(entries []entry) model {
	next := maps.Clone(m)
	own := model{}
	for _, e := range entries {
		dir, base := path.Split(path.Clean(e.Name))
		dir = path.Clean(dir)
		victim, is := strings.CutPrefix(base, ".wh.")
		switch {
		case base == ".wh..wh..opq":
			maps.DeleteFunc(next, func(n, _ string) bool { return dir == "." || below(n, dir) })
		case is && !strings.HasPrefix(victim, ".wh."):
			gone := path.Join(dir, victim)
			maps.DeleteFunc(next, func(n, _ string) bool { return n == gone || below(n, gone) })
		}
	}
	for _, e := range entries {
		name := path.Clean(e.Name)
		if name == "." || strings.Contains("/"+name, "/.wh.") {
			continue
		}
		what := "file " + e.data
		switch e.Typeflag {
		case tar.TypeDir:
			what = "dir"
		case tar.TypeSymlink:
			what = "link " + e.Linkname
		case tar.TypeLink:
			target := path.Clean(e.Linkname)
			if what = own[target]; what == "" {
				what = m[target]
			}
		}
		for _, tree := range []model{next, own} {
			tree.put(name, what)
		}
	}
	return next
}

func (m model) put(name, what string) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		m[dir] = "dir"
	}
	if what != "dir" {
		maps.DeleteFunc(m, func(n, _ string) bool { return below(n, name) })
	}
	m[name] = what
}

// mountImage mounts the layers as a box's overlay has them, read-only.
func mountImage(t testing.TB, r image.Resolved) string {
	t.Helper()
	base := t.TempDir()
	empty, at := filepath.Join(base, "empty"), filepath.Join(base, "at")
	for _, d := range []string{empty, at} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := mountOverlay(at, append([]string{empty}, r.Lowers...)); err != nil {
		t.Fatalf("mount %v: %v", r.Lowers, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return at
}

func mountOverlay(at string, lowers []string) error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	for _, l := range lowers {
		if err := unix.FsconfigSetString(fs, "lowerdir+", l); err != nil {
			return err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return err
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(mnt)
	return unix.MoveMount(mnt, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// readTree reads what is really there. A name that is listed but cannot be
// looked up, as a whiteout in the wrong place, is "broken".
func readTree(t testing.TB, root string) model {
	t.Helper()
	m := model{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(p, root+"/")
		if p == root {
			return err
		}
		fi, statErr := os.Lstat(p)
		switch {
		case err != nil || statErr != nil:
			m[name] = "broken"
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
		case fi.IsDir():
			m[name] = "dir"
		case fi.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			m[name] = "link " + target
		case fi.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			m[name] = "file " + string(data)
		default:
			m[name] = fmt.Sprint(fi.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}
