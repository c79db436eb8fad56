package sandbox

import (
	"fmt"
	"sync"
	"time"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// What keeps a box busy, as [BoxInfo.Busy] says it.
func useExec(id string) string   { return "exec " + id }
func useStream(id string) string { return "stream of exec " + id }
func useLeft(id string) string   { return "left by exec " + id }

// use admits a call that keeps the box awake until done. A box that its policy
// is just ending refuses it; otherwise the box does not end under it, but by
// somebody's hand or for its max lifetime.
func (b *Box) use(what string) (sb taisandbox.Sandbox, done func(), err error) {
	b.m.mu.Lock()
	err = b.usableLocked()
	if err == nil {
		err = b.endingErrorLocked()
	}
	if err == nil {
		done = b.useLocked(what)
	}
	b.m.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	n, err := b.m.node(b.nodeID)
	if err != nil {
		done()
		return nil, nil, err
	}
	return n.Client.Sandbox(), done, nil
}

// useLocked counts a use of the box until done.
func (b *Box) useLocked(what string) (done func()) {
	if b.uses == nil {
		b.uses = map[string]int{}
	}
	b.uses[what]++
	b.touch()
	return sync.OnceFunc(func() {
		b.m.mu.Lock()
		defer b.m.mu.Unlock()
		if b.uses[what]--; b.uses[what] == 0 {
			delete(b.uses, what)
		}
		b.touch()
	})
}

// Lease keeps the box busy until release, at most for d. It is for work that
// the manager cannot see. Release may be called repeatedly.
func (b *Box) Lease(d time.Duration) (release func(), err error) {
	if d <= 0 || d > maxLease {
		return nil, b.failed("lease", fmt.Errorf("%w: lease of %v: up to %v are possible", ErrInvalidSpec, d, maxLease))
	}
	_, done, err := b.use("lease")
	if err != nil {
		return nil, b.failed("lease", err)
	}
	t := time.AfterFunc(d, done)
	return func() {
		t.Stop()
		done()
	}, nil
}

// Heartbeat notes what a box says of itself. An active one keeps the box busy
// for a minute, the next ones on, and is activity; one that is not active ends
// that and is none.
func (m *Manager) Heartbeat(sandboxID string, active bool, processCount int) error {
	if processCount < 0 {
		return fmt.Errorf("heartbeat of box %.64q: %w: process count of %d", sandboxID, ErrInvalidSpec, processCount)
	}
	b, err := m.Get(m.life, sandboxID)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err = b.usableLocked(); err == nil {
		err = b.endingErrorLocked()
	}
	if err != nil {
		return b.failed("heartbeat of", err)
	}
	b.procs, b.beatUntil = processCount, 0
	if active {
		b.touch()
		b.beatUntil = m.now() + heartbeatWindow
	}
	m.scheduleLocked(b)
	return nil
}
