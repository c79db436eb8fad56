package sandbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// told renders the events that have come.
func told(events <-chan sandbox.Event) []string {
	synctest.Wait()
	var s []string
	for {
		select {
		case ev, ok := <-events:
			switch {
			case !ok:
				return append(s, "closed")
			case ev.Type == sandbox.EventState:
				s = append(s, fmt.Sprintf("%s %s (%s)", ev.Box, ev.State, ev.Reason))
			case ev.Type == sandbox.EventExec:
				s = append(s, fmt.Sprintf("%s exec %s", ev.Box, ev.Exec.State))
			default:
				s = append(s, fmt.Sprintf("%s %s (%s)", ev.Box, ev.Type, ev.Reason))
			}
		default:
			return s
		}
	}
}

// A removal that has to be tried again keeps its reason.
func TestA13ReasonOfFailedRemoval(t *testing.T) {
	for name, c := range map[string]struct {
		policy sandbox.LifecyclePolicy
		end    func(*rig, *sandbox.Box) error
		want   string
	}{
		"user": {sandbox.Session, func(r *rig, b *sandbox.Box) error { return b.Remove(r.t.Context()) }, "user"},
		"oneshot": {sandbox.OneShot, func(r *rig, b *sandbox.Box) error {
			_, err := b.Exec(r.t.Context(), []string{"true"})
			return err
		}, "oneshot"},
		"vanished": {sandbox.Session, func(r *rig, b *sandbox.Box) error {
			b.Remove(r.t.Context()) // fails, as is seen below
			return r.d.Remove(r.t.Context(), b.ID())
		}, "user"},
		"again_by_hand": {sandbox.OneShot, func(r *rig, b *sandbox.Box) error {
			b.Exec(r.t.Context(), []string{"true"}) // the removal fails, as is seen below
			return b.Remove(r.t.Context())
		}, "oneshot"},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				h, sick := &hook{}, &failure{}
				h.remove = sick.call
				r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
				b := r.create(sandbox.CreateOptions{ID: "x", Policy: c.policy})
				events, err := r.m.Events(t.Context())
				must(t, err)
				c.end(r, b) // the removal fails
				pass(time.Second)
				if _, err := r.m.Get(t.Context(), "x"); err != nil && name != "vanished" {
					t.Fatal(err)
				}
				sick.healed.Store(true)
				pass(2 * time.Minute)
				r.want()
				got := told(events)
				if got[len(got)-1] != "x removed ("+c.want+")" || strings.Contains(strings.Join(got, "\n"), "create-failed") {
					t.Errorf("events %q", got)
				}
			})
		})
	}
}

func TestEvents(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		events, err := r.m.Events(ctx)
		must(t, err)
		expect := func(want ...string) {
			t.Helper()
			if d := cmp.Diff(want, told(events)); d != "" {
				t.Errorf("events (-want +got):\n%s", d)
			}
		}
		b := r.create(sandbox.CreateOptions{ID: "x", Owner: "ann", Labels: map[string]string{"a": "b"}})
		expect("x creating (user)", "x created (user)", "x running (user)")
		_, err = b.Exec(t.Context(), []string{"true"})
		must(t, err)
		expect("x exec running", "x exec exited")
		must(t, b.Stop(t.Context()))
		expect("x stopping (user)", "x stopped (user)")
		must(t, b.Start(t.Context()))
		expect("x running (user)")
		must(t, r.d.Break("x", "oom"))
		expect("x failed (oom)")
		must(t, b.Remove(t.Context()))
		expect("x removing (user)", "x removed (user)")

		_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "y", Image: "none:1"}))
		wantErr(t, err, sandbox.ErrImageNotFound)
		expect("y creating (user)", "y removed (create-failed)")

		b = r.create(sandbox.CreateOptions{ID: "z", Owner: "ann", Labels: map[string]string{"a": "b"}})
		synctest.Wait()
		ev := <-events
		if ev.Owner != "ann" || ev.NodeID != node || !cmp.Equal(ev.Labels, map[string]string{"a": "b"}) || ev.Time.IsZero() {
			t.Errorf("event %+v", ev)
		}
		must(t, r.d.Remove(t.Context(), b.ID()))
		if got := told(events); len(got) == 0 || got[len(got)-1] != "z failed (lost)" {
			t.Errorf("got %q", got)
		}
		cancel(nil)
		expect("closed")
	})
}

// What events did not tell, the sweep does.
func TestEventsFromSweep(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRigOn(t, fake.New(), &hook{events: blind}, sandbox.DefaultConfig())
		r.create(sandbox.CreateOptions{ID: "x"})
		pass(time.Minute)
		events, err := r.m.Events(t.Context())
		must(t, err)
		must(t, r.d.Break("x", "bridge-lost"))
		pass(time.Minute)
		if d := cmp.Diff([]string{"x failed (bridge-lost)"}, told(events)); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
	})
}

