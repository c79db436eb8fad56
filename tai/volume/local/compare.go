package local

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/holes"
)

// pair is one name in two directories. What is not there is nil.
type pair struct {
	a, b       *entry
	aDir, bDir int
	base, path string
}

// isOther reports whether an entry is no file, directory or link.
func isOther(e *entry) bool {
	if e == nil {
		return false
	}
	switch e.kind() {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK:
		return false
	}
	return true
}

// pairDir lists two open directories, ordered by name.
func pairDir(ctx context.Context, a, b *os.File, under string) ([]pair, error) {
	pairs := map[string]*pair{}
	for i, dir := range []*os.File{a, b} {
		names, err := readNames(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			e := &entry{path: joinPath(under, name), dir: int(dir.Fd()), base: name}
			if err := unix.Fstatat(e.dir, name, &e.st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				if vanished(err) {
					continue
				}
				return nil, &os.PathError{Op: "stat", Path: e.path, Err: err}
			}
			p := pairs[name]
			if p == nil {
				p = &pair{aDir: int(a.Fd()), bDir: int(b.Fd()), base: name, path: e.path}
				pairs[name] = p
			}
			if i == 0 {
				p.a = e
			} else {
				p.b = e
			}
		}
	}
	list := make([]pair, 0, len(pairs))
	for _, p := range pairs {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(x, y pair) int { return bytes.Compare([]byte(x.base), []byte(y.base)) })
	return list, nil
}

// sameContents reports whether two regular files have the same in them. Holes
// of both are not read.
func sameContents(ctx context.Context, a, b *entry) (bool, error) {
	if a.st.Size != b.st.Size {
		return false, nil
	}
	x, err := a.open()
	if err != nil {
		return false, err
	}
	defer x.Close()
	y, err := b.open()
	if err != nil {
		return false, err
	}
	defer y.Close()
	bufs := [2]*[256 << 10]byte{buffers.Get().(*[256 << 10]byte), buffers.Get().(*[256 << 10]byte)}
	defer buffers.Put(bufs[0])
	defer buffers.Put(bufs[1])
	size := a.st.Size
	for at := int64(0); at < size; {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		next := nextData(x, y, at, size)
		if next >= size {
			return true, nil
		}
		n := min(size-next, int64(len(bufs[0])))
		p, q := bufs[0][:n], bufs[1][:n]
		_, errX := x.ReadAt(p, next)
		_, errY := y.ReadAt(q, next)
		switch {
		case errors.Is(errX, io.EOF) || errors.Is(errY, io.EOF):
			return false, nil // cut meanwhile
		case errX != nil || errY != nil:
			return false, errors.Join(errX, errY)
		case !bytes.Equal(p, q):
			return false, nil
		}
		at = next + n
	}
	return true, nil
}

// nextData returns from where on one of two files has more than holes.
func nextData(x, y *os.File, at, size int64) int64 {
	nextX, _ := holes.Next(x, at, size)
	nextY, _ := holes.Next(y, at, size)
	return min(nextX, nextY)
}
