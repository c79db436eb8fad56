package sandbox

import (
	"context"
	"fmt"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Processes lists the processes of the box, by their IDs inside.
// [ErrUnsupported] where the node cannot tell.
func (b *Box) Processes(ctx context.Context) ([]taisandbox.ProcessInfo, error) {
	return ask(ctx, b, "list processes of", func(sb taisandbox.Sandbox) ([]taisandbox.ProcessInfo, error) {
		l, ok := taisandbox.As[taisandbox.ProcessLister](sb)
		if !ok || !sb.Features().Has(taisandbox.FeatureProcesses) {
			return nil, fmt.Errorf("list processes of box %s: %w", b.id, ErrUnsupported)
		}
		return l.Processes(ctx, b.id)
	})
}

// Holdings counts what a node holds on its machine for boxes.
// [ErrUnsupported] where the node cannot tell.
func (m *Manager) Holdings(ctx context.Context, nodeID string) (taisandbox.Holdings, error) {
	n, err := m.node(nodeID)
	if err != nil {
		return taisandbox.Holdings{}, err
	}
	h, ok := taisandbox.As[taisandbox.Holder](n.Client.Sandbox())
	if !ok {
		return taisandbox.Holdings{}, fmt.Errorf("holdings of node %s: %w", nodeID, ErrUnsupported)
	}
	return h.Holdings(ctx)
}
