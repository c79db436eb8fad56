package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/internal/ziptree"
	"github.com/taibox/taibox/tai/volume"
)

const (
	// freeBytes is what an archive may unpack to whatever its ratio.
	freeBytes = 64 << 20
	// archiveBuffer is what goes to and from the disk at once.
	archiveBuffer = 256 << 10
	// maxHole is how much of a file may be missing on disk where holes are
	// packed as zeros.
	maxHole = 1 << 30
)

// limits fills in the defaults.
func limits(o volume.ArchiveOptions) volume.ArchiveOptions {
	if o.MaxEntries <= 0 {
		o.MaxEntries = 1_000_000
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 64 << 30
	}
	if o.MaxRatio <= 0 {
		o.MaxRatio = 200
	}
	if o.MaxDepth <= 0 {
		o.MaxDepth = 100
	}
	return o
}

// packer writes an archive of what a walk finds.
type packer interface {
	tartree.Visitor
	Close() error
}

// Zip packs a file or tree.
func (v *Volume) Zip(ctx context.Context, id, src, dst string) (volume.ArchiveResult, error) {
	return v.pack(ctx, "zip", id, src, dst, func(w io.Writer) packer { return ziptree.NewPacker(ctx, w) })
}

// Tar packs a file or tree.
func (v *Volume) Tar(ctx context.Context, id, src, dst string) (volume.ArchiveResult, error) {
	return v.pack(ctx, "tar", id, src, dst, func(w io.Writer) packer { return tartree.NewPacker(ctx, w) })
}

// Tgz packs a file or tree and compresses the archive.
func (v *Volume) Tgz(ctx context.Context, id, src, dst string) (volume.ArchiveResult, error) {
	return v.pack(ctx, "tgz", id, src, dst, func(w io.Writer) packer {
		zw := gzip.NewWriter(w)
		return &tgz{Packer: tartree.NewPacker(ctx, zw), zw: zw}
	})
}

type tgz struct {
	*tartree.Packer
	zw *gzip.Writer
}

func (t *tgz) Close() error {
	if err := t.Packer.Close(); err != nil {
		return err
	}
	return t.zw.Close()
}

// pack writes an archive of one path of a workspace to another.
func (v *Volume) pack(ctx context.Context, verb, id, src, dst string, begin func(io.Writer) packer) (volume.ArchiveResult, error) {
	return v.archive(ctx, verb, id, src, dst, func(t *tree, src, dst string) (res volume.ArchiveResult, err error) {
		if _, err := t.root.Lstat(src); err != nil {
			return res, err
		}
		skip, err := t.root.Stat(dst)
		if err != nil {
			skip = nil // there is none
		}
		_, err = t.replace(dst, func(f *os.File) error {
			out := bufio.NewWriterSize(f, archiveBuffer)
			p := begin(out)
			c := &counting{packer: p}
			if err := tartree.Walk(ctx, t.root, src, path.Base(src), skip, c); err != nil {
				return err
			}
			res = c.res
			return errors.Join(p.Close(), out.Flush())
		}, volume.WriteOptions{})
		return res, err
	})
}

// archive makes a call for two paths of a workspace.
func (v *Volume) archive(ctx context.Context, verb, id, src, dst string, call func(t *tree, src, dst string) (volume.ArchiveResult, error)) (volume.ArchiveResult, error) {
	return onFile(ctx, v, verb, id, src, func(t *tree, src string) (volume.ArchiveResult, error) {
		to, err := cleanPath(dst)
		if err != nil {
			return volume.ArchiveResult{}, err
		}
		if src == to && src != "." {
			return volume.ArchiveResult{}, fmt.Errorf("%w: source and destination are the same", volume.ErrPath)
		}
		return call(t, src, to)
	})
}

// counting counts what is packed.
type counting struct {
	packer
	res volume.ArchiveResult
}

func (c *counting) Dir(name string, info fs.FileInfo) error {
	c.res.Entries++
	return c.packer.Dir(name, info)
}

