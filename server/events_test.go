package server_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/server"
)

// watching collects events in the background.
type watching struct {
	w      *world
	events chan rest.Event
	end    context.CancelFunc
	err    chan error
}

func (w *world) watch(what rest.WatchEvents) *watching {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	x := &watching{w: w, events: make(chan rest.Event, 1000), end: cancel, err: make(chan error, 1)}
	go func() {
		var err error
		for e, ierr := range w.Events(ctx, what) {
			if err = ierr; err == nil {
				x.events <- e
			}
		}
		close(x.events)
		x.err <- err
	}()
	w.t.Cleanup(func() {
		cancel()
		for range x.events { // to its end
		}
	})
	return x
}

// until reads events up to the first that ok accepts.
func (x *watching) until(ok func(*rest.Event) bool) []rest.Event {
	x.w.t.Helper()
	var got []rest.Event
	late := time.After(time.Minute)
	for {
		select {
		case e, open := <-x.events:
			if !open {
				x.w.t.Fatalf("the events ended after %v", texts(got))
			}
			if got = append(got, e); ok(&e) {
				return got
			}
		case <-late:
			x.w.t.Fatalf("not in time; so far %v", texts(got))
		}
	}
}

func removed(id string) func(*rest.Event) bool {
	return func(e *rest.Event) bool { return e.Type == rest.EventRemoved && e.Box == id }
}

