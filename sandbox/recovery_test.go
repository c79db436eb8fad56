package sandbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// server is a node and its manager as one process, which can be killed.
type server struct {
	*rig
	dir string
}

func newServer(t *testing.T, dir string, opts ...fake.Option) *server {
	t.Helper()
	d, err := fake.Open(t.Context(), dir, opts...)
	must(t, err)
	return &server{newRigOn(t, d, nil, sandbox.DefaultConfig()), dir}
}

func machineDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { fake.Wipe(dir) })
	return dir
}

// Wherever the server is killed within a create, the next one has the whole
// box, a failed one or nothing, but no half one; it can be removed, and the ID
// works.
func TestG01KilledInCreate(t *testing.T) {
	for _, step := range []string{
		"create.image", "create.rootfs", "create.network", "create.record", "create.done",
		"start.runtime", "start.bridge", "start.entrypoint", "start.done",
	} {
		t.Run(step, func(t *testing.T) {
			at(t, func(t *testing.T) {
				dir := machineDir(t)
				f, err := fake.Failpoints(step + ":kill")
				must(t, err)
				first := newServer(t, dir, fake.WithFault(f))
				_, err = first.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x"}))
				if err == nil {
					t.Fatal("the create survived")
				}
				must(t, first.m.Close())

				second := newServer(t, dir)
				synctest.Wait()
				if boxes := second.listed(); len(boxes) > 0 {
					b, err := second.m.Get(t.Context(), "x")
					must(t, err)
					if s := b.Snapshot(); s.Status != "running" && (s.Status != "failed" || s.StopReason == "") {
						t.Errorf("it is %s (%s)", s.Status, s.StopReason)
					}
					must(t, b.Remove(t.Context()))
				}
				second.want()
				second.create(sandbox.CreateOptions{ID: "x"})
				second.want("x")
			})
		})
	}
}

// A create whose answer was lost with the server is repeated with its key, and
// comes to a box: the one that was made, or else a new one.
func TestG01KilledInCreateIsRepeated(t *testing.T) {
	for _, step := range []string{"create.image", "create.record", "create.done", "start.runtime", "start.bridge", "start.done"} {
		t.Run(step, func(t *testing.T) {
			at(t, func(t *testing.T) {
				dir := machineDir(t)
				f, err := fake.Failpoints(step + ":kill")
				must(t, err)
				first := newServer(t, dir, fake.WithFault(f))
				o := sandbox.CreateOptions{ID: "x", IdempotencyKey: "k"}
				if _, err := first.m.Create(t.Context(), with(o)); err == nil {
					t.Fatal("the create survived")
				}
				must(t, first.m.Close())

				second := newServer(t, dir)
				wantStatus(t, second.create(o), taisandbox.StateRunning, "")
				second.want("x")
			})
		})
	}
}

func TestG01KilledInRemove(t *testing.T) {
	for _, step := range []string{"remove.kill", "remove.runtime", "remove.network", "remove.rootfs", "remove.record", "remove.done"} {
		t.Run(step, func(t *testing.T) {
			at(t, func(t *testing.T) {
				dir := machineDir(t)
				f, err := fake.Failpoints(step + ":kill")
				must(t, err)
				first := newServer(t, dir, fake.WithFault(f))
				b := first.create(sandbox.CreateOptions{ID: "x"})
				if err := b.Remove(t.Context()); err == nil {
					t.Fatal("the remove survived")
				}
				must(t, first.m.Close())

				second := newServer(t, dir)
				synctest.Wait()
				if len(second.listed()) > 0 {
					must(t, second.m.Remove(t.Context(), "x"))
				}
				second.create(sandbox.CreateOptions{ID: "x"})
				second.want("x")
			})
		})
	}
}

func TestG02EndedWhileDown(t *testing.T) {
	dir := machineDir(t)
	first := newServer(t, dir)
	first.create(sandbox.CreateOptions{ID: "killed"})
	first.create(sandbox.CreateOptions{ID: "well"})
	must(t, first.m.Close())
	must(t, first.d.Break("killed", "oom"))

	second := newServer(t, dir)
	b, err := second.m.Get(t.Context(), "killed")
	must(t, err)
	wantStatus(t, b, taisandbox.StateFailed, "oom")
	_, err = b.Exec(t.Context(), []string{"true"})
	wantErr(t, err, sandbox.ErrNotRunning)
	b, err = second.m.Get(t.Context(), "well")
	must(t, err)
	wantStatus(t, b, taisandbox.StateRunning, "")
	must(t, second.m.Close())

	fake.Crash(dir)
	third := newServer(t, dir)
	b, err = third.m.Get(t.Context(), "well")
	must(t, err)
	wantStatus(t, b, taisandbox.StateStopped, fake.ReasonMachineRestarted)
	must(t, b.Start(t.Context()))
	wantStatus(t, b, taisandbox.StateRunning, "")
}

// A stop that the node has not come to the end of is resumed.
func TestG02KilledInStop(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRigOn(t, fake.New(), &hook{events: blind}, sandbox.DefaultConfig())
		b := r.create(sandbox.CreateOptions{ID: "x"})
		_, err := b.Stream(t.Context(), []string{"trap"})
		must(t, err)
		synctest.Wait()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("killed"))
		defer cancel()
		if err := b.StopWithin(ctx, time.Hour); err == nil {
			t.Fatal("the stop ended")
		}
		r.restart()
		b, err = r.m.Get(t.Context(), "x")
		must(t, err)
		wantStatus(t, b, taisandbox.StateStopping, "user")
		pass(time.Hour)
		wantStatus(t, b, taisandbox.StateStopped, "user")
	})
}

