package oci

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/internal/lifecycle"
	"github.com/taibox/taibox/tai/sandbox"
)

// reach is a bridge that gets at the files of a box, until done is called. ctx
// ends earlier than the caller's if the box is removed meanwhile.
type reach struct {
	ctx    context.Context //nolint:containedctx // it is the reach's whole life
	bridge *bridge.Client
	opts   sandbox.FileOptions
	done   func()
	// failure tells what went wrong with a call by the sentinels of package
	// sandbox.
	failure func(error) error
}

// reach finds the bridge of a box, or starts one for the files alone: the box
// counts as it was, and nothing of its own runs.
func (d *Driver) reach(ctx context.Context, id string, o sandbox.FileOptions) (*reach, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	d.mu.Lock()
	b := d.boxes[id]
	d.mu.Unlock()
	if b == nil {
		return nil, sandbox.ErrNotFound
	}
	if r, err := b.reachLive(ctx, o); r != nil || err != nil {
		return r, err
	}
	if err := b.acquire(ctx); err != nil {
		return nil, err
	}
	// It may have been started while we waited.
	r, err := b.reachLive(ctx, o)
	if r == nil && err == nil {
		r, err = b.visit(ctx, o)
	} else {
		b.release()
	}
	return r, err
}

// reachLive returns nothing if the box does not run.
func (b *box) reachLive(ctx context.Context, o sandbox.FileOptions) (*reach, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.gone:
		return nil, sandbox.ErrNotFound
	case b.removal != nil:
		return nil, sandbox.ErrRemoving
	case b.live == nil:
		return nil, nil //nolint:nilnil // neither is the third answer
	}
	o.User = cmp.Or(o.User, b.rec.user())
	live := b.live
	return &reach{
		ctx: ctx, bridge: live.bridge, opts: o, done: func() {},
		failure: func(err error) error { return sandbox.FileError(b.fate(live, err)) },
	}, nil
}

// visit starts a bridge in a box that does not run, until ctx ends or done is
// called. It takes over the box's turn, which its end gives back: a start or
// removal waits until then, and a removal hurries it.
func (b *box) visit(ctx context.Context, o sandbox.FileOptions) (_ *reach, err error) {
	d := b.d
	if d.ctx.Err() != nil {
		b.release()
		return nil, errClosed
	}
	ctx, abort := context.WithCancelCause(ctx)
	closing := context.AfterFunc(d.ctx, func() { abort(errClosed) })
	var undo lifecycle.Stack
	launched, ended := make(chan struct{}), make(chan struct{})
	d.wg.Go(func() {
		defer close(ended)
		<-ctx.Done()
		<-launched
		closing()
		if err := undo.Close(context.WithoutCancel(ctx)); err != nil {
			d.log.Warn("what reached the files of a box is left", slog.String("box", b.id), slog.Any("err", err))
		}
		b.mu.Lock()
		b.abort = nil
		b.mu.Unlock()
		b.release()
	})
	end := func() {
		abort(errVisited)
		<-ended
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		close(launched)
		if err != nil {
			end()
		}
	}()
	b.mu.Lock()
	b.abort = abort
	err = b.unfitLocked()
	o.User = cmp.Or(o.User, b.rec.user())
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	live, err := b.launch(ctx, newTrace(ctx), &undo)
	if err != nil {
		return nil, err
	}
	undo.Push(func(context.Context) error { return live.bridge.Close() })
	return &reach{ctx: ctx, bridge: live.bridge, opts: o, done: end, failure: sandbox.FileError}, nil
}

var errVisited = errors.New("the box's files were let go")

// onFiles makes one call for the files of a box.
func onFiles[T any](ctx context.Context, d *Driver, verb, id string, o sandbox.FileOptions, call func(*reach) (T, error)) (T, error) {
	var none T
	r, err := d.reach(ctx, id, o)
	if err != nil {
		return none, wrapBox(verb, id, noSpace(err))
	}
	defer r.done()
	res, err := call(r)
	if err != nil {
		return none, wrapBox(verb, id, r.failure(err))
	}
	return res, nil
}

// openFrom makes a call that is read from until it is closed.
func openFrom(ctx context.Context, d *Driver, verb, id string, o sandbox.FileOptions,
	call func(*reach) (io.ReadCloser, sandbox.FileInfo, error),
) (io.ReadCloser, sandbox.FileInfo, error) {
	r, err := d.reach(ctx, id, o)
	if err != nil {
		return nil, sandbox.FileInfo{}, wrapBox(verb, id, noSpace(err))
	}
	rc, info, err := call(r)
	if err != nil {
		r.done()
		return nil, sandbox.FileInfo{}, wrapBox(verb, id, r.failure(err))
	}
	return &reachReader{ReadCloser: rc, what: verb, id: id, reach: r}, info, nil
}

