package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/volume"
)

// onFile makes one call for a path of a workspace.
func onFile[T any](ctx context.Context, v *Volume, verb, id, name string, call func(t *tree, name string) (T, error)) (T, error) {
	var none T
	clean, err := cleanPath(name)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return none, told(verb, id, name, err)
	}
	t, err := v.tree(id)
	if err != nil {
		return none, told(verb, id, name, err)
	}
	defer t.release()
	res, err := call(t, clean)
	if err != nil {
		return none, told(verb, id, name, t.space.goneOr(err))
	}
	return res, nil
}

// nothing is what a call that only fails returns.
type nothing struct{}

// ReadFile returns a whole file.
func (v *Volume) ReadFile(ctx context.Context, id, name string) ([]byte, error) {
	return onFile(ctx, v, "read", id, name, func(t *tree, name string) ([]byte, error) {
		f, st, err := t.open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if st.Size > volume.MaxReadFile {
			return nil, fmt.Errorf("%w: %d bytes, and at most %d are returned in one piece", volume.ErrTooLarge, st.Size, volume.MaxReadFile)
		}
		data := make([]byte, st.Size)
		r := &reader{ctx: ctx, f: f, left: st.Size, name: name}
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, err
		}
		return data, nil
	})
}

// open opens a regular file to be read.
func (t *tree) open(name string) (_ *os.File, _ unix.Stat_t, err error) {
	var st unix.Stat_t
	if name == "." {
		return nil, st, &fs.PathError{Op: "read", Path: name, Err: unix.EISDIR}
	}
	p, err := t.follow(name)
	if err != nil {
		return nil, st, err
	}
	defer p.dir.Close()
	if st, err = p.stat(); err != nil {
		return nil, st, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	if err := readable(name, &st); err != nil {
		return nil, st, err
	}
	// Should it be a pipe by now, that does not wait.
	fd, err := unix.Openat(p.fd(), p.base, openFlags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, st, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if err = unix.Fstat(fd, &st); err == nil {
		err = readable(name, &st)
	}
	if err == nil {
		err = unix.SetNonblock(fd, false) // it is no pipe, and the poller need not know it
	}
	if err != nil {
		unix.Close(fd) //nolint:errcheck // only looked at
		return nil, st, err
	}
	return os.NewFile(uintptr(fd), name), st, nil
}

// readable reports what kind of file cannot be read.
func readable(name string, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return &fs.PathError{Op: "read", Path: name, Err: unix.EISDIR}
	case unix.S_IFLNK: // it was none a moment ago
		return &fs.PathError{Op: "read", Path: name, Err: unix.ELOOP}
	}
	return fmt.Errorf("%w: it is no regular file", volume.ErrFileKind)
}

// Open opens a regular file to be read.
func (v *Volume) Open(ctx context.Context, id, name string, o volume.OpenOptions) (io.ReadCloser, volume.FileInfo, error) {
	if o.Offset < 0 || o.Limit < 0 {
		return nil, volume.FileInfo{}, fmt.Errorf("read %.256q of workspace %s: %w: a range cannot be negative", name, id, volume.ErrInvalid)
	}
	var info volume.FileInfo
	r, err := onFile(ctx, v, "read", id, name, func(t *tree, name string) (io.ReadCloser, error) {
		f, st, err := t.open(name)
		if err != nil {
			return nil, err
		}
		info = fileInfo(name, &st, "")
		left := max(st.Size-o.Offset, 0)
		if o.Limit > 0 {
			left = min(left, o.Limit)
		}
		if left > 0 && o.Offset > 0 {
			if _, err := f.Seek(o.Offset, io.SeekStart); err != nil {
				f.Close()
				return nil, err
			}
		}
		return &reader{ctx: ctx, f: f, left: left, name: name}, nil
	})
	return r, info, err
}

// reader reads an open file up to where it ended.
type reader struct {
	ctx  context.Context //nolint:containedctx // it is that of the call that opened it
	f    *os.File
	left int64
	name string
}

var _ io.WriterTo = (*reader)(nil)

func (r *reader) Read(p []byte) (int, error) {
	switch {
	case r.left == 0:
		return 0, io.EOF
	case r.ctx.Err() != nil:
		return 0, context.Cause(r.ctx)
	}
	n, err := r.f.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = r.short()
	}
	return n, err
}

func (r *reader) short() error {
	return fmt.Errorf("read %.256q: it was cut meanwhile: %w", r.name, io.ErrUnexpectedEOF)
}

