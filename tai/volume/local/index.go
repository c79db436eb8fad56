package local

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The index of a snapshot says what its files were when they were copied, in
// the order of a walk. A file that is still the same need not be looked into.

// mark is the state of a file.
type mark struct {
	Inode              uint64
	Size, Mtime, Ctime int64
	Mode, Owner, Group uint32
}

func markOf(st *unix.Stat_t) mark {
	return mark{Inode: st.Ino, Size: st.Size, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(), Mode: st.Mode, Owner: st.Uid, Group: st.Gid}
}

// settleTime is how old a change must be to be sure that the next one has
// another time: the kernel's clock for files stands still for moments.
const settleTime = 20 * time.Millisecond

// indexWriter writes an index.
type indexWriter struct {
	w *bufio.Writer
	f *os.File
	// since is from when on a change says nothing: others may follow in the
	// same moment, or through memory that was mapped before.
	since int64
}

func newIndexWriter(f *os.File, since time.Time) *indexWriter {
	return &indexWriter{w: bufio.NewWriterSize(f, 64<<10), f: f, since: since.Add(-settleTime).UnixNano()}
}

func (w *indexWriter) add(path string, m mark) error {
	if m.Ctime >= w.since || m.Mtime >= w.since {
		return nil
	}
	var size [binary.MaxVarintLen64]byte
	if _, err := w.w.Write(binary.AppendUvarint(size[:0], uint64(len(path)))); err != nil {
		return err
	}
	if _, err := w.w.WriteString(path); err != nil {
		return err
	}
	return binary.Write(w.w, binary.LittleEndian, &m)
}

func (w *indexWriter) close() error {
	return errors.Join(w.w.Flush(), w.f.Sync(), w.f.Close())
}

// indexReader finds marks by paths that are asked for in order.
type indexReader struct {
	r    *bufio.Reader
	f    *os.File
	path string
	mark mark
	end  bool
}

func openIndex(name string) (*indexReader, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	r := &indexReader{r: bufio.NewReaderSize(f, 64<<10), f: f}
	if err := r.next(); err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

func (r *indexReader) close() {
	r.f.Close()
}

func (r *indexReader) next() error {
	n, err := binary.ReadUvarint(r.r)
	if errors.Is(err, io.EOF) {
		r.end = true
		return nil
	}
	if err == nil && n > maxPath*2 {
		err = fmt.Errorf("a name of %d bytes", n)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.f.Name(), err)
	}
	path := make([]byte, n)
	if _, err := io.ReadFull(r.r, path); err != nil {
		return fmt.Errorf("%s: %w", r.f.Name(), err)
	}
	r.path = string(path)
	if err := binary.Read(r.r, binary.LittleEndian, &r.mark); err != nil {
		return fmt.Errorf("%s: %w", r.f.Name(), err)
	}
	return nil
}

// has reports whether a file is as the index says. Paths must come in order.
func (r *indexReader) has(path string, st *unix.Stat_t) (bool, error) {
	for !r.end {
		switch c := comparePaths(r.path, path); {
		case c > 0:
			return false, nil
		case c == 0:
			return r.mark == markOf(st), nil
		}
		if err := r.next(); err != nil {
			return false, err
		}
	}
	return false, nil
}

// comparePaths orders paths as a walk does: what is in a directory comes right
// after it.
func comparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x == '/' {
			x = 0
		}
		if y == '/' {
			y = 0
		}
		if x < y {
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}
