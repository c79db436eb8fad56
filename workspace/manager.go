package workspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

// Manager makes workspaces on nodes and knows which node has which.
type Manager struct {
	reg *registry.Registry
	log *slog.Logger
	max int // workspaces of an owner; 0 = no limit

	// mu guards what follows. No call to a node is made while it is held.
	mu    sync.Mutex
	index index
	gates map[string]*gate // of the workspaces that something is done with
}

// New returns a manager. Its nodes are read at the first use, or by
// [Manager.Start].
func New(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("new workspace manager: %w", err)
	}
	if cfg.Registry == nil {
		cfg.Registry = registry.Global()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{reg: cfg.Registry, log: cfg.Logger, max: cfg.MaxPerOwner, index: newIndex(), gates: map[string]*gate{}}, nil
}

// Start reads what the nodes have, so that the first call need not. A node
// that does not answer is no error: it is asked again. Repeated calls do
// nothing.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.refresh(ctx); err != nil {
		return fmt.Errorf("start workspace manager: %w", err)
	}
	return nil
}

// Create makes an empty workspace. A taken ID is [ErrAlreadyExists], one
// workspace more than the owner may have [ErrTooMany].
func (m *Manager) Create(ctx context.Context, o CreateOptions) (*Workspace, error) {
	w := &Workspace{ID: o.ID, Name: o.Name, Owner: o.Owner, Labels: maps.Clone(o.Labels), Quota: o.Quota, UpdatedAt: time.Now().UTC()}
	if w.ID == "" {
		w.ID = taisandbox.NewID("ws-")
	}
	if w.Name == "" {
		w.Name = w.ID
	}
	err := errors.Join(ValidateID(w.ID), checkName("name", w.Name), checkName("owner", w.Owner), checkLabels(w.Labels), checkQuota(w.Quota))
	if err == nil {
		err = m.refresh(ctx)
	}
	var vol volume.Volume
	if err == nil {
		w.Node, vol, err = m.pick(o.Node)
	}
	if err != nil {
		return nil, fmt.Errorf("create workspace: %w", err)
	}
	raw, err := w.meta()
	if err != nil {
		return nil, err
	}
	done, err := m.reserve(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("create workspace %s: %w", w.ID, err)
	}
	info, err := vol.Create(ctx, w.ID, volume.Options{Meta: raw, Quota: w.Quota})
	m.mu.Lock()
	defer m.mu.Unlock()
	done()
	if err != nil {
		return nil, fmt.Errorf("create workspace %s: %w", w.ID, err)
	}
	w = decode(w.Node, &info)
	m.index.put(w)
	return w.clone(), nil
}

