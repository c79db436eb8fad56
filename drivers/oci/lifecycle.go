package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/taibox/taibox/internal/lifecycle"
	"github.com/taibox/taibox/tai/sandbox"
)

func sortInfos(infos []sandbox.Info) {
	slices.SortFunc(infos, func(a, b sandbox.Info) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
}

// Create implements [sandbox.Sandbox].
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) (_ sandbox.Info, err error) {
	defer func() {
		if err != nil {
			err = wrapBox("create", spec.ID, err)
		}
	}()
	if ctx.Err() != nil {
		return sandbox.Info{}, context.Cause(ctx)
	}
	if spec, err = d.checkSpec(spec); err != nil {
		return sandbox.Info{}, err
	}
	trace := newTrace(ctx)
	b := newBox(d, record{
		Version: recordVersion, Phase: phaseCreating, Attempt: sandbox.NewID(""), Spec: spec,
		CreatedAt: time.Now().UTC(), State: sandbox.StateCreating,
	})
	b.op <- struct{}{} // nobody else has it yet
	defer b.release()
	d.mu.Lock()
	if _, taken := d.boxes[spec.ID]; taken {
		d.mu.Unlock()
		return sandbox.Info{}, fmt.Errorf("%w", sandbox.ErrAlreadyExists)
	}
	d.boxes[spec.ID] = b
	d.mu.Unlock()

	var undo lifecycle.Stack
	defer func() {
		if err != nil {
			err = errors.Join(err, undo.Close(ctx))
		}
	}()
	undo.Push(func(context.Context) error {
		if b.rec.Phase != phaseRemoving {
			d.forget(b)
		}
		return nil
	})
	if err := d.step("create", "image", spec.ID); err != nil {
		return sandbox.Info{}, err
	}
	img, err := d.images.Resolve(ctx, spec.Image)
	if err != nil {
		return sandbox.Info{}, err
	}
	b.mu.Lock()
	b.rec.ImageDigest, b.rec.Config = img.Info.Digest, img.Info.Config
	b.mu.Unlock()
	img.Release() // the box counts as a user of the image from here on
	trace.done("image")
	if err := d.makeBoxDir(b, &undo); err != nil {
		return sandbox.Info{}, noSpace(err)
	}
	if err := d.step("create", "ready", spec.ID); err != nil {
		return sandbox.Info{}, err
	}
	trace.done("record")
	err = b.update(func(r *record) { r.Phase, r.State, r.Phases = phaseReady, sandbox.StateCreated, trace.phases })
	if err != nil {
		return sandbox.Info{}, err
	}
	undo.Release()
	return b.info(), nil
}

// makeBoxDir makes a box's directory, the intent first. It leaves alone one
// that somebody else made.
func (d *Driver) makeBoxDir(b *box, undo *lifecycle.Stack) error {
	dir := d.boxDir(b.id)
	if err := d.step("create", "intent", b.id); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	undo.Push(func(context.Context) error {
		err := d.deleteBoxDir(b.id)
		if err != nil {
			b.halfRemoved(err)
		}
		return err
	})
	if err := d.saveRecord(&b.rec); err != nil {
		return err
	}
	if err := d.step("create", "directories", b.id); err != nil {
		return err
	}
	if err := mkdirs(0o700, filepath.Join(dir, "execs"), filepath.Join(dir, "fs"), filepath.Join(dir, "fs", "work")); err != nil {
		return err
	}
	// The root directory of the box: everybody inside may enter it.
	return mkdirs(0o755, filepath.Join(dir, "fs", "upper"))
}

// checkSpec refuses what this machine cannot give, and fills in defaults. What
// it returns shares nothing with the caller's.
func (d *Driver) checkSpec(spec sandbox.Spec) (sandbox.Spec, error) {
	if err := spec.Validate(); err != nil {
		return spec, err
	}
	spec.Labels, spec.Env = maps.Clone(spec.Labels), maps.Clone(spec.Env)
	spec.ExtraHosts, spec.Tmpfs, spec.Devices = slices.Clone(spec.ExtraHosts), slices.Clone(spec.Tmpfs), slices.Clone(spec.Devices)
	if spec.Entrypoint != nil {
		entrypoint := slices.Clone(*spec.Entrypoint)
		spec.Entrypoint = &entrypoint
	}
	if spec.Network == "" {
		spec.Network = sandbox.NetworkInternet
	}
	if spec.Isolation == "" {
		spec.Isolation = sandbox.IsolationContainer
	}
	for _, want := range []struct {
		asked      bool
		controller string
	}{{spec.MemoryBytes > 0, "memory"}, {spec.CPUs > 0, "cpu"}, {spec.Pids > 0, "pids"}} {
		if want.asked && !d.cgroups.available(want.controller) {
			return spec, fmt.Errorf("a limit needs the cgroup controller %s, which this machine lacks: %w", want.controller, sandbox.ErrUnsupported)
		}
	}
	if err := injectDevices(&specs.Spec{}, spec.Devices); err != nil {
		return spec, err
	}
	spec.Mounts = slices.Clone(spec.Mounts)
	for i := range spec.Mounts {
		src, err := openSource(&spec.Mounts[i])
		if err != nil {
			return spec, fmt.Errorf("mount %s: %w", mountName(&spec.Mounts[i]), err)
		}
		src.Close()
	}
	var err error
	spec.OpenFiles, err = openFiles(spec.OpenFiles)
	return spec, err
}

