// Package oci implements tai/sandbox with an OCI runtime on a bare Linux
// machine: the embedded driver.
//
// It needs Linux 5.19 or newer, root, overlayfs, nftables, a data directory on
// a file system that can be id-mapped, and the two programs of Config. It
// keeps everything in its data directory; what exists only while boxes run is
// below /run/taibox/<instance>, in cgroups /taibox-<instance>, in interfaces
// tb<instance>… and in the nftables table taibox-<instance>. Boxes go on while
// no driver is open. To clean up by hand after losing the data directory:
// remove those, the cgroups' processes first.
package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/drivers/oci/image/hostfs"
	"github.com/taibox/taibox/internal/probe"
	"github.com/taibox/taibox/internal/tracing"
	"github.com/taibox/taibox/tai/sandbox"
)

// Config says how to open the driver.
type Config struct {
	DataDir    string // required; held by one driver at a time, see node
	Instance   string // required; 8 lower-case hexadecimal digits
	RuncPath   string // required; taibox-runc
	BridgePath string // required; taibox-bridge
	// RuncSHA256 and BridgeSHA256 are what the two programs have to be, in
	// hexadecimal. Default: whatever they are when the driver is opened.
	RuncSHA256, BridgeSHA256 string
	// RunRoot is where run directories of all instances are. Default /run/taibox.
	RunRoot string
	// PoolSize is how many namespaces are made ahead. Default 4; negative for none.
	PoolSize int
	// Resolvers are where boxes' DNS questions go. Default: the machine's own.
	Resolvers []string
	// Registries says how to reach registries, see image.Config.
	Registries map[string]image.Registry
	// OrphanAfter is how long a box goes on after the last driver has let go of
	// it. Default: for ever.
	OrphanAfter time.Duration
	// KeepExecs and KeepExecBytes are how many finished execs are kept, and how
	// much output, a box. Default 1000 and 1 GiB. The logs of running execs may
	// grow to as much together, whatever is asked for each, and a MiB each.
	KeepExecs     int
	KeepExecBytes int64
	Logger        *slog.Logger // default: discard
	// Step, if set, is called before each step of each operation. Tests end
	// the process there, or fail the step.
	Step func(op, step, id string) error
}

// Driver runs boxes on this machine.
type Driver struct {
	cfg     Config
	log     *slog.Logger
	bootID  string
	runRoot string // of the instance
	bridge  *keptBridge

	images   *image.Store
	hostfs   *hostfs.HostFS
	runc     *runc.Runc
	slot     *slot
	network  *network
	firewall *firewall
	pool     *pairPool
	cgroups  *cgroupTree
	events   *broadcaster

	mu    sync.Mutex
	boxes map[string]*box

	stop context.CancelCauseFunc
	ctx  context.Context //nolint:containedctx // the life of the background work, ended by Close
	wg   sync.WaitGroup
	once sync.Once
}

var (
	_ sandbox.Sandbox = (*Driver)(nil)
	_ sandbox.Image   = (*Driver)(nil)

	errClosed = errors.New("driver is closed")
)

// Open takes the instance over: boxes that run are found again, and what an
// earlier process left half done is finished or undone.
func Open(ctx context.Context, cfg Config) (_ *Driver, err error) {
	if cfg.RunRoot == "" {
		cfg.RunRoot = "/run/taibox"
	}
	if cfg.PoolSize == 0 {
		cfg.PoolSize = 4
	}
	cfg.KeepExecs = cmp.Or(cfg.KeepExecs, 1000)
	cfg.KeepExecBytes = cmp.Or(cfg.KeepExecBytes, 1<<30)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err != nil {
		return nil, err
	}
	d := &Driver{
		cfg: cfg, log: cfg.Logger, runRoot: filepath.Join(cfg.RunRoot, cfg.Instance),
		boxes: map[string]*box{}, events: newBroadcaster(),
	}
	d.ctx, d.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open oci driver: %w", err), d.Close())
		}
	}()
	if err := d.prepare(ctx); err != nil {
		return nil, err
	}
	if err := d.recover(ctx); err != nil {
		return nil, err
	}
	d.goRun(d.firewall.run)
	d.goRun(d.finishRemovals)
	d.goRun(d.warmHostFS)
	if cfg.PoolSize > 0 {
		d.goRun(d.pool.run)
	}
	return d, nil
}

// warmHostFS makes the built-in image ahead of its first box.
func (d *Driver) warmHostFS(ctx context.Context) {
	view, err := d.hostfs.Use(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn("built-in image is not ready", slog.Any("err", err))
		}
		return
	}
	view.Release()
}

// goRun runs a background job until Close.
func (d *Driver) goRun(job func(context.Context)) {
	d.wg.Go(func() { job(d.ctx) })
}

