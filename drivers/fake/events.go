package fake

import (
	"context"
	"sync"

	"github.com/taibox/taibox/tai/sandbox"
)

// eventBuffer is how many events a reader may fall behind.
const eventBuffer = 256

type broadcast struct {
	mu   sync.Mutex
	subs map[*subscriber]struct{}
}

type subscriber struct {
	d      *Driver
	ch     chan sandbox.Event // one longer than the bound, for the gap
	missed bool
	stop   func() bool
}

func (b *broadcast) subscribe(ctx context.Context, d *Driver) <-chan sandbox.Event {
	s := &subscriber{d: d, ch: make(chan sandbox.Event, eventBuffer+1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs[s] = struct{}{}
	s.stop = context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.dropLocked(s)
	})
	return s.ch
}

func (b *broadcast) publish(ev sandbox.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		switch {
		case len(s.ch) < eventBuffer:
			s.missed = false
			s.ch <- ev
		case !s.missed:
			s.missed = true
			s.ch <- sandbox.Event{Time: ev.Time, Type: sandbox.EventGap}
		}
	}
}

// closeOf ends the channels of a driver.
func (b *broadcast) closeOf(d *Driver) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		if s.d == d {
			s.stop()
			b.dropLocked(s)
		}
	}
}

func (b *broadcast) dropLocked(s *subscriber) {
	if _, ok := b.subs[s]; ok {
		delete(b.subs, s)
		close(s.ch)
	}
}

// Events delivers what happens from now on.
func (d *Driver) Events(ctx context.Context) (<-chan sandbox.Event, error) {
	if err := d.begin(ctx); err != nil {
		return nil, err
	}
	return d.m.events.subscribe(ctx, d), nil
}