// forget drops a box from memory.
func (d *Driver) forget(b *box) {
	b.mu.Lock()
	b.gone = true
	b.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.boxes[b.id] == b {
		delete(d.boxes, b.id)
	}
}

// Start implements [sandbox.Sandbox].
func (d *Driver) Start(ctx context.Context, id string) error {
	b, err := d.lookup("start", id)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return wrapBox("start", id, context.Cause(ctx))
	}
	if err := b.acquire(ctx); err != nil {
		return wrapBox("start", id, err)
	}
	defer b.release()
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	b.mu.Lock()
	if err = b.unfitLocked(); err != nil || b.live != nil {
		b.mu.Unlock()
		return wrapBox("start", id, err)
	}
	b.abort = abort
	b.mu.Unlock()
	err = b.start(ctx)
	b.mu.Lock()
	b.abort = nil
	b.mu.Unlock()
	return wrapBox("start", id, err)
}

// unfitLocked says why nothing can be started in a box; nil if it can.
func (b *box) unfitLocked() error {
	switch {
	case b.gone:
		return sandbox.ErrNotFound
	case b.removal != nil, b.rec.Phase == phaseRemoving:
		return sandbox.ErrRemoving
	case b.rec.unreadable():
		return errUnreadable
	}
	return nil
}

var errUnreadable = fmt.Errorf("%w: its record cannot be read, so that it can only be removed", sandbox.ErrNotRunning)

func wrapBox(verb, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s box %s: %w", verb, shown(id), err)
}

// shown is an ID for people. One that cannot be is quoted and cut: it may hold
// anything.
func shown(id string) string {
	if sandbox.ValidateID(id) != nil {
		return fmt.Sprintf("%.64q", id)
	}
	return id
}

// Stop implements [sandbox.Sandbox].
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) error {
	return d.StopFor(ctx, id, grace, "user")
}

// StopFor implements [sandbox.ReasonStopper].
func (d *Driver) StopFor(ctx context.Context, id string, grace time.Duration, reason string) error {
	b, err := d.lookup("stop", id)
	if err != nil {
		return err
	}
	if grace < 0 || grace > sandbox.MaxTimeout {
		return fmt.Errorf("stop box %s: a grace of %v: %w", id, grace, sandbox.ErrInvalidSpec)
	}
	return wrapBox("stop", id, d.finish(ctx, func(ctx context.Context) error {
		if err := b.acquire(ctx); err != nil {
			return err
		}
		defer b.release()
		return b.end(ctx, grace, reason)
	}))
}

