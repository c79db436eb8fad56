package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/workspace"
)

// Manager makes boxes on nodes and keeps an eye on them.
type Manager struct {
	cfg   Config
	reg   *registry.Registry
	log   *slog.Logger
	epoch time.Time            // activity is counted from here
	clock func() time.Duration // since epoch, whatever becomes of the wall clock

	life context.Context //nolint:containedctx // the manager's own life, not a call's: ended by Close
	end  context.CancelCauseFunc
	wg   sync.WaitGroup // every goroutine and every call that Close waits for

	// mu guards what follows, and in each Box what its comment says. No call
	// to a node is made while it is held.
	mu      sync.Mutex
	started bool
	closed  bool
	boxes   map[string]*Box
	count   census
	keys    keyring
	nodes   map[string]*follower // by TaiID
	seq     uint64               // orders looks at boxes, see Box.seen
	listing int                  // nodes being listed now
	dropped map[string]bool      // attempts that were dropped while listing > 0
	subs    map[*subscriber]struct{}
	recent  ring // of events
	agenda  agenda
}

// flight is work on a box that several callers may wait for.
type flight struct {
	done chan struct{}
	err  error // once done
	// handover: it failed because its caller left, so the next may try.
	handover bool
}

func newFlight() *flight { return &flight{done: make(chan struct{})} }

func (f *flight) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// New returns a manager. It does nothing by itself until [Manager.Start].
func New(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("new manager: %w", err)
	}
	if cfg.Registry == nil {
		cfg.Registry = registry.Global()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Workspaces == nil {
		var err error
		if cfg.Workspaces, err = workspace.New(workspace.Config{Registry: cfg.Registry, Logger: cfg.Logger}); err != nil {
			return nil, fmt.Errorf("new manager: %w", err)
		}
	}
	life, end := context.WithCancelCause(context.Background())
	epoch := time.Now()
	return &Manager{
		cfg: cfg, reg: cfg.Registry, log: cfg.Logger, life: life, end: end,
		epoch: epoch, clock: func() time.Duration { return time.Since(epoch) }, agenda: newAgenda(),
		boxes: map[string]*Box{}, count: newCensus(), nodes: map[string]*follower{},
		dropped: map[string]bool{}, subs: map[*subscriber]struct{}{}, keys: newKeyring(), recent: newRing(),
	}, nil
}

// Start recovers the boxes of this instance from all nodes and follows the
// nodes from then on, also those that are registered later. It returns once
// each node has answered or failed to; one that does not answer is no error:
// it is asked again. Repeated calls do nothing.
func (m *Manager) Start(ctx context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return fmt.Errorf("start manager: %w", ErrClosed)
	}
	if m.started {
		m.mu.Unlock()
		return nil
	}
	m.started = true
	changed := m.reg.Changed()
	first := m.followLocked(m.reg.List())
	m.wg.Go(func() { m.followRegistry(changed) })
	m.agenda.keeping, m.agenda.pulse = true, m.now()
	m.wg.Go(m.keepTime)
	m.mu.Unlock()

	for _, f := range first {
		select {
		case <-f.asked:
		case <-ctx.Done():
			return fmt.Errorf("start manager: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Close ends all that runs in the manager and waits for it. Creates under way
// are undone, streams are detached; boxes and their commands go on. The nodes
// stay with those who registered them. Repeated calls do nothing.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.end(ErrClosed)
	m.wg.Wait()
	m.unsubscribeAll()
	return nil
}

// enter admits a call that Close has to wait for; leave ends it. The context
// ends with the manager.
func (m *Manager) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, ErrClosed
	}
	m.wg.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(m.life, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		m.wg.Done()
	}, nil
}

// Get returns a box, or [ErrNotFound]. While a node has not been heard of, a
// box that is not known is [ErrNodeUnreachable]: it may be there.
func (m *Manager) Get(_ context.Context, id string) (*Box, error) {
	if err := taisandbox.ValidateID(id); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[id]; b != nil {
		return b, nil
	}
	return nil, m.absentLocked(id)
}

// Absent returns what [Manager.Get] says of an ID that no box has, whether or
// not one has it: the answer for a caller who must not learn that.
func (m *Manager) Absent(id string) error {
	if err := taisandbox.ValidateID(id); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.absentLocked(id)
}

func (m *Manager) absentLocked(id string) error {
	for _, f := range m.nodes {
		if !f.synced {
			return fmt.Errorf("box %s: %w: %s, which may have it", id, ErrNodeUnreachable, f.node.TaiID)
		}
	}
	return fmt.Errorf("box %s: %w", id, ErrNotFound)
}

// List returns the boxes that match, ordered by creation time. It answers from
// memory; so does [Box.Snapshot]. A box whose create failed, and that is just
// being undone, is nobody's and not listed.
func (m *Manager) List(_ context.Context, opts ListOptions) ([]*Box, error) {
	m.mu.Lock()
	list := make([]*Box, 0, len(m.boxes))
	for _, b := range m.boxes {
		if b.matches(&opts) && !(b.doomed == reasonFailed && b.removal != nil) {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b *Box) int {
		if c := a.info.CreatedAt.Compare(b.info.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.id, b.id)
	})
	m.mu.Unlock()
	return list, nil
}

// Remove ends a box, whatever its state, and deletes it. When it returns nil
// the ID is free. Removes of one box at the same time join.
func (m *Manager) Remove(ctx context.Context, id string) error {
	b, err := m.Get(ctx, id)
	if err != nil {
		return err
	}
	return b.Remove(ctx)
}

// Nodes returns all registered nodes.
func (m *Manager) Nodes() []registry.NodeSnapshot { return m.reg.List() }

// Images returns the images of a node.
func (m *Manager) Images(nodeID string) (taisandbox.Image, error) {
	n, err := m.node(nodeID)
	if err != nil {
		return nil, err
	}
	return n.Client.Image(), nil
}

// node finds a node, or says why there is none.
func (m *Manager) node(id string) (registry.TaiNode, error) {
	if id == "" {
		if len(m.reg.List()) == 0 {
			return registry.TaiNode{}, ErrNotAvailable
		}
		return registry.TaiNode{}, ErrNodeMissing
	}
	n, err := m.reg.Get(id)
	if errors.Is(err, ErrNodeNotFound) && len(m.reg.List()) == 0 {
		return n, fmt.Errorf("node %.64q: %w", id, ErrNotAvailable)
	}
	return n, err
}

// nextSeqLocked numbers a look at a box. What a look with a lower number found
// never replaces what one with a higher number found.
func (m *Manager) nextSeqLocked() uint64 {
	m.seq++
	return m.seq
}

// now is the time on the manager's own clock.
func (m *Manager) now() time.Duration { return m.clock() }
