package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/internal/tracing"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/workspace"
)

// Bounds of names that callers choose freely.
const (
	maxOwnerLen = 256
	maxKeyLen   = 256
)

// envID tells a box its ID.
const envID = "YAO_SANDBOX_ID"

// blueprint is a checked request for a box.
type blueprint struct {
	identity
	spec       taisandbox.Spec
	node       taisandbox.Sandbox
	workspaces []*workspace.Workspace // those that are meant by their IDs
}

// Create makes a box and starts it. Everything is checked before anything is
// touched; a Create that fails, or whose context ends, leaves nothing behind
// and its ID free. A taken ID is [ErrAlreadyExists]; a box of the same owner
// that is being removed is waited for.
func (m *Manager) Create(ctx context.Context, opts CreateOptions) (*Box, error) {
	return m.create(ctx, &opts, false)
}

// GetOrCreate returns the owner's box opts.ID as it is, or creates it. It
// joins a create of that ID under way. A box of another owner is
// [ErrAlreadyExists].
func (m *Manager) GetOrCreate(ctx context.Context, opts CreateOptions) (*Box, error) {
	return m.create(ctx, &opts, true)
}

func (m *Manager) create(ctx context.Context, opts *CreateOptions, join bool) (_ *Box, err error) {
	ctx, span := tracing.Start(ctx, "box.create")
	defer func() { span.End(err) }()
	p, err := m.plan(opts)
	if err != nil {
		return nil, fmt.Errorf("create box: %w", err)
	}
	span.Set(tracing.Box, p.id).Set(tracing.Node, p.nodeID).Set(tracing.Image, p.spec.Image)
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return nil, fmt.Errorf("create box %s: %w", p.id, err)
	}
	defer leave()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	release, err := m.place(ctx, p)
	defer release()
	if err != nil {
		return nil, fmt.Errorf("create box: %w", err)
	}

	for {
		b, wait, err := m.reserve(p, join, giveUp)
		switch {
		case err != nil:
			return nil, fmt.Errorf("create box %s: %w", p.id, err)
		case wait == nil:
			return b, nil
		case b != nil:
			if err := m.make(ctx, b, p); err != nil {
				return nil, err
			}
			return b, nil
		}
		switch err := wait.wait(ctx); {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("create box %s: %w", p.id, context.Cause(ctx))
		case err != nil && !wait.handover:
			return nil, err
		}
	}
}