func (c *counting) Link(name, target string, info fs.FileInfo) error {
	c.res.Entries++
	return c.packer.Link(name, target, info)
}

func (c *counting) File(name string, info fs.FileInfo, f *os.File) error {
	c.res.Entries++
	c.res.Bytes += info.Size()
	return c.packer.File(name, info, f)
}

// Gzip compresses one file.
func (v *Volume) Gzip(ctx context.Context, id, src, dst string) (volume.ArchiveResult, error) {
	return v.archive(ctx, "gzip", id, src, dst, func(t *tree, src, dst string) (res volume.ArchiveResult, err error) {
		f, st, err := t.open(src)
		if err != nil {
			return res, err
		}
		defer f.Close()
		if st.Size-st.Blocks*512 > maxHole {
			return res, fmt.Errorf("%w: of its %d bytes only %d are on disk, and gzip has no holes", unix.EFBIG, st.Size, st.Blocks*512)
		}
		_, err = t.replace(dst, func(out *os.File) error {
			zw := gzip.NewWriter(out)
			n, err := copyBuffer(zw, tartree.CtxReader(ctx, io.LimitReader(f, st.Size)))
			if err == nil && n < st.Size {
				err = fmt.Errorf("%w: it was cut while it was read", io.ErrUnexpectedEOF)
			}
			return errors.Join(err, zw.Close())
		}, volume.WriteOptions{})
		return volume.ArchiveResult{Entries: 1, Bytes: st.Size}, err
	})
}

// Gunzip writes one file.
func (v *Volume) Gunzip(ctx context.Context, id, src, dst string, o volume.ArchiveOptions) (volume.ArchiveResult, error) {
	o = limits(o)
	return v.archive(ctx, "gunzip", id, src, dst, func(t *tree, src, dst string) (res volume.ArchiveResult, err error) {
		f, _, err := t.open(src)
		if err != nil {
			return res, err
		}
		defer f.Close()
		_, err = t.replace(dst, func(out *os.File) error {
			r, err := newInflater(tartree.CtxReader(ctx, f), o)
			if err != nil {
				return err
			}
			res.Entries = 1
			res.Bytes, err = copyBuffer(out, io.LimitReader(r, o.MaxBytes+1))
			if err == nil && res.Bytes > o.MaxBytes {
				err = fmt.Errorf("%w: more than %d bytes", volume.ErrArchive, o.MaxBytes)
			}
			return err
		}, volume.WriteOptions{})
		return res, err
	})
}

// inflater reads gzip within a ratio, and tells an archive that is broken from
// one that cannot be read.
type inflater struct {
	in    *countingReader
	zr    *gzip.Reader
	out   int64
	ratio int64
}

func newInflater(r io.Reader, o volume.ArchiveOptions) (*inflater, error) {
	i := &inflater{in: &countingReader{r: r}, ratio: o.MaxRatio}
	zr, err := gzip.NewReader(bufio.NewReaderSize(i.in, archiveBuffer))
	if err != nil {
		return nil, i.blame(err)
	}
	i.zr = zr
	return i, nil
}

func (i *inflater) Read(p []byte) (int, error) {
	n, err := i.zr.Read(p)
	i.out += int64(n)
	if i.out > freeBytes && i.out/i.ratio > i.in.n {
		return 0, fmt.Errorf("%w: more than %d bytes for each packed one", volume.ErrArchive, i.ratio)
	}
	if err != nil && err != io.EOF { //nolint:errorlint // a reader's end is this very error
		return n, i.blame(err)
	}
	return n, err
}

func (i *inflater) blame(err error) error {
	if i.in.err != nil {
		return i.in.err
	}
	return fmt.Errorf("%w: %w", volume.ErrArchive, err)
}

// countingReader counts what is read, and remembers what its source failed for.
type countingReader struct {
	r   io.Reader
	n   int64
	err error
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}