func TestG05InventoryFromLabels(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		var want []sandbox.BoxInfo
		for _, o := range []sandbox.CreateOptions{
			{ID: "a", Owner: "ann", Labels: map[string]string{"team": "x", "empty": ""}, StopTimeout: time.Minute},
			{ID: "b", Policy: sandbox.OneShot},
			{ID: "c", Policy: sandbox.Persistent, Owner: "bob"},
			{ID: "d", Policy: sandbox.LongRunning, NoStart: true, KeepAlive: true},
			{ID: "e", Policy: sandbox.Session, Memory: 64 << 20},
		} {
			b := r.create(o)
			time.Sleep(time.Second)
			info, err := b.Info(t.Context())
			must(t, err)
			want = append(want, *info)
		}
		r.restart()
		boxes, err := r.m.List(t.Context(), sandbox.ListOptions{})
		must(t, err)
		var got []sandbox.BoxInfo
		for _, b := range boxes {
			info, err := b.Info(t.Context())
			must(t, err)
			got = append(got, *info)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("recovered (-want +got):\n%s", d)
		}
	})
}

// A manager that restarts leaves alone what is not its own.
func TestG05OthersStay(t *testing.T) {
	r := newRig(t)
	_, err := r.d.Create(t.Context(), taisandbox.Spec{ID: "foreign", Image: "hostfs"})
	must(t, err)
	r.create(sandbox.CreateOptions{ID: "x"})
	r.restart()
	if got := r.listed(); !cmp.Equal(got, []string{"x"}) {
		t.Errorf("it took %v", got)
	}
	if got := r.onNode(); !cmp.Equal(got, []string{"foreign", "x"}) {
		t.Errorf("the node has %v", got)
	}
}

// A node that comes later, or back, brings its boxes; while one has not been
// heard of, a box that is not known is not said to be missing.
func TestNodesComeAndGo(t *testing.T) {
	at(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		h := &hook{list: func(context.Context) error {
			if down.Load() {
				return errors.New("no answer")
			}
			return nil
		}}
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		_, err := r.m.Get(t.Context(), "x")
		wantErr(t, err, sandbox.ErrNodeUnreachable)
		wantErr(t, r.m.Remove(t.Context(), "x"), sandbox.ErrNodeUnreachable)
		r.create(sandbox.CreateOptions{ID: "x"})
		down.Store(false)
		pass(time.Minute)
		_, err = r.m.Get(t.Context(), "y")
		wantErr(t, err, sandbox.ErrNotFound)

		other := fake.New()
		client := tai.NewClient(other, other)
		t.Cleanup(func() { must(t, client.Close()) })
		n := registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: "10.0.0.1-19100"}, Client: client}
		must(t, r.reg.Register(n))
		far := r.create(sandbox.CreateOptions{ID: "far", NodeID: "10.0.0.1-19100"})
		must(t, r.reg.Unregister("10.0.0.1-19100"))
		synctest.Wait()
		wantErr(t, far.Stop(t.Context()), sandbox.ErrNodeNotFound)
		wantErr(t, far.Remove(t.Context()), sandbox.ErrNodeNotFound)

		r.restart()
		if got := r.listed(); !cmp.Equal(got, []string{"x"}) {
			t.Errorf("there are %v", got)
		}
		must(t, r.reg.Register(n))
		synctest.Wait()
		if got := r.listed(); !cmp.Equal(got, []string{"far", "x"}) {
			t.Errorf("there are %v", got)
		}
	})
}

// A box removed while the list of boxes was on its way does not come back.
func TestListRacesRemove(t *testing.T) {
	at(t, func(t *testing.T) {
		var box atomic.Pointer[sandbox.Box]
		h := &hook{list: func(ctx context.Context) error { // the list has the box already
			if b := box.Swap(nil); b != nil {
				return b.Remove(ctx)
			}
			return nil
		}}
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		box.Store(r.create(sandbox.CreateOptions{ID: "x"}))
		pass(time.Minute)
		r.want()
	})
}

// A box of which nothing is known but that it is this instance's is nobody's,
// and can be removed.
func TestBoxWithoutItsOwnLabels(t *testing.T) {
	at(t, func(t *testing.T) {
		s := newServer(t, machineDir(t))
		_, err := s.d.Create(t.Context(), taisandbox.Spec{ID: "x", Image: taisandbox.HostFS, Labels: map[string]string{
			taisandbox.LabelManagedBy: taisandbox.ManagedBy, taisandbox.LabelInstance: s.cfg.Instance,
		}})
		must(t, err)
		must(t, s.d.Start(t.Context(), "x"))
		s.restart()
		b, err := s.m.Get(t.Context(), "x")
		must(t, err)
		if info := b.Snapshot(); info.Owner != "" {
			t.Errorf("owner %q", info.Owner)
		}
		must(t, s.m.Remove(t.Context(), "x"))
		if _, err := s.d.Inspect(t.Context(), "x"); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("inspect: %v", err)
		}
	})
}
