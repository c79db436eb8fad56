package workspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	"github.com/taibox/taibox/tai/volume"
)

// index is what the nodes are known to have. What is in it is replaced, never
// changed, but for the maps themselves.
type index struct {
	byID   map[string]*Workspace
	making map[string]*making // creates under way, by ID

	nodes   map[string]*nodeState // by TaiID
	changed <-chan struct{}       // of the registry, from when nodes was right
	busy    chan struct{}         // closed when the refresh under way ends; nil without one

	seq     uint64            // orders what we did and what nodes said
	stamps  map[string]uint64 // when we last wrote a workspace
	reading int               // nodes being read
	dropped map[string]bool   // deleted while reading > 0
}

// making is a create under way.
type making struct {
	owner string
	done  chan struct{} // closed when it ends
}

// owned counts the workspaces of an owner, those in the making too.
func (x *index) owned(owner string) int {
	n := 0
	for _, w := range x.byID {
		if w.Owner == owner {
			n++
		}
	}
	for _, c := range x.making {
		if c.owner == owner {
			n++
		}
	}
	return n
}

// nodeState is how far a node has been read.
type nodeState struct {
	client  *tai.Client
	err     error // why it was not
	retryAt time.Time
}

func newIndex() index {
	return index{
		byID: map[string]*Workspace{}, making: map[string]*making{}, nodes: map[string]*nodeState{},
		stamps: map[string]uint64{}, dropped: map[string]bool{},
	}
}

// put enters what we wrote.
func (x *index) put(w *Workspace) {
	x.seq++
	x.byID[w.ID], x.stamps[w.ID] = w, x.seq
	delete(x.dropped, w.ID)
}

func (x *index) drop(id string) {
	delete(x.byID, id)
	delete(x.stamps, id)
	if x.reading > 0 {
		x.dropped[id] = true
	}
}

// forget drops a node with all that it has.
func (x *index) forget(node string) {
	delete(x.nodes, node)
	for id, w := range x.byID {
		if w.Node == node {
			x.drop(id)
		}
	}
}

// absent is the error for an ID that is not known.
func (x *index) absent(id string) error {
	for _, node := range slices.Sorted(maps.Keys(x.nodes)) {
		if x.nodes[node].err != nil {
			return fmt.Errorf("workspace %s: %w: %s, which may have it", id, ErrNodeOffline, node)
		}
	}
	return fmt.Errorf("workspace %s: %w", id, ErrNotFound)
}

// fresh reports that nothing is to be read.
func (x *index) fresh(now time.Time) bool {
	if x.changed == nil {
		return false
	}
	select {
	case <-x.changed:
		return false
	default:
	}
	for _, n := range x.nodes {
		if n.err != nil && !now.Before(n.retryAt) {
			return false
		}
	}
	return true
}

// merge takes in what a node said it has. since is when it was asked: what we
// wrote later is newer than its answer.
func (x *index) merge(node string, infos []volume.Info, since uint64) (twice []string) {
	said := map[string]bool{}
	for i := range infos {
		id := infos[i].ID
		said[id] = true
		have := x.byID[id]
		switch {
		case x.dropped[id], have != nil && have.Node == node && x.stamps[id] > since:
		case have != nil && have.Node != node:
			twice = append(twice, id)
		default:
			x.byID[id] = decode(node, &infos[i])
		}
	}
	for id, w := range x.byID {
		if w.Node == node && !said[id] && x.stamps[id] <= since {
			delete(x.byID, id)
			delete(x.stamps, id)
		}
	}
	return twice
}

