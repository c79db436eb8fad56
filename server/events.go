package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

const (
	// eventHeartbeat is how often a quiet stream of events shows that it lives.
	eventHeartbeat = 15 * time.Second
	maxEventID     = 64 // bytes of a Last-Event-ID
)

func (s *Server) eventRoutes() {
	s.raw(http.MethodGet, "/v1/events", "What happens to boxes, as server-sent events; Last-Event-ID resumes",
		[]string{"box", "owner", "type", "label", "since"}, s.events)
}

// eventFilter selects events. Empty fields do not filter.
type eventFilter struct {
	boxes, owners, types []string
	labels               map[string]string
}

func parseEventFilter(r *http.Request) (f eventFilter, err error) {
	q := r.URL.Query()
	f = eventFilter{boxes: q["box"], owners: q["owner"], types: q["type"]}
	if f.labels, err = parseLabels(q["label"]); err != nil {
		return f, err
	}
	known := []string{rest.EventState, rest.EventRemoved, rest.EventExec, rest.EventOOM, rest.EventGap}
	for _, t := range f.types {
		if !slices.Contains(known, t) {
			return f, fmt.Errorf("%w: type %.64q: %s are possible", rest.ErrRequest, t, strings.Join(known, ", "))
		}
	}
	for _, id := range f.boxes {
		if err := taisandbox.ValidateID(id); err != nil {
			return f, err
		}
	}
	return f, nil
}

// match reports whether an event is wanted. A gap always is: what it stands
// for is not known.
func (f *eventFilter) match(e *sandbox.Event) bool {
	if e.Type == sandbox.EventGap {
		return true
	}
	if len(f.boxes) > 0 && !slices.Contains(f.boxes, e.Box) ||
		len(f.owners) > 0 && !slices.Contains(f.owners, e.Owner) ||
		len(f.types) > 0 && !slices.Contains(f.types, string(e.Type)) {
		return false
	}
	for k, v := range f.labels {
		if got, ok := e.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// events streams events until the client goes or the server stops.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := s.patient(r.Context())
	defer cancel()
	f, err := parseEventFilter(r)
	object := Object{Kind: KindBox}
	if len(f.owners) == 1 {
		object.Owner = f.owners[0]
	}
	if denied := s.allow(ctx, VerbList, object); denied != nil {
		return denied
	}
	if err != nil {
		return err
	}
	since := r.Header.Get(rest.HeaderLastEventID)
	if since == "" {
		since = r.URL.Query().Get("since")
	}
	if len(since) > maxEventID || strings.ContainsFunc(since, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return fmt.Errorf("%w: Last-Event-ID %.64q: no event has it", rest.ErrRequest, since)
	}
	feed, at, err := s.feed(ctx, since)
	if err != nil {
		return err
	}
	defer func() { feed.end() }()
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()

	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	out := eventWriter{w: w, rc: http.NewResponseController(w)}
	// An id without data is where the client is, before the first event too.
	if err := out.write("id: " + at + "\n\n"); err != nil {
		return nil
	}
	beat := time.NewTicker(eventHeartbeat)
	defer beat.Stop()
	for {
		select {
		case e, open := <-feed.events:
			switch {
			case !open:
				return nil
			case e.ID == "":
				// We fell behind, but what we missed may be kept.
				next, _, err := s.feed(ctx, at)
				if err != nil {
					return nil
				}
				feed.end()
				feed = next
				continue
			}
			at = e.ID
			if !f.match(&e) || !s.mayHear(ctx, &e) {
				continue
			}
			if err := out.event(&e); err != nil {
				return nil
			}
			beat.Reset(eventHeartbeat)
		case <-beat.C:
			// The id moves on past what was filtered out.
			if out.write(": alive\nid: "+at+"\n\n") != nil {
				return nil
			}
		}
	}
}

// feed is a subscription to the manager's events.
type feed struct {
	events <-chan sandbox.Event
	end    func()
}

func (s *Server) feed(ctx context.Context, since string) (f feed, at string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	f.end = func() { cancel(nil) }
	if f.events, at, err = s.cfg.Manager.EventsSince(ctx, since); err != nil {
		f.end()
	}
	return f, at, err
}

// mayHear asks the authoriser whether a caller may know of an event.
func (s *Server) mayHear(ctx context.Context, e *sandbox.Event) bool {
	return e.Type == sandbox.EventGap ||
		s.allow(ctx, VerbGet, Object{Kind: KindBox, ID: e.Box, Owner: e.Owner, Node: e.NodeID}) == nil
}

// eventWriter writes to a client that may have vanished without a word.
type eventWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (o *eventWriter) event(e *sandbox.Event) error {
	data, err := json.Marshal(eventOf(e))
	if err != nil {
		return err
	}
	return o.write("id: " + e.ID + "\nevent: " + string(e.Type) + "\ndata: " + string(data) + "\n\n")
}

func (o *eventWriter) write(text string) error {
	if err := o.rc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(o.w, text); err != nil { //nolint:gosec // no browser takes a stream of events for a page
		return err
	}
	return o.rc.Flush()
}

func eventOf(e *sandbox.Event) rest.Event {
	out := rest.Event{
		ID: e.ID, Time: e.Time, Type: string(e.Type), Box: e.Box, Owner: e.Owner, NodeID: e.NodeID,
		Labels: e.Labels, State: string(e.State), Reason: e.Reason,
	}
	if e.Exec != nil {
		x := execOf(e.Exec)
		out.Exec = &x
	}
	return out
}
