package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/taibox/taibox/api/rest"
)

// view is what a client knows that only listens to events, and lists where it
// is told that it missed some.
type view struct {
	m   *machine
	mu  sync.Mutex
	has map[string]string // state by box
	ids map[string]bool   // of events
}

func newView(m *machine) *view {
	return &view{m: m, has: map[string]string{}, ids: map[string]bool{}}
}

// follow listens until ctx ends, whatever happens to the server.
func (v *view) follow(ctx context.Context) {
	api := v.m.newClient()
	since := ""
	v.list(ctx)
	for ctx.Err() == nil {
		begin := time.Now()
		for e, err := range api.Events(ctx, rest.WatchEvents{Types: []string{rest.EventState, rest.EventRemoved}, Since: since}) {
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				if !v.m.excused(begin, err) {
					v.m.fail("events: %v", err)
				}
				break
			}
			if e.ID != "" {
				since = e.ID
			}
			v.take(ctx, e)
		}
		wait(ctx, 100*time.Millisecond)
	}
}

func (v *view) take(ctx context.Context, e rest.Event) {
	switch e.Type {
	case rest.EventGap:
		v.m.tally.add("events: gap")
		v.list(ctx)
		return
	case rest.EventState, rest.EventRemoved:
	default:
		v.m.fail("events: %s was not asked for", e.Type)
		return
	}
	v.m.tally.add("events")
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ids[e.ID] {
		v.m.fail("event %s was told twice", e.ID)
	}
	v.ids[e.ID] = true
	if e.Type == rest.EventRemoved {
		delete(v.has, e.Box)
	} else {
		v.has[e.Box] = e.State
	}
}

// list begins anew with what there is.
func (v *view) list(ctx context.Context) {
	for {
		begin := time.Now()
		list, err := v.m.api.ListBoxes(ctx, rest.ListBoxes{})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			v.mu.Lock()
			defer v.mu.Unlock()
			clear(v.has)
			for _, b := range list {
				v.has[b.ID] = b.Status
			}
			return
		}
		if !v.m.excused(begin, err) {
			v.m.fail("list after a gap: %v", err)
			return
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// wantEmpty waits until the view has no box, as there is none.
func (v *view) wantEmpty() {
	v.m.eventually("those who listen to events know that all boxes are gone", func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		if len(v.has) > 0 {
			return fmt.Errorf("they know of %v", maps.Clone(v.has))
		}
		return nil
	})
}

// eventually polls until what is to become true is.
func (m *machine) eventually(what string, check func() error) {
	var err error
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	m.fail("never: %s: %v", what, err)
}

var errDiffers = errors.New("not the same")
