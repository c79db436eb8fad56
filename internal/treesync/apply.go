package treesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/tai/volume"
)

// Apply removes and makes entries, see [volume.SyncEnd]. A directory that still
// has something in it after the removal, as what is excluded, stays. All is on
// the disk when it returns; after a crash on the way, a file that was new may
// have another size than was said, and a repeat makes it anew.
func (t *Tree) Apply(ctx context.Context, remove []string, r io.Reader) error {
	return t.error(t.apply(ctx, remove, r, nil, nil))
}

// apply is Apply that takes only what was asked for, in that order, unless want
// is nil, and tells what it did.
func (t *Tree) apply(ctx context.Context, remove []string, r io.Reader, want *asked, done func(bytes int64)) (err error) {
	p, err := t.Open(ctx, true)
	if err != nil {
		return err
	}
	a := &applier{ctx: ctx, p: p, c: nofollow.NewCursor(p.Root), want: want, done: done, touched: map[string]bool{}, buf: make([]byte, chunkSize)}
	defer func() {
		a.c.Close()
		if p.Temp != nil {
			p.Temp.Close()
		}
	}()
	err = a.remove(remove)
	if err == nil {
		err = a.stream(r)
	}
	err = errors.Join(err, a.finishDirs(), a.sync())
	if err != nil {
		return err
	}
	return a.toldError()
}

type applier struct {
	ctx  context.Context //nolint:containedctx // it lives for one call
	p    *Place
	c    *nofollow.Cursor
	d    *decoder
	want *asked
	done func(bytes int64)
	dirs []closedDir // to get their mode in the end
	// touched are the directories that have changed, as long as they are few.
	touched map[string]bool
	many    bool
	told    []string
	more    int // that were told beside
	buf     []byte
}

// closedDir is a directory that its owner may not write to.
type closedDir struct {
	name string
	mode fs.FileMode
}

// few is how many directories and files are written to the disk one by one.
// With more it is cheaper to write all that waits on the file system, which
// may be much more than ours.
const few = 16

// touch remembers that something in a directory has changed.
func (a *applier) touch(name string) {
	if a.many {
		return
	}
	if a.touched[name] = true; len(a.touched) > few {
		a.many = true
	}
}

// sync writes what was done to the disk.
func (a *applier) sync() error {
	if a.many {
		return a.p.Root.Sync()
	}
	for name := range a.touched {
		d, err := a.c.To(path.Dir(name), nil)
		if err == nil {
			err = d.SyncSelf()
		}
		if err != nil && !nofollow.Vanished(err) {
			return err
		}
	}
	return nil
}

// maxTold is how many files an error names.
const maxTold = 10

func (a *applier) toldError() error {
	if len(a.told) == 0 {
		return nil
	}
	text := strings.Join(a.told, "; ")
	if a.more > 0 {
		text += fmt.Sprintf("; and %d more", a.more)
	}
	return fmt.Errorf("left out: %s: %w", text, volume.ErrVersion)
}

// remove removes entries, what is in a directory before it.
func (a *applier) remove(names []string) error {
	for _, name := range slices.Backward(names) {
		if err := context.Cause(a.ctx); err != nil {
			return err
		}
		if err := checkName(name); err != nil {
			return err
		}
		a.c.Forget(name)
		a.touch(name)
		d, err := a.c.To(path.Dir(name), nil)
		if err == nil {
			err = d.Remove(path.Base(name))
		}
		if err != nil && !nofollow.Vanished(err) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("remove %q: %w", name, err)
		}
	}
	return nil
}

func (a *applier) stream(r io.Reader) error {
	d, err := newDecoder(r)
	if err != nil {
		return err
	}
	defer d.close()
	a.d = d
	for {
		if err := context.Cause(a.ctx); err != nil {
			return err
		}
		k, err := d.kind()
		if err != nil {
			return err
		}
		switch k {
		case recordEnd:
			if more, err := d.more(); !more {
				return err
			}
			if a.want != nil {
				a.want.metas = wanted{} // they were before what the other side sends
			}
		case recordError:
			return d.failure()
		default:
			if err := a.record(k); err != nil {
				return err
			}
		}
	}
}

