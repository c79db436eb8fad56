package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/tai/sandbox"
)

// box is one box in memory. Operations on it take turns by holding op; what
// they change is guarded by mu, which is never held over a call that can block.
type box struct {
	d  *Driver
	id string
	op chan struct{} // holds a token while an operation is under way

	mu      sync.Mutex
	rec     record
	live    *liveBox                // nil unless running
	execs   map[string]*execFile    // by ID; the entrypoint's too
	asking  chan struct{}           // holds a token while the bridge is asked about doubtful execs
	kills   int64                   // OOM kills of this run that befell execs
	removal chan struct{}           // closed when the removal under way ends; nil without one
	remErr  error                   // its outcome
	abort   context.CancelCauseFunc // hurries what is under way, or ends it; nil without any
	gone    bool
}

// liveBox is a run of a box whose bridge answers.
type liveBox struct {
	run    run
	bridge *bridge.Client
	died   chan struct{} // closed when PID 1 has ended
	doubt  chan struct{} // signals that there is a doubtful exec
	letGo  context.CancelCauseFunc
	jobs   sync.WaitGroup // what follows the run's execs
}

func newBox(d *Driver, rec record) *box {
	return &box{d: d, id: rec.Spec.ID, op: make(chan struct{}, 1), rec: rec, execs: map[string]*execFile{}, asking: make(chan struct{}, 1)}
}

// acquire waits for the box's turn.
func (b *box) acquire(ctx context.Context) error {
	select {
	case b.op <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *box) release() { <-b.op }

// lookup finds a box, or [sandbox.ErrNotFound].
func (d *Driver) lookup(verb, id string) (*box, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, ok := d.boxes[id]
	if !ok {
		return nil, wrapBox(verb, id, sandbox.ErrNotFound)
	}
	return b, nil
}

// running returns the live run of a box, or why there is none.
func (d *Driver) running(verb, id string) (*box, *liveBox, error) {
	b, err := d.lookup(verb, id)
	if err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.removal != nil:
		return nil, nil, fmt.Errorf("%s box %s: %w", verb, id, sandbox.ErrRemoving)
	case b.live == nil:
		return nil, nil, fmt.Errorf("%s box %s: %w: it is %s", verb, id, sandbox.ErrNotRunning, b.rec.State)
	}
	return b, b.live, nil
}

// update changes the record, keeps it on disk, and tells of a new state.
func (b *box) update(change func(*record)) error {
	b.mu.Lock()
	before := b.rec.State
	change(&b.rec)
	b.rec.Changes++
	rec := b.rec
	b.mu.Unlock()
	err := b.d.saveRecord(&rec)
	if rec.State != before {
		b.d.events.publish(sandbox.Event{
			Type: sandbox.EventState, Box: b.id, Labels: rec.Spec.Labels, State: rec.State, Reason: rec.Reason,
		})
	}
	return err
}

// note is update for the way down: a full disk must not keep a box from being
// stopped or removed. The record is set aside then.
func (b *box) note(change func(*record)) error {
	err := b.update(change)
	if errors.Is(err, sandbox.ErrNoSpace) {
		b.mu.Lock()
		rec := b.rec
		b.mu.Unlock()
		b.d.log.Warn("state of box is not on disk", slog.String("box", b.id), slog.Any("err", err), slog.Any("aside_err", b.d.setAside(&rec)))
		return nil
	}
	return err
}

// detach lets go of a box without touching it.
func (b *box) detach() {
	b.mu.Lock()
	live := b.live
	b.live = nil
	b.mu.Unlock()
	if live != nil {
		live.letGo(errClosed)
		live.jobs.Wait()
		live.bridge.Close() //nolint:errcheck // it is given up anyway
	}
}

// end lets go of a run whose bridge is dead. What it had sent is read first.
func (l *liveBox) end() {
	late := time.AfterFunc(drainTimeout, func() { l.letGo(errRunEnded) })
	l.jobs.Wait()
	late.Stop()
	l.letGo(errRunEnded)
	l.bridge.Close() //nolint:errcheck // its peer is dead
}

var errRunEnded = errors.New("box has ended")

