package sandbox

import (
	"context"
	"log/slog"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// CountProcesses asks each node once how many processes run in its boxes, so
// that [Box.Snapshot] has the present number. A node that cannot say it, or not
// soon enough, leaves what was last known.
func (m *Manager) CountProcesses(ctx context.Context) {
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return
	}
	defer leave()
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, errLookTimeout)
	defer cancel()
	for _, s := range m.reg.List() {
		n, err := m.reg.Get(s.TaiID)
		if err != nil {
			continue // it went just now
		}
		counter, ok := taisandbox.As[taisandbox.ProcessCounter](n.Client.Sandbox())
		if !ok {
			continue
		}
		counts, err := counter.ProcessCounts(ctx)
		if err != nil {
			m.log.DebugContext(ctx, "processes not counted", slog.String("node", s.TaiID), slog.Any("err", err))
			continue
		}
		m.mu.Lock()
		for id, count := range counts {
			if b := m.boxes[id]; b != nil && b.nodeID == s.TaiID {
				b.procs = count
			}
		}
		m.mu.Unlock()
	}
}
