package workspace

import (
	"fmt"

	"github.com/taibox/taibox/tai/registry"
	"github.com/taibox/taibox/tai/volume"
)

// Nodes returns the registered nodes that keep workspaces, ordered by TaiID.
func (m *Manager) Nodes() []NodeInfo {
	m.mu.Lock()
	count := map[string]int{}
	for _, w := range m.index.byID {
		count[w.Node]++
	}
	m.mu.Unlock()
	var list []NodeInfo
	for _, s := range m.reg.List() {
		n, err := m.reg.Get(s.TaiID)
		if err != nil || n.Client.Volume() == nil {
			continue
		}
		list = append(list, NodeInfo{
			TaiID: s.TaiID, Online: s.Status == registry.StatusOnline,
			Workspaces: count[s.TaiID], Features: n.Client.Volume().Features(),
		})
	}
	return list
}

// AddPool registers a node, so that it can keep workspaces and run boxes. The
// client stays with the caller.
func (m *Manager) AddPool(n registry.TaiNode) error {
	if n.Client != nil && n.Client.Volume() == nil {
		return fmt.Errorf("add node %s: %w: it keeps no workspaces", n.TaiID, ErrUnsupported)
	}
	return m.reg.Register(n)
}

// RemovePool takes a node out and forgets its workspaces, which stay on it.
func (m *Manager) RemovePool(taiID string) error {
	if err := m.reg.Unregister(taiID); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index.forget(taiID)
	return nil
}

// volumeAt returns the volume of a node.
func (m *Manager) volumeAt(node string) (volume.Volume, error) {
	n, err := m.reg.Get(node)
	switch {
	case err != nil:
		return nil, err
	case n.Status != registry.StatusOnline:
		return nil, fmt.Errorf("%w: %s", ErrNodeOffline, node)
	case n.Client.Volume() == nil:
		return nil, fmt.Errorf("%w: node %s keeps no workspaces", ErrUnsupported, node)
	}
	return n.Client.Volume(), nil
}
