package sandbox_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func TestCreate(t *testing.T) {
	r := newRig(t)
	entrypoint := []string{"sleep", "infinity"}
	b := r.create(sandbox.CreateOptions{
		ID: "b1", Owner: "ann", Labels: map[string]string{"team": "x"}, Memory: 64 << 20, CPUs: 0.5, Pids: 30,
		Policy: sandbox.LongRunning, StopTimeout: 5 * time.Second, Entrypoint: &entrypoint, Network: taisandbox.NetworkNone,
	})
	if b.ID() != "b1" || b.Owner() != "ann" || b.NodeID() != node || b.ContainerID() != "fake-b1" {
		t.Errorf("got %s %s %s %s", b.ID(), b.Owner(), b.NodeID(), b.ContainerID())
	}
	info, err := b.Info(t.Context())
	must(t, err)
	want := &sandbox.BoxInfo{
		ID: "b1", ContainerID: "fake-b1", NodeID: node, Owner: "ann", Status: "running", Policy: sandbox.LongRunning,
		Labels: map[string]string{"team": "x"}, Image: "hostfs", Isolation: "container", Network: "none",
		Entrypoint: entrypoint, WorkDir: "/workspace", User: "root", Memory: 64 << 20, CPUs: 0.5, Pids: 30,
		RunningExecs: 1, StopTimeout: 5 * time.Second,
	}
	ignored := cmp.FilterPath(func(p cmp.Path) bool {
		switch p.Last().String() {
		case ".CreatedAt", ".StartedAt", ".LastActive", ".Phases", ".ProcessCount":
			return true
		}
		return false
	}, cmp.Ignore())
	if d := cmp.Diff(want, info, ignored); d != "" {
		t.Errorf("info (-want +got):\n%s", d)
	}
	if info.ProcessCount == 0 || info.StartedAt.IsZero() || info.LastActive.Before(info.CreatedAt) || len(info.Phases) == 0 {
		t.Errorf("not measured: %+v", info)
	}
	r.want("b1")

	must(t, b.Remove(t.Context()))
	r.want()
	_, err = b.Info(t.Context())
	wantErr(t, err, sandbox.ErrNotFound)
	wantErr(t, b.Remove(t.Context()), sandbox.ErrNotFound)
	_, err = r.m.Get(t.Context(), "b1")
	wantErr(t, err, sandbox.ErrNotFound)
	wantErr(t, r.m.Remove(t.Context(), "b1"), sandbox.ErrNotFound)
}

