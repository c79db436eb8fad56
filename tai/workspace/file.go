package workspace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/taibox/taibox/tai/volume"
)

// skip is how far ahead a read goes on in the stream that is open, rather than
// to open another.
const skip = 256 << 10

// openFile is a regular file that was opened. Nothing of it is read, and
// nothing of the volume held, before the first read.
type openFile struct {
	fsys *files
	name string
	info fileInfo

	at     int64 // where the next read is
	stream io.ReadCloser
	from   int64 // where stream is
	closed bool

	mu      sync.Mutex
	version string // of the file that the first read found
}

func (f *openFile) Stat() (fs.FileInfo, error) {
	if f.closed {
		return nil, f.gone("stat")
	}
	return f.info, nil
}

func (f *openFile) gone(op string) error {
	return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
}

// open opens the file at an offset, and sees to it that all reads are of one
// file.
func (f *openFile) open(o volume.OpenOptions) (io.ReadCloser, error) {
	r, info, err := f.fsys.vol.Open(f.fsys.ctx, f.fsys.id, f.name, o)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.version == "" {
		f.version = info.Version
	}
	if f.version != info.Version {
		return nil, errors.Join(fmt.Errorf("%w while it was read", volume.ErrVersion), r.Close())
	}
	return r, nil
}

// Read implements [fs.File].
func (f *openFile) Read(p []byte) (int, error) {
	if f.closed || f.fsys.ctx.Err() != nil {
		return 0, f.gone("read")
	}
	if len(p) == 0 {
		return 0, nil
	}
	if err := f.seek(); err != nil {
		return 0, f.fsys.failed("read", f.name, err)
	}
	n, err := f.stream.Read(p)
	f.at += int64(n)
	f.from = f.at
	if err != nil && !errors.Is(err, io.EOF) {
		return n, f.fsys.failed("read", f.name, err)
	}
	return n, err
}

// seek brings the stream to where the next read is.
func (f *openFile) seek() error {
	if f.stream != nil && f.at >= f.from && f.at-f.from <= skip {
		n, err := io.CopyN(io.Discard, f.stream, f.at-f.from)
		f.from += n
		if err == nil || errors.Is(err, io.EOF) {
			return nil // behind the end there is nothing to read
		}
		return err
	}
	if f.stream != nil {
		err := f.stream.Close()
		if f.stream = nil; err != nil {
			return err
		}
	}
	r, err := f.open(volume.OpenOptions{Offset: f.at})
	if err != nil {
		return err
	}
	f.stream, f.from = r, f.at
	return nil
}

// Seek implements [io.Seeker].
func (f *openFile) Seek(offset int64, whence int) (int64, error) {
	if f.closed {
		return 0, f.gone("seek")
	}
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.info.Size()
	default:
		offset = -1
	}
	if offset < 0 {
		return 0, &fs.PathError{Op: "seek", Path: f.name, Err: fs.ErrInvalid}
	}
	f.at = offset
	return offset, nil
}

// ReadAt implements [io.ReaderAt]. Unlike the others it may be called at the
// same time.
func (f *openFile) ReadAt(p []byte, off int64) (int, error) {
	switch {
	case f.closed || f.fsys.ctx.Err() != nil:
		return 0, f.gone("read")
	case off < 0:
		return 0, &fs.PathError{Op: "read", Path: f.name, Err: fs.ErrInvalid}
	case len(p) == 0:
		return 0, nil
	}
	r, err := f.open(volume.OpenOptions{Offset: off, Limit: int64(len(p))})
	if err != nil {
		return 0, f.fsys.failed("read", f.name, err)
	}
	n, err := io.ReadFull(r, p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = f.fsys.failed("read", f.name, err)
	}
	if cerr := r.Close(); cerr != nil && err == nil {
		err = f.fsys.failed("read", f.name, cerr)
	}
	return n, err // io.EOF as it is: callers compare
}

// Close implements [fs.File].
func (f *openFile) Close() error {
	if f.closed {
		return f.gone("close")
	}
	f.closed = true
	if f.stream == nil {
		return nil
	}
	return f.stream.Close()
}
