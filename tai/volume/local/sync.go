package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/tai/volume"
)

// SyncEnd returns a directory of a workspace as a side of a sync.
func (v *Volume) SyncEnd(_ context.Context, id, path string) (volume.SyncEnd, error) {
	end, err := v.syncTree(id, path)
	if err != nil {
		return nil, fmt.Errorf("sync %.256q of workspace %s: %w", path, id, err)
	}
	return end, nil
}

// SyncPush makes path of the workspace what from is.
func (v *Volume) SyncPush(ctx context.Context, id, path string, from volume.SyncEnd, o volume.SyncOptions) (volume.SyncResult, error) {
	end, err := v.syncTree(id, path)
	if err != nil {
		return volume.SyncResult{}, told("sync to", id, path, err)
	}
	res, err := treesync.Sync(ctx, from, end, o)
	return res, told("sync to", id, path, err)
}

// SyncPull makes to what path of the workspace is.
func (v *Volume) SyncPull(ctx context.Context, id, path string, to volume.SyncEnd, o volume.SyncOptions) (volume.SyncResult, error) {
	end, err := v.syncTree(id, path)
	if err != nil {
		return volume.SyncResult{}, told("sync from", id, path, err)
	}
	res, err := treesync.Sync(ctx, end, to, o)
	return res, told("sync from", id, path, err)
}

// syncTree is a directory of a workspace as a side. The workspace is there now:
// of one that gets its id later no call knows.
func (v *Volume) syncTree(id, name string) (*treesync.Tree, error) {
	clean, err := cleanPath(name)
	if err != nil {
		return nil, err
	}
	s, err := v.space(id)
	if err != nil {
		return nil, err
	}
	return &treesync.Tree{
		Open:  func(_ context.Context, create bool) (*treesync.Place, error) { return v.openPlace(s, clean, create) },
		Error: fileError,
	}, nil
}

// openPlace opens a directory of a workspace, with the place for what is half
// written.
func (v *Volume) openPlace(s *space, name string, create bool) (_ *treesync.Place, err error) {
	if v.ctx.Err() != nil {
		return nil, errClosed
	}
	t, err := v.treeOf(s)
	if err != nil {
		return nil, err
	}
	defer t.release()
	root, err := t.syncDir(name, create)
	if err != nil {
		return nil, s.goneOr(err)
	}
	defer root.Close()
	tmp, err := t.temp()
	if err != nil {
		return nil, err
	}
	p := &treesync.Place{Owned: owned()}
	if p.Root, err = nofollow.Of(root); err != nil {
		return nil, err
	}
	if p.Temp, err = nofollow.Of(tmp); err != nil {
		p.Root.Close()
		return nil, err
	}
	return p, nil
}

// syncDir opens a directory of a workspace, and makes it if that is wanted. Links
// on the way are followed as long as they stay inside.
func (t *tree) syncDir(name string, create bool) (*os.Root, error) {
	if create && name != "." {
		if err := t.mkdirAll(name, 0o755); err != nil {
			return nil, err
		}
	}
	root, err := t.root.OpenRoot(name)
	if err != nil {
		if info, serr := t.root.Stat(name); serr == nil && !info.IsDir() {
			err = &fs.PathError{Op: "open", Path: name, Err: unix.ENOTDIR}
		} else if errors.Is(serr, fs.ErrNotExist) {
			err = serr
		}
	}
	return root, err
}
