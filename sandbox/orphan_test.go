package sandbox_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Boxes whose labels name a manager that is not there are stopped once they
// have been alone for long enough, and no others.
func TestOrphans(t *testing.T) {
	for name, after := range map[string]time.Duration{"set": 10 * time.Minute, "not_set": 0} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				d := fake.New()
				cfg := sandbox.Config{Instance: "gone"}
				other := newRigOn(t, d, nil, cfg)
				other.create(sandbox.CreateOptions{ID: "theirs", Policy: sandbox.Persistent})
				must(t, other.m.Close())
				if _, err := d.Create(t.Context(), taisandbox.Spec{ID: "nobodys", Image: taisandbox.HostFS}); err != nil {
					t.Fatal(err)
				}
				must(t, d.Start(t.Context(), "nobodys"))

				other.cfg = sandbox.Config{Instance: "here", OrphanAfter: after}
				other.m = other.manager()
				other.create(sandbox.CreateOptions{ID: "ours", Policy: sandbox.Persistent})
				state := func(id string, want taisandbox.State, why string) {
					t.Helper()
					if info, err := d.Inspect(t.Context(), id); err != nil || info.State != want || info.Reason != why {
						t.Errorf("box %s is %s (%s), want %s (%s): %v", id, info.State, info.Reason, want, why, err)
					}
				}
				pass(9 * time.Minute)
				state("theirs", taisandbox.StateRunning, "user")
				pass(2*time.Minute + time.Second)
				if after > 0 {
					state("theirs", taisandbox.StateStopped, "orphan")
				} else {
					state("theirs", taisandbox.StateRunning, "user")
				}
				pass(time.Hour)
				state("ours", taisandbox.StateRunning, "user")
				state("nobodys", taisandbox.StateRunning, "user")
			})
		})
	}
}

// Orphans whose stop hangs keep nobody waiting: events go on, only some are
// stopped at once, none twice, and Close ends it.
func TestOrphansThatHang(t *testing.T) {
	at(t, func(t *testing.T) {
		var mu sync.Mutex
		stops, most := map[string]int{}, 0
		h := &hook{stop: func(ctx context.Context, id string) error {
			mu.Lock()
			if stops[id]++; stops[id] > 1 {
				t.Errorf("box %s is stopped twice at once", id)
			}
			most = max(most, len(stops))
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			delete(stops, id)
			return context.Cause(ctx)
		}}
		r := newRigOn(t, fake.New(), h, sandbox.Config{Instance: "gone"})
		for range 50 {
			r.create(sandbox.CreateOptions{Policy: sandbox.Persistent})
		}
		must(t, r.m.Close())
		r.cfg = sandbox.Config{Instance: "here", OrphanAfter: time.Minute}
		r.m = r.manager()
		b := r.create(sandbox.CreateOptions{ID: "ours", Policy: sandbox.Persistent})
		synctest.Wait()
		events, err := r.m.Events(t.Context())
		must(t, err)
		for range 300 {
			pass(time.Second)
			_, err := b.Exec(t.Context(), []string{"true"})
			must(t, err)
			if got, want := told(events), []string{"ours exec running", "ours exec exited"}; !slices.Equal(got, want) {
				t.Fatalf("after %v: events %q", time.Since(b.Snapshot().CreatedAt), got)
			}
		}
		if most == 0 || most > 8 {
			t.Errorf("%d were stopped at once", most)
		}
		begun := time.Now()
		must(t, r.m.Close())
		if took := time.Since(begun); took > 0 {
			t.Errorf("close took %v", took)
		}
	})
}

// An idle stop's reason is with the box, and so outlives the manager; so it is
// with a stop by hand.
func TestStopReasonAfterRestart(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		r.create(sandbox.CreateOptions{ID: "idle", Policy: sandbox.LongRunning, IdleTimeout: time.Minute})
		must(t, r.create(sandbox.CreateOptions{ID: "hand", Policy: sandbox.LongRunning}).Stop(t.Context()))
		pass(2 * time.Minute)
		r.restart()
		for id, want := range map[string]string{"idle": "idle", "hand": "user"} {
			b, err := r.m.Get(t.Context(), id)
			must(t, err)
			wantStatus(t, b, taisandbox.StateStopped, want)
		}
	})
}

// The node is told of a max lifetime, for when no manager is there; of a
// persistent box's it is not.
func TestNodeKnowsTheMaxLifetime(t *testing.T) {
	at(t, func(t *testing.T) {
		got := map[string]time.Duration{}
		h := &hook{created: func(_ context.Context, spec taisandbox.Spec) error {
			got[spec.ID] = spec.MaxLifetime
			return nil
		}}
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		r.create(sandbox.CreateOptions{ID: "a", MaxLifetime: time.Hour})
		r.create(sandbox.CreateOptions{ID: "b", MaxLifetime: time.Hour, Policy: sandbox.Persistent})
		r.create(sandbox.CreateOptions{ID: "c"})
		for id, want := range map[string]time.Duration{"a": time.Hour, "b": 0, "c": 0} {
			if got[id] != want {
				t.Errorf("box %s: %v, want %v", id, got[id], want)
			}
		}
	})
}
