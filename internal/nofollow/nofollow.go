// Package nofollow reaches the files of a tree that others change meanwhile.
//
// # Model
//
// A [Dir] is an open directory. All it does it does to a single name in it,
// without ever following a link: so nothing leads out of the tree, whoever swaps
// directories for links. A [Cursor] walks a tree by names and keeps the
// directories open on the way, so that neighbours cost one call.
//
// # Errors
//
// Errors are [fs.PathError] with the error number of the system call. A link
// where a directory is expected is ENOTDIR, a name with a slash or dots EINVAL.
//
// # Concurrency
//
// A [Dir] may be used concurrently, but for Close. A [Cursor] may not.
package nofollow

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is an open directory.
type Dir struct{ fd int }

// Flags to open with: they never wait for the other end of a pipe.
const (
	fileFlags = unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	dirFlags  = unix.O_RDONLY | unix.O_DIRECTORY | fileFlags
)

// Of opens the directory that a root stands for.
func Of(root *os.Root) (*Dir, error) {
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, wrap("open", root.Name(), err)
	}
	return &Dir{fd}, nil
}

// Close closes the directory.
func (d *Dir) Close() error { return unix.Close(d.fd) }

// Fd returns the descriptor, which stays the directory's.
func (d *Dir) Fd() int { return d.fd }

func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// check refuses what is no single name.
func check(op, name string) error {
	switch {
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\x00"):
		return wrap(op, name, unix.EINVAL)
	}
	return nil
}

// retry repeats a call that a signal interrupts.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Open opens a directory in d.
func (d *Dir) Open(name string) (*Dir, error) {
	if err := check("open", name); err != nil {
		return nil, err
	}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(d.fd, name, dirFlags, 0)
		return err
	})
	if errors.Is(err, unix.ELOOP) {
		err = unix.ENOTDIR
	}
	if err != nil {
		return nil, wrap("open", name, err)
	}
	return &Dir{fd}, nil
}

// Again opens the same directory once more.
func (d *Dir) Again() (*Dir, error) {
	fd, err := unix.Openat(d.fd, ".", dirFlags, 0)
	if err != nil {
		return nil, wrap("open", ".", err)
	}
	return &Dir{fd}, nil
}

// OpenFile opens a file in d that is no link.
func (d *Dir) OpenFile(name string, flags int, mode uint32) (*os.File, error) {
	if err := check("open", name); err != nil {
		return nil, err
	}
	flags |= fileFlags
	if flags&unix.O_EXCL != 0 { // it is new: no pipe, and nothing to poll for
		flags &^= unix.O_NONBLOCK
	}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(d.fd, name, flags, mode)
		return err
	})
	if err != nil {
		return nil, wrap("open", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ErrKind is what there is instead of a regular file.
var ErrKind = errors.New("it is no regular file")

// OpenRegular opens a regular file to be read, and describes it. Anything else
// is [ErrKind].
func (d *Dir) OpenRegular(name string) (*os.File, unix.Stat_t, error) {
	f, err := d.OpenFile(name, unix.O_RDONLY, 0)
	var st unix.Stat_t
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return nil, st, wrap("open", name, ErrKind)
	case err != nil:
		return nil, st, err
	}
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = ErrKind
	}
	if err != nil {
		f.Close()
		return nil, st, wrap("open", name, err)
	}
	return f, st, nil
}

// Self describes the directory.
func (d *Dir) Self() (st unix.Stat_t, err error) {
	err = unix.Fstat(d.fd, &st)
	return st, wrap("fstat", ".", err)
}

// Lstat describes what a name is, and of a link the link.
func (d *Dir) Lstat(name string) (st unix.Stat_t, err error) {
	if err := check("lstat", name); err != nil {
		return st, err
	}
	err = unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, wrap("lstat", name, err)
}

// MaxNames bounds how many names of a directory, and of those on a walk's way to
// it, are held in memory.
const MaxNames = 1 << 20

// ErrTooMany reports more than [MaxNames].
var ErrTooMany = fmt.Errorf("a directory, with those on the way to it, has more than %d names", MaxNames)

// Names reads what is in the directory, in no order. There may be [ErrTooMany].
func (d *Dir) Names() ([]string, error) { return readNames(d.fd, MaxNames) }