// plan checks a request and turns it into a blueprint.
func (m *Manager) plan(given *CreateOptions) (*blueprint, error) {
	opts := given.clone()
	var errs []error
	invalid := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrInvalidSpec, fmt.Sprintf(format, args...)))
	}
	if opts.ID == "" {
		opts.ID = taisandbox.NewID("sb-")
	}
	if opts.Labels == nil {
		opts.Labels = map[string]string{}
	}
	if _, set := opts.Env[envID]; !set {
		env := map[string]string{envID: opts.ID}
		maps.Copy(env, opts.Env)
		opts.Env = env
	}
	if opts.Policy == "" {
		opts.Policy = Session
	}
	if err := opts.Policy.Validate(); err != nil {
		errs = append(errs, err)
	}
	for _, d := range []struct {
		name       string
		value, max time.Duration
	}{
		{"idle timeout", opts.IdleTimeout, taisandbox.MaxTimeout},
		{"max lifetime", opts.MaxLifetime, taisandbox.MaxTimeout},
		{"stop timeout", opts.StopTimeout, MaxStopTimeout},
	} {
		if d.value < 0 || d.value > d.max {
			invalid("%s of %v: it cannot be negative or longer than %v", d.name, d.value, d.max)
		}
	}
	if opts.StopTimeout == 0 {
		opts.StopTimeout = DefaultStopTimeout
	}
	if !plainText(opts.Owner, maxOwnerLen) {
		invalid("owner %.64q: up to %d bytes of text are possible", opts.Owner, maxOwnerLen)
	}
	if !plainText(opts.IdempotencyKey, maxKeyLen) {
		invalid("idempotency key %.64q: up to %d bytes of text are possible", opts.IdempotencyKey, maxKeyLen)
	}
	for l := range opts.Labels {
		if reserved(l) {
			invalid("label %.64q: the name is ours", l)
		}
	}

	p := &blueprint{workspaces: opts.Workspaces, identity: identity{
		id: opts.ID, owner: opts.Owner, nodeID: opts.NodeID, attempt: taisandbox.NewID(""),
		policy: opts.Policy, labels: opts.Labels, noStart: opts.NoStart, keepAlive: opts.KeepAlive, workspaceID: opts.WorkspaceID,
		idleTimeout: opts.IdleTimeout, maxLifetime: opts.MaxLifetime, stopTimeout: opts.StopTimeout,
	}}
	p.spec = taisandbox.Spec{
		ID: opts.ID, Image: opts.Image, Labels: opts.Labels, Isolation: opts.Isolation,
		User: opts.User, WorkDir: opts.WorkDir, Env: opts.Env, Hostname: opts.Hostname, ExtraHosts: opts.ExtraHosts,
		Entrypoint: opts.Entrypoint, NoStart: opts.NoStart,
		Network: opts.Network, MemoryBytes: opts.Memory, CPUs: opts.CPUs, Pids: opts.Pids, OpenFiles: opts.OpenFiles,
		ReadOnly: opts.ReadOnly, Tmpfs: opts.Tmpfs, Devices: opts.Devices, Mounts: specMounts(&opts, invalid),
	}
	if opts.Policy != Persistent {
		p.spec.MaxLifetime = opts.MaxLifetime
	}
	if p.spec.WorkDir == "" && opts.WorkspaceID != "" {
		p.spec.WorkDir = p.spec.Mounts[0].Target
	}
	errs = append(errs, p.spec.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if opts.IdempotencyKey != "" {
		p.key, p.body = hashRequest(given)
	}
	return p, nil
}

func plainText(s string, limit int) bool {
	return len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// reserve enters a new box, or finds what is in its way:
//
//	box, nil, nil     the box exists already and is what was asked for
//	box, flight, nil  the ID is ours: make the box
//	nil, flight, nil  wait for that, then try again
func (m *Manager) reserve(p *blueprint, join bool, giveUp context.CancelCauseFunc) (*Box, *flight, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, ErrClosed
	}
	if e := m.keys.get(p.key, time.Now()); e != nil {
		switch {
		case e.body != p.body:
			return nil, nil, fmt.Errorf("%w: with other options, for box %s", ErrIdempotencyKey, e.box.id)
		case e.box.gone || e.box.removal != nil:
			return nil, nil, fmt.Errorf("%w: box %s, which it made, is removed", ErrIdempotencyKey, e.box.id)
		}
		return existing(e.box)
	}
	if old := m.boxes[p.id]; old != nil {
		switch mine := old.owner == p.owner; {
		case mine && old.removal != nil:
			return nil, old.removal, nil
		case mine && old.doomed != "":
			return nil, m.startRemovalLocked(old, old.doomed), nil
		case mine && join:
			return existing(old)
		}
		err := fmt.Errorf("%w: it is %s, on node %s", ErrAlreadyExists, old.stateLocked(), old.nodeID)
		return nil, nil, reason.WithHint(err, "remove it, or choose another id")
	}
	if err := m.limitLocked(p); err != nil {
		return nil, nil, err
	}
	b := &Box{m: m, identity: p.identity, making: newFlight(), giveUp: giveUp}
	b.info = taisandbox.Info{
		ID: p.id, Image: p.spec.Image, Isolation: p.spec.Isolation, Network: p.spec.Network,
		State: taisandbox.StateCreating, CreatedAt: time.Now(),
	}
	m.addLocked(b)
	m.tellLocked(b, taisandbox.StateCreating, reasonUser)
	return b, b.making, nil
}

