package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/holes"
	"github.com/taibox/taibox/tai/volume"
)

// Copy copies a file or tree to a path that is not there yet.
func (v *Volume) Copy(ctx context.Context, id, from, to string) error {
	target, err := cleanPath(to)
	if err != nil {
		return told("copy", id, to, err)
	}
	_, err = onFile(ctx, v, "copy", id, from, func(t *tree, name string) (nothing, error) {
		if target == "." {
			return nothing{}, errRoot("replaced")
		}
		return nothing{}, t.copy(ctx, name, target)
	})
	return err
}

// copy makes the copy where no box sees it, and moves it to its place.
func (t *tree) copy(ctx context.Context, from, to string) (err error) {
	dst, err := t.parent(to)
	if err != nil {
		return err
	}
	defer dst.dir.Close()
	if _, err := dst.stat(); err == nil {
		return &os.PathError{Op: "copy", Path: to, Err: unix.EEXIST}
	}
	tmp, err := t.openTemp()
	if err != nil {
		return err
	}
	defer tmp.Close()
	fd, name := int(tmp.Fd()), newName("c")
	defer func() {
		if err != nil {
			err = errors.Join(err, removeTree(fd, name, fd, "r"))
		}
	}()
	c := &copier{ctx: ctx}
	if from == "." {
		dir, err := t.openDir(".")
		if err != nil {
			return err
		}
		defer dir.Close()
		st, err := statOf(dir)
		if err != nil {
			return err
		}
		if err := c.dirOf(dir, &st, fd, name); err != nil {
			return err
		}
	} else {
		src, err := t.parent(from)
		if err != nil {
			return err
		}
		defer src.dir.Close()
		e := entry{path: from, dir: src.fd(), base: src.base}
		if e.st, err = src.stat(); err != nil {
			return &os.PathError{Op: "copy", Path: from, Err: err}
		}
		if err := c.entry(&e, fd, name); err != nil {
			return err
		}
	}
	if err := moveNew(fd, name, dst.fd(), dst.base); err != nil {
		return &os.PathError{Op: "copy", Path: to, Err: err}
	}
	return nil
}

// copier copies trees. Sockets, pipes and devices are left out of a tree, and
// asked for by name they are an error.
type copier struct {
	ctx context.Context //nolint:containedctx // it is that of the call
	// share, if set, may make a file in another way than by copying it.
	share func(e *entry, dir int, base string) (done bool, err error)
	// done, if set, is told of each file as it was when it was copied, and of
	// each link and directory.
	done func(e *entry) error
}

func (c *copier) tell(e *entry) error {
	if c.done == nil {
		return nil
	}
	return c.done(e)
}

// entry copies what is at one place to another.
func (c *copier) entry(e *entry, dir int, base string) error {
	switch e.kind() {
	case unix.S_IFDIR:
		sub, err := openDirAt(e.dir, e.base)
		if err != nil {
			return err
		}
		defer sub.Close()
		return c.dirOf(sub, &e.st, dir, base)
	case unix.S_IFLNK:
		link, err := readlinkat(e.dir, e.base)
		if err != nil {
			return &os.PathError{Op: "readlink", Path: e.path, Err: err}
		}
		if err := linkAt(link, &e.st, dir, base); err != nil {
			return err
		}
		return c.tell(e)
	case unix.S_IFREG:
		if c.share != nil {
			if done, err := c.share(e, dir, base); done || err != nil {
				return cmp.Or(err, c.tell(e))
			}
		}
		if err := c.file(e, dir, base); err != nil {
			return err
		}
		return c.tell(e)
	}
	return fmt.Errorf("%w: it is no file, directory or link", volume.ErrFileKind)
}