// info describes the box as it is now.
func (b *box) info() sandbox.Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &b.rec
	info := sandbox.Info{
		ID: b.id, ContainerID: b.d.containerID(b.id), Image: r.Spec.Image, ImageDigest: r.ImageDigest,
		Labels: maps.Clone(r.Spec.Labels), Isolation: sandbox.IsolationContainer, Network: r.Spec.Network,
		User: r.user(), WorkDir: r.workDir(), Entrypoint: r.entrypoint(), Cmd: r.command(),
		State: r.State, Reason: r.Reason, Error: r.Error, CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, StoppedAt: r.StoppedAt,
		OOMKills: r.OOMKills, LastExecAt: r.LastExec, MemoryBytes: r.Spec.MemoryBytes, CPUs: r.Spec.CPUs, Pids: r.Spec.Pids,
		OpenFiles: r.Spec.OpenFiles, ReadOnly: r.Spec.ReadOnly, Devices: r.Spec.Devices, Mounts: slices.Clone(r.Spec.Mounts), Phases: r.Phases,
	}
	if b.removal != nil {
		info.State = sandbox.StateRemoving
	}
	if b.live != nil {
		if r.Spec.Network == sandbox.NetworkInternet {
			info.IP = b.d.slot.addr(b.live.run.Index).String()
		}
		info.OOMKills += b.d.cgroups.oomKills(b.id)
	}
	for _, e := range b.execs {
		if !e.info.Done() {
			info.RunningExecs++
		}
		if e.info.Started.After(info.LastExecAt) {
			info.LastExecAt = e.info.Started
		}
		if e.info.Ended.After(info.LastExecAt) {
			info.LastExecAt = e.info.Ended
		}
	}
	return info
}

// containerID is the name of a box that is unique on the machine.
func (d *Driver) containerID(id string) string { return "taibox-" + d.cfg.Instance + "-" + id }

func (r *record) user() string {
	if r.Spec.User != "" {
		return r.Spec.User
	}
	return r.Config.User
}

func (r *record) workDir() string {
	switch {
	case r.Spec.WorkDir != "":
		return r.Spec.WorkDir
	case r.Config.WorkDir != "":
		return r.Config.WorkDir
	}
	return defaultWorkDir
}

func (r *record) entrypoint() []string {
	if r.Spec.Entrypoint != nil {
		return *r.Spec.Entrypoint
	}
	return r.Config.Entrypoint
}

// command is the image's default command. One that replaces the entrypoint
// does without it, as with Docker.
func (r *record) command() []string {
	if r.Spec.Entrypoint != nil {
		return nil
	}
	return r.Config.Cmd
}

const defaultWorkDir = "/workspace"

// Inspect implements [sandbox.Sandbox].
func (d *Driver) Inspect(_ context.Context, id string) (sandbox.Info, error) {
	b, err := d.lookup("inspect", id)
	if err != nil {
		return sandbox.Info{}, err
	}
	return b.info(), nil
}

// List implements [sandbox.Sandbox].
func (d *Driver) List(_ context.Context, f sandbox.Filter) ([]sandbox.Info, error) {
	d.mu.Lock()
	boxes := make([]*box, 0, len(d.boxes))
	for _, b := range d.boxes {
		boxes = append(boxes, b)
	}
	d.mu.Unlock()
	infos := make([]sandbox.Info, 0, len(boxes))
	for _, b := range boxes {
		if info := b.info(); f.Match(&info) {
			infos = append(infos, info)
		}
	}
	sortInfos(infos)
	return infos, nil
}

// Events implements [sandbox.Sandbox].
func (d *Driver) Events(ctx context.Context) (<-chan sandbox.Event, error) {
	return d.events.subscribe(ctx), nil
}

// imageUsers lists the boxes made of an image.
func (d *Driver) imageUsers(digest string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []string
	for id, b := range d.boxes {
		b.mu.Lock()
		if b.rec.ImageDigest == digest {
			ids = append(ids, id)
		}
		b.mu.Unlock()
	}
	return ids
}

// hasHostFS reports whether a running box stands on a layer of the built-in image.
func (d *Driver) hasHostFS(layer string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.boxes {
		b.mu.Lock()
		has := b.rec.Run != nil && b.rec.Run.HostFS == layer
		b.mu.Unlock()
		if has {
			return true
		}
	}
	return false
}

// touch notes that an exec began or ended, for the idle clock after a restart.
func (b *box) touch(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.After(b.rec.LastExec) {
		b.rec.LastExec = t
	}
}
