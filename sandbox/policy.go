package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/taibox/taibox/internal/reason"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// nextLocked returns what is due next for a box, and when; "" if nothing is.
// It may be early where a box is in use: then it is asked again.
func (m *Manager) nextLocked(b *Box, now time.Duration) (at time.Duration, why string) {
	if m.closed || b.gone || b.doomed != "" || b.making != nil || b.removal != nil || b.stopping != nil {
		return 0, ""
	}
	due := func(from, limit time.Duration, what string) {
		// After a standstill those who use the box get time to come back.
		grace := max(m.agenda.resumed, b.adopted) + min(limit/2, resumeGrace)
		if t := max(from+limit, grace, b.retryAt); why == "" || t < at {
			at, why = t, what
		}
	}
	idle := func() {
		if b.idleTimeout == 0 {
			return
		}
		from := time.Duration(b.active.Load())
		if len(b.uses) > 0 {
			from = now
		}
		due(max(from, b.idleAfter-b.idleTimeout, b.beatUntil-b.idleTimeout), b.idleTimeout, reasonIdle)
	}
	switch b.policy {
	case OneShot:
		if o := &b.once; o.armed {
			what := reasonUnused
			if o.claimed {
				what = reasonOneShot
			}
			due(o.from, o.limit, what)
		}
	case Session:
		idle()
	case LongRunning:
		if b.info.State == taisandbox.StateRunning && !b.lost {
			idle()
		}
	case Persistent:
		return 0, ""
	default: // of a newer version, as was logged: nothing is done that could be wrong
		return 0, ""
	}
	if b.maxLifetime > 0 {
		due(b.born, b.maxLifetime, reasonMaxLifetime)
	}
	return at, why
}

// startReapLocked does in the background what is due for a box. One that takes
// longer than its turn, be it deaf or on a node that hangs, goes on, and makes
// room for others.
func (m *Manager) startReapLocked(b *Box, why string) {
	a, f := &m.agenda, newFlight()
	a.reaps[b] = f
	a.turns++
	turn := time.AfterFunc(reapTurn, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		a.turns--
		a.wake()
	})
	m.wg.Go(func() {
		err := m.reap(b, why)
		m.mu.Lock()
		defer m.mu.Unlock()
		if turn.Stop() {
			a.turns--
		}
		if err != nil && !m.closed {
			b.log().WarnContext(m.life, "policy not carried out yet", slog.String("reason", why), slog.Any("err", err))
			b.retryAt = m.now() + retryPause
		}
		delete(a.reaps, b)
		m.scheduleLocked(b)
		a.wake()
		f.err = err
		close(f.done)
	})
}

// reap ends or stops a box whose time has come, if that still holds once its
// node has said that no command runs. A call that comes before the decision
// wins; one that comes after it is told.
func (m *Manager) reap(b *Box, why string) error {
	if why == reasonIdle {
		if busy, err := m.commandsRun(b); busy || err != nil {
			return err
		}
	}
	m.mu.Lock()
	if at, what := m.nextLocked(b, m.now()); what != why || at > m.now() {
		m.mu.Unlock()
		return nil
	}
	b.log().InfoContext(m.life, "box is due", slog.String("reason", why))
	if why == reasonIdle && b.policy == LongRunning {
		return m.stopIdleUnlock(b)
	}
	f := m.startRemovalLocked(b, why)
	m.mu.Unlock()
	<-f.done // it has limits of its own
	return f.err
}

// stopIdleUnlock stops a box that was not used, and lets go of Manager.mu.
func (m *Manager) stopIdleUnlock(b *Box) error {
	f := newFlight()
	b.stopping, b.stopReason = f, reasonIdle
	m.mu.Unlock()
	f.err = m.stopGently(m.life, b, reasonIdle)
	b.look(m.life)

	m.mu.Lock()
	defer m.mu.Unlock()
	b.stopping = nil
	if f.err != nil && b.info.State == taisandbox.StateRunning {
		b.stopReason = ""
	}
	close(f.done)
	return f.err
}

