package inside

import (
	"sync"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// maxPending bounds what a watcher may fall behind. One that does is cut off:
// it can ask again, and begins with all there is.
const maxPending = 8192

// watcher is told of each start and end of an exec.
type watcher struct {
	mu      sync.Mutex
	pending []sandbox.ExecInfo
	behind  bool
	more    chan struct{} // has room for one signal
}

func (w *watcher) add(info sandbox.ExecInfo) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.behind = w.behind || len(w.pending) >= maxPending; !w.behind {
		w.pending = append(w.pending, info)
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) take() (infos []sandbox.ExecInfo, behind bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	infos, w.pending = w.pending, nil
	return infos, w.behind
}

// changed tells all watchers about an exec.
func (s *Server) changed(e *exec) {
	s.idle.Reset(idleDelay)
	s.mu.Lock()
	watchers := make([]*watcher, 0, len(s.watchers))
	for w := range s.watchers {
		watchers = append(watchers, w)
	}
	s.mu.Unlock()
	if len(watchers) == 0 {
		return
	}
	info := e.record()
	for _, w := range watchers {
		w.add(info)
	}
}

// watch serves a watcher until its link ends.
func (s *Server) watch(conn *wire.Conn) error {
	w := &watcher{more: make(chan struct{}, 1)}
	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
	}()
	for _, e := range s.all() {
		w.add(e.record())
	}
	gone := linkEnd(conn)
	for {
		infos, behind := w.take()
		for i := range infos {
			if err := conn.WriteJSON(wire.TypeReply, &infos[i]); err != nil {
				return err
			}
		}
		if behind {
			return wire.ErrTooLong
		}
		select {
		case <-w.more:
		case <-gone:
			return nil
		case <-s.stopped:
			// The last ends were told before that was closed.
			infos, _ := w.take()
			for i := range infos {
				conn.WriteJSON(wire.TypeReply, &infos[i]) //nolint:errcheck // the link is gone, then
			}
			return nil
		}
	}
}

// linkEnd is closed when the other side closes, or says more than its request.
func linkEnd(conn *wire.Conn) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		conn.ReadFrame() //nolint:errcheck // any answer means the end
	}()
	return gone
}
