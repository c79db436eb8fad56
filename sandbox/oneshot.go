package sandbox

import (
	"context"
	"log/slog"
	"time"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// oneShot follows the one command of a [OneShot] box. The zero value waits for
// the command.
type oneShot struct {
	asked   bool   // it is known whether a command came before the manager did
	claimed bool   // a command came
	exec    string // its ID
	ended   bool
	taken   bool // its output was taken to the end, or nobody will
	holders int  // streams that may still take it

	armed       bool // the box goes unless something comes in time
	from, limit time.Duration
}

func (o *oneShot) disarm() { o.armed = false }

// armLocked gives a oneshot box that has no command, or whose command ended
// with nobody reading, so much time. Then it goes.
func (m *Manager) armLocked(b *Box, d time.Duration) {
	o := &b.once
	if b.policy != OneShot || m.closed || b.gone || b.removal != nil {
		return
	}
	o.armed, o.from, o.limit = true, m.now(), d
	m.scheduleLocked(b)
}

// claim reports whether a command is the one of a oneshot box.
func (b *Box) claim(execID string) bool {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	if b.policy != OneShot || b.once.claimed {
		return false
	}
	b.once.claimed, b.once.exec = true, execID
	b.once.disarm()
	return true
}

// spent ends a oneshot box whose command ended without a stream, and waits
// for that as long as ctx lasts.
func (b *Box) spent(ctx context.Context) {
	b.m.mu.Lock()
	b.once.ended, b.once.taken = true, true
	f := b.m.settleLocked(b)
	b.m.mu.Unlock()
	if f != nil {
		f.wait(ctx) //nolint:errcheck // one that failed is tried again
	}
}

// holds counts a stream that may take the output of a oneshot box's command.
// The timer of one that nobody read stops.
func (b *Box) holds(execID string) bool {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	if b.policy != OneShot || !b.once.claimed || b.once.exec != execID {
		return false
	}
	b.once.holders++
	b.once.disarm()
	return true
}

// released is the inverse of holds. taken: the output was taken to the end, or
// its client is gone. It returns the removal that follows, if one does.
func (b *Box) released(taken bool) *flight {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	b.once.holders--
	b.once.taken = b.once.taken || taken
	return b.m.settleLocked(b)
}

// execEndedLocked notes the end of a command.
func (m *Manager) execEndedLocked(b *Box, execID string) {
	if o := &b.once; b.policy == OneShot && o.claimed && o.exec == execID && !o.ended {
		o.ended = true
		m.settleLocked(b)
	}
}

// settleLocked removes a oneshot box when nothing of its command is wanted any
// more, or lets time decide.
func (m *Manager) settleLocked(b *Box) *flight {
	o := &b.once
	switch {
	case b.gone || !o.ended:
		return nil
	case o.taken:
		return m.startRemovalLocked(b, reasonOneShot)
	case o.holders == 0 && !o.armed:
		m.armLocked(b, oneShotLease)
	}
	return nil
}

// checkLocked asks the node about the command of a oneshot box where events
// may have been missed: after a restart, and at each sweep.
func (m *Manager) checkLocked(b *Box) {
	o := &b.once
	if b.policy != OneShot || b.making != nil || b.removal != nil || b.lost || o.ended || o.holders > 0 || o.asked && !o.claimed {
		return
	}
	m.wg.Go(func() {
		ctx, cancel := context.WithTimeoutCause(m.life, listTimeout, errLookTimeout)
		defer cancel()
		execs, err := b.Execs(ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		if err != nil {
			b.log().DebugContext(ctx, "command of a oneshot box not known", slog.Any("err", err))
			return
		}
		m.resumeLocked(b, execs)
	})
}

// resumeLocked goes on with a oneshot box, given the commands that its node
// knows of.
func (m *Manager) resumeLocked(b *Box, execs []taisandbox.ExecInfo) {
	o := &b.once
	for i := range execs {
		e := &execs[i]
		// An entrypoint that ran by itself is not the command; one that the
		// caller ran is.
		if !o.claimed && (e.ID != taisandbox.EntrypointExec || b.noStart) {
			o.claimed, o.exec = true, e.ID
			o.disarm()
		}
		if o.claimed && e.ID == o.exec && e.Done() {
			m.execEndedLocked(b, e.ID)
		}
	}
	if !o.claimed && !o.asked {
		m.armLocked(b, oneShotRecovered)
	}
	o.asked = true
}