// A reader that falls behind is told so once, in the place of what it missed.
func TestEventsGap(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		b := r.create(sandbox.CreateOptions{ID: "x"})
		events, err := r.m.Events(t.Context())
		must(t, err)
		for range 300 {
			_, err := b.Exec(t.Context(), []string{"true"})
			must(t, err)
			synctest.Wait()
		}
		got := told(events)
		if len(got) != 256 || got[255] != " gap ()" {
			t.Errorf("%d events, the last %q", len(got), got[len(got)-1])
		}
		_, err = b.Exec(t.Context(), []string{"true"})
		must(t, err)
		if d := cmp.Diff([]string{"x exec running", "x exec exited"}, told(events)); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
	})
}

// A gap in a node's events is passed on, and what was missed is found.
func TestNodeGap(t *testing.T) {
	at(t, func(t *testing.T) {
		ch := make(chan taisandbox.Event)
		h := &hook{events: func(context.Context) (<-chan taisandbox.Event, error) { return ch, nil }}
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		b := r.create(sandbox.CreateOptions{ID: "x"})
		events, err := r.m.Events(t.Context())
		must(t, err)
		must(t, r.d.Break("x", "oom"))
		ch <- taisandbox.Event{Type: taisandbox.EventGap}
		pass(time.Second)
		wantStatus(t, b, taisandbox.StateFailed, "oom")
		if got := told(events); len(got) == 0 || got[0] != " gap ()" {
			t.Errorf("got %q", got)
		}
		// An event of an earlier box with this ID tells nothing of this one.
		ch <- taisandbox.Event{Type: taisandbox.EventState, Box: "x", State: taisandbox.StateRunning, Labels: map[string]string{"taibox-attempt": "old"}}
		if got := told(events); len(got) != 0 {
			t.Errorf("got %q", got)
		}
	})
}

// A reader comes back where it was; what is not kept any more, or was another
// manager's, is a gap.
func TestEventsSince(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		since := func(id string) []sandbox.Event {
			t.Helper()
			ctx, cancel := context.WithCancelCause(t.Context())
			ch, _, err := r.m.EventsSince(ctx, id)
			must(t, err)
			cancel(nil)
			var all []sandbox.Event
			for e := range ch {
				all = append(all, e)
			}
			return all
		}
		_, start, err := r.m.EventsSince(t.Context(), "")
		must(t, err)
		b := r.create(sandbox.CreateOptions{ID: "x"})
		synctest.Wait()
		all := since(start)
		if len(all) != 3 || all[0].State != taisandbox.StateCreating || all[2].State != taisandbox.StateRunning {
			t.Fatalf("events %+v", all)
		}
		if rest := since(all[1].ID); len(rest) != 1 || rest[0].ID != all[2].ID {
			t.Errorf("after the second: %+v", rest)
		}
		if rest := since(all[2].ID); len(rest) != 0 {
			t.Errorf("after the last: %+v", rest)
		}
		for _, id := range []string{"other-1", all[0].ID + "9999", "-", "x"} {
			if got := since(id); len(got) != 4 || got[0].Type != sandbox.EventGap || got[1].ID != all[0].ID {
				t.Errorf("since %s: %+v", id, got)
			}
		}
		for range 2100 { // two events each
			_, err := b.Exec(t.Context(), []string{"true"})
			must(t, err)
			synctest.Wait()
		}
		got := since(start)
		if len(got) != 4097 || got[0].Type != sandbox.EventGap {
			t.Fatalf("%d events, the first %+v", len(got), got[0])
		}
		if rest := since(got[0].ID); len(rest) != 4096 || rest[0].ID != got[1].ID {
			t.Errorf("after the gap: %d events", len(rest))
		}
	})
}

// What is kept of a command is bounded, however long it is.
func TestEventsAreClipped(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		b := r.create(sandbox.CreateOptions{ID: "x"})
		events, err := r.m.Events(t.Context())
		must(t, err)
		_, err = b.Exec(t.Context(), []string{"true", strings.Repeat("é", 100_000), "more"})
		must(t, err)
		synctest.Wait()
		for e := range events {
			if e.Type != sandbox.EventExec {
				continue
			}
			if args := e.Exec.Args; len(args) != 2 || len(args[1]) > 4200 || !strings.HasSuffix(args[1], "…") {
				t.Errorf("%d arguments, the second of %d bytes", len(args), len(args[1]))
			}
			break
		}
	})
}
