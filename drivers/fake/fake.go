package fake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/tai/sandbox"
)

var errClosed = fmt.Errorf("driver is closed: %w", errdefs.ErrUnavailable)

// Driver implements [sandbox.Sandbox] and [sandbox.Image] in memory.
type Driver struct {
	m        *machine
	private  bool // the machine ends with the driver
	programs map[string]Program
	features sandbox.Features
	faultFn  func(op, id string) error
	registry map[string]sandbox.ImageConfig // by full name
	log      *slog.Logger

	mu      sync.Mutex
	streams map[*stream]struct{}
	closed  chan struct{}
	isDone  bool
}

var (
	_ sandbox.Sandbox = (*Driver)(nil)
	_ sandbox.Image   = (*Driver)(nil)
)

// Option changes a driver.
type Option func(*Driver)

// WithProgram adds a program, or replaces one. See [Program] for the rules.
func WithProgram(name string, p Program) Option {
	return func(d *Driver) { d.programs[name] = p }
}

// WithFault calls f before each step of each call, with the step's name (such
// as "create.rootfs", see [Steps]) and the ID of the box or the name of the
// image. What it returns is that step's failure; [ErrKilled] is the end of the
// driver's process at that step.
func WithFault(f func(op, id string) error) Option {
	return func(d *Driver) { d.faultFn = f }
}

// WithoutFeatures takes features away: calls that need them fail.
func WithoutFeatures(fs ...sandbox.Feature) Option {
	return func(d *Driver) {
		for _, f := range fs {
			delete(d.features, f)
		}
	}
}

// WithRegistry gives the driver images that it can pull, by name.
func WithRegistry(images map[string]sandbox.ImageConfig) Option {
	return func(d *Driver) { d.registry = images }
}

// WithLogger makes the driver report what it does. The default is silence.
func WithLogger(l *slog.Logger) Option {
	return func(d *Driver) { d.log = l }
}

// New returns a driver with a machine of its own, which ends with Close.
func New(opts ...Option) *Driver {
	d := newDriver(newMachine(), opts)
	d.private = true
	return d
}

// machines are those that a directory's name stands for.
var machines = struct {
	sync.Mutex
	m map[string]*machine
}{m: map[string]*machine{}}

// Open returns a driver on the machine that dir stands for, and finishes or
// undoes what a killed driver left half done there.
func Open(ctx context.Context, dir string, opts ...Option) (*Driver, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("open driver: %w", context.Cause(ctx))
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open driver: %w", err)
	}
	machines.Lock()
	m := machines.m[dir]
	if m == nil {
		m = newMachine()
		machines.m[dir] = m
	}
	machines.Unlock()
	m.recover()
	return newDriver(m, opts), nil
}

func newDriver(m *machine, opts []Option) *Driver {
	d := &Driver{
		m:        m,
		programs: builtin(),
		features: allFeatures(),
		log:      slog.New(slog.DiscardHandler),
		streams:  map[*stream]struct{}{},
		closed:   make(chan struct{}),
	}
	for _, o := range opts {
		o(d)
	}
	m.mu.Lock()
	m.drivers[d] = struct{}{}
	m.mu.Unlock()
	return d
}

// Crash is a sudden restart of the machine: drivers on it are dead, all
// processes gone, execs lost, boxes stopped with the reason
// [ReasonMachineRestarted]. It waits for the programs to return.
func Crash(dir string) {
	if m := find(dir, false); m != nil {
		m.crash()
	}
}

// Wipe ends the machine that dir stands for, with all that is on it.
func Wipe(dir string) {
	if m := find(dir, true); m != nil {
		m.crash()
	}
}

func find(dir string, forget bool) *machine {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil
	}
	machines.Lock()
	defer machines.Unlock()
	m := machines.m[dir]
	if forget {
		delete(machines.m, dir)
	}
	return m
}

func allFeatures() sandbox.Features {
	return sandbox.Features{
		sandbox.FeatureTTY: true, sandbox.FeatureStats: true, sandbox.FeaturePorts: true,
		sandbox.FeatureMemoryLimit: true, sandbox.FeatureCPULimit: true, sandbox.FeaturePidsLimit: true,
		sandbox.FeatureNetworkNone: true, sandbox.FeatureNetwork: true, sandbox.FeatureUserNS: true,
		sandbox.FeatureExecCgroup: true, sandbox.FeatureSurvives: true, sandbox.FeatureImageImport: true,
		sandbox.FeatureReadOnlyRoot: true, sandbox.FeatureProcesses: true, sandbox.FeatureFiles: true, sandbox.FeatureImagePull: true, sandbox.FeatureMounts: true,
	}
}

// Features returns all features but those taken away.
func (d *Driver) Features() sandbox.Features { return maps.Clone(d.features) }

// Close lets go of the machine, which goes on; one made by New ends.
func (d *Driver) Close() error {
	if d.private {
		d.m.crash()
		return nil
	}
	d.shut()
	return nil
}

// shut breaks all that goes through the driver.
func (d *Driver) shut() {
	d.mu.Lock()
	if d.isDone {
		d.mu.Unlock()
		return
	}
	d.isDone = true
	close(d.closed)
	streams := d.streams
	d.streams = nil
	d.mu.Unlock()

	for s := range streams {
		s.detach(errClosed, false)
	}
	d.m.events.closeOf(d)
	d.m.mu.Lock()
	delete(d.m.drivers, d)
	d.m.mu.Unlock()
}

// track keeps a stream for shut. It reports false once the driver is closed.
func (d *Driver) track(s *stream) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isDone {
		d.streams[s] = struct{}{}
	}
	return !d.isDone
}

func (d *Driver) untrack(s *stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.streams, s)
}

// begin is the first line of each call: neither a dead driver nor an ended
// context touches anything.
func (d *Driver) begin(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case d.dead():
		return errClosed
	}
	return nil
}

func (d *Driver) dead() bool {
	select {
	case <-d.closed:
		return true
	default:
		return false
	}
}

// step is the beginning of a step of a call: here it may fail as scripted.
func (d *Driver) step(ctx context.Context, op, id string) error {
	if d.faultFn != nil {
		if err := d.faultFn(op, id); err != nil {
			d.log.DebugContext(ctx, "scripted failure", slog.String("op", op), slog.String("box", id), slog.Any("err", err))
			if errors.Is(err, ErrKilled) {
				d.shut()
			}
			return err
		}
	}
	return d.begin(ctx)
}

// box finds a box by ID.
func (d *Driver) box(id string) (*box, error) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if b := d.m.boxes[id]; b != nil {
		return b, nil
	}
	return nil, sandbox.ErrNotFound
}

// need returns an error that names a feature taken away.
func (d *Driver) need(f sandbox.Feature) error {
	if d.features.Has(f) {
		return nil
	}
	return fmt.Errorf("%w: %s", sandbox.ErrUnsupported, f)
}
