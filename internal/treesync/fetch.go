package treesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/filemode"
	"github.com/taibox/taibox/internal/holes"
	"github.com/taibox/taibox/internal/nofollow"
)

// tries is how often a file is read that changes meanwhile.
const tries = 3

// minHole is the smallest hole that travels as one.
const minHole = 64 << 10

// Fetch writes entries, see [volume.SyncEnd]. What is gone is left out. A file
// that does not stand still is told to Apply, which returns it as an error.
func (t *Tree) Fetch(ctx context.Context, names []string, w io.Writer) error {
	return t.error(t.fetch(ctx, names, w, false, nil))
}

// fetch is Fetch that may leave the compression out, and tells what it did.
func (t *Tree) fetch(ctx context.Context, names []string, w io.Writer, plain bool, done func(bytes int64)) (err error) {
	e, err := newEncoder(w, plain)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			e.fail(t.error(err)) //nolint:errcheck // the first error counts
		}
		err = errors.Join(err, e.close())
	}()
	p, err := t.Open(ctx, false)
	if errors.Is(err, fs.ErrNotExist) {
		return e.end()
	}
	if err != nil {
		return err
	}
	f := &fetcher{ctx: ctx, e: e, c: nofollow.NewCursor(p.Root), buf: make([]byte, chunkSize)}
	defer func() {
		f.c.Close()
		if p.Temp != nil {
			p.Temp.Close()
		}
	}()
	for _, name := range names {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := checkName(name); err != nil {
			return err
		}
		n, err := f.entry(name)
		if err != nil && !nofollow.Vanished(err) && !errors.Is(err, nofollow.ErrKind) {
			return err
		}
		if done != nil {
			done(n)
		}
	}
	return e.end()
}

type fetcher struct {
	ctx context.Context //nolint:containedctx // it lives for one call
	e   *encoder
	c   *nofollow.Cursor
	buf []byte
}

func (f *fetcher) entry(name string) (int64, error) {
	d, err := f.c.To(path.Dir(name), nil)
	if err != nil {
		return 0, err
	}
	base := path.Base(name)
	st, err := d.Lstat(base)
	if err != nil {
		return 0, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		f.e.kind(recordDir)
		f.e.str(name)
		f.e.uint(uint64(filemode.Of(st.Mode) & bits))
		return 0, f.e.flush()
	case unix.S_IFLNK:
		target, err := d.Readlink(base)
		if err != nil {
			return 0, err
		}
		f.e.kind(recordLink)
		f.e.str(name)
		f.e.str(target)
		return 0, f.e.flush()
	case unix.S_IFREG:
		return f.file(d, base, name)
	}
	return 0, nil
}

// file sends a file that stands still while it is read.
func (f *fetcher) file(d *nofollow.Dir, base, name string) (int64, error) {
	for range tries {
		n, err := f.once(d, base, name)
		if !errors.Is(err, errChanged) {
			return n, err
		}
	}
	f.e.kind(recordTold)
	f.e.str(name)
	f.e.str("it changes while it is read")
	return 0, f.e.flush()
}

var errChanged = errors.New("it changed while it was read")

func (f *fetcher) once(d *nofollow.Dir, base, name string) (int64, error) {
	file, st, err := d.OpenRegular(base)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	f.e.kind(recordFile)
	f.e.str(name)
	f.e.uint(uint64(filemode.Of(st.Mode) & bits))
	f.e.time(time.Unix(st.Mtim.Unix()))
	f.e.uint(uint64(st.Size))
	if err := f.e.flush(); err != nil {
		return 0, err
	}
	err = f.contents(file, &st)
	var now unix.Stat_t
	if err == nil {
		if err = unix.Fstat(int(file.Fd()), &now); err == nil && (now.Size != st.Size || now.Mtim != st.Mtim) {
			err = errChanged
		}
	}
	switch {
	case errors.Is(err, errChanged):
		f.e.kind(recordDrop)
		return 0, errors.Join(errChanged, f.e.flush())
	case err != nil:
		return 0, fmt.Errorf("read %q: %w", name, err)
	}
	f.e.kind(recordDone)
	return st.Size, f.e.flush()
}

func (f *fetcher) contents(file *os.File, st *unix.Stat_t) error {
	sparse := st.Blocks*512 < st.Size
	for at := int64(0); at < st.Size; {
		end := st.Size
		if sparse {
			start, stop := holes.Next(file, at, st.Size)
			if start-at >= minHole || start == st.Size {
				f.e.kind(recordHole)
				f.e.uint(uint64(start - at))
				if err := f.e.flush(); err != nil {
					return err
				}
				at = start
			}
			end = stop
		}
		for at < end {
			if err := context.Cause(f.ctx); err != nil {
				return err
			}
			buf := f.buf[:min(int64(len(f.buf)), end-at)]
			n, err := file.ReadAt(buf, at)
			if n < len(buf) && (err == nil || errors.Is(err, io.EOF)) {
				return errChanged // it shrinks
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			f.e.kind(recordData)
			f.e.uint(uint64(n))
			if err := f.e.flush(); err != nil {
				return err
			}
			if _, err := f.e.w.Write(buf); err != nil {
				return err
			}
			at += int64(n)
		}
	}
	return nil
}
