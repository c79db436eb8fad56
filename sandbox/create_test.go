package sandbox_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

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

// Whoever wants an ID that another owner's box has is told so at once,
// whatever becomes of that box.
func TestTakenIDOfAnotherOwner(t *testing.T) {
	at(t, func(t *testing.T) {
		h, sick := &hook{}, &failure{}
		h.remove = sick.call
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		o := sandbox.CreateOptions{ID: "x", Owner: "ann", Entrypoint: &deaf, MaxLifetime: time.Minute, StopTimeout: time.Minute}
		b := r.create(o)
		taken := func() {
			t.Helper()
			for _, create := range []func(context.Context, sandbox.CreateOptions) (*sandbox.Box, error){r.m.Create, r.m.GetOrCreate} {
				begun := time.Now()
				_, err := create(t.Context(), with(sandbox.CreateOptions{ID: "x", Owner: "bob"}))
				if wantErr(t, err, sandbox.ErrAlreadyExists); time.Since(begun) > 0 {
					t.Errorf("told after %v", time.Since(begun))
				}
			}
		}
		taken()
		pass(time.Minute + time.Second)
		wantStatus(t, b, taisandbox.StateRemoving, "max-lifetime")
		taken()
		if err := b.Remove(t.Context()); err == nil {
			t.Fatal("it was removed")
		}
		taken() // not removed yet
		sick.healed.Store(true)
		if r.create(o) == b {
			t.Error("its owner got the old one")
		}
		taken()
	})
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