// ReadNames is [Dir.Names] of a directory that is open as a file.
func ReadNames(dir *os.File) ([]string, error) { return readNames(int(dir.Fd()), MaxNames) }

func readNames(fd, most int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return nil, wrap("readdir", ".", err)
	}
	var names []string
	buf := make([]byte, 32<<10)
	for {
		var n int
		err := retry(func() (err error) {
			n, err = unix.ReadDirent(fd, buf)
			return err
		})
		if err != nil {
			return nil, wrap("readdir", ".", err)
		}
		if n <= 0 {
			return names, nil
		}
		if _, _, names = unix.ParseDirent(buf[:n], -1, names); len(names) > most {
			return nil, ErrTooMany
		}
	}
}

// Readlink returns where a link leads.
func (d *Dir) Readlink(name string) (string, error) {
	if err := check("readlink", name); err != nil {
		return "", err
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(d.fd, name, buf)
	if err != nil {
		return "", wrap("readlink", name, err)
	}
	return string(buf[:n]), nil
}

// Mkdir makes a directory.
func (d *Dir) Mkdir(name string, mode uint32) error {
	if err := check("mkdir", name); err != nil {
		return err
	}
	return wrap("mkdir", name, unix.Mkdirat(d.fd, name, mode))
}

// Symlink makes a link.
func (d *Dir) Symlink(target, name string) error {
	if err := check("symlink", name); err != nil {
		return err
	}
	return wrap("symlink", name, unix.Symlinkat(target, d.fd, name))
}

// Rename moves a name of d to a name of another directory.
func (d *Dir) Rename(name string, to *Dir, newName string) error {
	if err := errors.Join(check("rename", name), check("rename", newName)); err != nil {
		return err
	}
	return wrap("rename", newName, unix.Renameat(d.fd, name, to.fd, newName))
}

// Remove removes a file, a link or an empty directory.
func (d *Dir) Remove(name string) error {
	if err := check("remove", name); err != nil {
		return err
	}
	err := unix.Unlinkat(d.fd, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		if derr := unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR); !errors.Is(derr, unix.ENOTDIR) {
			err = derr
		}
	}
	return wrap("remove", name, err)
}

// Chmod sets the permissions of a file or directory, never of what a link
// leads to.
func (d *Dir) Chmod(name string, mode uint32) error {
	if err := check("chmod", name); err != nil {
		return err
	}
	fd, err := unix.Openat(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrap("chmod", name, err)
	}
	defer unix.Close(fd) //nolint:errcheck // only looked at
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return wrap("chmod", name, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return wrap("chmod", name, unix.ELOOP)
	}
	return wrap("chmod", name, unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode))
}

// Chtimes sets the time of the last change, of a link that of the link.
func (d *Dir) Chtimes(name string, t time.Time) error {
	if err := check("chtimes", name); err != nil {
		return err
	}
	return wrap("chtimes", name, unix.UtimesNanoAt(d.fd, name, times(t), unix.AT_SYMLINK_NOFOLLOW))
}

// SetTime sets the time of the last change of an open file.
func SetTime(f *os.File, t time.Time) error {
	return wrap("chtimes", f.Name(), unix.UtimesNanoAt(int(f.Fd()), "", times(t), unix.AT_EMPTY_PATH))
}

func times(t time.Time) []unix.Timespec {
	ts := unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
	return []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}
}

// Sync writes the directory's file system to the disk, all of it.
func (d *Dir) Sync() error {
	err := unix.Syncfs(d.fd)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		err = nil
	}
	return wrap("syncfs", ".", err)
}

// SyncSelf writes the directory to the disk: what names are in it.
func (d *Dir) SyncSelf() error {
	err := unix.Fsync(d.fd)
	if errors.Is(err, unix.EINVAL) {
		err = nil
	}
	return wrap("fsync", ".", err)
}

// Mode returns the permissions that a file gets from another one's mode.
func Mode(m fs.FileMode) uint32 {
	mode := uint32(m.Perm())
	if m&fs.ModeSticky != 0 {
		mode |= unix.S_ISVTX
	}
	return mode
}

// Vanished reports that a name is gone, or that what was a directory is none.
func Vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