func TestListFilters(t *testing.T) {
	r := newRig(t)
	r.create(sandbox.CreateOptions{ID: "a", Owner: "ann", Labels: map[string]string{"team": "x"}})
	r.create(sandbox.CreateOptions{ID: "b", Owner: "bob", Labels: map[string]string{"team": "x", "v": ""}})
	for _, c := range []struct {
		name string
		opts sandbox.ListOptions
		want string
	}{
		{"all", sandbox.ListOptions{}, "a b"},
		{"owner", sandbox.ListOptions{Owner: "ann"}, "a"},
		{"node", sandbox.ListOptions{NodeID: node}, "a b"},
		{"other_node", sandbox.ListOptions{NodeID: "tai-000000"}, ""},
		{"label", sandbox.ListOptions{Labels: map[string]string{"team": "x"}}, "a b"},
		{"labels", sandbox.ListOptions{Labels: map[string]string{"team": "x", "v": ""}}, "b"},
		{"ours", sandbox.ListOptions{Labels: map[string]string{"sandbox-id": "a"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			boxes, err := r.m.List(t.Context(), c.opts)
			must(t, err)
			var got []string
			for _, b := range boxes {
				got = append(got, b.ID())
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("got %q, want %q", s, c.want)
			}
		})
	}
}

// What cannot be is refused before the node hears of it.
func TestI01InvalidCreate(t *testing.T) {
	var calls atomic.Int32
	r := newRig(t, fake.WithFault(func(op, _ string) error {
		if op != "list" {
			calls.Add(1)
		}
		return nil
	}))
	bad := map[string]sandbox.CreateOptions{
		"slash": {ID: "../x"}, "space": {ID: "a b"}, "long": {ID: strings.Repeat("x", 300)}, "newline": {ID: "a\nb"},
		"upper": {ID: "A"}, "underscore": {ID: "a_b"}, "leading": {ID: "-a"}, "trailing": {ID: "a-"}, "nul": {ID: "a\x00"}, "unicode": {ID: "ä"},
		"memory": {Memory: -1}, "tiny_memory": {Memory: 1}, "cpus": {CPUs: -1}, "nan_cpus": {CPUs: math.NaN()}, "inf_cpus": {CPUs: math.Inf(1), IdempotencyKey: "k"},
		"pids": {Pids: -1}, "files": {OpenFiles: 1 << 40}, "dir": {WorkDir: "tmp"}, "user": {User: "a b"}, "env": {Env: map[string]string{"A=B": "c"}},
		"policy": {Policy: "forever"}, "stop_timeout": {StopTimeout: -1}, "owner": {Owner: "a\nb"}, "long_owner": {Owner: strings.Repeat("x", 1000)},
		"key": {IdempotencyKey: strings.Repeat("k", 256)}, "our_label": {Labels: map[string]string{"sandbox-owner": "bob"}},
		"our_prefix": {Labels: map[string]string{"taibox-x": ""}}, "label": {Labels: map[string]string{"a b": ""}}, "isolation": {Isolation: "paper"},
		"network": {Network: "all"}, "hostname": {Hostname: "a b"}, "tmpfs": {Tmpfs: []string{"x"}}, "host": {ExtraHosts: []string{"x"}},
	}
	for name, o := range bad {
		t.Run(name, func(t *testing.T) {
			_, err := r.m.Create(t.Context(), with(o))
			wantErr(t, err, sandbox.ErrInvalidSpec)
			wantErr(t, err, errdefs.ErrInvalidArgument)
		})
	}
	_, err := r.m.Create(t.Context(), sandbox.CreateOptions{NodeID: node})
	wantErr(t, err, sandbox.ErrInvalidSpec)
	_, err = r.m.Get(t.Context(), "../x")
	wantErr(t, err, sandbox.ErrInvalidSpec)
	if n := calls.Load(); n > 0 {
		t.Errorf("the node was asked %d times", n)
	}
	r.want()
}

func TestG20MissingNode(t *testing.T) {
	cfg := sandbox.DefaultConfig()
	cfg.Registry = registry.New()
	m, err := sandbox.New(cfg)
	must(t, err)
	defer m.Close()
	_, err = m.Create(t.Context(), sandbox.CreateOptions{Image: "hostfs"})
	wantErr(t, err, sandbox.ErrNotAvailable)
	_, err = m.Create(t.Context(), sandbox.CreateOptions{Image: "hostfs", NodeID: node})
	wantErr(t, err, sandbox.ErrNotAvailable)

	r := newRig(t)
	_, err = r.m.Create(t.Context(), sandbox.CreateOptions{Image: "hostfs"})
	wantErr(t, err, sandbox.ErrNodeMissing)
	_, err = r.m.Create(t.Context(), sandbox.CreateOptions{Image: "hostfs", NodeID: "tai-000000"})
	wantErr(t, err, sandbox.ErrNodeNotFound)
	_, err = r.m.Images("tai-000000")
	wantErr(t, err, sandbox.ErrNodeNotFound)
	_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x", Image: "none:1"}))
	wantErr(t, err, sandbox.ErrImageNotFound)
	r.want()
	r.create(sandbox.CreateOptions{ID: "x"})
	if nodes := r.m.Nodes(); len(nodes) != 1 || nodes[0].TaiID != node || nodes[0].Status != "online" {
		t.Errorf("nodes are %+v", nodes)
	}
}

func TestLimits(t *testing.T) {
	cfg := sandbox.DefaultConfig()
	cfg.MaxTotal, cfg.MaxPerOwner = 3, 2
	r := newRigOn(t, fake.New(), nil, cfg)
	r.create(sandbox.CreateOptions{ID: "a1", Owner: "ann"})
	r.create(sandbox.CreateOptions{ID: "a2", Owner: "ann"})
	_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{Owner: "ann"}))
	wantErr(t, err, sandbox.ErrTooManyContainers)
	if !strings.Contains(err.Error(), "a1, a2") {
		t.Errorf("%v does not say which", err)
	}
	// What fails gives back what it took.
	for range 5 {
		_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{Owner: "bob", Image: "none:1"}))
		wantErr(t, err, sandbox.ErrImageNotFound)
	}
	b := r.create(sandbox.CreateOptions{ID: "b1", Owner: "bob"})
	_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{Owner: "bob"}))
	wantErr(t, err, sandbox.ErrTooManyContainers)
	if !strings.Contains(err.Error(), `"ann" has 2`) {
		t.Errorf("%v does not say who", err)
	}
	must(t, b.Remove(t.Context()))
	r.create(sandbox.CreateOptions{Owner: "bob"})

	errs := parallel(20, func(int) error {
		_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{Owner: "cy"}))
		return err
	})
	for _, err := range errs {
		wantErr(t, err, sandbox.ErrTooManyContainers)
	}
	r.restart()
	_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{}))
	wantErr(t, err, sandbox.ErrTooManyContainers)
}

