package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/taibox/taibox/internal/reason"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/workspace"
)

// Box is a handle to a box. It stays valid until the box is removed, and never
// means another box that has the same ID later.
type Box struct {
	m *Manager
	identity
	active atomic.Int64 // last activity, on the manager's clock
	image  string       // as given

	// Guarded by m.mu.
	making  *flight                 // being created
	giveUp  context.CancelCauseFunc // ends the create
	removal *flight                 // being removed
	hurry   context.CancelCauseFunc // ends the grace that its removal gives it; nil if that gives none
	doomed  string                  // why it is to be removed, if the last attempt failed
	gone    bool                    // removed
	lost    bool                    // not on its node any more
	info    taisandbox.Info         // as last seen
	seen    uint64                  // the number of the look that saw it
	procs   int                     // as last measured
	told    told                    // the state that subscribers know of
	pending []taisandbox.Event      // from the node, to be worked off in order
	working bool                    // a goroutine works them off
	buried  chan struct{}           // closed once its node has told of its removal; nil before the removal
	once    oneShot

	// What the policy goes by, with times on the manager's clock.
	at         time.Duration     // when the box is looked at next
	place      int               // in the agenda, from 1; 0 if it is not in it
	born       time.Duration     // created
	adopted    time.Duration     // recovered; 0 if we made it
	uses       map[string]int    // calls and streams, by what they are
	commands   map[string]string // that keep it busy, as far as we heard: how to say it, by exec ID
	lastUse    time.Time         // the newest time of a command that the node told
	beatUntil  time.Duration     // the last active heartbeat counts
	idleAfter  time.Duration     // its node said that it was busy: no sooner
	retryAt    time.Duration     // what was due failed: no sooner
	stopping   *flight           // being stopped because it is idle
	stopReason string            // why we end or ended it; "" for what the node says

	workplace *workspace.Workspace // bound to this handle; nil for its own
}

// ID returns the box's ID.
func (b *Box) ID() string { return b.id }

// Owner returns whose box it is.
func (b *Box) Owner() string { return b.owner }

// NodeID returns the TaiID of the node that runs the box.
func (b *Box) NodeID() string { return b.nodeID }

// ContainerID returns the node's own name for the box; empty while it is being
// created.
func (b *Box) ContainerID() string {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	return b.info.ContainerID
}

// Info returns what is known of the box, as its node says. If the node does
// not answer in time, it is what [Box.Snapshot] returns. Looking is not
// activity.
func (b *Box) Info(ctx context.Context) (*BoxInfo, error) {
	b.m.mu.Lock()
	gone, look := b.gone, b.making == nil && b.removal == nil
	b.m.mu.Unlock()
	if gone {
		return nil, b.failed("inspect", ErrNotFound)
	}
	if look {
		look, cancel := context.WithTimeoutCause(ctx, lookTimeout, errLookTimeout)
		defer cancel()
		err := errors.Join(b.m.refresh(look, b), b.measure(look), b.listen(look))
		if ctx.Err() != nil {
			return nil, b.failed("inspect", context.Cause(ctx))
		}
		if err != nil {
			b.log().DebugContext(ctx, "box not looked at", slog.Any("err", err))
		}
	}
	info := b.Snapshot()
	return &info, nil
}

// look brings what we know of the box up to date after a call that changed it,
// also if the caller's context has ended. If it cannot, events and the sweep
// will.
func (b *Box) look(ctx context.Context) {
	look, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), lookTimeout, errLookTimeout)
	defer cancel()
	if err := b.m.refresh(look, b); err != nil {
		b.log().DebugContext(ctx, "box not looked at", slog.Any("err", err))
	}
}

// measure counts the processes of a running box.
func (b *Box) measure(ctx context.Context) error {
	sb, err := b.driver()
	if err != nil || !sb.Features().Has(taisandbox.FeatureStats) || !b.running() {
		return nil //nolint:nilerr // there is nothing to measure
	}
	s, err := sb.Stats(ctx, b.id)
	if err != nil {
		return err
	}
	b.m.mu.Lock()
	b.procs = int(s.Pids)
	b.m.mu.Unlock()
	return nil
}

