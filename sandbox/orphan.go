package sandbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// orphans are the running boxes of a node that other instances made, with when
// this manager first saw them, by attempt.
type orphans map[string]time.Duration

// keepOrphans looks for orphans on a node until ctx ends. It does so by
// itself: stopping them may take long, and the node's events do not wait.
func (m *Manager) keepOrphans(ctx context.Context, n registry.TaiNode) {
	next := time.NewTicker(sweepInterval)
	defer next.Stop()
	for seen := (orphans{}); ; {
		if err := m.stopOrphans(ctx, n, seen); err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "orphans not looked for", slog.String("node", n.TaiID), slog.Any("err", err))
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
	}
}

// stopOrphans stops the boxes on a node whose manager has not been there for
// Config.OrphanAfter. Their files stay, for a manager that comes back after
// all. How long that is counts from when this manager first saw the box:
// before, it could not know.
func (m *Manager) stopOrphans(ctx context.Context, n registry.TaiNode, seen orphans) error {
	sb := n.Client.Sandbox()
	look, cancel := context.WithTimeoutCause(ctx, listTimeout, errLookTimeout)
	infos, err := sb.List(look, taisandbox.Filter{Labels: map[string]string{labelManagedBy: managedBy}, States: []taisandbox.State{taisandbox.StateRunning}})
	cancel()
	if err != nil {
		return fmt.Errorf("list boxes of node %s: %w", n.TaiID, err)
	}
	now, present := m.now(), map[string]bool{}
	var stops errgroup.Group
	stops.SetLimit(maxOrphanStops)
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
		if now-first >= m.cfg.OrphanAfter {
			stops.Go(func() error {
				m.stopOrphan(ctx, n, info)
				return nil
			})
		}
	}
	for attempt := range seen {
		if !present[attempt] {
			delete(seen, attempt)
		}
	}
	return stops.Wait()
}

// stopOrphan stops one of them, or leaves it to the next look.
func (m *Manager) stopOrphan(ctx context.Context, n registry.TaiNode, info *taisandbox.Info) {
	log := m.log.With(slog.String("box", info.ID), slog.String("node", n.TaiID), slog.String("instance", info.Labels[labelInstance]))
	stop, cancel := context.WithTimeoutCause(ctx, DefaultStopTimeout+stopTimeout, errStopTimeout)
	defer cancel()
	if err := cause(stop, stopFor(stop, n.Client.Sandbox(), info.ID, DefaultStopTimeout, reasonOrphan)); err != nil {
		log.WarnContext(ctx, "orphan not stopped yet", slog.Any("err", err))
		return
	}
	log.InfoContext(ctx, "orphan stopped")
}
