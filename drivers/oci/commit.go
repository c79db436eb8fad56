package oci

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

// Commit implements [sandbox.Image]. What the box has changed lies in its
// upper directory, with the image's own numbers as owners.
func (d *Driver) Commit(ctx context.Context, id, name string, change sandbox.ImageChange) (sandbox.ImageInfo, error) {
	b, err := d.lookup("commit", id)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	info, err := b.commit(ctx, name, change)
	return info, wrapBox("commit", id, err)
}

func (b *box) commit(ctx context.Context, name string, change sandbox.ImageChange) (sandbox.ImageInfo, error) {
	// Its turn keeps the box from being started, stopped or removed meanwhile.
	if err := b.acquire(ctx); err != nil {
		return sandbox.ImageInfo{}, err
	}
	defer b.release()
	b.mu.Lock()
	gone, digest := b.gone, b.rec.ImageDigest
	b.mu.Unlock()
	switch {
	case gone:
		return sandbox.ImageInfo{}, sandbox.ErrNotFound
	case digest == "":
		return sandbox.ImageInfo{}, reason.WithHint(
			fmt.Errorf("%w: it is made of the built-in image %s, which has no layers to add to", sandbox.ErrUnsupported, sandbox.HostFS),
			"make the box of another image, or copy what you need out of it: taibox cp")
	}
	return b.d.images.Commit(ctx, image.Commit{
		Base: digest, Upper: filepath.Join(b.d.boxDir(b.id), "fs", "upper"), Name: name, Change: change, Skip: b.ownPaths(),
	})
}

// ownPaths are the files of a box that are ours, and where something is
// mounted: none of it is the image's.
func (b *box) ownPaths() []string {
	paths := []string{"etc/hosts", "etc/hostname", "etc/resolv.conf", "proc", "sys", "dev"}
	for _, t := range b.rec.Spec.Tmpfs {
		dir, _, _ := sandbox.ParseTmpfs(t) // the spec has been validated
		paths = append(paths, strings.TrimPrefix(filepath.Clean(dir), "/"))
	}
	return paths
}