func TestG07DuplicateCreate(t *testing.T) {
	t.Run("create", func(t *testing.T) {
		r := newRig(t)
		won := 0
		for _, err := range parallel(100, func(int) error {
			_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "same"}))
			return err
		}) {
			if err == nil {
				won++
				continue
			}
			wantErr(t, err, sandbox.ErrAlreadyExists)
		}
		if won != 1 {
			t.Errorf("%d creates won", won)
		}
		b, err := r.m.Get(t.Context(), "same")
		must(t, err)
		if res, err := b.Exec(t.Context(), []string{"echo", "ok"}); err != nil || res.Stdout != "ok\n" {
			t.Errorf("got %+v, %v", res, err)
		}
		r.want("same")
	})
	t.Run("get_or_create", func(t *testing.T) {
		r := newRig(t)
		boxes := make([]*sandbox.Box, 100)
		for _, err := range parallel(100, func(i int) (err error) {
			boxes[i], err = r.m.GetOrCreate(t.Context(), with(sandbox.CreateOptions{ID: "same", Owner: "ann"}))
			return err
		}) {
			must(t, err)
		}
		for _, b := range boxes {
			if b != boxes[0] {
				t.Fatal("there are several boxes")
			}
		}
		_, err := r.m.GetOrCreate(t.Context(), with(sandbox.CreateOptions{ID: "same", Owner: "bob"}))
		wantErr(t, err, sandbox.ErrAlreadyExists)
		r.want("same")
	})
	// A failed create's clean-up removes nothing that another made.
	t.Run("foreign", func(t *testing.T) {
		r := newRig(t)
		_, err := r.d.Create(t.Context(), taisandbox.Spec{ID: "x", Image: "hostfs"})
		must(t, err)
		_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x"}))
		wantErr(t, err, sandbox.ErrAlreadyExists)
		if _, err := r.d.Inspect(t.Context(), "x"); err != nil {
			t.Error(err)
		}
	})
	t.Run("other_instance", func(t *testing.T) {
		r := newRig(t)
		r.create(sandbox.CreateOptions{ID: "x"})
		cfg := r.cfg
		cfg.Instance, cfg.Registry = "other", r.reg
		m, err := sandbox.New(cfg)
		must(t, err)
		defer m.Close()
		must(t, m.Start(t.Context()))
		_, err = m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x"}))
		wantErr(t, err, sandbox.ErrAlreadyExists)
		if !strings.Contains(err.Error(), `"default"`) {
			t.Errorf("%v does not say whose", err)
		}
		_, err = m.Get(t.Context(), "x")
		wantErr(t, err, sandbox.ErrNotFound)
		r.want("x")
	})
}

