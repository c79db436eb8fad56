package oci

import (
	"context"
	"sync"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// eventBuffer is how far a subscriber may fall behind.
const eventBuffer = 1024

// broadcaster hands events to subscribers. One that falls behind misses
// events and is told so; nobody waits for it.
type broadcaster struct {
	mu     sync.Mutex
	subs   map[*subscriber]struct{}
	closed bool
}

type subscriber struct {
	ch     chan sandbox.Event
	missed bool
}

func newBroadcaster() *broadcaster { return &broadcaster{subs: map[*subscriber]struct{}{}} }

func (b *broadcaster) publish(e sandbox.Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		if s.missed {
			select {
			case s.ch <- sandbox.Event{Time: e.Time, Type: sandbox.EventGap}:
				s.missed = false
			default:
				continue
			}
		}
		select {
		case s.ch <- e:
		default:
			s.missed = true
		}
	}
}

// subscribe returns a channel that is closed when ctx or the broadcaster ends.
func (b *broadcaster) subscribe(ctx context.Context) <-chan sandbox.Event {
	s := &subscriber{ch: make(chan sandbox.Event, eventBuffer)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		close(s.ch)
		return s.ch
	}
	b.subs[s] = struct{}{}
	context.AfterFunc(ctx, func() { b.drop(s) })
	return s.ch
}

func (b *broadcaster) drop(s *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.subs[s]; ok {
		delete(b.subs, s)
		close(s.ch)
	}
}

func (b *broadcaster) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for s := range b.subs {
		delete(b.subs, s)
		close(s.ch)
	}
}