// prepare opens what the driver stands on.
func (d *Driver) prepare(ctx context.Context) (err error) {
	if d.bootID, err = bootID(); err != nil {
		return err
	}
	if err := mkdirs(0o711, d.cfg.RunRoot, d.runRoot, filepath.Join(d.runRoot, "b")); err != nil {
		return err
	}
	if err := mkdirs(0o700, filepath.Join(d.cfg.DataDir, "boxes"), filepath.Join(d.runRoot, "runc")); err != nil {
		return noSpace(err)
	}
	if _, err := pinned("OCI runtime", d.cfg.RuncPath, d.cfg.RuncSHA256); err != nil {
		return err
	}
	if d.bridge, err = d.installBridge(); err != nil {
		return err
	}
	if d.cgroups, err = newCgroupTree(cgroupRoot, d.cfg.Instance, cgroups.Mode()); err != nil {
		return err
	}
	if d.slot, err = claimSlot(filepath.Join(d.cfg.RunRoot, "slots"), d.cfg.Instance, d.cfg.DataDir); err != nil {
		return err
	}
	d.network = &network{instance: d.cfg.Instance, slot: d.slot}
	d.firewall = &firewall{net: d.network, lookup: d.resolvers, log: d.log, tick: firewallTick}
	if err := d.firewall.open(); err != nil {
		return err
	}
	d.pool = newPairPool(filepath.Join(d.runRoot, "b"), d.bridge.verified, d.slot, d.network, max(d.cfg.PoolSize, 0), d.log)
	d.runc = &runc.Runc{
		Command: d.cfg.RuncPath, Root: filepath.Join(d.runRoot, "runc"),
		PdeathSignal: unix.SIGKILL, // a half-made box does not go on being made without us
	}
	d.images, err = image.Open(ctx, image.Config{Dir: filepath.Join(d.cfg.DataDir, "images"), Logger: d.log, InUse: d.imageUsers, Registries: d.cfg.Registries})
	if err != nil {
		return err
	}
	d.hostfs, err = hostfs.Open(ctx, hostfs.Config{
		Dir: filepath.Join(d.cfg.DataDir, "hostfs"), RunDir: filepath.Join(d.runRoot, "hostfs"), InUse: d.hasHostFS, Logger: d.log,
	})
	return err
}

// resolvers returns the IPv4 addresses that can answer a box's DNS questions.
func (d *Driver) resolvers() ([]netip.Addr, error) {
	found := probe.Upstreams()
	if len(d.cfg.Resolvers) > 0 {
		found = nil
	}
	for _, s := range d.cfg.Resolvers {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("resolver %q: %w: %w", s, sandbox.ErrInvalidSpec, err)
		}
		found = append(found, a)
	}
	return slices.DeleteFunc(found, func(a netip.Addr) bool { return !a.Is4() || a.IsLoopback() }), nil
}

// Close lets go of the machine; boxes go on.
func (d *Driver) Close() error {
	var err error
	d.once.Do(func() {
		d.stop(errClosed)
		d.mu.Lock()
		boxes := d.boxes
		d.boxes = map[string]*box{}
		d.mu.Unlock()
		for _, b := range boxes {
			b.detach()
		}
		d.wg.Wait()
		d.events.close()
		if d.pool != nil {
			err = errors.Join(err, d.pool.close())
		}
		if d.hostfs != nil {
			err = errors.Join(err, d.hostfs.Close())
		}
		if d.images != nil {
			err = errors.Join(err, d.images.Close())
		}
		if d.slot != nil {
			err = errors.Join(err, d.slot.close())
		}
	})
	return err
}

// Features implements [sandbox.Sandbox].
func (d *Driver) Features() sandbox.Features {
	return sandbox.Features{
		sandbox.FeatureTTY: true, sandbox.FeatureStats: true, sandbox.FeaturePorts: true,
		sandbox.FeatureMemoryLimit: d.cgroups.available("memory"),
		sandbox.FeatureCPULimit:    d.cgroups.available("cpu"),
		sandbox.FeaturePidsLimit:   d.cgroups.available("pids"),
		sandbox.FeatureNetworkNone: true, sandbox.FeatureNetwork: true, sandbox.FeatureUserNS: true,
		sandbox.FeatureExecCgroup: d.cgroups.unified != "",
		sandbox.FeatureSurvives:   true, sandbox.FeatureImageImport: true, sandbox.FeatureImagePull: true, sandbox.FeatureImageExport: true, sandbox.FeatureReadOnlyRoot: true,
		sandbox.FeatureProcesses: true, sandbox.FeatureFiles: true, sandbox.FeatureFileWatch: true, sandbox.FeatureMounts: true,
	}
}

// step marks a step of an operation, for tests and for the trace of its phases.
func (d *Driver) step(op, step, id string) error {
	if d.cfg.Step == nil {
		return nil
	}
	return d.cfg.Step(op, step, id)
}

// trace collects where the time of an operation goes.
type trace struct {
	ctx    context.Context //nolint:containedctx // the operation's, for spans
	last   time.Time
	phases []sandbox.Phase
}

func newTrace(ctx context.Context) *trace { return &trace{ctx: ctx, last: time.Now()} }

func (t *trace) done(name string) {
	now := time.Now()
	t.phases = append(t.phases, sandbox.Phase{Name: name, Duration: now.Sub(t.last)})
	tracing.Done(t.ctx, "box."+name, t.last)
	t.last = now
}