// stopGently stops a box within its own stop timeout.
func (m *Manager) stopGently(ctx context.Context, b *Box, why string) error {
	n, err := m.node(b.nodeID)
	if err != nil {
		return b.failed("stop", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.stopTimeout+stopTimeout, errStopTimeout)
	defer cancel()
	return cause(ctx, stopFor(ctx, n.Client.Sandbox(), b.id, b.stopTimeout, why))
}

// stopFor stops a box and has its node keep the reason, where it can.
func stopFor(ctx context.Context, node taisandbox.Sandbox, id string, grace time.Duration, why string) error {
	if s, ok := taisandbox.As[taisandbox.ReasonStopper](node); ok {
		return s.StopFor(ctx, id, grace, why)
	}
	return node.Stop(ctx, id, grace)
}

// commandsRun asks the node whether commands run in a box.
func (m *Manager) commandsRun(b *Box) (bool, error) {
	m.mu.Lock()
	runs := b.info.State == taisandbox.StateRunning && !b.lost
	m.mu.Unlock()
	if !runs {
		return false, nil
	}
	n, err := m.node(b.nodeID)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeoutCause(m.life, listTimeout, errLookTimeout)
	defer cancel()
	execs, err := n.Client.Sandbox().ListExecs(ctx, b.id)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotRunning) {
		b.look(ctx)
		return false, nil
	}
	if err != nil {
		return false, cause(ctx, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b.commandsLocked(execs)
	if len(b.commands) == 0 {
		return false, nil
	}
	b.idleAfter = m.now() + b.idleTimeout
	return true, nil
}

// commandsLocked notes the commands that a node knows of.
func (b *Box) commandsLocked(execs []taisandbox.ExecInfo) {
	was := maps.Clone(b.commands)
	clear(b.commands)
	for i := range execs {
		b.commandLocked(&execs[i])
	}
	for id, what := range was {
		// No node says when that ended: it was until now, as far as we know.
		if _, still := b.commands[id]; !still && what == useLeft(id) {
			b.touch()
		}
	}
}

// commandLocked notes that a command runs, or has ended.
func (b *Box) commandLocked(e *taisandbox.ExecInfo) {
	b.usedAtLocked(e.Started)
	b.usedAtLocked(e.Ended)
	what := b.keptBusyBy(e)
	if what == "" {
		delete(b.commands, e.ID)
		return
	}
	if b.commands == nil {
		b.commands = map[string]string{}
	}
	b.commands[e.ID] = what
}

// keptBusyBy says what of a command keeps the box awake; "" if nothing does.
// An entrypoint that runs by itself does not, one that the caller ran does.
func (b *Box) keptBusyBy(e *taisandbox.ExecInfo) string {
	switch {
	case !e.Done() && (e.ID != taisandbox.EntrypointExec || b.noStart || b.keepAlive):
		return useExec(e.ID)
	case e.Done() && e.Leftover > 0 && b.keepAlive:
		return useLeft(e.ID)
	}
	return ""
}

// usedAtLocked notes use of a box at a time on its node's clock. That clock is
// believed only for what is new, and never as to the future.
func (b *Box) usedAtLocked(t time.Time) {
	if !t.After(b.lastUse) {
		return
	}
	b.lastUse = t
	at := b.m.now() - max(0, time.Since(t))
	if at > time.Duration(b.active.Load()) {
		b.active.Store(int64(at))
	}
}

// Cleanup does now what the policies ask for, and returns once it is done: a
// box that does not heed TERM takes its StopTimeout. It is done by itself too,
// from [Manager.Start] on, as soon as it is due.
func (m *Manager) Cleanup(ctx context.Context) error {
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	defer leave()
	var errs []error
	next := time.NewTicker(reapTurn)
	defer next.Stop()
	for begun := map[*flight]bool{}; ; {
		m.mu.Lock()
		m.ringLocked()
		for _, f := range m.agenda.reaps {
			begun[f] = true
		}
		m.mu.Unlock()
		if len(begun) == 0 {
			return errors.Join(errs...)
		}
		var f *flight
		for f = range begun {
			break
		}
		select {
		case <-f.done:
			errs = append(errs, f.err)
			delete(begun, f)
		case <-next.C: // a slow one does not hold back what else is due
		case <-ctx.Done():
			return fmt.Errorf("clean up: %w", context.Cause(ctx))
		}
	}
}

// gentle reports removals that let the box's commands end by themselves first.
func gentle(why string) bool { return why == reasonIdle || why == reasonMaxLifetime }

// endingErrorLocked says why a box that its policy ends takes no calls.
func (b *Box) endingErrorLocked() error {
	switch {
	case b.removal != nil && b.stopReason == reasonIdle:
		return reason.WithHint(fmt.Errorf("%w: it was idle for %v", ErrRemoving, b.idleTimeout), "create it again, then try again")
	case b.removal != nil && b.stopReason == reasonMaxLifetime:
		return reason.WithHint(fmt.Errorf("%w: its max lifetime of %v is over", ErrRemoving, b.maxLifetime), "create it again, then try again")
	case b.removal != nil:
		return ErrRemoving
	case b.stopping != nil:
		return reason.WithHint(fmt.Errorf("%w: it was idle for %v", ErrStopping, b.idleTimeout), "start it, then try again")
	}
	return nil
}

// busyLocked says what keeps a box from being idle.
func (b *Box) busyLocked() []string {
	var busy []string
	for _, what := range b.commands {
		busy = append(busy, what)
	}
	for what := range b.uses {
		busy = append(busy, what)
	}
	if b.beatUntil > b.m.now() {
		busy = append(busy, "heartbeat")
	}
	slices.Sort(busy)
	return slices.Compact(busy)
}