// Remove implements [sandbox.Sandbox].
func (d *Driver) Remove(ctx context.Context, id string) error {
	b, err := d.lookup("remove", id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		return wrapBox("remove", id, sandbox.ErrNotFound)
	}
	removal := b.removal
	if ctx.Err() != nil {
		b.mu.Unlock()
		return wrapBox("remove", id, context.Cause(ctx))
	}
	if removal == nil {
		removal = make(chan struct{})
		b.removal = removal
		if b.abort != nil {
			b.abort(sandbox.ErrRemoving)
		}
		go func() {
			err := d.finish(context.WithoutCancel(ctx), b.remove)
			b.mu.Lock()
			b.remErr = err
			if err != nil {
				b.removal = nil // the next try begins anew
			}
			b.mu.Unlock()
			close(removal)
		}()
	}
	b.mu.Unlock()
	select {
	case <-removal:
	case <-ctx.Done():
		return wrapBox("remove", id, context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return wrapBox("remove", id, b.remErr)
}

// finish runs a job that goes on when ctx ends, since half an end is worse
// than a late one. It returns early then.
func (d *Driver) finish(ctx context.Context, job func(context.Context) error) error {
	switch {
	case d.ctx.Err() != nil:
		return errClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	done := make(chan error, 1)
	d.wg.Go(func() { done <- job(context.WithoutCancel(ctx)) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// remove ends the box and deletes it: the things on the machine first, the
// record last. Every step may be repeated.
func (b *box) remove(ctx context.Context) error {
	if err := b.acquire(ctx); err != nil {
		return err
	}
	defer b.release()
	d := b.d
	b.mu.Lock()
	gone := b.gone
	b.mu.Unlock()
	if gone {
		return sandbox.ErrNotFound // its creation failed meanwhile
	}
	if err := d.step("remove", "intent", b.id); err != nil {
		return err
	}
	if err := mkdirs(0o700, d.boxDir(b.id)); err != nil { // of what was found there may be none
		return noSpace(err)
	}
	err := b.note(func(r *record) {
		r.Version = recordVersion // also where nothing could be read: the removal is to go on after a restart
		r.Phase, r.State, r.Reason = phaseRemoving, sandbox.StateRemoving, "user"
	})
	if err != nil {
		return err
	}
	if err := b.unmake(ctx); err != nil {
		b.halfRemoved(err)
		return err
	}
	d.forget(b)
	d.images.Release(b.rec.ImageDigest)
	d.events.publish(sandbox.Event{Type: sandbox.EventRemoved, Box: b.id, Labels: b.rec.Spec.Labels, Reason: b.rec.Reason})
	return nil
}

// halfRemoved keeps a box whose removal could not be finished, with the cause:
// its ID stays taken until a further removal has come to its end.
func (b *box) halfRemoved(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rec.Phase, b.rec.State, b.rec.Error = phaseRemoving, sandbox.StateRemoving, cause.Error()
}

// unmake takes away all that there is of a box whose removal is on record.
func (b *box) unmake(ctx context.Context) error {
	d := b.d
	if err := d.step("remove", "end", b.id); err != nil {
		return err
	}
	b.mu.Lock()
	live, last := b.live, b.rec.Run
	b.live = nil
	b.mu.Unlock()
	var err error
	if last != nil {
		err = d.teardown(ctx, b.id, last)
	}
	if live != nil {
		live.end()
	}
	if err != nil {
		return err
	}
	if last != nil {
		if err := b.dropRun(func(*record) {}); err != nil {
			return err
		}
	}
	if err := d.step("remove", "files", b.id); err != nil {
		return err
	}
	return d.deleteBoxDir(b.id)
}

// end stops a running box: the bridge first gets grace to end its commands.
func (b *box) end(ctx context.Context, grace time.Duration, reason string) error {
	// A removal does not wait for the grace.
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	b.mu.Lock()
	live, removing, last, unreadable := b.live, b.removal != nil, b.rec.Run, b.rec.unreadable()
	if live != nil {
		b.abort = abort
	}
	b.mu.Unlock()
	switch {
	case removing, live == nil && last == nil:
		return nil
	case live == nil && unreadable:
		return errUnreadable
	case live == nil: // an earlier stop could not clear up
		return b.clearUp(context.WithoutCancel(ctx), last)
	}
	defer func() {
		b.mu.Lock()
		b.abort = nil
		b.mu.Unlock()
	}()
	if err := b.note(func(r *record) { r.State, r.Reason = sandbox.StateStopping, reason }); err != nil {
		return err
	}
	if err := b.d.step("stop", "bridge", b.id); err != nil {
		return err
	}
	stopCtx, cancel := context.WithTimeoutCause(ctx, grace+stopMargin, sandbox.ErrBridgeLost)
	defer cancel()
	if err := live.bridge.Stop(stopCtx, grace); err != nil {
		b.d.log.Info("box is killed: its bridge did not stop it", slog.String("box", b.id), slog.Any("err", err))
	} else {
		select {
		case <-live.died:
		case <-stopCtx.Done():
		}
	}
	return b.endRun(context.WithoutCancel(ctx), live, sandbox.StateStopped, reason, "")
}

// endRun clears up after a run and records how it ended.
func (b *box) endRun(ctx context.Context, live *liveBox, state sandbox.State, reason, text string) error {
	b.mu.Lock()
	if b.live != live {
		b.mu.Unlock()
		return nil // somebody else has
	}
	b.live = nil
	b.mu.Unlock()
	// The counter goes with the cgroup: read it while it is there.
	kills := b.d.cgroups.oomKills(b.id)
	err := b.d.teardown(ctx, b.id, &live.run)
	live.end()
	b.loseExecs()
	ended := func(r *record) {
		r.State, r.Reason, r.Error, r.StoppedAt = state, reason, text, time.Now().UTC()
		r.OOMKills += kills
	}
	if err != nil {
		return errors.Join(err, b.note(ended))
	}
	return b.dropRun(ended)
}

// clearUp removes what is left of a run of which nobody saw the end. A driver
// that closes has let go of boxes that go on.
func (b *box) clearUp(ctx context.Context, r *run) error {
	if b.d.ctx.Err() != nil {
		return errClosed
	}
	if err := b.d.teardown(ctx, b.id, r); err != nil {
		return err
	}
	b.loseExecs()
	return b.dropRun(func(*record) {})
}

// dropRun notes that nothing of the box's run is left on the machine. Others
// get its index only once no record names it any more.
func (b *box) dropRun(change func(*record)) error {
	var last *run
	err := b.note(func(r *record) {
		last = r.Run
		change(r)
		r.Run = nil
	})
	if err == nil && last != nil {
		b.d.pool.release(last.Index, b.d.runDir(b.id))
	}
	return err
}