// A joined create whose caller leaves is taken over by who still waits.
func TestG07JoinTakesOver(t *testing.T) {
	at(t, func(t *testing.T) {
		first := make(chan struct{})
		h := &hook{created: func(ctx context.Context, _ taisandbox.Spec) error {
			select {
			case <-first: // the second time
				return nil
			default:
			}
			close(first)
			<-ctx.Done()
			return context.Cause(ctx)
		}}
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		ctx, leave := context.WithCancelCause(t.Context())
		lead := make(chan error, 1)
		go func() {
			_, err := r.m.GetOrCreate(ctx, with(sandbox.CreateOptions{ID: "x"}))
			lead <- err
		}()
		<-first
		joined := make(chan error, 1)
		go func() {
			_, err := r.m.GetOrCreate(t.Context(), with(sandbox.CreateOptions{ID: "x"}))
			joined <- err
		}()
		synctest.Wait()
		gone := errors.New("gone")
		leave(gone)
		wantErr(t, <-lead, gone)
		must(t, <-joined)
		r.want("x")
	})
}

func TestG08NameIsFree(t *testing.T) {
	r := newRig(t)
	for range 500 {
		r.create(sandbox.CreateOptions{ID: "x"})
		must(t, r.m.Remove(t.Context(), "x"))
	}
	_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x", Image: "none:1"}))
	wantErr(t, err, sandbox.ErrImageNotFound)
	old := r.create(sandbox.CreateOptions{ID: "x"})

	// A create waits for the removal in flight.
	removed := make(chan error, 1)
	go func() { removed <- old.Remove(t.Context()) }()
	for {
		_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x"}))
		if err == nil {
			break
		}
		wantErr(t, err, sandbox.ErrAlreadyExists) // the removal has not begun
	}
	must(t, <-removed)
	// The old handle never means the new box.
	wantErr(t, old.Remove(t.Context()), sandbox.ErrNotFound)
	_, err = old.Exec(t.Context(), []string{"true"})
	wantErr(t, err, sandbox.ErrNotFound)
	r.want("x")
}

func TestG11IdempotencyKey(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		o := sandbox.CreateOptions{Owner: "ann", IdempotencyKey: "k", Env: map[string]string{"A": "1", "B": "2"}}
		b := r.create(o)
		for range 3 {
			if again := r.create(o); again != b {
				t.Errorf("the same request made %s and %s", b.ID(), again.ID())
			}
		}
		r.want(b.ID())
		other := o
		other.Env = map[string]string{"A": "2"}
		_, err := r.m.Create(t.Context(), with(other))
		wantErr(t, err, sandbox.ErrIdempotencyKey)
		wantErr(t, err, errdefs.ErrConflict)
		bob := o
		bob.Owner = "bob"
		if r.create(bob) == b {
			t.Error("keys of two owners meet")
		}

		r.restart()
		if again := r.create(o); again.ID() != b.ID() {
			t.Errorf("after a restart it made %s", again.ID())
		}
		_, err = r.m.Create(t.Context(), with(other))
		wantErr(t, err, sandbox.ErrIdempotencyKey)

		// A late retry makes no second box.
		must(t, r.m.Remove(t.Context(), b.ID()))
		_, err = r.m.Create(t.Context(), with(o))
		wantErr(t, err, sandbox.ErrIdempotencyKey)
		pass(24 * time.Hour)
		if r.create(o).ID() == b.ID() {
			t.Error("the key never expires")
		}
	})
}

// A create that failed may be tried again with its key.
func TestG11FailureFreesKey(t *testing.T) {
	var fail atomic.Bool
	r := newRig(t, fake.WithFault(func(op, _ string) error {
		if op == "start.bridge" && fail.Load() {
			return sandbox.ErrNoSpace
		}
		return nil
	}))
	o := sandbox.CreateOptions{IdempotencyKey: "k"}
	fail.Store(true)
	_, err := r.m.Create(t.Context(), with(o))
	wantErr(t, err, sandbox.ErrNoSpace)
	r.want()
	fail.Store(false)
	for _, err := range parallel(20, func(int) error {
		_, err := r.m.Create(t.Context(), with(o))
		return err
	}) {
		must(t, err)
	}
	if n := len(r.listed()); n != 1 {
		t.Errorf("there are %d boxes", n)
	}
}