func (a *applier) record(k byte) error {
	name, err := a.d.str()
	if err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	if !a.want.has(k, name) {
		return bad(name, "nobody asked for it")
	}
	a.touch(name)
	n := int64(0)
	switch k {
	case recordTold:
		return a.tell(name)
	case recordDir:
		err = a.dir(name)
	case recordLink:
		err = a.link(name)
	case recordFile:
		n, err = a.file(name)
	case recordMeta:
		err = a.meta(name)
	default:
		return bad(name, "an unknown record")
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	if a.done != nil && n >= 0 {
		a.done(n)
	}
	return nil
}

func (a *applier) tell(name string) error {
	why, err := a.d.str()
	if err != nil {
		return err
	}
	if len(a.told) >= maxTold {
		a.more++
		return nil
	}
	a.told = append(a.told, fmt.Sprintf("%.256q: %.256q", name, why))
	return nil
}

// in goes to the directory that an entry is in; what is missing is made.
func (a *applier) in(name string) (*nofollow.Dir, error) {
	return a.c.To(path.Dir(name), func(in *nofollow.Dir, _, base string) error { return a.mkdir(in, base, 0o755) })
}

// temp is where what goes to a directory is half made.
func (a *applier) temp(in *nofollow.Dir) *nofollow.Dir {
	if a.p.Temp != nil {
		return a.p.Temp
	}
	return in
}

func (a *applier) mkdir(in *nofollow.Dir, base string, mode fs.FileMode) error {
	if err := in.Mkdir(base, nofollow.Mode(mode)|0o700); err != nil {
		return err
	}
	st, err := in.Lstat(base)
	if err != nil {
		return err
	}
	if a.p.Owned && (st.Uid != 0 || st.Gid != 0) {
		if err := unix.Fchownat(in.Fd(), base, 0, 0, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &fs.PathError{Op: "chown", Path: base, Err: err}
		}
	}
	if st.Mode&0o7777 == nofollow.Mode(mode)|0o700 {
		return nil
	}
	return in.Chmod(base, nofollow.Mode(mode)|0o700)
}

func (a *applier) dir(name string) error {
	mode, err := a.d.mode()
	if err != nil {
		return err
	}
	mode &= bits
	in, err := a.in(name)
	if err != nil {
		return err
	}
	base := path.Base(name)
	err = a.mkdir(in, base, mode)
	if errors.Is(err, fs.ErrExist) {
		st, serr := in.Lstat(base)
		switch {
		case serr != nil:
			return serr
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return err
		}
		err = in.Chmod(base, nofollow.Mode(mode)|0o700)
	}
	if err == nil && mode&0o700 != 0o700 {
		a.dirs = append(a.dirs, closedDir{name, mode})
	}
	return err
}

// finishDirs takes away what the owners of directories may do, once all is in them.
func (a *applier) finishDirs() error {
	for _, dir := range slices.Backward(a.dirs) {
		a.c.Forget(dir.name)
		in, err := a.c.To(path.Dir(dir.name), nil)
		if err == nil {
			err = in.Chmod(path.Base(dir.name), nofollow.Mode(dir.mode))
		}
		if err != nil && !nofollow.Vanished(err) {
			return err
		}
	}
	return nil
}

func (a *applier) link(name string) error {
	target, err := a.d.str()
	if err != nil {
		return err
	}
	if target == "" || strings.IndexByte(target, 0) >= 0 || !tartree.Inside(name, target) {
		return bad(name, "a link that leads out")
	}
	in, err := a.in(name)
	if err != nil {
		return err
	}
	base := path.Base(name)
	err = in.Symlink(target, base)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	temp, tmp := a.temp(in), nofollow.TempName(tempPrefix)
	if err := temp.Symlink(target, tmp); err != nil {
		return err
	}
	err = temp.Rename(tmp, in, base)
	if err != nil {
		temp.Remove(tmp) //nolint:errcheck // the first error counts
	}
	return err
}

// meta sets the mode and time of what is there.
func (a *applier) meta(name string) error {
	mode, err := a.d.mode()
	if err != nil {
		return err
	}
	when, err := a.d.time()
	if err != nil {
		return err
	}
	in, err := a.c.To(path.Dir(name), nil)
	base := path.Base(name)
	var st unix.Stat_t
	if err == nil {
		st, err = in.Lstat(base)
	}
	switch {
	case nofollow.Vanished(err):
		return nil
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR && mode&0o700 != 0o700:
		a.dirs = append(a.dirs, closedDir{name, mode & bits})
		return nil
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return in.Chmod(base, nofollow.Mode(mode))
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil
	}
	if st.Mode&0o7777 != nofollow.Mode(mode) {
		if err := in.Chmod(base, nofollow.Mode(mode)); err != nil {
			return err
		}
	}
	return in.Chtimes(base, when)
}

// file makes a file, and returns its size, or -1 if it was dropped.
func (a *applier) file(name string) (int64, error) {
	mode, err := a.d.mode()
	if err != nil {
		return 0, err
	}
	when, err := a.d.time()
	if err != nil {
		return 0, err
	}
	size, err := a.d.size()
	if err != nil {
		return 0, err
	}
	in, err := a.in(name)
	if err != nil {
		return 0, err
	}
	temp, tmp := a.temp(in), nofollow.TempName(tempPrefix)
	f, err := temp.OpenFile(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	nofollow.InUse(f)
	kept := false
	defer func() {
		f.Close()
		if !kept {
			temp.Remove(tmp) //nolint:errcheck // the first error counts
		}
	}()
	whole, err := a.contents(f, size)
	switch {
	case err != nil:
		return 0, err
	case !whole:
		return -1, nil
	}
	if err := unix.Fchmod(int(f.Fd()), nofollow.Mode(mode)); err != nil {
		return 0, &fs.PathError{Op: "chmod", Path: name, Err: err}
	}
	if err := nofollow.SetTime(f, when); err != nil {
		return 0, err
	}
	if !a.many {
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	if err := temp.Rename(tmp, in, path.Base(name)); err != nil {
		return 0, err
	}
	kept = true
	return size, nil
}

// contents writes what a file has. Where nothing is written stays a hole.
func (a *applier) contents(f *os.File, size int64) (whole bool, err error) {
	at := int64(0)
	for {
		k, err := a.d.kind()
		if err != nil {
			return false, err
		}
		switch k {
		case recordDrop:
			return false, nil
		case recordDone:
			if at != size {
				return false, bad("", "a file that is not as long as was said")
			}
			if at > 0 {
				return true, a.setSize(f, size)
			}
			return true, nil
		case recordError:
			return false, a.d.failure()
		case recordData, recordHole:
		default:
			return false, bad("", "an unknown record in a file")
		}
		n, err := a.d.size()
		if err != nil {
			return false, err
		}
		if n > size-at || n == 0 {
			return false, bad("", "a file that is longer than was said")
		}
		if k == recordHole {
			at += n
			continue
		}
		if err := a.data(f, at, n); err != nil {
			return false, err
		}
		at += n
	}
}

// setSize makes a hole at the end, if one is missing there.
func (a *applier) setSize(f *os.File, size int64) error {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err == nil && st.Size < size {
		err = unix.Ftruncate(int(f.Fd()), size)
	}
	if err != nil {
		return &fs.PathError{Op: "truncate", Path: f.Name(), Err: err}
	}
	return nil
}

func (a *applier) data(f *os.File, at, n int64) error {
	for n > 0 {
		if err := context.Cause(a.ctx); err != nil {
			return err
		}
		buf := a.buf[:min(int64(len(a.buf)), n)]
		if _, err := io.ReadFull(a.d.r, buf); err != nil {
			return a.d.cut(err)
		}
		if _, err := f.WriteAt(buf, at); err != nil {
			return err
		}
		at += int64(len(buf))
		n -= int64(len(buf))
	}
	return nil
}

// sameTime compares times as files have them.
func sameTime(a, b time.Time) bool { return a.Unix() == b.Unix() && a.Nanosecond() == b.Nanosecond() }
