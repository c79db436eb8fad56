package sandbox_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is the TaiID of the tests' node.
const node = registry.Local

// rig is a manager over one node.
type rig struct {
	t   *testing.T
	m   *sandbox.Manager
	d   *fake.Driver
	reg *registry.Registry
	cfg sandbox.Config
}

// hook stands between the manager and its node.
type hook struct {
	taisandbox.Sandbox
	inspect func(context.Context, string) error
	list    func(context.Context) error
	created func(context.Context, taisandbox.Spec) error // after the create
	remove  func(context.Context, string) error
	execs   func(context.Context, string) error
	stop    func(context.Context, string) error
	infos   func([]taisandbox.Info) // changes what a list says
	events  func(context.Context) (<-chan taisandbox.Event, error)
}

func (h *hook) Unwrap() taisandbox.Sandbox { return h.Sandbox }

func (h *hook) Inspect(ctx context.Context, id string) (taisandbox.Info, error) {
	if h.inspect != nil {
		if err := h.inspect(ctx, id); err != nil {
			return taisandbox.Info{}, err
		}
	}
	return h.Sandbox.Inspect(ctx, id)
}

func (h *hook) List(ctx context.Context, f taisandbox.Filter) ([]taisandbox.Info, error) {
	infos, err := h.Sandbox.List(ctx, f)
	if h.list != nil {
		if err := h.list(ctx); err != nil {
			return nil, err
		}
	}
	if h.infos != nil {
		h.infos(infos)
	}
	return infos, err
}

func (h *hook) Create(ctx context.Context, spec taisandbox.Spec) (taisandbox.Info, error) {
	info, err := h.Sandbox.Create(ctx, spec)
	if err == nil && h.created != nil {
		err = h.created(ctx, spec)
	}
	return info, err
}

func (h *hook) Remove(ctx context.Context, id string) error {
	if h.remove != nil {
		if err := h.remove(ctx, id); err != nil {
			return err
		}
	}
	return h.Sandbox.Remove(ctx, id)
}

func (h *hook) ListExecs(ctx context.Context, id string) ([]taisandbox.ExecInfo, error) {
	if h.execs != nil {
		if err := h.execs(ctx, id); err != nil {
			return nil, err
		}
	}
	return h.Sandbox.ListExecs(ctx, id)
}

func (h *hook) Stop(ctx context.Context, id string, grace time.Duration) error {
	if h.stop != nil {
		if err := h.stop(ctx, id); err != nil {
			return err
		}
	}
	return h.Sandbox.Stop(ctx, id, grace)
}

func (h *hook) StopFor(ctx context.Context, id string, grace time.Duration, why string) error {
	if h.stop != nil {
		if err := h.stop(ctx, id); err != nil {
			return err
		}
	}
	return h.Sandbox.(taisandbox.ReasonStopper).StopFor(ctx, id, grace, why)
}

func (h *hook) Events(ctx context.Context) (<-chan taisandbox.Event, error) {
	if h.events != nil {
		return h.events(ctx)
	}
	return h.Sandbox.Events(ctx)
}

// blind is a node whose events are lost.
func blind(context.Context) (<-chan taisandbox.Event, error) { return nil, nil }

func newRig(t *testing.T, opts ...fake.Option) *rig {
	t.Helper()
	return newRigOn(t, fake.New(opts...), nil, sandbox.DefaultConfig())
}

// newRigOn starts a manager on a driver, seen through a hook.
func newRigOn(t *testing.T, d *fake.Driver, h *hook, cfg sandbox.Config) *rig {
	t.Helper()
	r := &rig{t: t, d: d, reg: registry.New(), cfg: cfg}
	var sb taisandbox.Sandbox = d
	if h != nil {
		h.Sandbox = d
		sb = h
	}
	client := tai.NewClient(sb, d)
	must(t, r.reg.Register(registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: node, Runtime: "fake"}, Client: client}))
	t.Cleanup(func() { must(t, client.Close()) })
	r.m = r.manager()
	return r
}

// manager starts one more manager on the rig's nodes.
func (r *rig) manager() *sandbox.Manager {
	r.t.Helper()
	cfg := r.cfg
	cfg.Registry = r.reg
	m, err := sandbox.New(cfg)
	must(r.t, err)
	r.t.Cleanup(func() { must(r.t, m.Close()) })
	must(r.t, m.Start(r.t.Context()))
	return m
}

// restart replaces the manager, as a restart of the server does.
func (r *rig) restart() {
	r.t.Helper()
	must(r.t, r.m.Close())
	r.m = r.manager()
}

func (r *rig) create(o sandbox.CreateOptions) *sandbox.Box {
	r.t.Helper()
	b, err := r.m.Create(r.t.Context(), with(o))
	must(r.t, err)
	return b
}

// with fills in what every box of the tests has.
func with(o sandbox.CreateOptions) sandbox.CreateOptions {
	if o.NodeID == "" {
		o.NodeID = node
	}
	if o.Image == "" {
		o.Image = taisandbox.HostFS
	}
	return o
}

// want checks that the manager and the node agree on which boxes there are.
func (r *rig) want(ids ...string) {
	r.t.Helper()
	slices.Sort(ids)
	if got := r.listed(); !cmp.Equal(got, ids) && len(got)+len(ids) > 0 {
		r.t.Errorf("the manager has %v, want %v", got, ids)
	}
	if got := r.onNode(); !cmp.Equal(got, ids) && len(got)+len(ids) > 0 {
		r.t.Errorf("the node has %v, want %v", got, ids)
	}
}

func (r *rig) listed() []string {
	r.t.Helper()
	boxes, err := r.m.List(r.t.Context(), sandbox.ListOptions{})
	must(r.t, err)
	var ids []string
	for _, b := range boxes {
		ids = append(ids, b.ID())
	}
	slices.Sort(ids)
	return ids
}

func (r *rig) onNode() []string {
	r.t.Helper()
	infos, err := r.d.List(context.WithoutCancel(r.t.Context()), taisandbox.Filter{})
	must(r.t, err)
	var ids []string
	for i := range infos {
		ids = append(ids, infos[i].ID)
	}
	slices.Sort(ids)
	return ids
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

func wantStatus(t *testing.T, b *sandbox.Box, status taisandbox.State, reason string) {
	t.Helper()
	s := b.Snapshot()
	if s.Status != string(status) || s.StopReason != reason {
		t.Errorf("box %s is %s (%s), want %s (%s)", b.ID(), s.Status, s.StopReason, status, reason)
	}
}

// at runs f under the fake clock.
func at(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// pass lets time pass, and all that is due in it happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// parallel runs n calls at once and returns their errors.
func parallel(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}