// reachReader gives the reach back when it is closed.
type reachReader struct {
	io.ReadCloser
	what, id string
	reach    *reach
}

// Read implements io.Reader.
func (r *reachReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = wrapBox(r.what, r.id, r.reach.failure(err))
	}
	return n, err
}

// Close implements io.Closer.
func (r *reachReader) Close() error {
	defer r.reach.done()
	return r.ReadCloser.Close()
}

// ReadFile implements [sandbox.Files].
func (d *Driver) ReadFile(ctx context.Context, id, path string, o sandbox.FileOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	return openFrom(ctx, d, "read a file of", id, o, func(r *reach) (io.ReadCloser, sandbox.FileInfo, error) {
		return r.bridge.ReadFile(r.ctx, path, r.opts)
	})
}

// WriteFile implements [sandbox.Files].
func (d *Driver) WriteFile(ctx context.Context, id, path string, data io.Reader, o sandbox.FileOptions) (sandbox.FileInfo, error) {
	return onFiles(ctx, d, "write a file of", id, o, func(r *reach) (sandbox.FileInfo, error) {
		if o.All {
			parents := r.opts
			parents.Mode = 0
			if err := r.bridge.Mkdir(r.ctx, parent(path), parents); err != nil {
				return sandbox.FileInfo{}, err
			}
		}
		return r.bridge.WriteFile(r.ctx, path, data, r.opts)
	})
}

// parent is the directory of a path in a box. Its text is not cleaned: what
// ".." means behind a link is for the box to say.
func parent(path string) string {
	i := strings.LastIndexByte(strings.TrimRight(path, "/"), '/')
	if i <= 0 {
		return "/"
	}
	return path[:i]
}

// Stat implements [sandbox.Files].
func (d *Driver) Stat(ctx context.Context, id, path string, o sandbox.FileOptions) (sandbox.FileInfo, error) {
	return onFiles(ctx, d, "look at a file of", id, o, func(r *reach) (sandbox.FileInfo, error) {
		return r.bridge.Stat(r.ctx, path, r.opts)
	})
}

// ListDir implements [sandbox.Files].
func (d *Driver) ListDir(ctx context.Context, id, path string, o sandbox.FileOptions) ([]sandbox.FileInfo, error) {
	list, err := onFiles(ctx, d, "list a directory of", id, o, func(r *reach) ([]sandbox.FileInfo, error) {
		return r.bridge.ListDir(r.ctx, path, r.opts)
	})
	slices.SortFunc(list, func(a, b sandbox.FileInfo) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

// MkDir implements [sandbox.Files].
func (d *Driver) MkDir(ctx context.Context, id, path string, o sandbox.FileOptions) error {
	return d.change(ctx, "make a directory in", id, o, func(r *reach) error { return r.bridge.Mkdir(r.ctx, path, r.opts) })
}

// RemoveFile implements [sandbox.Files].
func (d *Driver) RemoveFile(ctx context.Context, id, path string, o sandbox.FileOptions) error {
	return d.change(ctx, "remove a file of", id, o, func(r *reach) error { return r.bridge.Remove(r.ctx, path, r.opts) })
}

// Rename implements [sandbox.Files].
func (d *Driver) Rename(ctx context.Context, id, from, to string, o sandbox.FileOptions) error {
	return d.change(ctx, "rename a file of", id, o, func(r *reach) error { return r.bridge.Rename(r.ctx, from, to, r.opts) })
}

// CopyTo implements [sandbox.Files].
func (d *Driver) CopyTo(ctx context.Context, id, dir string, archive io.Reader, o sandbox.FileOptions) error {
	return d.change(ctx, "copy to", id, o, func(r *reach) error { return r.bridge.Unpack(r.ctx, dir, archive, r.opts) })
}

func (d *Driver) change(ctx context.Context, verb, id string, o sandbox.FileOptions, call func(*reach) error) error {
	_, err := onFiles(ctx, d, verb, id, o, func(r *reach) (struct{}, error) { return struct{}{}, call(r) })
	return err
}

// CopyFrom implements [sandbox.Files].
func (d *Driver) CopyFrom(ctx context.Context, id, path string, o sandbox.FileOptions) (io.ReadCloser, error) {
	rc, _, err := openFrom(ctx, d, "copy from", id, o, func(r *reach) (io.ReadCloser, sandbox.FileInfo, error) {
		return r.bridge.Pack(r.ctx, path, r.opts)
	})
	return rc, err
}

var _ sandbox.Files = (*Driver)(nil)