// listen asks which commands run, if any do. What ended ones left behind is in
// no other count.
func (b *Box) listen(ctx context.Context) error {
	b.m.mu.Lock()
	any := b.info.State == taisandbox.StateRunning && (b.info.RunningExecs > 0 || b.keepAlive) || len(b.commands) > 0
	b.m.mu.Unlock()
	if !any {
		return nil
	}
	execs, err := b.Execs(ctx)
	if err != nil {
		return err
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	b.commandsLocked(execs)
	return nil
}

func (b *Box) running() bool {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	return b.info.State == taisandbox.StateRunning
}

// Snapshot returns what was last known of the box. It never waits.
func (b *Box) Snapshot() BoxInfo {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	i := &b.info
	s := BoxInfo{
		ID: b.id, ContainerID: i.ContainerID, NodeID: b.nodeID, Owner: b.owner, Status: string(b.stateLocked()), Policy: b.policy,
		Labels: maps.Clone(b.labels), Image: i.Image, ImageDigest: i.ImageDigest,
		CreatedAt: i.CreatedAt, StartedAt: i.StartedAt, StoppedAt: i.StoppedAt, LastActive: b.lastActive(),
		Error: i.Error, OOMKills: i.OOMKills,
		Isolation: i.Isolation, Network: i.Network, IP: i.IP,
		Entrypoint: slices.Clone(i.Entrypoint), Cmd: slices.Clone(i.Cmd), WorkDir: i.WorkDir, User: i.User,
		Memory: i.MemoryBytes, CPUs: i.CPUs, Pids: i.Pids, OpenFiles: i.OpenFiles, ReadOnly: i.ReadOnly, Devices: slices.Clone(i.Devices),
		WorkspaceID: b.workspaceID, Mounts: mountsOf(i.Mounts),
		IdleTimeout: b.idleTimeout, KeepAlive: b.keepAlive, MaxLifetime: b.maxLifetime, StopTimeout: b.stopTimeout, Phases: slices.Clone(i.Phases),
	}
	switch i.State {
	case taisandbox.StateRunning:
		s.ProcessCount, s.RunningExecs, s.Busy = b.procs, i.RunningExecs, b.busyLocked()
	case taisandbox.StateStopping, taisandbox.StateStopped, taisandbox.StateFailed:
		s.StopReason = i.Reason
	case taisandbox.StateCreating, taisandbox.StateCreated, taisandbox.StateRemoving:
	}
	return s
}

func (b *Box) stateLocked() taisandbox.State {
	switch {
	case b.gone, b.removal != nil:
		return taisandbox.StateRemoving
	case b.making != nil:
		return taisandbox.StateCreating
	}
	return b.info.State
}

// Start starts a stopped box. It returns when the box can run commands.
// Starting a running box does nothing.
func (b *Box) Start(ctx context.Context) error {
	if f := b.stoppedBy(); f != nil {
		f.wait(ctx) //nolint:errcheck // if it failed, there is nothing to start
	}
	sb, done, err := b.use("start")
	if err != nil {
		return b.failed("start", err)
	}
	defer done()
	if err := sb.Start(ctx, b.id); err != nil {
		return b.explain(ctx, "start", err)
	}
	b.m.mu.Lock()
	b.stopReason = ""
	b.m.mu.Unlock()
	b.look(ctx)
	return nil
}

// stoppedBy returns the stop of an idle box that is under way.
func (b *Box) stoppedBy() *flight {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	return b.stopping
}

// Stop asks every command of the box to end, kills after the box's StopTimeout
// what is left, and ends the box; its files stay. Stopping a stopped box does
// nothing; stopping one that is being removed waits for that, and gives what
// runs no longer than this.
func (b *Box) Stop(ctx context.Context) error { return b.StopWithin(ctx, b.stopTimeout) }

// StopWithin is [Box.Stop] with a time of its own between TERM and KILL.
func (b *Box) StopWithin(ctx context.Context, grace time.Duration) error {
	if grace < 0 || grace > MaxStopTimeout {
		return b.failed("stop", fmt.Errorf("%w: stop timeout of %v: it cannot be negative or longer than %v", ErrInvalidSpec, grace, MaxStopTimeout))
	}
	b.touch()
	b.m.mu.Lock()
	if b.stopping == nil && b.info.State == taisandbox.StateRunning {
		b.stopReason = "" // this one is the caller's
	}
	b.m.mu.Unlock()
	return b.stop(ctx, grace)
}

func (b *Box) stop(ctx context.Context, grace time.Duration) error {
	sb, err := b.driver()
	removed := errors.Is(err, ErrRemoving)
	switch {
	case err == nil:
		err = sb.Stop(ctx, b.id, grace)
		removed = errors.Is(err, ErrRemoving) || errors.Is(err, ErrNotFound)
	case !removed:
		return b.failed("stop", err)
	}
	if f := b.removedBy(); removed && f != nil {
		hurry := time.AfterFunc(grace, b.hasten)
		err = f.wait(ctx)
		hurry.Stop()
	}
	if err != nil {
		return b.explain(ctx, "stop", err)
	}
	b.look(ctx)
	return nil
}

// Remove ends the box, whatever its state, and deletes it. When it returns nil
// the ID is free. Removes at the same time join; a box that is removed already
// is [ErrNotFound].
func (b *Box) Remove(ctx context.Context) error {
	return b.m.remove(ctx, b, reasonUser)
}

// removedBy returns the removal under way, or the one that is done.
func (b *Box) removedBy() *flight {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	return b.removal
}

// driver returns what runs the box, or why nothing can be asked of it.
func (b *Box) driver() (taisandbox.Sandbox, error) {
	b.m.mu.Lock()
	err := b.usableLocked()
	b.m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	n, err := b.m.node(b.nodeID)
	if err != nil {
		return nil, err
	}
	return n.Client.Sandbox(), nil
}

func (b *Box) usableLocked() error {
	switch {
	case b.gone:
		return ErrNotFound
	case b.m.closed:
		return ErrClosed
	case b.removal != nil:
		return b.endingErrorLocked()
	case b.making != nil:
		return fmt.Errorf("%w: it is being created", ErrNotRunning)
	case b.lost:
		return b.lostErrorLocked()
	}
	return nil
}

// explain returns a node's error. If it says that the box is not there or not
// running, it looks again, so that what we know is right at once, and says in
// what state the box is.
func (b *Box) explain(ctx context.Context, verb string, err error) error {
	if !errors.Is(err, ErrNotRunning) && !errors.Is(err, ErrNotFound) {
		return err
	}
	b.look(ctx)

	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	if now := b.usableLocked(); now != nil {
		return b.failed(verb, now)
	}
	if errors.Is(err, ErrNotRunning) && b.info.State != taisandbox.StateRunning {
		why := b.info.Reason
		if b.info.Error != "" {
			why += ": " + b.info.Error
		}
		err = b.failed(verb, fmt.Errorf("%w: it is %s (%s)", ErrNotRunning, b.info.State, why))
		if b.info.Reason == reasonIdle {
			err = reason.WithHint(err, "start it, then try again")
		}
		return err
	}
	return err
}

// log reports what becomes of the box.
func (b *Box) log() *slog.Logger {
	return b.m.log.With(slog.String("box", b.id), slog.String("node", b.nodeID))
}

func (b *Box) failed(verb string, err error) error {
	return fmt.Errorf("%s box %s: %w", verb, b.id, err)
}

// touch notes activity.
func (b *Box) touch() { b.active.Store(int64(b.m.now())) }

func (b *Box) lastActive() time.Time { return b.m.epoch.Add(time.Duration(b.active.Load())) }

func (b *Box) matches(o *ListOptions) bool {
	if o.Owner != "" && b.owner != o.Owner || o.NodeID != "" && b.nodeID != o.NodeID {
		return false
	}
	for k, v := range o.Labels {
		if got, ok := b.labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
