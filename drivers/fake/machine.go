package fake

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// Reasons of box states, beside those of a test's own.
const (
	ReasonUser             = "user"
	ReasonMachineRestarted = "machine-restarted"
	ReasonInterrupted      = "interrupted"
)

// machine is all that outlives a driver.
type machine struct {
	mu      sync.Mutex
	boxes   map[string]*box
	images  map[string]sandbox.ImageInfo // by name
	drivers map[*Driver]struct{}
	nextIP  int

	events broadcast
	work   group
}

// group counts the goroutines of a machine. Unlike a WaitGroup it may be waited
// for while others start more.
type group struct {
	mu   sync.Mutex
	n    int
	zero *sync.Cond
}

func (g *group) run(f func()) {
	g.mu.Lock()
	g.n++
	g.mu.Unlock()
	go func() {
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.n--; g.n == 0 {
				g.zero.Broadcast()
			}
		}()
		f()
	}()
}

func (g *group) wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.n > 0 {
		g.zero.Wait()
	}
}

func newMachine() *machine {
	m := &machine{
		boxes:   map[string]*box{},
		images:  map[string]sandbox.ImageInfo{sandbox.HostFS: hostFS()},
		drivers: map[*Driver]struct{}{},
		events:  broadcast{subs: map[*subscriber]struct{}{}},
	}
	m.work.zero = sync.NewCond(&m.work.mu)
	return m
}

// all returns the boxes in order of creation.
func (m *machine) all() []*box {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.boxes), func(a, b *box) int { return a.number - b.number })
}

// recover finishes or undoes what a killed driver left half done.
func (m *machine) recover() {
	for _, b := range m.all() {
		switch b.snapshot().State {
		case sandbox.StateCreating, sandbox.StateRemoving:
			b.killAll()
			b.waitIdle(context.Background(), nil)
			m.forget(b)
		case sandbox.StateStopping:
			b.killAll()
			b.waitIdle(context.Background(), nil)
			b.setState(sandbox.StateStopped, ReasonInterrupted)
		default:
		}
	}
}

// forget frees the ID of a box whose processes are gone.
func (m *machine) forget(b *box) {
	m.mu.Lock()
	known := m.boxes[b.id] == b
	if known {
		delete(m.boxes, b.id)
	}
	m.mu.Unlock()
	if known {
		m.events.publish(sandbox.Event{Time: time.Now(), Type: sandbox.EventRemoved, Box: b.id, Labels: b.labels()})
	}
}

func (m *machine) crash() {
	m.mu.Lock()
	drivers := slices.Collect(maps.Keys(m.drivers))
	m.mu.Unlock()
	for _, d := range drivers {
		d.shut()
	}
	for _, b := range m.all() {
		b.breakDown(sandbox.StateStopped, ReasonMachineRestarted)
	}
	m.work.wait()
}

// Break ends a running box as the death of its PID 1 does: its execs are lost,
// its state is failed with the given reason ("oom", "bridge-lost").
func (d *Driver) Break(id, reason string) error {
	b, err := d.box(id)
	if err != nil {
		return err
	}
	b.breakDown(sandbox.StateFailed, reason)
	b.waitIdle(context.Background(), nil)
	return nil
}