// existing is how [Manager.reserve] returns a box that may still be in the
// making.
func existing(b *Box) (*Box, *flight, error) {
	if b.making != nil {
		return nil, b.making, nil
	}
	return b, nil, nil
}

// addLocked enters a box and counts it. dropLocked is its inverse.
func (m *Manager) addLocked(b *Box) {
	b.image = b.info.Image
	m.boxes[b.id] = b
	m.count.add(b, 1)
	m.keys.put(b, time.Now())
	b.touch()
}

// make carries out a reserved create.
func (m *Manager) make(ctx context.Context, b *Box, p *blueprint) error {
	info, seq, err := m.build(ctx, p)
	var left error // what the clean-up could not do
	if err != nil {
		left = m.undo(ctx, b, p.node)
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	f := b.making
	b.making, b.giveUp = nil, nil
	f.err, f.handover = err, ctx.Err() != nil
	defer close(f.done)
	switch {
	case err == nil:
		m.seenLocked(b, &info, seq)
		b.touch()
		b.born = m.now()
		m.scheduleLocked(b)
		b.once.asked = true
		m.armLocked(b, oneShotUnused)
		b.log().InfoContext(ctx, "box created", slog.String("image", p.spec.Image))
		return nil
	case left == nil:
		m.dropLocked(b, reasonFailed)
	default:
		b.log().WarnContext(ctx, "failed create not cleaned up yet", slog.Any("err", left))
		b.doomed = reasonFailed
		b.info.State, b.info.Reason, b.info.Error = taisandbox.StateFailed, reasonFailed, err.Error()
		m.tellLocked(b, taisandbox.StateFailed, reasonFailed)
	}
	m.keys.forget(b)
	return err
}

// build has the node make and start the box. A context that ended is a failure
// in any case: nobody would take the result.
func (m *Manager) build(ctx context.Context, p *blueprint) (info taisandbox.Info, seq uint64, err error) {
	_, err = p.node.Create(ctx, p.spec)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, ErrAlreadyExists):
		err = m.taken(ctx, p, err)
	case err != nil:
		return info, 0, err
	default:
		err = p.node.Start(ctx, p.id)
	}
	if err = cause(ctx, err); err == nil {
		m.mu.Lock()
		seq = m.nextSeqLocked()
		m.mu.Unlock()
		info, err = p.node.Inspect(ctx, p.id)
	}
	if err = cause(ctx, err); err != nil {
		err = fmt.Errorf("create box %s: %w", p.id, err)
	}
	return info, seq, err
}

// cause returns why ctx has ended, if it has, in place of err, which came of it.
func cause(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

// taken says whose box is in the way of a create, when it is none of ours.
func (m *Manager) taken(ctx context.Context, p *blueprint, err error) error {
	info, ierr := p.node.Inspect(ctx, p.id)
	if ierr != nil {
		return err
	}
	instance, ours := info.Labels[labelInstance], info.Labels[labelManagedBy] == managedBy
	switch {
	case ours && instance == m.cfg.Instance:
		m.wake(p.nodeID) // it is to be found again
		return reason.WithHint(fmt.Errorf("%w on node %s", ErrAlreadyExists, p.nodeID), "remove it, or choose another id")
	case ours:
		return reason.WithHint(fmt.Errorf("%w on node %s, of instance %q", ErrAlreadyExists, p.nodeID, instance),
			"choose another id, or remove it with the server of that instance")
	}
	return reason.WithHint(fmt.Errorf("%w on node %s, and is not managed by Taibox's server", ErrAlreadyExists, p.nodeID), "choose another id")
}

// undo removes what an attempt left at the node: that, and nothing that
// another attempt made.
func (m *Manager) undo(ctx context.Context, b *Box, node taisandbox.Sandbox) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), removeTimeout, errRemoveTimeout)
	defer cancel()
	info, err := node.Inspect(ctx, b.id)
	if err == nil && info.Labels[labelAttempt] == b.attempt {
		err = node.Remove(ctx, b.id)
	}
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
