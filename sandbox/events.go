package sandbox

import (
	"context"
	"fmt"
	"maps"
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
)

// eventBound is how many events wait for a slow subscriber.
const eventBound = 256

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
	s := &subscriber{ch: make(chan Event, eventBound)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("events: %w", ErrClosed)
	}
	m.subs[s] = struct{}{}
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.unsubscribeLocked(s)
	})
	return s.ch, nil
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
	if len(m.subs) == 0 {
		return
	}
	e.Box, e.Owner, e.NodeID, e.Labels = b.id, b.owner, b.nodeID, maps.Clone(b.labels)
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
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
	for s := range m.subs {
		s.send(Event{Time: time.Now(), Type: EventGap})
	}
}

// tellLocked publishes a state, unless it is known.
func (m *Manager) tellLocked(b *Box, state taisandbox.State, reason string) {
	m.tellAtLocked(b, time.Time{}, state, reason)
}

func (m *Manager) tellAtLocked(b *Box, at time.Time, state taisandbox.State, reason string) {
	if now := (told{state, reason}); b.told != now {
		b.told = now
		m.publishLocked(b, Event{Time: at, Type: EventState, State: state, Reason: reason})
	}
}