// chunk is how much is handed on between two looks at whether the caller still
// wants it.
const chunk = 8 << 20

// WriteTo lets the kernel move the bytes where it can.
func (r *reader) WriteTo(w io.Writer) (total int64, err error) {
	for r.left > 0 {
		if r.ctx.Err() != nil {
			return total, context.Cause(r.ctx)
		}
		n, err := copyBuffer(w, io.LimitReader(r.f, min(r.left, chunk)))
		r.left -= n
		total += n
		if err != nil {
			return total, err
		}
		if n == 0 {
			return total, r.short()
		}
	}
	return total, nil
}

func (r *reader) Close() error { return r.f.Close() }

// buffers are for what no kernel moves by itself.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// copyBuffer is [io.Copy] with a larger buffer.
func copyBuffer(w io.Writer, r io.Reader) (int64, error) {
	if rf, ok := w.(io.ReaderFrom); ok {
		if _, file := w.(*os.File); !file { // that of a file has a buffer of its own, a small one
			return rf.ReadFrom(r)
		}
	}
	buf := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, buf[:])
}

// ctxReader ends with its context.
type ctxReader struct {
	ctx context.Context //nolint:containedctx // it is that of the call that reads
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// WriteFile writes all of r to a file.
func (v *Volume) WriteFile(ctx context.Context, id, name string, r io.Reader, o volume.WriteOptions) (volume.FileInfo, error) {
	return onFile(ctx, v, "write", id, name, func(t *tree, name string) (volume.FileInfo, error) {
		info, err := t.replace(name, func(f *os.File) error {
			_, err := copyBuffer(f, &ctxReader{ctx: ctx, r: r})
			if err == nil && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return err
		}, o)
		if err != nil {
			return volume.FileInfo{}, err
		}
		if !o.Numbered { // what it is called here, wherever a link led
			info.Path, info.Name = name, path.Base(name)
		}
		return info, nil
	})
}

// Stat describes a file.
func (v *Volume) Stat(ctx context.Context, id, name string) (volume.FileInfo, error) {
	return onFile(ctx, v, "stat", id, name, (*tree).stat)
}

func (t *tree) stat(name string) (volume.FileInfo, error) {
	info, err := t.root.Lstat(name)
	if err != nil {
		return volume.FileInfo{}, err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = t.root.Readlink(name); err != nil {
			return volume.FileInfo{}, err
		}
	}
	st := unixStat(info.Sys().(*syscall.Stat_t))
	return fileInfo(name, &st, link), nil
}

// unixStat returns the same in the type of another package.
func unixStat(st *syscall.Stat_t) unix.Stat_t {
	return unix.Stat_t{
		Dev: st.Dev, Ino: st.Ino, Mode: st.Mode, Nlink: st.Nlink, Uid: st.Uid, Gid: st.Gid, Size: st.Size, Blocks: st.Blocks,
		Mtim: unix.Timespec(st.Mtim), Ctim: unix.Timespec(st.Ctim),
	}
}

// ListDir describes what is in a directory.
func (v *Volume) ListDir(ctx context.Context, id, name string) ([]volume.FileInfo, error) {
	return onFile(ctx, v, "list", id, name, func(t *tree, name string) ([]volume.FileInfo, error) {
		dir, err := t.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		infos := []volume.FileInfo{}
		err = walkDir(ctx, dir, name, func(e *entry) error {
			info, err := e.info()
			if vanished(err) || errors.Is(err, unix.EINVAL) { // a link that is none any more
				return errSkip
			}
			if err != nil {
				return err
			}
			infos = append(infos, info)
			return errSkip
		})
		return infos, err
	})
}

// errStop ends a walk that nobody listens to any more.
var errStop = errors.New("nobody listens")

// Walk describes a path and all that is below it.
func (v *Volume) Walk(ctx context.Context, id, name string) iter.Seq2[volume.FileInfo, error] {
	return func(yield func(volume.FileInfo, error) bool) {
		_, err := onFile(ctx, v, "walk", id, name, func(t *tree, name string) (nothing, error) {
			return nothing{}, t.walk(ctx, name, func(info volume.FileInfo) error {
				if !yield(info, nil) {
					return errStop
				}
				return nil
			})
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(volume.FileInfo{}, err)
		}
	}
}

func (t *tree) walk(ctx context.Context, name string, visit func(volume.FileInfo) error) error {
	top, err := t.stat(name)
	if err != nil {
		return err
	}
	if err := visit(top); err != nil || !top.Mode.IsDir() {
		return err
	}
	// The last element is no link: were it one by now, there is nothing to walk.
	dir, err := t.openDir(name)
	if vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return walkDir(ctx, dir, name, func(e *entry) error {
		info, err := e.info()
		if vanished(err) || errors.Is(err, unix.EINVAL) {
			return errSkip
		}
		if err != nil {
			return err
		}
		return visit(info)
	})
}

// openDir opens a directory that is no link.
func (t *tree) openDir(name string) (*os.File, error) {
	if name == "." {
		return t.root.OpenFile(".", os.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	p, err := t.parent(name)
	if err != nil {
		return nil, err
	}
	defer p.dir.Close()
	return openDirAt(p.fd(), p.base)
}

// MkdirAll makes a directory and its parents.
func (v *Volume) MkdirAll(ctx context.Context, id, name string, mode fs.FileMode) error {
	_, err := onFile(ctx, v, "make directory", id, name, func(t *tree, name string) (nothing, error) {
		if mode = permissions(mode); mode == 0 {
			mode = 0o755
		}
		return nothing{}, t.mkdirAll(name, mode)
	})
	return err
}

// errRoot reports a call that the root of a workspace does not allow.
func errRoot(what string) error {
	return fmt.Errorf("%w: the root of a workspace cannot be %s", volume.ErrPath, what)
}

// Remove removes a file, a link or a directory.
func (v *Volume) Remove(ctx context.Context, id, name string, o volume.RemoveOptions) error {
	_, err := onFile(ctx, v, "remove", id, name, func(t *tree, name string) (nothing, error) {
		if name == "." {
			return nothing{}, errRoot("removed")
		}
		p, err := t.parent(name)
		if err == nil {
			defer p.dir.Close()
			err = t.remove(&p, o)
		}
		if o.All && errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nothing{}, err
	})
	return err
}

// remove removes what is at a place, if that is what o means.
func (t *tree) remove(p *place, o volume.RemoveOptions) error {
	if o.IfVersion == "" {
		return t.removeAt(p, o.All)
	}
	unlock, err := t.lock(p)
	if err != nil {
		return err
	}
	defer unlock()
	switch st, err := p.stat(); {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: it is not there", volume.ErrVersion)
	case err != nil:
		return os.NewSyscallError("fstatat", err)
	case o.IfVersion != version(&st):
		return volume.ErrVersion
	}
	return t.removeAt(p, o.All)
}

func (t *tree) removeAt(p *place, all bool) error {
	err := unix.Unlinkat(p.fd(), p.base, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		if rerr := unix.Unlinkat(p.fd(), p.base, unix.AT_REMOVEDIR); !errors.Is(rerr, unix.ENOTDIR) {
			err = rerr
		}
	}
	if !all || !errors.Is(err, unix.ENOTEMPTY) {
		if err != nil {
			return &fs.PathError{Op: "remove", Path: p.name, Err: err}
		}
		return nil
	}
	tmp, err := t.openTemp()
	if err != nil {
		return err
	}
	defer tmp.Close()
	// It is gone at once, and nobody gets in its way.
	name := newName("r")
	if err := unix.Renameat(p.fd(), p.base, int(tmp.Fd()), name); err == nil {
		return removeTree(int(tmp.Fd()), name, int(tmp.Fd()), "r")
	}
	return removeTree(p.fd(), p.base, int(tmp.Fd()), "r")
}

// Rename moves a file, link or directory.
func (v *Volume) Rename(ctx context.Context, id, from, to string) error {
	target, err := cleanPath(to)
	if err != nil {
		return told("rename", id, to, err)
	}
	_, err = onFile(ctx, v, "rename", id, from, func(t *tree, name string) (nothing, error) {
		if name == "." || target == "." {
			return nothing{}, errRoot("moved or replaced")
		}
		return nothing{}, t.rename(name, target)
	})
	return err
}

func (t *tree) rename(from, to string) error {
	src, err := t.parent(from)
	if err != nil {
		return err
	}
	defer src.dir.Close()
	dst, err := t.parent(to)
	if err != nil {
		return err
	}
	defer dst.dir.Close()
	// Who replaces or removes a certain version must not hit this one.
	unlock, err := t.lock(&dst)
	if err != nil {
		return err
	}
	defer unlock()
	if err := unix.Renameat(src.fd(), src.base, dst.fd(), dst.base); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