// linkAt makes a symbolic link with the owner and time of another.
func linkAt(link string, st *unix.Stat_t, dir int, base string) error {
	if err := unix.Symlinkat(link, dir, base); err != nil {
		return &os.PathError{Op: "symlink", Path: base, Err: err}
	}
	if owned() {
		if err := unix.Fchownat(dir, base, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dir, base, []unix.Timespec{st.Mtim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// dirOf copies an open directory with all that is in it.
func (c *copier) dirOf(from *os.File, st *unix.Stat_t, dir int, base string) error {
	if err := unix.Mkdirat(dir, base, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: base, Err: err}
	}
	to, err := openDirAt(dir, base)
	if err != nil {
		return err
	}
	open := levels{{f: to, st: *st}}
	defer func() {
		for _, d := range open {
			d.f.Close()
		}
	}()
	err = walkDir(c.ctx, from, ".", func(e *entry) error {
		if err := open.leave(1 + depthOf(e.path)); err != nil {
			return err
		}
		at := int(open[len(open)-1].f.Fd())
		if !e.isDir() {
			err := c.entry(e, at, e.base)
			if vanished(err) || errors.Is(err, volume.ErrFileKind) {
				return nil
			}
			return err
		}
		if err := unix.Mkdirat(at, e.base, 0o700); err != nil {
			return &os.PathError{Op: "mkdir", Path: e.path, Err: err}
		}
		f, err := openDirAt(at, e.base)
		if err != nil {
			return err
		}
		open = append(open, openDir{f: f, st: e.st})
		return c.tell(e)
	})
	if err != nil {
		return err
	}
	return open.leave(0)
}

// openDir is a directory that is being filled.
type openDir struct {
	f  *os.File
	st unix.Stat_t // what it is to be
}

// levels are directories, one in the other.
type levels []openDir

// leave closes all but so many directories. They get their times when all that
// is in them is there.
func (l *levels) leave(but int) error {
	for len(*l) > but {
		last := (*l)[len(*l)-1]
		*l = (*l)[:len(*l)-1]
		if err := errors.Join(setMeta(last.f, &last.st), last.f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// depthOf counts the directories that a path goes through.
func depthOf(path string) (n int) {
	for i := range len(path) {
		if path[i] == '/' {
			n++
		}
	}
	return n
}

// copyTries is how often a file that changes meanwhile is copied anew, so that
// the copy is what it was at some moment. One that changes all the time is
// taken as it comes.
const copyTries = 3

// file copies a regular file with its mode, owner and time.
func (c *copier) file(e *entry, dir int, base string) error {
	src, err := e.open()
	if err != nil {
		return err
	}
	defer src.Close()
	fd, err := unix.Openat(dir, base, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "create", Path: base, Err: err}
	}
	dst := os.NewFile(uintptr(fd), filepath.Base(base))
	defer dst.Close()
	for range copyTries {
		if err := copyContents(c.ctx, dst, src, e.st.Size); err != nil {
			return err
		}
		now, err := statOf(src)
		if err != nil {
			return err
		}
		same := now.Mtim == e.st.Mtim && now.Ctim == e.st.Ctim && now.Size == e.st.Size
		e.st = now
		if same {
			break
		}
	}
	if err := copyXattrs(dst, src); err != nil {
		return err
	}
	return setMeta(dst, &e.st)
}

// setMeta gives an open file the owner, mode and time of another.
func setMeta(f *os.File, st *unix.Stat_t) error {
	fd := int(f.Fd())
	if owned() {
		if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
			return os.NewSyscallError("fchown", err)
		}
	}
	// After the owner, whose change takes bits away.
	if err := unix.Fchmod(fd, st.Mode&0o7777); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	return setTime(f, st.Mtim)
}

// maxXattr is the largest value of an attribute.
const maxXattr = 64 << 10

// copyXattrs copies what users and access lists have on a file. Not every file
// system takes it, and a copy without it is one all the same.
func copyXattrs(dst, src *os.File) error {
	buf := make([]byte, 1024)
	n, err := unix.Flistxattr(int(src.Fd()), buf)
	for errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 4*len(buf))
		n, err = unix.Flistxattr(int(src.Fd()), buf)
	}
	if err != nil || n == 0 {
		return nil // there is nothing to copy
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "system.posix_acl_") {
			continue
		}
		value := make([]byte, maxXattr)
		n, err := unix.Fgetxattr(int(src.Fd()), name, value)
		if err != nil {
			continue // it vanished
		}
		err = unix.Fsetxattr(int(dst.Fd()), name, value[:n], 0)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EPERM) {
			return os.NewSyscallError("fsetxattr", err)
		}
	}
	return nil
}

// setTime sets when an open file was changed.
func setTime(f *os.File, at unix.Timespec) error {
	ts := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, at}
	// Through /proc, for the kernels whose utimensat takes no empty path.
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), ts[:], 0)
}

// copyContents makes dst what the first size bytes of src are, by sharing the
// blocks if possible. Holes stay holes.
func copyContents(ctx context.Context, dst, src *os.File, size int64) error {
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err == nil {
		return dst.Truncate(size)
	}
	if err := dst.Truncate(0); err != nil {
		return err
	}
	if err := dst.Truncate(size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		start, stop := holes.Next(src, at, size)
		if err := copyRange(ctx, dst, src, start, stop); err != nil {
			return err
		}
		at = stop
	}
	return nil
}

// copyRange copies the bytes from one offset to another, or to the file's end.
func copyRange(ctx context.Context, dst, src *os.File, from, to int64) error {
	for from < to {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		in, out := from, from
		n, err := unix.CopyFileRange(int(src.Fd()), &in, int(dst.Fd()), &out, int(min(to-from, chunk)), 0)
		switch {
		case errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL):
			return copySlow(ctx, dst, src, from, to)
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("copy_file_range", err)
		case n == 0:
			return nil
		}
		from += int64(n)
	}
	return nil
}

// copySlow is copyRange by reading and writing.
func copySlow(ctx context.Context, dst, src *os.File, from, to int64) error {
	r := &ctxReader{ctx: ctx, r: io.NewSectionReader(src, from, to-from)}
	_, err := copyBuffer(io.NewOffsetWriter(dst, from), r)
	return err
}

// reflinks reports whether files of a directory can share blocks.
func reflinks(dir string) bool {
	open := func() *os.File {
		f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
		if err != nil {
			return nil
		}
		return f
	}
	a, b := open(), open()
	if a == nil || b == nil {
		return false
	}
	defer a.Close()
	defer b.Close()
	if _, err := a.Write(make([]byte, 4096)); err != nil {
		return false
	}
	return unix.IoctlFileClone(int(b.Fd()), int(a.Fd())) == nil
}
