package inside

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

// stop ends everything in the box: TERM to the group of every exec's leader
// and to what ended execs left, after grace KILL to all that is left. It
// returns when nothing runs any more. Calls at the same time join.
func (s *Server) stop(grace time.Duration) {
	s.mu.Lock()
	first := !s.stopping
	s.stopping = true
	s.mu.Unlock()
	if first {
		go s.endAll(grace)
	}
	<-s.stopped
}

func (s *Server) endAll(grace time.Duration) {
	defer close(s.stopped)
	execs := s.all()
	for _, e := range execs {
		if e.finished() {
			e.tree.signal(unix.SIGTERM)
		} else {
			e.terminate(sandbox.ReasonStop, grace)
		}
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	if awaitAll(execs, late.C) {
		return
	}
	killEverything()
	for _, e := range execs {
		e.tree.killAll(killLimit)
		e.log.release() // the end does not wait for a reader
	}
	limit := time.NewTimer(killLimit)
	defer limit.Stop()
	awaitAll(execs, limit.C)
}

// awaitAll waits until every record is final and every tree empty. It is false
// if late came first.
func awaitAll(execs []*exec, late <-chan time.Time) bool {
	for _, e := range execs {
		select {
		case <-e.done:
		case <-late:
			return false
		}
		for wait := pollLeast; !e.tree.empty(); wait = min(2*wait, pollMost) {
			select {
			case <-time.After(wait):
			case <-late:
				return false
			}
		}
	}
	return true
}

// killEverything kills all processes of the box, known or not.
func killEverything() {
	if os.Getpid() == 1 {
		unix.Kill(-1, unix.SIGKILL) //nolint:errcheck // nobody is left: fine
	}
}
