package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// maxPending bounds the events of one box that wait for a look at it.
const maxPending = 256

// refresh looks at a box and remembers what it sees. That the box is not there
// is something seen, not an error.
func (m *Manager) refresh(ctx context.Context, b *Box) error {
	n, err := m.node(b.nodeID)
	if err != nil {
		return err
	}
	m.mu.Lock()
	seq := m.nextSeqLocked()
	m.mu.Unlock()
	info, err := n.Client.Sandbox().Inspect(ctx, b.id)

	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil && info.Labels[labelAttempt] == b.attempt:
		m.seenLocked(b, &info, seq)
	case err == nil || errors.Is(err, ErrNotFound):
		m.missedLocked(b, seq)
	default:
		return err
	}
	return nil
}

// seenLocked remembers a look at a box.
func (m *Manager) seenLocked(b *Box, info *taisandbox.Info, seq uint64) {
	if seq <= b.seen {
		return
	}
	was := b.info.State
	b.seen, b.info, b.lost = seq, *info, false
	b.info.Reason = b.reasonLocked(info.State, info.Reason)
	b.usedAtLocked(info.LastExecAt)
	if info.State != taisandbox.StateRunning {
		clear(b.commands)
	}
	if info.State != was {
		m.scheduleLocked(b)
	}
	if b.once.claimed && (info.State == taisandbox.StateStopped || info.State == taisandbox.StateFailed) {
		m.execEndedLocked(b, b.once.exec)
	}
}

// reasonLocked is why the box is in a state: of a stop that is ours the node
// knows only that somebody asked for it.
func (b *Box) reasonLocked(s taisandbox.State, why string) string {
	if b.stopReason != "" && why == reasonUser && (s == taisandbox.StateStopping || s == taisandbox.StateStopped) {
		return b.stopReason
	}
	return why
}

// missedLocked remembers that a box was not there. While it is being created
// or removed that is as it should be.
func (m *Manager) missedLocked(b *Box, seq uint64) {
	if seq <= b.seen || b.gone || b.making != nil || b.removal != nil {
		return
	}
	b.seen, b.lost = seq, true
	if b.policy == OneShot || b.doomed != "" {
		m.dropLocked(b, cmp.Or(b.doomed, reasonLost))
		return
	}
	b.info.State, b.info.Reason = taisandbox.StateFailed, reasonLost
	b.info.Error = "it vanished from node " + b.nodeID
	b.info.StoppedAt, b.info.RunningExecs, b.procs = time.Now(), 0, 0
	m.tellLocked(b, b.info.State, b.info.Reason)
	b.log().WarnContext(m.life, "box lost")
}

func (b *Box) lostErrorLocked() error {
	return fmt.Errorf("%w: %s", ErrLost, b.info.Error)
}

// deliver takes an event of a node. What tells of a state is only a reason to
// look: the look is remembered first, then the event is passed on.
func (m *Manager) deliver(ev *taisandbox.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.boxes[ev.Box]
	if b == nil || ev.Labels != nil && ev.Labels[labelAttempt] != b.attempt {
		return
	}
	if ev.Type == taisandbox.EventExec && !b.working {
		m.passLocked(b, ev)
		return
	}
	if b.pending = append(b.pending, *ev); len(b.pending) > maxPending {
		b.pending = nil
		m.gapLocked()
	}
	m.workLocked(b)
}

// workLocked has a goroutine look at the box and work off its events, unless
// one does.
func (m *Manager) workLocked(b *Box) {
	if b.working || m.closed {
		return
	}
	b.working = true
	m.wg.Go(func() {
		for first := true; ; first = false {
			m.mu.Lock()
			events := b.pending
			b.pending = nil
			if b.working = first || len(events) > 0; !b.working {
				m.mu.Unlock()
				return
			}
			m.mu.Unlock()

			b.look(m.life)

			m.mu.Lock()
			for i := range events {
				m.passLocked(b, &events[i])
			}
			m.mu.Unlock()
		}
	})
}

// passLocked passes an event of a node on.
func (m *Manager) passLocked(b *Box, ev *taisandbox.Event) {
	if b.gone {
		return
	}
	switch ev.Type {
	case taisandbox.EventState:
		// The begin of a create and of a removal were told with our own reason.
		if !b.lost && (b.making == nil || ev.State != taisandbox.StateCreating) && b.removal == nil {
			m.tellAtLocked(b, ev.Time, ev.State, b.reasonLocked(ev.State, ev.Reason))
		}
	case taisandbox.EventExec:
		if ev.Exec == nil {
			return
		}
		b.touch()
		b.commandLocked(ev.Exec)
		if ev.Exec.Done() {
			m.execEndedLocked(b, ev.Exec.ID)
		}
		m.publishLocked(b, Event{Time: ev.Time, Type: EventExec, Exec: ev.Exec})
	case taisandbox.EventOOM:
		m.publishLocked(b, Event{Time: ev.Time, Type: EventOOM, Exec: ev.Exec})
	case taisandbox.EventRemoved:
		if b.buried != nil {
			close(b.buried)
			b.buried = nil
		}
		// Our own removals are told when they are done; others show in the look.
	case taisandbox.EventGap:
	}
}
