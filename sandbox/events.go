package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// EventType says what happened.
type EventType string

// The events of a manager.
const (
	EventState   EventType = "state"   // a box changed state: Event.State, Event.Reason
	EventRemoved EventType = "removed" // a box is gone, once for each: Event.Reason
	EventExec    EventType = "exec"    // a command started or ended: Event.Exec
	EventOOM     EventType = "oom"     // the kernel killed a process of the box for memory
	EventGap     EventType = "gap"     // events were missed: list again
)

// Event is something that happened to a box.
type Event struct {
	// ID is the event's place, for [Manager.EventsSince]. The gap of a reader
	// that fell behind has none.
	ID     string
	Time   time.Time
	Type   EventType
	Box    string
	Owner  string
	NodeID string
	Labels map[string]string
	State  taisandbox.State
	Reason string
	Exec   *taisandbox.ExecInfo
}

// Reasons of states and removals that are the manager's own; others come from
// the node.
const (
	reasonUser    = "user"          // somebody asked for it
	reasonOneShot = "oneshot"       // its command has ended
	reasonUnused  = "unused"        // a oneshot box that never got a command
	reasonFailed  = "create-failed" // the create did not come to its end
	reasonLost    = "lost"          // it vanished from its node

	reasonIdle        = "idle"         // it was not used for its idle timeout
	reasonMaxLifetime = "max-lifetime" // its time is over
	reasonOrphan      = "orphan"       // its manager did not come back
)

const (
	eventBound = 256  // events that wait for a slow subscriber
	eventsKept = 4096 // events that are kept for one that comes back
	eventText  = 4096 // bytes of arguments, and of names of variables, in one
)

// ring keeps the last events. Its epoch tells one manager's events from those
// of its predecessors.
type ring struct {
	epoch string
	last  uint64  // the number of the newest event
	kept  []Event // the newest at (last-1) % eventsKept
}

func newRing() ring { return ring{epoch: taisandbox.NewID("")} }

func (r *ring) id(n uint64) string { return r.epoch + "-" + strconv.FormatUint(n, 10) }

// put numbers an event and keeps it.
func (r *ring) put(e *Event) {
	r.last++
	e.ID = r.id(r.last)
	if len(r.kept) < eventsKept {
		r.kept = append(r.kept, *e)
		return
	}
	r.kept[(r.last-1)%eventsKept] = *e
}

// after returns the events after the one with the given ID. If some of them
// are not kept, or it is of another manager, it begins with a gap.
func (r *ring) after(id string) []Event {
	first := r.last - uint64(len(r.kept)) // of the numbers before those kept
	from := first
	gap := true
	epoch, number, _ := strings.Cut(id, "-")
	if n, err := strconv.ParseUint(number, 10, 64); err == nil && epoch == r.epoch && n <= r.last && n >= first {
		from, gap = n, false
	}
	var events []Event
	if gap {
		events = append(events, Event{ID: r.id(from), Time: time.Now(), Type: EventGap})
	}
	for n := from; n < r.last; n++ {
		events = append(events, r.kept[n%eventsKept])
	}
	return events
}

// told is the state of a box that subscribers know of.
type told struct {
	state  taisandbox.State
	reason string
}

// subscriber is one reader of [Manager.Events].
type subscriber struct {
	ch      chan Event
	lagging bool // its channel ends in a gap: nothing more until it is empty
}

// Events delivers what happens from now on until ctx or the manager ends; then
// the channel is closed. A reader that falls behind misses events, and is told
// by one [EventGap] in their place.
func (m *Manager) Events(ctx context.Context) (<-chan Event, error) {
	events, _, err := m.subscribe(ctx, "")
	return events, err
}

// EventsSince is [Manager.Events], beginning after the event with the given
// ID; with "" it begins now. If events after that one are not kept any more,
// or it was another manager's, an [EventGap] comes first and then all that are
// kept. at is the ID to begin after at another time if nothing is read.
func (m *Manager) EventsSince(ctx context.Context, id string) (events <-chan Event, at string, err error) {
	return m.subscribe(ctx, id)
}

func (m *Manager) subscribe(ctx context.Context, since string) (<-chan Event, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, "", fmt.Errorf("events: %w", ErrClosed)
	}
	at := m.recent.id(m.recent.last)
	var missed []Event
	if since != "" {
		missed, at = m.recent.after(since), since
	}
	s := &subscriber{ch: make(chan Event, len(missed)+eventBound)}
	for i := range missed {
		s.ch <- missed[i]
	}
	m.subs[s] = struct{}{}
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.unsubscribeLocked(s)
	})
	return s.ch, at, nil
}

func (m *Manager) unsubscribeLocked(s *subscriber) {
	if _, ok := m.subs[s]; ok {
		delete(m.subs, s)
		close(s.ch)
	}
}

func (m *Manager) unsubscribeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.subs {
		m.unsubscribeLocked(s)
	}
}

// send never blocks: the last place in the channel is for the gap. A reader
// that has met the gap has emptied the channel, so it misses nothing after it.
func (s *subscriber) send(e Event) {
	if s.lagging && len(s.ch) > 0 {
		return
	}
	if s.lagging = len(s.ch) == cap(s.ch)-1; s.lagging {
		e = Event{Time: e.Time, Type: EventGap}
	}
	s.ch <- e
}

func (m *Manager) publishLocked(b *Box, e Event) {
	e.Exec = clip(e.Exec)
	e.Box, e.Owner, e.NodeID, e.Labels = b.id, b.owner, b.nodeID, maps.Clone(b.labels)
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	m.sendLocked(e)
}

func (m *Manager) sendLocked(e Event) {
	m.recent.put(&e)
	for s := range m.subs {
		s.send(e)
	}
}

// gap tells that a node's events were missed.
func (m *Manager) gap() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gapLocked()
}

func (m *Manager) gapLocked() {
	m.sendLocked(Event{Time: time.Now(), Type: EventGap})
}

// tellLocked publishes a state, unless it is known.
func (m *Manager) tellLocked(b *Box, state taisandbox.State, reason string) {
	m.tellAtLocked(b, time.Time{}, state, reason)
}

func (m *Manager) tellAtLocked(b *Box, at time.Time, state taisandbox.State, reason string) {
	if now := (told{state, reason}); b.told != now {
		b.told = now
		// A node that gives no reason did as it was told.
		m.publishLocked(b, Event{Time: at, Type: EventState, State: state, Reason: cmp.Or(reason, reasonUser)})
	}
}

// clip returns a record that may be kept: what a caller can make long is cut,
// and ends in an ellipsis then.
func clip(e *taisandbox.ExecInfo) *taisandbox.ExecInfo {
	if e == nil {
		return nil
	}
	c := *e
	c.Args, c.EnvNames = clipList(e.Args), clipList(e.EnvNames)
	return &c
}

func clipList(list []string) []string {
	left := eventText
	for i, s := range list {
		if left -= len(s); left < 0 {
			return append(slices.Clone(list[:i]), strings.ToValidUTF8(s[:len(s)+left], "")+"…")
		}
	}
	return list
}