// reserve takes the ID of a new workspace for its create. It waits for another one of that ID, which
// may come to nothing. done, called with the lock, ends the wait of others.
func (m *Manager) reserve(ctx context.Context, w *Workspace) (done func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other := m.index.making[w.ID]; other != nil; other = m.index.making[w.ID] {
		m.mu.Unlock()
		select {
		case <-other.done:
		case <-ctx.Done():
		}
		m.mu.Lock()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	if e := m.index.byID[w.ID]; e != nil {
		return nil, fmt.Errorf("%w: on node %s", ErrAlreadyExists, e.Node)
	}
	if have := m.index.owned(w.Owner); m.max > 0 && have >= m.max {
		err := fmt.Errorf("%w: owner %q has %d of %d", ErrTooMany, w.Owner, have, m.max)
		return nil, reason.WithHint(err, "delete some, or raise the limit")
	}
	c := &making{owner: w.Owner, done: make(chan struct{})}
	m.index.making[w.ID] = c
	return func() {
		delete(m.index.making, w.ID)
		close(c.done)
	}, nil
}

// pick chooses the node of a new workspace.
func (m *Manager) pick(node string) (string, volume.Volume, error) {
	if node != "" {
		vol, err := m.volumeAt(node)
		return node, vol, err
	}
	var able []string
	for _, n := range m.reg.List() {
		if _, err := m.volumeAt(n.TaiID); err == nil {
			able = append(able, n.TaiID)
		}
	}
	switch {
	case slices.Contains(able, registry.Local):
		node = registry.Local
	case len(able) == 1:
		node = able[0]
	case len(able) == 0:
		return "", nil, fmt.Errorf("%w: no node that is online keeps workspaces", ErrNodeMissing)
	default:
		return "", nil, fmt.Errorf("%w: say which of %s", ErrNodeMissing, strings.Join(able, ", "))
	}
	vol, err := m.volumeAt(node)
	return node, vol, err
}

// Get returns a workspace, or [ErrNotFound]. While a node has not been heard
// of, one that is not known is [ErrNodeOffline]: it may be there.
func (m *Manager) Get(ctx context.Context, id string) (*Workspace, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	if err := m.refresh(ctx); err != nil {
		return nil, fmt.Errorf("workspace %s: %w", id, err)
	}
	m.mu.Lock()
	known := m.index.byID[id] != nil || m.index.making[id] != nil
	m.mu.Unlock()
	if !known {
		m.lookEverywhere(ctx, id)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.index.byID[id]; w != nil {
		return w.clone(), nil
	}
	return nil, m.index.absent(id)
}

// Absent returns what [Manager.Get] says of an ID that no workspace has,
// whether or not one has it: the answer for a caller who must not learn that.
func (m *Manager) Absent(id string) error {
	if err := ValidateID(id); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index.absent(id)
}

// List returns the workspaces that match, ordered by creation time. It answers
// from memory, also for nodes that are away.
func (m *Manager) List(ctx context.Context, o ListOptions) ([]*Workspace, error) {
	if err := m.refresh(ctx); err != nil {
		return nil, fmt.Errorf("list workspaces: %w", err)
	}
	m.mu.Lock()
	list := make([]*Workspace, 0, len(m.index.byID))
	for _, w := range m.index.byID {
		if w.matches(&o) {
			list = append(list, w.clone())
		}
	}
	m.mu.Unlock()
	slices.SortFunc(list, func(a, b *Workspace) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list, nil
}

// Update changes what is set in o, all of it or nothing.
func (m *Manager) Update(ctx context.Context, id string, o UpdateOptions) (*Workspace, error) {
	return m.update(ctx, id, nil, &o)
}

// UpdateThis is Update of a workspace that [Manager.Get] returned, and of no
// later one with its ID.
func (m *Manager) UpdateThis(ctx context.Context, w *Workspace, o UpdateOptions) (*Workspace, error) {
	return m.update(ctx, w.ID, w, &o)
}

func (m *Manager) update(ctx context.Context, id string, this *Workspace, o *UpdateOptions) (*Workspace, error) {
	w, err := m.change(ctx, id, this, o)
	if err != nil {
		return nil, fmt.Errorf("update workspace %s: %w", id, err)
	}
	return w, nil
}

func (m *Manager) change(ctx context.Context, id string, this *Workspace, o *UpdateOptions) (*Workspace, error) {
	errs := []error{checkLabels(o.Labels)}
	if o.Name != nil {
		errs = append(errs, checkName("name", *o.Name))
	}
	if o.Quota != nil {
		errs = append(errs, checkQuota(*o.Quota))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	// Alone with the record, so that two updates do not undo each other.
	leave, err := m.enter(ctx, id, writing)
	if err != nil {
		return nil, err
	}
	defer leave()
	w, vol, err := m.findThis(ctx, id, this)
	if err != nil {
		return nil, err
	}
	if o.Name != nil {
		if w.Name = *o.Name; w.Name == "" {
			w.Name = w.ID
		}
	}
	if o.Labels != nil {
		w.Labels = maps.Clone(o.Labels)
	}
	w.UpdatedAt = time.Now().UTC()
	raw, err := w.meta()
	if err != nil {
		return nil, err
	}
	info, err := vol.Update(ctx, id, volume.Update{Meta: raw, Quota: o.Quota})
	if err != nil {
		m.look(ctx, w.Node, vol, id)
		return nil, err
	}
	w = decode(w.Node, &info)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index.put(w)
	return w.clone(), nil
}

// Delete deletes a workspace with its files and snapshots, unless boxes have
// it mounted, running or not ([ErrHasMounts]). It waits for what holds it.
func (m *Manager) Delete(ctx context.Context, id string) error {
	return m.delete(ctx, id, nil)
}

// DeleteThis is Delete of a workspace that [Manager.Get] returned, and of no
// later one with its ID.
func (m *Manager) DeleteThis(ctx context.Context, w *Workspace) error {
	return m.delete(ctx, w.ID, w)
}

func (m *Manager) delete(ctx context.Context, id string, this *Workspace) error {
	if err := m.remove(ctx, id, this); err != nil {
		return fmt.Errorf("delete workspace %s: %w", id, err)
	}
	return nil
}

func (m *Manager) remove(ctx context.Context, id string, this *Workspace) error {
	leave, err := m.enter(ctx, id, alone)
	if err != nil {
		return err
	}
	defer leave()
	w, vol, err := m.findThis(ctx, id, this)
	if err != nil {
		return err
	}
	boxes, err := m.Mounts(ctx, id)
	if err != nil {
		return err
	}
	if len(boxes) > 0 {
		return &MountedError{Boxes: boxes}
	}
	if err = vol.Delete(ctx, id); err != nil && !errors.Is(err, ErrNotFound) {
		m.look(ctx, w.Node, vol, id)
		return err
	}
	m.mu.Lock()
	m.index.drop(id)
	m.mu.Unlock()
	return err
}

// Mounts returns the IDs of the boxes that have a workspace mounted, running
// or not.
func (m *Manager) Mounts(ctx context.Context, id string) ([]string, error) {
	w, _, err := m.find(ctx, id)
	if err != nil {
		return nil, err
	}
	n, err := m.reg.Get(w.Node)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrNodeOffline, w.Node)
	}
	infos, err := n.Client.Sandbox().List(ctx, taisandbox.Filter{})
	if err != nil {
		return nil, fmt.Errorf("boxes of node %s: %w", w.Node, err)
	}
	var boxes []string
	for i := range infos {
		if slices.ContainsFunc(infos[i].Mounts, func(mt taisandbox.Mount) bool { return mt.Workspace == id }) {
			boxes = append(boxes, infos[i].ID)
		}
	}
	return boxes, nil
}

// Hold keeps a workspace from being deleted until release is called, which is
// safe to repeat: for whoever is about to mount it. It waits for a delete
// under way, and is [ErrNotFound] if that succeeds.
func (m *Manager) Hold(ctx context.Context, id string) (release func(), err error) {
	return m.hold(ctx, id, nil)
}

// HoldThis is Hold of a workspace that [Manager.Get] returned, and of no later
// one with its ID.
func (m *Manager) HoldThis(ctx context.Context, w *Workspace) (release func(), err error) {
	return m.hold(ctx, w.ID, w)
}

func (m *Manager) hold(ctx context.Context, id string, this *Workspace) (release func(), err error) {
	leave, err := m.enter(ctx, id, holding)
	if err != nil {
		return nil, fmt.Errorf("hold workspace %s: %w", id, err)
	}
	if _, _, err := m.findThis(ctx, id, this); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}
