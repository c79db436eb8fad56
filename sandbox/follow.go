package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

var errEventsEnded = errors.New("the node's events ended")

// follower keeps what the manager knows of one node fresh.
type follower struct {
	node  registry.TaiNode
	end   context.CancelCauseFunc
	asked chan struct{} // closed once the node has answered or failed to
	wake  chan struct{} // asks for a sweep now

	synced bool // its boxes are known; guarded by Manager.mu
}

// followLocked starts a follower for each node that has none, ends those of
// nodes that are gone, and returns the new ones.
func (m *Manager) followLocked(nodes []registry.NodeSnapshot) []*follower {
	var fresh []*follower
	present := map[string]bool{}
	for _, s := range nodes {
		n, err := m.reg.Get(s.TaiID)
		if err != nil {
			continue // unregistered just now
		}
		present[n.TaiID] = true
		if old := m.nodes[n.TaiID]; old != nil {
			if old.node.Client == n.Client {
				continue
			}
			old.end(ErrNodeNotFound)
		}
		ctx, end := context.WithCancelCause(m.life)
		f := &follower{node: n, end: end, asked: make(chan struct{}), wake: make(chan struct{}, 1)}
		m.nodes[n.TaiID] = f
		m.wg.Go(func() { m.follow(ctx, f) })
		if m.cfg.OrphanAfter > 0 {
			m.wg.Go(func() { m.keepOrphans(ctx, n) })
		}
		fresh = append(fresh, f)
	}
	for id, f := range m.nodes {
		if !present[id] {
			f.end(ErrNodeNotFound)
			delete(m.nodes, id)
		}
	}
	return fresh
}

// followRegistry follows the nodes that come and go until the manager ends.
func (m *Manager) followRegistry(changed <-chan struct{}) {
	for {
		select {
		case <-changed:
		case <-m.life.Done():
			return
		}
		changed = m.reg.Changed()
		nodes := m.reg.List()
		m.mu.Lock()
		if !m.closed {
			m.followLocked(nodes)
		}
		m.mu.Unlock()
	}
}

// wake asks for a look at all boxes of a node.
func (m *Manager) wake(nodeID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.nodes[nodeID]; f != nil {
		select {
		case f.wake <- struct{}{}:
		default: // asked for already
		}
	}
}

// follow listens to a node until ctx ends, and tries again when it fails.
func (m *Manager) follow(ctx context.Context, f *follower) {
	defer f.end(nil)
	for retry := minRetry; ; retry = min(2*retry, maxRetry) {
		heard, err := m.listen(ctx, f)
		if ctx.Err() != nil {
			return
		}
		if heard {
			retry = minRetry
		}
		m.log.WarnContext(ctx, "node does not answer", slog.String("node", f.node.TaiID), slog.Any("err", err))
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return
		}
	}
}

// listen subscribes to a node's events, sweeps its boxes, and then works off
// events and sweeps until something fails. heard reports that the node
// answered at all.
func (m *Manager) listen(ctx context.Context, f *follower) (heard bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	events, err := f.node.Client.Sandbox().Events(ctx)
	if err == nil {
		err = m.sweep(ctx, f)
	}
	select {
	case <-f.asked:
	default:
		close(f.asked)
	}
	if err != nil {
		return false, err
	}

	next := time.NewTimer(sweepInterval)
	defer next.Stop()
	hurry := false // next is as soon as may be
	for {
		select {
		case ev, ok := <-events:
			switch {
			case !ok:
				return true, errEventsEnded
			case ev.Type == taisandbox.EventGap:
				m.gap()
				if !hurry {
					next.Reset(sweepPause)
				}
				hurry = true
			default:
				m.deliver(&ev)
			}
			continue
		case <-f.wake:
		case <-next.C:
		case <-ctx.Done():
			return true, context.Cause(ctx)
		}
		if err := m.sweep(ctx, f); err != nil {
			return true, err
		}
		next.Reset(sweepInterval)
		hurry = false
	}
}

