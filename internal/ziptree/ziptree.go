// Package ziptree packs file trees as zip archives and unpacks such archives.
//
// # Model
//
// A [Packer] writes what [tartree.Walk] finds; [Unpack] makes the entries of an
// archive on a [tartree.Stage], which refuses what no archive may have. The
// directory at the end of an archive counts; files that are encrypted or
// compressed by other methods than deflate are refused, and so are entries whose
// data overlap.
//
// # Errors
//
// [sandbox.ErrArchive] is an archive that is cut or has what none may have; all
// else wraps the error number of the system call.
package ziptree

import (
	"archive/zip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/klauspost/compress/flate"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/tartree"
)

// maxHole is how much of a file may be missing on disk: holes are packed as
// zeros.
const maxHole = 1 << 30

// level is that of deflate. Higher ones take much more time for little.
const level = 5

// NewPacker returns the visitor that writes a zip archive, for [tartree.Walk].
func NewPacker(ctx context.Context, w io.Writer) *Packer {
	p := &Packer{ctx: ctx, zw: zip.NewWriter(w), buf: make([]byte, 128<<10)}
	p.zw.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, level) })
	return p
}

// Close writes the directory of the archive.
func (p *Packer) Close() error { return p.zw.Close() }

// Packer writes a zip archive.
type Packer struct {
	ctx context.Context //nolint:containedctx // it lives for one call
	zw  *zip.Writer
	buf []byte
}

func (p *Packer) header(as string, info fs.FileInfo, method uint16) (io.Writer, error) {
	if len(as) > 1<<16-1 {
		return nil, &fs.PathError{Op: "pack", Path: as, Err: unix.ENAMETOOLONG}
	}
	h := &zip.FileHeader{Name: as, Method: method, Modified: info.ModTime()}
	h.SetMode(info.Mode() &^ (fs.ModeSetuid | fs.ModeSetgid))
	return p.zw.CreateHeader(h)
}

// Dir writes a directory. A root without a name needs none.
func (p *Packer) Dir(as string, info fs.FileInfo) error {
	if as == "." {
		return nil
	}
	_, err := p.header(as+"/", info, zip.Store)
	return err
}

// Link writes a link as a file with its target.
func (p *Packer) Link(as, target string, info fs.FileInfo) error {
	w, err := p.header(as, info, zip.Store)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, target)
	return err
}

// File writes a regular file.
func (p *Packer) File(as string, info fs.FileInfo, f *os.File) error {
	if st := info.Sys().(*syscall.Stat_t); info.Size()-st.Blocks*512 > maxHole {
		return fmt.Errorf("pack %s: %w: of its %d bytes only %d are on disk, and zip has no holes", as, unix.EFBIG, info.Size(), st.Blocks*512)
	}
	w, err := p.header(as, info, zip.Deflate)
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, tartree.CtxReader(p.ctx, io.LimitReader(f, info.Size())), p.buf)
	if err == nil && n < info.Size() {
		err = fmt.Errorf("pack %s: %w: it was cut while it was read", as, io.ErrUnexpectedEOF)
	}
	return err
}