// refresh reads the nodes that came or came back since the last time. Callers
// at the same time join. It fails only when ctx ends.
func (m *Manager) refresh(ctx context.Context) error {
	for {
		m.mu.Lock()
		if m.index.fresh(time.Now()) {
			m.mu.Unlock()
			return nil
		}
		busy := m.index.busy
		if busy == nil {
			m.index.busy = make(chan struct{})
			m.mu.Unlock()
			m.readNodes(ctx)
			m.mu.Lock()
			close(m.index.busy)
			m.index.busy = nil
			m.mu.Unlock()
			return context.Cause(ctx)
		}
		m.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// readNodes reads the nodes that need it, each for itself.
func (m *Manager) readNodes(ctx context.Context) {
	changed := m.reg.Changed() // before the list, so that nothing is missed
	there := map[string]bool{}
	var wg sync.WaitGroup
	for _, s := range m.reg.List() {
		n, err := m.reg.Get(s.TaiID)
		if err != nil || n.Client.Volume() == nil || n.Status != registry.StatusOnline {
			continue
		}
		there[n.TaiID] = true
		m.mu.Lock()
		st := m.index.nodes[n.TaiID]
		m.mu.Unlock()
		if st != nil && st.client == n.Client && st.err == nil {
			continue
		}
		wg.Go(func() { m.readNode(ctx, n) })
	}
	wg.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.index.nodes, func(node string, _ *nodeState) bool { return !there[node] })
	if ctx.Err() == nil {
		m.index.changed = changed
	}
}

// readNode asks a node what it has.
func (m *Manager) readNode(ctx context.Context, n registry.TaiNode) {
	m.mu.Lock()
	since := m.index.seq
	m.index.reading++
	m.mu.Unlock()
	look, cancel := context.WithTimeoutCause(ctx, readTimeout, errReadTimeout)
	defer cancel()
	infos, err := n.Client.Volume().List(look)

	m.mu.Lock()
	defer m.mu.Unlock()
	st := &nodeState{client: n.Client, err: err}
	if err == nil {
		for _, id := range m.index.merge(n.TaiID, infos, since) {
			m.log.ErrorContext(ctx, "workspace is on two nodes: this one is not used", slog.String("workspace", id), slog.String("node", n.TaiID))
		}
	} else {
		m.log.WarnContext(ctx, "workspaces of node not read", slog.String("node", n.TaiID), slog.Any("err", err))
		if ctx.Err() == nil {
			st.retryAt = time.Now().Add(readRetry)
		}
	}
	m.index.nodes[n.TaiID] = st
	if m.index.reading--; m.index.reading == 0 {
		clear(m.index.dropped)
	}
}

// lookEverywhere asks the nodes for a workspace that is not known: another
// manager of this process may have made it.
func (m *Manager) lookEverywhere(ctx context.Context, id string) {
	for _, n := range m.reg.List() {
		vol, err := m.volumeAt(n.TaiID)
		if err != nil {
			continue
		}
		look, cancel := context.WithTimeoutCause(ctx, readTimeout, errReadTimeout)
		info, err := vol.Get(look, id)
		cancel()
		if err != nil {
			continue
		}
		m.mu.Lock()
		if m.index.making[id] == nil && m.index.byID[id] == nil {
			m.index.put(decode(n.TaiID, &info))
		}
		m.mu.Unlock()
		return
	}
}

// look learns what became of a workspace after a call that failed.
func (m *Manager) look(ctx context.Context, node string, vol volume.Volume, id string) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), readTimeout, errReadTimeout)
	defer cancel()
	info, err := vol.Get(ctx, id)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		m.index.put(decode(node, &info))
	case errors.Is(err, ErrNotFound):
		m.index.drop(id)
	}
}

// find returns a workspace and its volume, pinned to it.
func (m *Manager) find(ctx context.Context, id string) (*Workspace, volume.Volume, error) {
	w, err := m.Get(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	vol, err := m.Volume(ctx, w)
	if !errors.Is(err, ErrNotFound) {
		return w, vol, err
	}
	// Another manager of this process may have made it anew, or deleted it.
	if w, err = m.Get(ctx, id); err == nil {
		vol, err = m.Volume(ctx, w)
	}
	return w, vol, err
}

// findThis is find for a workspace that was found before; nil is any.
func (m *Manager) findThis(ctx context.Context, id string, this *Workspace) (*Workspace, volume.Volume, error) {
	w, vol, err := m.find(ctx, id)
	if err == nil && this != nil && !w.CreatedAt.Equal(this.CreatedAt) {
		err = fmt.Errorf("workspace %s: %w", id, ErrNotFound)
	}
	return w, vol, err
}

// Volume returns the volume of the node that keeps a workspace, for calls on
// its files. It knows that very workspace: once it is deleted they fail with
// [ErrNotFound], also where another has its ID. What is done with workspaces
// themselves goes by the manager.
func (m *Manager) Volume(ctx context.Context, w *Workspace) (volume.Volume, error) {
	vol, err := m.volumeAt(w.Node)
	if errors.Is(err, ErrNodeNotFound) {
		err = fmt.Errorf("%w: %s", ErrNodeOffline, w.Node)
	}
	if err != nil {
		return nil, fmt.Errorf("workspace %s: %w", w.ID, err)
	}
	pinned, err := vol.Pin(ctx, w.ID, w.CreatedAt)
	if errors.Is(err, ErrNotFound) {
		m.look(ctx, w.Node, vol, w.ID)
	}
	return pinned, err
}
