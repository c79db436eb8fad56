package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// deaf runs what does not heed TERM.
var deaf = []string{"trap"}

// Boxes that take as long to end as they may, or whose node hangs, hold back
// no other.
func TestSlowEndsHoldBackNoOther(t *testing.T) {
	const many = 200
	slow := func(i int) string { return fmt.Sprint("slow", i) }
	t.Run("deaf", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRig(t)
			for i := range many {
				r.create(sandbox.CreateOptions{ID: slow(i), Entrypoint: &deaf, MaxLifetime: idle, StopTimeout: sandbox.MaxStopTimeout})
			}
			pass(time.Second) // what is due earlier comes first
			r.create(sessionBox)
			pass(idle + 10*time.Second)
			if _, err := r.m.Get(t.Context(), "x"); !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("the idle box: %v", err)
			}
			if n := len(r.listed()); n != many {
				t.Errorf("%d boxes", n)
			}
			pass(sandbox.MaxStopTimeout)
			r.want()
		})
	})
	t.Run("node_hangs", func(t *testing.T) {
		at(t, func(t *testing.T) {
			h := &hook{execs: func(ctx context.Context, id string) error {
				if id == "x" {
					return nil
				}
				<-ctx.Done()
				return context.Cause(ctx)
			}}
			r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
			for i := range many {
				r.create(sandbox.CreateOptions{ID: slow(i), IdleTimeout: idle})
			}
			pass(time.Second) // what is due earlier comes first
			r.create(sessionBox)
			pass(idle + 10*time.Second)
			if _, err := r.m.Get(t.Context(), "x"); !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("the idle box: %v", err)
			}
		})
	})
	t.Run("cleanup", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRig(t)
			must(t, r.m.Close())
			cfg := r.cfg
			cfg.Registry = r.reg
			m, err := sandbox.New(cfg)
			must(t, err)
			r.m = m
			for i := range many {
				r.create(sandbox.CreateOptions{ID: slow(i), Entrypoint: &deaf, MaxLifetime: idle, StopTimeout: sandbox.MaxStopTimeout})
			}
			pass(time.Second) // what is due earlier comes first
			r.create(sessionBox)
			pass(idle + time.Second)
			cleaned := make(chan error, 1)
			go func() { cleaned <- m.Cleanup(t.Context()) }()
			pass(10 * time.Second)
			if _, err := m.Get(t.Context(), "x"); !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("the idle box: %v", err)
			}
			must(t, <-cleaned)
			r.want()
			must(t, m.Close())
		})
	})
}

// A box that its policy gives time to end is removed at once when somebody
// removes it, and has no more time than a stop gives it.
func TestRemoveDoesNotWaitForGrace(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(context.Context, *sandbox.Box) error
		took time.Duration
	}{
		"remove":       {func(ctx context.Context, b *sandbox.Box) error { return b.Remove(ctx) }, 0},
		"stop":         {func(ctx context.Context, b *sandbox.Box) error { return b.StopWithin(ctx, 0) }, 0},
		"shorter_stop": {func(ctx context.Context, b *sandbox.Box) error { return b.StopWithin(ctx, 7*time.Second) }, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				r := newRig(t)
				b := r.create(sandbox.CreateOptions{ID: "x", Entrypoint: &deaf, MaxLifetime: idle, StopTimeout: sandbox.MaxStopTimeout})
				pass(idle + time.Second)
				wantStatus(t, b, taisandbox.StateRemoving, "max-lifetime")
				events, err := r.m.Events(t.Context())
				must(t, err)
				begun := time.Now()
				must(t, c.end(t.Context(), b))
				if took := time.Since(begun); took < c.took || took > c.took+time.Second {
					t.Errorf("took %v, want %v", took, c.took)
				}
				r.want()
				if got := told(events); got[len(got)-1] != "x removed (max-lifetime)" {
					t.Errorf("events %q", got)
				}
			})
		})
	}
	// It is removed even if the policy would not.
	t.Run("failed_remove", func(t *testing.T) {
		at(t, func(t *testing.T) {
			h, sick := &hook{}, &failure{}
			h.remove = sick.call
			r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
			o := sessionBox
			o.Entrypoint, o.StopTimeout = &deaf, sandbox.MaxStopTimeout
			b := r.create(o)
			pass(idle + time.Second)
			if err := b.Remove(t.Context()); err == nil {
				t.Fatal("it was removed")
			}
			sick.healed.Store(true)
			b.Stop(t.Context()) // activity is all that it is for
			pass(2 * time.Minute)
			r.want()
		})
	})
}
