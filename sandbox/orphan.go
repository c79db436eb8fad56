package sandbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// orphans are the running boxes of a node that other instances made, with when
// this manager first saw them, by attempt.
type orphans map[string]time.Duration

// stopOrphans stops the boxes on a node whose manager has not been there for
// Config.OrphanAfter. Its files stay, for a manager that comes back after all.
// How long that is counts from when this manager first saw the box: before, it
// could not know.
func (m *Manager) stopOrphans(ctx context.Context, n registry.TaiNode, seen orphans) error {
	if m.cfg.OrphanAfter == 0 {
		return nil
	}
	sb := n.Client.Sandbox()
	look, cancel := context.WithTimeoutCause(ctx, listTimeout, errLookTimeout)
	infos, err := sb.List(look, taisandbox.Filter{Labels: map[string]string{labelManagedBy: managedBy}, States: []taisandbox.State{taisandbox.StateRunning}})
	cancel()
	if err != nil {
		return fmt.Errorf("list boxes of node %s: %w", n.TaiID, err)
	}
	now, present := m.now(), map[string]bool{}
	for i := range infos {
		info := &infos[i]
		attempt := info.Labels[labelAttempt]
		if info.Labels[labelInstance] == m.cfg.Instance || attempt == "" {
			continue
		}
		present[attempt] = true
		first, known := seen[attempt]
		if !known {
			seen[attempt] = now
			continue
		}
		if now-first < m.cfg.OrphanAfter {
			continue
		}
		log := m.log.With(slog.String("box", info.ID), slog.String("node", n.TaiID), slog.String("instance", info.Labels[labelInstance]))
		stop, cancel := context.WithTimeoutCause(ctx, DefaultStopTimeout+stopTimeout, errStopTimeout)
		err := cause(stop, stopFor(stop, sb, info.ID, DefaultStopTimeout, reasonOrphan))
		cancel()
		if err != nil {
			log.WarnContext(ctx, "orphan not stopped yet", slog.Any("err", err))
			continue
		}
		log.InfoContext(ctx, "orphan stopped")
	}
	for attempt := range seen {
		if !present[attempt] {
			delete(seen, attempt)
		}
	}
	return nil
}
