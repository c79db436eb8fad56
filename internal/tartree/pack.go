package tartree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bounds of an archive.
const (
	maxEntries = 1 << 20
	maxDepth   = 256
	maxName    = unix.PathMax
	// maxHole is how much of a file may be missing on disk and yet travel as
	// zeros, where holes cannot.
	maxHole = 1 << 30
	// copyBuffer is what a file's contents go through.
	copyBuffer = 128 << 10
)

// openFlags never wait for the other end of a pipe that stands where a file did.
const openFlags = os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY

// Pack writes the file or tree at name to w, under the name as. A symbolic
// link is packed as a link. Sockets, pipes and devices in a tree are left out,
// and so is what is in /proc and its like; asked for by name they are an error.
func Pack(w io.Writer, name, as string) error {
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	rel := "."
	if !info.IsDir() {
		name, rel = filepath.Split(filepath.Clean(name))
		if name == "" {
			name = "."
		}
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	defer root.Close()
	return PackRoot(context.Background(), w, root, rel, as, nil)
}

// PackRoot is [Pack] of what is below a root, as [Walk] says.
func PackRoot(ctx context.Context, w io.Writer, root *os.Root, rel, as string, skip fs.FileInfo) error {
	p := NewPacker(ctx, w)
	if err := Walk(ctx, root, rel, as, skip, p); err != nil {
		return err
	}
	return p.Close()
}

// NewPacker returns the visitor that writes a tar stream.
func NewPacker(ctx context.Context, w io.Writer) *Packer {
	return &Packer{ctx: ctx, w: w, tw: tar.NewWriter(w), links: map[fileID]string{}, buf: make([]byte, copyBuffer)}
}

// Close ends the stream.
func (p *Packer) Close() error { return p.tw.Close() }

// fileID tells files apart.
type fileID struct{ dev, ino uint64 }

// Packer is the [Visitor] that writes a tar stream.
type Packer struct {
	ctx   context.Context //nolint:containedctx // it lives for one call
	w     io.Writer
	tw    *tar.Writer
	links map[fileID]string // the names of files that have several
	count int
	buf   []byte
}

// Dir writes a directory.
func (p *Packer) Dir(as string, info fs.FileInfo) error { return p.header(as, "", info) }

// Link writes a symbolic link.
func (p *Packer) Link(as, target string, info fs.FileInfo) error { return p.header(as, target, info) }

// File writes a regular file, as long as it was when it was opened.
func (p *Packer) File(as string, info fs.FileInfo, f *os.File) error {
	st := info.Sys().(*syscall.Stat_t)
	if st.Nlink > 1 {
		id := fileID{st.Dev, st.Ino}
		if first, ok := p.links[id]; ok {
			return p.hardLink(as, first, info)
		}
		p.links[id] = as
	}
	if info.Size()-st.Blocks*512 >= minHole {
		runs, whole := dataRuns(f, info.Size())
		if missing := total(runs) - st.Blocks*512; !whole && missing > maxHole {
			return fmt.Errorf("pack %s: %w: of its %d bytes only %d are on disk, in too many pieces, and holes would travel as zeros", as, unix.EFBIG, info.Size(), st.Blocks*512)
		}
		if total(runs) < info.Size() {
			return p.sparse(as, info, f, runs)
		}
	}
	if err := p.header(as, "", info); err != nil {
		return err
	}
	return p.contents(p.tw, as, io.NewSectionReader(f, 0, info.Size()), info.Size())
}

func (p *Packer) contents(w io.Writer, as string, r io.Reader, size int64) error {
	n, err := io.CopyBuffer(onlyWriter{w}, CtxReader(p.ctx, r), p.buf)
	if err == nil && n < size {
		err = fmt.Errorf("pack %s: %w: it was cut while it was read", as, io.ErrUnexpectedEOF)
	}
	return err
}

// CtxReader returns a reader that ends with a context.
func CtxReader(ctx context.Context, r io.Reader) io.Reader { return &ctxReader{ctx, r} }

type ctxReader struct {
	ctx context.Context //nolint:containedctx // it lives for one call
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// onlyWriter keeps io.CopyBuffer from going round the buffer.
type onlyWriter struct{ io.Writer }

func (p *Packer) header(as, target string, info fs.FileInfo) error {
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return fmt.Errorf("pack %s: %w", as, err)
	}
	return p.write(as, h)
}

func (p *Packer) hardLink(as, first string, info fs.FileInfo) error {
	h, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return fmt.Errorf("pack %s: %w", as, err)
	}
	h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
	return p.write(as, h)
}

// write writes a header without what is of this machine only.
func (p *Packer) write(as string, h *tar.Header) error {
	if err := p.entry(as); err != nil {
		return err
	}
	h.Name = as
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	h.Uname, h.Gname = "", ""
	return p.tw.WriteHeader(h)
}

func (p *Packer) entry(as string) error {
	if p.count++; p.count > maxEntries {
		return fmt.Errorf("pack %s: %w: more than %d files", as, unix.EFBIG, maxEntries)
	}
	if len(as) > maxName {
		return &fs.PathError{Op: "pack", Path: as, Err: unix.ENAMETOOLONG}
	}
	return nil
}

// isMadeUp reports whether the kernel makes up what is in a directory.
func isMadeUp(f *os.File) (bool, error) {
	on, err := statfs(f)
	switch on.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC:
		return true, err
	}
	return false, err
}

// statfs describes the file system that f is on.
func statfs(f *os.File) (on unix.Statfs_t, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return on, err
	}
	var serr error
	err = rc.Control(func(fd uintptr) { serr = unix.Fstatfs(int(fd), &on) })
	return on, errors.Join(err, serr)
}
