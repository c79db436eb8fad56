package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// watchFiles streams what changes in a directory until the client goes or the
// server stops.
func (a *fileAPI) watchFiles(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := a.s.patient(r.Context())
	defer cancel()
	c, err := a.call(r, VerbGet)
	if err != nil {
		return err
	}
	events, err := c.watch(ctx, c.name)
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		for range events { // whoever sends must not hang
		}
	}()
	a.s.metrics.streams.Inc()
	defer a.s.metrics.streams.Dec()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	out := eventWriter{w: w, rc: http.NewResponseController(w)}
	if out.write(": watching\n\n") != nil { // from here on nothing is missed
		return nil
	}
	beat := time.NewTicker(eventHeartbeat)
	defer beat.Stop()
	for {
		select {
		case e, open := <-events:
			if !open {
				return nil
			}
			data, err := json.Marshal(e)
			if err != nil {
				return fmt.Errorf("watch: %w", err)
			}
			if out.write("event: "+e.Kind+"\ndata: "+string(data)+"\n\n") != nil {
				return nil
			}
			beat.Reset(eventHeartbeat)
		case <-beat.C:
			if out.write(": alive\n\n") != nil {
				return nil
			}
		}
	}
}

// maxShare is how many watches of workspaces one owner may have open: the
// machine has not many, and they are for all. Admins have what the node has.
const maxShare = 16

// shares counts what owners have of something. The zero value is ready to use.
type shares struct {
	mu    sync.Mutex
	taken map[string]int // by owner
}

// take takes one for the caller, until release is called once.
func (s *shares) take(ctx context.Context) (release func(), err error) {
	caller, _ := ctx.Value(callerKey).(Caller)
	if caller.Admin {
		return func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[caller.Owner] >= maxShare {
		return nil, reason.WithHint(fmt.Errorf("%w: %d watches of workspaces are open, as many as an owner may have", rest.ErrRate, maxShare), "end one of them")
	}
	if s.taken == nil {
		s.taken = map[string]int{}
	}
	s.taken[caller.Owner]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.taken[caller.Owner]--; s.taken[caller.Owner] == 0 {
			delete(s.taken, caller.Owner)
		}
	}, nil
}

// watch implements [fileTree].
func (t *boxTree) watch(ctx context.Context, name string) (<-chan rest.FileEvent, error) {
	in, err := t.b.WatchFiles(ctx, name, sandbox.FileOptions{User: t.user})
	if err != nil {
		return nil, err
	}
	return eventsOf(ctx, in, func(e taisandbox.FileEvent) rest.FileEvent { return fileEvent(string(e.Kind), e.Path, e.Dir) }), nil
}

func fileEvent(kind, path string, dir bool) rest.FileEvent {
	e := rest.FileEvent{Kind: kind, Dir: dir}
	e.Path, e.PathB64 = shownBytes(path)
	return e
}

// eventsOf converts what comes from a channel, which is closed soon after ctx
// ends.
func eventsOf[T any](ctx context.Context, in <-chan T, convert func(T) rest.FileEvent) <-chan rest.FileEvent {
	out := make(chan rest.FileEvent)
	go func() {
		defer close(out)
		for e := range in {
			select {
			case out <- convert(e):
			case <-ctx.Done():
			}
		}
	}()
	return out
}
