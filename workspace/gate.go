package workspace

import "context"

// use is what somebody is about to do with a workspace.
type use int

const (
	holding use = iota // keep it from being deleted; any number at once
	writing            // change its record; one at a time
	alone              // delete it; with nobody else
)

// gate admits what is done with one workspace.
type gate struct {
	refs    int // who is in, or waits; at 0 the gate goes
	holds   int
	writer  bool
	alone   bool
	wanting int           // who waits to be alone: no new holds
	changed chan struct{} // closed when any of this has
}

func (g *gate) notify() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// admit lets somebody in, if it can be now.
func (g *gate) admit(u use) bool {
	if g.alone {
		return false
	}
	switch u {
	case holding:
		if g.wanting > 0 {
			return false
		}
		g.holds++
	case writing:
		if g.writer {
			return false
		}
		g.writer = true
	case alone:
		if g.holds > 0 || g.writer {
			return false
		}
		g.alone = true
	}
	return true
}

func (g *gate) leave(u use) {
	switch u {
	case holding:
		g.holds--
	case writing:
		g.writer = false
	case alone:
		g.alone = false
	}
	g.notify()
}

// enter waits until u is possible with a workspace. leave ends it; repeated
// calls do nothing.
func (m *Manager) enter(ctx context.Context, id string, u use) (leave func(), err error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.gates[id]
	if g == nil {
		g = &gate{changed: make(chan struct{})}
		m.gates[id] = g
	}
	g.refs++
	if u == alone {
		g.wanting++
	}
	in := false
	for ctx.Err() == nil {
		if in = g.admit(u); in {
			break
		}
		changed := g.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		m.mu.Lock()
	}
	if u == alone {
		g.wanting--
		g.notify() // whoever wants to hold it may look again
	}
	if !in {
		m.unrefLocked(id, g)
		return nil, context.Cause(ctx)
	}
	left := false
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if left {
			return
		}
		left = true
		g.leave(u)
		m.unrefLocked(id, g)
	}, nil
}

func (m *Manager) unrefLocked(id string, g *gate) {
	if g.refs--; g.refs == 0 {
		delete(m.gates, id)
	}
}