func told(e *rest.Event) string {
	if e.Type == rest.EventExec {
		return e.Box + " exec " + e.Exec.State
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", e.Box, e.Type, e.State, e.Reason))
}

func texts(events []rest.Event) []string {
	var all []string
	for i := range events {
		all = append(all, told(&events[i]))
	}
	return all
}

// subscribed waits until n streams of events are open.
func (w *world) subscribed(n int) {
	w.t.Helper()
	eventually(w.t, "the streams of events are open", func() bool {
		_, _, body := w.call(http.MethodGet, "/metrics", "")
		return strings.Contains(body, fmt.Sprintf("taibox_event_streams %d\n", n))
	})
}

// Events tell a box's whole life, also that of a oneshot box (G14).
func TestEventsTellALife(t *testing.T) {
	w := newWorld(t)
	x := w.watch(rest.WatchEvents{})
	w.subscribed(1)
	w.create(rest.CreateBox{ID: "e1", Owner: "ann", Labels: map[string]string{"a": "b"}, Policy: "oneshot"})
	w.run("e1", "true")
	got := x.until(removed("e1"))
	var states []string
	for i := range got {
		e := &got[i]
		if e.Box != "e1" || e.Owner != "ann" || e.NodeID != "local" || e.Labels["a"] != "b" || e.ID == "" || e.Time.IsZero() {
			t.Errorf("event %+v", e)
		}
		states = append(states, told(e))
	}
	states = slices.DeleteFunc(states, func(s string) bool { return s == "e1 state created user" })
	// What the node tells of the command may come after the removal has begun.
	began, ended := slices.Index(states, "e1 exec running"), slices.Index(states, "e1 exec exited")
	if began < 2 || ended < began {
		t.Fatalf("the begin or the end of the command is missing: %q", states)
	}
	states = slices.DeleteFunc(states, func(s string) bool { return strings.HasPrefix(s, "e1 exec ") })
	want := []string{"e1 state creating user", "e1 state running user", "e1 state removing oneshot", "e1 removed removing oneshot"}
	if d := cmp.Diff(want, states); d != "" {
		t.Errorf("states (-want +got):\n%s", d)
	}
}

// A box that is stopped, and one that never came to be, say why.
func TestEventsHaveReasons(t *testing.T) {
	w := newWorld(t)
	x := w.watch(rest.WatchEvents{Types: []string{rest.EventState, rest.EventRemoved}})
	w.subscribed(1)
	w.create(rest.CreateBox{ID: "e1"})
	if err := w.StopBox(w.ctx, "e1", nil); err != nil {
		t.Fatal(err)
	}
	if err := w.RemoveBox(w.ctx, "e1"); err != nil {
		t.Fatal(err)
	}
	got := texts(x.until(removed("e1")))
	if i := slices.Index(got, "e1 state stopped user"); i < 0 || got[len(got)-2] != "e1 state removing user" {
		t.Errorf("events %q", got)
	}
	if _, err := w.CreateBox(w.ctx, rest.CreateBox{ID: "e2", Image: "none:1"}); err == nil {
		t.Fatal("made of no image")
	}
	if got := texts(x.until(removed("e2"))); got[len(got)-1] != "e2 removed removing create-failed" {
		t.Errorf("events %q", got)
	}
}

// A stream goes on after the last event that was seen: nothing is missed and
// nothing comes twice (E08).
func TestEventsResume(t *testing.T) {
	w := newWorld(t)
	first := w.watch(rest.WatchEvents{})
	w.subscribed(1)
	w.create(rest.CreateBox{ID: "e1"})
	got := first.until(func(e *rest.Event) bool { return e.State == "creating" })
	first.end()
	w.create(rest.CreateBox{ID: "e2"})
	for _, id := range []string{"e1", "e2"} {
		if err := w.RemoveBox(w.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	second := w.watch(rest.WatchEvents{Since: got[len(got)-1].ID}).until(removed("e2"))
	seen := map[string]bool{got[len(got)-1].ID: true}
	for i := range second {
		if e := &second[i]; seen[e.ID] || e.Type == rest.EventGap {
			t.Errorf("%s came again, or as a gap", told(e))
		} else {
			seen[e.ID] = true
		}
	}
	all := texts(second)
	for _, want := range []string{"e1 state running user", "e1 removed removing user", "e2 state creating user"} {
		if !slices.Contains(all, want) {
			t.Errorf("%q is missing in %q", want, all)
		}
	}
}

// The events of an earlier server are not known: a gap says so, and the client
// comes back by itself.
func TestEventsAfterRestart(t *testing.T) {
	w := newWorld(t)
	x := w.watch(rest.WatchEvents{})
	w.subscribed(1)
	w.create(rest.CreateBox{ID: "e1"})
	x.until(func(e *rest.Event) bool { return e.State == "running" })
	w.restart()
	w.subscribed(1)
	if err := w.RemoveBox(w.ctx, "e1"); err != nil {
		t.Fatal(err)
	}
	got := x.until(removed("e1"))
	if got[0].Type != rest.EventGap || got[0].ID == "" {
		t.Errorf("the first event of the second server is %+v", got[0])
	}
	if w.revived.Load() == 0 {
		t.Error("nobody asked for the server to be started")
	}
}

// An ID that is too old, and one that no server gave, lead to a gap.
func TestEventsGapOfOldID(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "e1"})
	for _, id := range []string{"0000-1", "x", "0000000000000000-18446744073709551615"} {
		got := w.watch(rest.WatchEvents{Since: id}).until(func(*rest.Event) bool { return true })
		if got[0].Type != rest.EventGap {
			t.Errorf("since %s the first event is %+v", id, got[0])
		}
	}
}

func TestEventsFilter(t *testing.T) {
	w := newWorld(t)
	watches := []*watching{
		w.watch(rest.WatchEvents{Boxes: []string{"e2", "e9"}}),
		w.watch(rest.WatchEvents{Owners: []string{"bob"}}),
		w.watch(rest.WatchEvents{Labels: map[string]string{"team": "x"}}),
	}
	w.subscribed(len(watches))
	w.create(rest.CreateBox{ID: "e1", Owner: "ann", Labels: map[string]string{"team": "y"}})
	w.create(rest.CreateBox{ID: "e2", Owner: "bob", Labels: map[string]string{"team": "x"}})
	for _, id := range []string{"e1", "e2"} {
		if err := w.RemoveBox(w.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	for i, x := range watches {
		for _, e := range x.until(removed("e2")) {
			if e.Box != "e2" {
				t.Errorf("watch %d got %+v", i, e)
			}
		}
	}
}

func TestEventsRefuse(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"?type=nosuch", "?label=x", "?box=..", "?nosuch=1", "?since=a%20b"} {
		if status, _, body := w.call(http.MethodGet, "/v1/events"+path, ""); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// Who may not know of a box hears nothing of it.
func TestEventsOfOthersAreNotHeard(t *testing.T) {
	w := newWorldWith(t, func(c *server.Config) { c.Authorizer = hides("e1") })
	x := w.watch(rest.WatchEvents{})
	w.subscribed(1)
	w.create(rest.CreateBox{ID: "e1"})
	w.create(rest.CreateBox{ID: "e2"})
	for _, e := range x.until(func(e *rest.Event) bool { return e.Box == "e2" && e.State == "running" }) {
		if e.Box != "e2" {
			t.Errorf("heard %+v", e)
		}
	}
}

type hides string

func (h hides) Authorize(_ context.Context, _ server.Caller, verb server.Verb, o server.Object) error {
	if verb == server.VerbGet && o.ID == string(h) {
		return rest.ErrForbidden
	}
	return nil
}

// The wire form, for clients in other languages: a stream says where it is
// before anything happens.
func TestEventsWire(t *testing.T) {
	w := newWorld(t)
	conn := w.dialRaw(t)
	fmt.Fprintf(conn, "GET /v1/events HTTP/1.1\r\nHost: taibox\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Closing the body would read a stream to its end, which has none.
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Errorf("content type %q", ct)
	}
	body := bufio.NewReader(resp.Body)
	line, err := body.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "id: ") {
		t.Errorf("first line %q, %v", line, err)
	}
	w.create(rest.CreateBox{ID: "e1"})
	var block []string
	for !strings.HasPrefix(line, "data: ") {
		if line, err = body.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		block = append(block, strings.TrimSpace(line))
	}
	if len(block) != 4 || block[2] != "event: state" || !strings.Contains(block[3], `"state":"creating"`) {
		t.Errorf("event %q", block)
	}
}

// A server that stops ends its streams at once.
func TestEventsEndWithServer(t *testing.T) {
	w := newWorld(t)
	w.watch(rest.WatchEvents{})
	w.subscribed(1)
	began := time.Now()
	w.stop()
	if took := time.Since(began); took > stopPatience {
		t.Errorf("the server took %v to stop", took)
	}
	w.start()
}
