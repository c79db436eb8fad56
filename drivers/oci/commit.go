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
	// Its turn keeps the box from being started or stopped meanwhile. A removal
	// ends it.
	if err := b.acquire(ctx); err != nil {
		return sandbox.ImageInfo{}, err
	}
	defer b.release()
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	b.mu.Lock()
	err := b.unfitLocked()
	digest := b.rec.ImageDigest
	b.abort = abort
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.abort = nil
		b.mu.Unlock()
	}()
	switch {
	case err != nil:
		return sandbox.ImageInfo{}, err
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