// However a create fails, nothing is left of it.
func TestCreateLeavesNothing(t *testing.T) {
	for _, step := range []string{
		"create.image", "create.rootfs", "create.network", "create.record", "create.done",
		"start.runtime", "start.bridge", "start.entrypoint", "start.done",
	} {
		t.Run(step, func(t *testing.T) {
			f, err := fake.Failpoints(step + ":1*error(NO_SPACE)->off")
			must(t, err)
			r := newRig(t, fake.WithFault(f))
			_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x"}))
			wantErr(t, err, sandbox.ErrNoSpace)
			r.want()
			r.create(sandbox.CreateOptions{ID: "x"})
		})
		t.Run(step+"/cancelled", func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("client left")
			r := newRig(t, fake.WithFault(func(op, _ string) error {
				if op == step {
					cancel(why)
				}
				return nil
			}))
			_, err := r.m.Create(ctx, with(sandbox.CreateOptions{ID: "x"}))
			wantErr(t, err, why)
			r.want()
		})
	}
	// The answer of the node is lost, after it made the box.
	t.Run("answer_lost", func(t *testing.T) {
		h := &hook{created: func(context.Context, taisandbox.Spec) error { return errdefs.ErrUnavailable }}
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x"}))
		wantErr(t, err, errdefs.ErrUnavailable)
		r.want()
	})
	t.Run("context_over", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(nil)
		r := newRig(t)
		_, err := r.m.Create(ctx, with(sandbox.CreateOptions{ID: "x"}))
		wantErr(t, err, context.Canceled)
		r.want()
	})
}

// A clean-up that fails is tried again until nothing is left.
func TestCleanUpIsRepeated(t *testing.T) {
	at(t, func(t *testing.T) {
		f, err := fake.Failpoints("start.bridge:1*error(x)->off", "remove.network:2*error(y)->off")
		must(t, err)
		r := newRig(t, fake.WithFault(f))
		_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x"}))
		wantErr(t, err, fake.ErrFault)
		if _, err := r.m.Get(t.Context(), "x"); err != nil {
			t.Errorf("what is left is not listed: %v", err)
		}
		pass(3 * time.Minute)
		r.want()
	})
}

func TestRemoveEndsCreate(t *testing.T) {
	at(t, func(t *testing.T) {
		begun := make(chan struct{})
		h := &hook{created: func(ctx context.Context, _ taisandbox.Spec) error {
			close(begun)
			<-ctx.Done()
			return context.Cause(ctx)
		}}
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		created := make(chan error, 1)
		go func() {
			_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x"}))
			created <- err
		}()
		<-begun
		b, err := r.m.Get(t.Context(), "x")
		must(t, err)
		wantStatus(t, b, taisandbox.StateCreating, "")
		_, err = b.Exec(t.Context(), []string{"true"})
		wantErr(t, err, sandbox.ErrNotRunning)
		must(t, r.m.Remove(t.Context(), "x"))
		wantErr(t, <-created, sandbox.ErrRemoving)
		r.want()
	})
}

func TestClosed(t *testing.T) {
	r := newRig(t)
	b := r.create(sandbox.CreateOptions{ID: "x"})
	must(t, r.m.Close())
	must(t, r.m.Close())
	wantErr(t, r.m.Start(t.Context()), sandbox.ErrClosed)
	_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{}))
	wantErr(t, err, sandbox.ErrClosed)
	wantErr(t, b.Remove(t.Context()), sandbox.ErrClosed)
	_, err = b.Stream(t.Context(), []string{"true"})
	wantErr(t, err, sandbox.ErrClosed)
	_, err = r.m.Events(t.Context())
	wantErr(t, err, sandbox.ErrClosed)
	r.want("x")
}

func TestConfig(t *testing.T) {
	for _, cfg := range []sandbox.Config{{}, {Instance: "A"}, {Instance: "a", MaxTotal: -1}, {Instance: "a", MaxPerOwner: -1}} {
		_, err := sandbox.New(cfg)
		wantErr(t, err, sandbox.ErrInvalidSpec)
	}
}