// sweep compares what a node has with what we know, and puts right what
// differs.
func (m *Manager) sweep(ctx context.Context, f *follower) error {
	m.mu.Lock()
	seq := m.nextSeqLocked()
	m.listing++
	m.mu.Unlock()

	look, cancel := context.WithTimeoutCause(ctx, listTimeout, errLookTimeout)
	infos, err := f.node.Client.Sandbox().List(look, filter(m.cfg.Instance))
	cancel()

	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() {
		if m.listing--; m.listing == 0 {
			clear(m.dropped)
		}
	}()
	if err != nil {
		return fmt.Errorf("list boxes of node %s: %w", f.node.TaiID, err)
	}
	if ctx.Err() != nil || m.closed {
		return context.Cause(ctx)
	}
	there := make(map[string]string, len(infos)) // box → attempt
	for i := range infos {
		info := &infos[i]
		there[info.ID] = info.Labels[labelAttempt]
		switch b := m.boxes[info.ID]; {
		case b == nil:
			m.adoptLocked(f, info, seq)
		case b.attempt == info.Labels[labelAttempt] && b.nodeID == f.node.TaiID && b.making == nil:
			m.seenLocked(b, info, seq)
			if b.removal == nil && !b.working { // else events that tell of it are being worked off, in order
				m.tellLocked(b, b.info.State, b.info.Reason)
			}
		}
	}
	for _, b := range m.boxes {
		if b.nodeID != f.node.TaiID {
			continue
		}
		if attempt, ok := there[b.id]; (!ok || attempt != b.attempt) && seq > b.seen && !b.lost && b.making == nil {
			m.workLocked(b) // it may be newer than the list: look at it alone
		}
		m.checkLocked(b)
		if b.doomed != "" && b.removal == nil {
			m.startRemovalLocked(b, b.doomed)
		}
	}
	f.synced = true
	return nil
}

// adoptLocked takes in a box of this instance that we do not know: after a
// restart, or when its node comes back. What was half made or half removed is
// finished.
func (m *Manager) adoptLocked(f *follower, info *taisandbox.Info, seq uint64) {
	if m.dropped[info.Labels[labelAttempt]] {
		return // removed while the list was on its way
	}
	id, err := decode(info.ID, f.node.TaiID, info.Labels)
	if err != nil {
		m.log.WarnContext(m.life, "box has a label that is not understood", slog.String("box", info.ID), slog.String("node", f.node.TaiID), slog.Any("err", err))
	}
	b := &Box{m: m, identity: id, info: *info, seen: seq, told: told{info.State, info.Reason}}
	m.addLocked(b)
	now := m.now()
	b.adopted, b.born, b.lastUse = now, now-max(0, time.Since(info.CreatedAt)), info.LastExecAt
	b.active.Store(int64(now - m.idleFor(info)))
	m.scheduleLocked(b)
	b.log().InfoContext(m.life, "box recovered", slog.String("state", string(info.State)))

	switch info.State {
	case taisandbox.StateCreating, taisandbox.StateCreated:
		// Its create never came to its end, and nobody was told of it: whoever
		// repeats it is to get a box.
		m.keys.forget(b)
		b.doomed = reasonFailed
		m.startRemovalLocked(b, reasonFailed)
	case taisandbox.StateRemoving:
		m.startRemovalLocked(b, reasonUser)
	case taisandbox.StateStopping:
		m.wg.Go(func() {
			if err := b.stop(m.life, b.stopTimeout); err != nil {
				b.log().WarnContext(m.life, "box not stopped", slog.Any("err", err))
			}
		})
	case taisandbox.StateRunning, taisandbox.StateStopped, taisandbox.StateFailed:
	}
}

// idleFor returns how long a box has done nothing, at most as long as its node
// and we agree on.
func (m *Manager) idleFor(info *taisandbox.Info) time.Duration {
	last := info.CreatedAt
	for _, t := range []time.Time{info.StartedAt, info.StoppedAt, info.LastExecAt} {
		if t.After(last) {
			last = t
		}
	}
	return max(0, time.Since(last))
}
