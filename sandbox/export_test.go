package sandbox

import "time"

// Freeze is what a process that is stopped for d, and then goes on, sees of
// it.
func (m *Manager) Freeze(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clock := m.clock
	m.clock = func() time.Duration { return clock() + d }
}

// Ring looks once for what is due, as keepTime does.
func (m *Manager) Ring() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ringLocked()
}
