package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/taibox/taibox/internal/tracing"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// remove removes a box, joining a removal under way and ending a create.
func (m *Manager) remove(ctx context.Context, b *Box, why string) (err error) {
	ctx, span := tracing.Start(ctx, "box.remove")
	defer func() { span.Set(tracing.Box, b.id).End(err) }()
	for waited := false; ; waited = true {
		m.mu.Lock()
		var f *flight
		switch {
		case b.gone && waited:
			m.mu.Unlock()
			return nil
		case b.gone:
			m.mu.Unlock()
			return b.failed("remove", ErrNotFound)
		case m.closed:
			m.mu.Unlock()
			return b.failed("remove", ErrClosed)
		case b.making != nil:
			f = b.making
			b.giveUp(fmt.Errorf("%w: somebody removed it while it was created", ErrRemoving))
		default:
			f = m.startRemovalLocked(b, why)
		}
		making := b.making == f
		m.mu.Unlock()

		switch err := f.wait(ctx); {
		case !making:
			return err
		case ctx.Err() != nil:
			return b.failed("remove", context.Cause(ctx))
		}
	}
}

// startRemovalLocked starts the removal of a box, or returns the one under
// way, whose grace ends then unless this one would give one too. It goes on
// when its callers have left. What is tried again keeps its first reason.
func (m *Manager) startRemovalLocked(b *Box, why string) *flight {
	graceful := gentle(why) && b.doomed == ""
	if b.removal != nil {
		if !graceful {
			b.hastenLocked()
			b.hurry = nil
		}
		return b.removal
	}
	f := newFlight()
	if m.closed {
		f.err = b.failed("remove", ErrClosed)
		close(f.done)
		return f
	}
	why = cmp.Or(b.doomed, why)
	b.removal, b.stopReason, b.buried = f, why, make(chan struct{})
	b.once.disarm()
	if s := b.info.State; s == taisandbox.StateRunning || s == taisandbox.StateStopped {
		m.tellLocked(b, s, b.info.Reason) // its event may still be on its way, and would come too late
	}
	m.tellLocked(b, taisandbox.StateRemoving, why)
	var grace context.Context
	if graceful {
		grace, b.hurry = context.WithCancelCause(m.life)
	}
	m.wg.Go(func() {
		if graceful {
			if err := m.stopGently(grace, b, why); err != nil {
				b.log().DebugContext(m.life, "box not stopped before its removal", slog.Any("err", err))
			}
		}
		ctx, cancel := context.WithTimeoutCause(m.life, removeTimeout, errRemoveTimeout)
		defer cancel()
		err := m.removeFromNode(ctx, b)
		if ctx.Err() != nil {
			err = b.failed("remove", context.Cause(ctx))
		}

		m.mu.Lock()
		defer m.mu.Unlock()
		defer close(f.done)
		gave := b.hurry != nil
		b.hastenLocked()
		b.hurry = nil
		if err == nil {
			m.dropLocked(b, why)
			return
		}
		b.log().WarnContext(ctx, "box not removed yet", slog.Any("err", err))
		b.removal, f.err = nil, err
		if !gave {
			b.doomed = why // who removes a box by hand has no use for it; what a policy ends is looked at anew
		}
	})
	return f
}

// hasten ends the grace that the box's removal gives it, if it does.
func (b *Box) hasten() {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	b.hastenLocked()
}

func (b *Box) hastenLocked() {
	if b.hurry != nil {
		b.hurry(errHurried)
	}
}

// removeFromNode deletes what the node has of a box. That it has nothing is
// what was wanted.
func (m *Manager) removeFromNode(ctx context.Context, b *Box) error {
	n, err := m.node(b.nodeID)
	if err != nil {
		return b.failed("remove", err)
	}
	sb := n.Client.Sandbox()
	m.mu.Lock()
	unsure, buried, deaf := b.lost || b.doomed != "", b.buried, m.listing > 0
	m.mu.Unlock()
	if unsure {
		// The ID may have come to another box since.
		return m.undo(ctx, b, sb)
	}
	switch err := sb.Remove(ctx, b.id); {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return err
	case deaf: // whoever lists hears nothing meanwhile
		return nil
	}
	// What its node told of it before comes before the news that it is gone.
	t := time.NewTimer(lastWords)
	defer t.Stop()
	select {
	case <-buried:
	case <-t.C:
	case <-ctx.Done():
	}
	return nil
}

// dropLocked takes a box out.
func (m *Manager) dropLocked(b *Box, why string) {
	if b.gone {
		return
	}
	b.gone = true
	b.once.disarm()
	m.scheduleLocked(b)
	delete(m.boxes, b.id)
	m.count.add(b, -1)
	if m.listing > 0 {
		m.dropped[b.attempt] = true
	}
	m.publishLocked(b, Event{Type: EventRemoved, State: taisandbox.StateRemoving, Reason: why})
	b.log().InfoContext(m.life, "box removed", slog.String("reason", why))
}
