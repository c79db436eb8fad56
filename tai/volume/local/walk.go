package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/volume"
)

// maxDepth is how deep a tree is walked: each level is an open directory.
const maxDepth = 1000

// entry is what a walk meets.
type entry struct {
	path string // relative to where the walk's names begin
	st   unix.Stat_t
	dir  int    // the open directory that it is in
	base string // its name there
}

func (e *entry) kind() uint32 { return e.st.Mode & unix.S_IFMT }

func (e *entry) isDir() bool { return e.kind() == unix.S_IFDIR }

// info describes the entry.
func (e *entry) info() (volume.FileInfo, error) {
	link := ""
	if e.kind() == unix.S_IFLNK {
		var err error
		if link, err = readlinkat(e.dir, e.base); err != nil {
			return volume.FileInfo{}, err
		}
	}
	return fileInfo(e.path, &e.st, link), nil
}

// open opens the entry, which must be a regular file still.
func (e *entry) open() (*os.File, error) {
	fd, err := unix.Openat(e.dir, e.base, openFlags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: e.path, Err: err}
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errReplaced
	}
	if err == nil {
		err = unix.SetNonblock(fd, false) // it is no pipe, and the poller need not know it
	}
	if err != nil {
		unix.Close(fd) //nolint:errcheck // only looked at
		return nil, &os.PathError{Op: "open", Path: e.path, Err: err}
	}
	e.st = st
	return os.NewFile(uintptr(fd), e.path), nil
}

var errReplaced = errors.New("another kind of file stands in its place")

// vanished reports that a file went, or that another kind of file stands in
// its place.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, errReplaced)
}

// errSkip, from a visit of a directory, leaves out what is in it.
var errSkip = errors.New("skip this directory")

// walkDir visits all that is in an open directory, parents first, by name
// within a directory. It follows no link, and what vanishes meanwhile is left
// out. under is what the paths begin with, "." for nothing.
func walkDir(ctx context.Context, dir *os.File, under string, visit func(*entry) error) error {
	return walkLevel(ctx, dir, under, visit, 0)
}

func walkLevel(ctx context.Context, dir *os.File, under string, visit func(*entry) error, depth int) error {
	if depth >= maxDepth {
		return fmt.Errorf("%w: directories are more than %d deep", volume.ErrFileKind, maxDepth)
	}
	names, err := readNames(dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	var e entry // one for all: there may be many, and no visit keeps it
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e = entry{path: joinPath(under, name), dir: int(dir.Fd()), base: name}
		if err := unix.Fstatat(e.dir, name, &e.st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			if vanished(err) {
				continue
			}
			return &os.PathError{Op: "stat", Path: e.path, Err: err}
		}
		err := visit(&e)
		switch {
		case err == nil && e.isDir():
			err = descend(ctx, &e, visit, depth)
		case errors.Is(err, errSkip):
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxNames bounds how many names of one directory are held in memory.
const maxNames = 1 << 20

// readNames returns the names in a directory; none if it was deleted.
func readNames(dir *os.File) ([]string, error) {
	var names []string
	for {
		more, err := dir.Readdirnames(maxNames / 64)
		if names = append(names, more...); errors.Is(err, io.EOF) || vanished(err) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		if len(names) > maxNames {
			return nil, fmt.Errorf("%w: a directory has more than %d names", volume.ErrTooLarge, maxNames)
		}
	}
}

// descend visits what is in a directory that was visited.
func descend(ctx context.Context, e *entry, visit func(*entry) error, depth int) error {
	sub, err := openDirAt(e.dir, e.base)
	if err != nil {
		if vanished(err) {
			return nil
		}
		return err
	}
	defer sub.Close()
	return walkLevel(ctx, sub, e.path, visit, depth+1)
}

// openDirAt opens a directory that is in another one and no link.
func openDirAt(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, dirFlags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func joinPath(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// usage measures all that is below a workspace's own directories.
func (s *space) usage(ctx context.Context) (volume.Usage, error) {
	var u volume.Usage
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{} // files with several names, which snapshots have
	for _, dir := range []string{s.dataDir(), s.tmpDir(), s.snapshotsDir()} {
		d, err := os.Open(dir)
		if err = s.foundOr(err); err != nil {
			d.Close() //nolint:errcheck // only looked at
			return u, err
		}
		err = walkDir(ctx, d, ".", func(e *entry) error {
			if id := (inode{e.st.Dev, e.st.Ino}); e.st.Nlink > 1 && !e.isDir() {
				if seen[id] {
					return nil
				}
				seen[id] = true
			}
			u.Bytes += e.st.Blocks * 512
			u.Files++
			return nil
		})
		d.Close()
		if err != nil {
			return u, s.goneOr(err)
		}
	}
	return u, nil
}
