package sandboxtest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// Driver is what is tested.
type Driver interface {
	sandbox.Sandbox
	sandbox.Image
}

// Subject opens the driver under test on a directory. Opening the same
// directory again, after Close, must find the same boxes.
type Subject func(t *testing.T, dir string) Driver

// Option says what differs between drivers and machines.
type Option func(*options)

type options struct {
	image    string
	commands Commands
	patience time.Duration
	quick    bool
	prepare  func(t *testing.T, d Driver)
	residue  func(t *testing.T) string
	wipe     func(t *testing.T, dir string)
}

// WithImage names the image that boxes are made of. The default is hostfs.
func WithImage(name string) Option { return func(o *options) { o.image = name } }

// WithCommands says how things are done in a box. The default is [ShellCommands].
func WithCommands(c Commands) Option { return func(o *options) { o.commands = c } }

// WithPatience bounds each test and each wait that should end at once. The
// default is a minute.
func WithPatience(d time.Duration) Option { return func(o *options) { o.patience = d } }

// Quick leaves out what waits for half a minute, as -short does. It is for the
// second run of one driver.
func Quick() Option { return func(o *options) { o.quick = true } }

// WithPrepare runs f on the driver of each group before anything else, to load
// images.
func WithPrepare(f func(t *testing.T, d Driver)) Option { return func(o *options) { o.prepare = f } }

// WithResidue takes f before and after each group: what it returns (mounts,
// cgroups, interfaces of the machine) must be the same.
func WithResidue(f func(t *testing.T) string) Option { return func(o *options) { o.residue = f } }

// WithWipe runs f on each group's directory after its driver was closed, before
// the directory is deleted.
func WithWipe(f func(t *testing.T, dir string)) Option { return func(o *options) { o.wipe = f } }

// Run runs every group as a subtest.
func Run(t *testing.T, open Subject, opts ...Option) {
	o := options{image: sandbox.HostFS, commands: ShellCommands(), patience: time.Minute}
	for _, opt := range opts {
		opt(&o)
	}
	for _, g := range []struct {
		name string
		run  func(*env)
	}{
		{"lifecycle", lifecycle},
		{"errors", errorClasses},
		{"exec", execs},
		{"input", input},
		{"output", output},
		{"ending", ending},
		{"attach", attach},
		{"tty", tty},
		{"cancel", cancellation},
		{"reopen", reopen},
		{"parallel", parallel},
		{"limits", limits},
		{"network", network},
		{"ports", ports},
		{"events", events},
		{"images", images},
		{"files", files},
		{"mounts", mounts},
		{"optional", optional},
	} {
		t.Run(g.name, func(t *testing.T) { runGroup(t, open, o, g.run) })
	}
}

// group is what the tests of one group share.
type group struct {
	options
	open Subject
	dir  string
	d    Driver

	once   sync.Once
	shared string
}

func runGroup(t *testing.T, open Subject, o options, run func(*env)) {
	before := ""
	if o.residue != nil {
		before = o.residue(t)
	}
	// A short path: drivers keep sockets below it.
	dir, err := os.MkdirTemp("", "tbx")
	if err != nil {
		t.Fatal(err)
	}
	g := &group{options: o, open: open, dir: dir}
	g.d = open(t, dir)
	t.Cleanup(func() {
		g.end(t)
		if o.residue != nil {
			if after := o.residue(t); after != before {
				t.Errorf("something is left on the machine:\n--- before\n%s\n--- after\n%s", before, after)
			}
		}
	})
	if o.prepare != nil {
		o.prepare(t, g.d)
	}
	run(&env{T: t, group: g})
}

// end removes what failed tests left, and checks that the node is empty.
func (g *group) end(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), g.patience, errPatience)
	defer cancel()
	left, err := g.d.List(ctx, sandbox.Filter{})
	if err != nil {
		t.Errorf("list in the end: %v", err)
	}
	for _, info := range left {
		if info.ID != g.shared && !t.Failed() {
			t.Errorf("box %s is left, %s", info.ID, info.State)
		}
		if err := g.d.Remove(ctx, info.ID); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("remove in the end: %v", err)
		}
	}
	left, err = g.d.List(ctx, sandbox.Filter{})
	for range 2 {
		if err := g.d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err != nil || len(left) > 0 {
		t.Fatalf("after removing all boxes there are %d, %v; %s is kept, to look at", len(left), err, g.dir)
	}
	if g.wipe != nil {
		g.wipe(t, g.dir)
	}
	if err := os.RemoveAll(g.dir); err != nil {
		t.Errorf("the directory cannot be deleted: %v", err)
	}
}
