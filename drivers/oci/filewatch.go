package oci

import (
	"context"

	"github.com/taibox/taibox/tai/sandbox"
)

// WatchFiles implements [sandbox.FileWatcher].
func (d *Driver) WatchFiles(ctx context.Context, id, path string, o sandbox.FileOptions) (<-chan sandbox.FileEvent, error) {
	const verb = "watch files of"
	if ctx.Err() != nil {
		return nil, wrapBox(verb, id, context.Cause(ctx))
	}
	d.mu.Lock()
	b := d.boxes[id]
	d.mu.Unlock()
	if b == nil {
		return nil, wrapBox(verb, id, sandbox.ErrNotFound)
	}
	r, err := b.reachLive(ctx, o)
	if err == nil && r == nil {
		err = sandbox.ErrNotRunning
	}
	if err != nil {
		return nil, wrapBox(verb, id, err)
	}
	events, err := r.bridge.WatchFiles(ctx, path, r.opts)
	if err != nil {
		return nil, wrapBox(verb, id, r.failure(err))
	}
	return events, nil
}
