package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

// packer writes the upper directory of an overlay as the tar of a layer. What
// runs in the box may change the directory meanwhile: names are opened below
// it without following any link, and what is gone by then is left out.
type packer struct {
	upper int // descriptor
	skip  []string
	tw    *tar.Writer
	links map[[2]uint64]string // by device and inode, files with several names
	holes int64                // bytes so far that are not on the disk
}

func packUpper(ctx context.Context, upper string, skip []string, w io.Writer) error {
	t, err := openTree(upper)
	if err != nil {
		return err
	}
	defer t.close()
	p := &packer{upper: t[0], skip: skip, tw: tar.NewWriter(w), links: map[[2]uint64]string{}}
	if err := p.dir(ctx, "."); err != nil {
		return err
	}
	return p.tw.Close()
}

// dir writes what is in a directory, by name.
func (p *packer) dir(ctx context.Context, name string) error {
	n, err := openNode(p.upper, name)
	if n == nil || err != nil {
		return err
	}
	entries, err := os.ReadDir(n.path())
	n.close()
	if err != nil {
		return fmt.Errorf("read %.200q: %w", name, err)
	}
	for _, e := range entries {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		child := path.Join(name, e.Name())
		if slices.Contains(p.skip, child) {
			continue
		}
		if strings.HasPrefix(e.Name(), whiteoutPrefix) {
			return fmt.Errorf("%.200q: %w: no layer can have a name that begins with %s", child, sandbox.ErrUnsupported, whiteoutPrefix)
		}
		isDir, err := p.entry(ctx, child)
		if err != nil {
			return fmt.Errorf("%.200q: %w", child, err)
		}
		if isDir {
			if err := p.dir(ctx, child); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry writes one file, and for a directory whether it hides what is below.
func (p *packer) entry(ctx context.Context, name string) (isDir bool, err error) {
	n, err := openNode(p.upper, name)
	if n == nil || err != nil {
		return false, err
	}
	defer n.close()
	if n.isWhiteout() {
		dir, base := path.Split(name)
		return false, p.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + whiteoutPrefix + base, Format: tar.FormatPAX})
	}
	hdr, err := p.header(name, n)
	if hdr == nil || err != nil {
		return false, err
	}
	switch hdr.Typeflag {
	case tar.TypeReg:
		return false, p.file(ctx, hdr, n)
	case tar.TypeDir:
		if err := p.tw.WriteHeader(hdr); err != nil {
			return false, err
		}
		opaque, err := n.isOpaque()
		if opaque && err == nil {
			err = p.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(name, opaqueMark), Format: tar.FormatPAX})
		}
		return true, err
	}
	return false, p.tw.WriteHeader(hdr)
}

// header describes a file; nil for what no layer has, such as sockets.
func (p *packer) header(name string, n *node) (*tar.Header, error) {
	hdr := &tar.Header{
		Name: name, Format: tar.FormatPAX, Mode: int64(n.stat.Mode & 0o7777),
		Uid: int(n.stat.Uid), Gid: int(n.stat.Gid), ModTime: n.modTime().Truncate(time.Microsecond),
	}
	key := [2]uint64{n.stat.Dev, n.stat.Ino}
	if !n.isDir() && n.stat.Nlink > 1 {
		if first, ok := p.links[key]; ok {
			hdr.Typeflag, hdr.Linkname = tar.TypeLink, first
			return hdr, nil
		}
	}
	switch n.stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		hdr.Typeflag, hdr.Name = tar.TypeDir, name+"/"
	case unix.S_IFREG:
		hdr.Typeflag, hdr.Size = tar.TypeReg, n.stat.Size
	case unix.S_IFIFO:
		hdr.Typeflag = tar.TypeFifo
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		size, err := unix.Readlinkat(n.fd, "", target)
		if err != nil {
			return nil, err
		}
		hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, string(target[:size])
		p.links[key] = name
		return hdr, nil
	default:
		return nil, nil //nolint:nilnil // see above
	}
	if !n.isDir() {
		p.links[key] = name
	}
	return hdr, packXattrs(hdr, n)
}

// packXattrs adds the attributes that layers have. What makes a file half of
// another one below cannot be written down.
func packXattrs(hdr *tar.Header, n *node) error {
	keys, err := sysx.Listxattr(n.path())
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	for _, key := range keys {
		if key == "trusted.overlay.redirect" || key == "trusted.overlay.metacopy" {
			return fmt.Errorf("%w: the overlay keeps it as a reference to a file below (%s)", sandbox.ErrUnsupported, key)
		}
		if !keptXattr(key) {
			continue
		}
		value, err := sysx.Getxattr(n.path(), key)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return err
		}
		if hdr.PAXRecords == nil {
			hdr.PAXRecords = map[string]string{}
		}
		hdr.PAXRecords[xattrRecord+key] = string(value)
	}
	return nil
}

// file writes a file's contents, as long as it was when it was looked at.
// Holes are written as zeros: not all readers of layers know sparse entries.
func (p *packer) file(ctx context.Context, hdr *tar.Header, n *node) error {
	missing := max(0, hdr.Size-n.stat.Blocks*512)
	if missing > maxLayerHoles-p.holes {
		return reason.WithHint(
			fmt.Errorf("%w: %d of its %d bytes are not on the disk, and layers have no holes: no more than %d bytes of all files are written out as zeros",
				sandbox.ErrUnsupported, missing, hdr.Size, int64(maxLayerHoles)),
			"delete the file or move it to a workspace")
	}
	p.holes += missing
	f, err := os.Open(n.path())
	if err != nil {
		return err
	}
	defer f.Close()
	if err := p.tw.WriteHeader(hdr); err != nil {
		return err
	}
	_, err = io.CopyN(p.tw, contextReader{ctx, io.MultiReader(f, endlessZeros{})}, hdr.Size)
	return err
}

// endlessZeros stands for what was cut off a file while it was read.
type endlessZeros struct{}

func (endlessZeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
