package inside

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// exec is one command: its record, its log, its tree, and who holds it.
type exec struct {
	srv      *Server
	log      *execLog
	tree     *tree
	output   []*pump
	progress chan struct{} // signals what the pumps did
	in       *input        // nil without
	stdin    inputWriter   // what in feeds
	tty      *os.File      // the terminal's master, or nil

	timeout, killGrace, lease time.Duration
	killOnDisconnect          bool
	oomBefore                 int64

	reaped chan struct{} // closed when the leader was reaped
	done   chan struct{} // closed when the record is final

	mu     sync.Mutex
	info   sandbox.ExecInfo
	holder *stream
	lost   *time.Timer // runs out when the lost holder's lease does
	sent   uint64      // signals that KillExec sent, by number
	ending sandbox.ExecReason
	grace  time.Duration
	end    chan struct{} // closed when ending is set
}

func newExec(srv *Server, req *wire.Exec, files *passed) *exec {
	e := &exec{
		srv:              srv,
		log:              newLog(files.take(wire.FileLog), req.MaxLog),
		tree:             newTree(files.take(wire.FileCgroup), files.take(wire.FileCgroupKill), files.take(wire.FileCgroupEvents)),
		progress:         make(chan struct{}, 1),
		timeout:          req.Timeout,
		killGrace:        orDefault(req.KillGrace, sandbox.DefaultKillGrace),
		lease:            orDefault(req.Lease, sandbox.DefaultLease),
		killOnDisconnect: req.OnDisconnect == sandbox.OnDisconnectKill,
		reaped:           make(chan struct{}),
		done:             make(chan struct{}),
		end:              make(chan struct{}),
	}
	e.log.hold(0) // by the stream that the start returns, before a byte is written
	if req.Stdin {
		e.in = newInput()
	}
	e.info = sandbox.ExecInfo{
		ID: req.ID, Box: srv.boxName(), User: req.User, WorkDir: string(req.Dir), TTY: req.TTY,
		Started: time.Now(), State: sandbox.ExecStarting,
	}
	for _, a := range req.Args {
		e.info.Args = append(e.info.Args, string(a))
	}
	e.info.Clip()
	return e
}

// killLimit bounds how long a kill of a whole tree waits for it to be gone.
const killLimit = 5 * time.Second

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// record returns the exec's record as it is now.
func (e *exec) record() sandbox.ExecInfo {
	e.mu.Lock()
	info := e.info
	e.mu.Unlock()
	info.FirstOffset, info.Bytes = e.log.span()
	info.Truncated = info.FirstOffset > 0
	switch {
	case info.Done():
		info.Leftover = e.tree.leftover()
	case e.in != nil:
		info.InputOpen, info.InputBytes = e.in.progress()
	}
	return info
}

// finish makes the record final. It is called once.
func (e *exec) finish(change func(info *sandbox.ExecInfo)) {
	e.log.finish()
	if e.in != nil {
		e.in.close()
		if e.stdin != nil {
			e.stdin.stop()
		}
	}
	e.mu.Lock()
	change(&e.info)
	e.info.Clip()
	e.info.State = sandbox.ExecExited
	if e.lost != nil {
		e.lost.Stop()
	}
	e.mu.Unlock()
	e.srv.changed(e) // first: who waits for done may end the process
	close(e.done)
}

func (e *exec) finished() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// terminate begins to end the exec: TERM to the leader's group, after grace
// KILL to the whole tree. Only the first call counts.
func (e *exec) terminate(reason sandbox.ExecReason, grace time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ending == "" {
		e.ending, e.grace = reason, grace
		close(e.end)
	}
}

// hold makes s the attached stream. There is nothing to hold in an exec that has
// ended, whose stream may have been told so and left a moment ago.
func (e *exec) hold(s *stream, takeover bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.info.Done() {
		return nil
	}
	if e.holder != nil {
		if !takeover {
			return fmt.Errorf("attach to exec %s: %w", e.info.ID, sandbox.ErrExecBusy)
		}
		e.holder.putOut()
	}
	if e.lost != nil {
		e.lost.Stop()
		e.lost = nil
	}
	e.holder = s
	e.log.hold(s.cur.offset)
	return nil
}

// letGo detaches s. A client that is gone ends the exec, if that is its rule;
// a link that was lost does after the lease.
func (e *exec) letGo(s *stream, clientGone bool) {
	e.mu.Lock()
	if e.holder != s {
		e.mu.Unlock()
		return
	}
	e.holder = nil
	e.log.release()
	if e.killOnDisconnect && !clientGone && e.info.State == sandbox.ExecRunning {
		e.lost = time.AfterFunc(e.lease, func() { e.terminate(sandbox.ReasonKilled, e.killGrace) })
	}
	e.mu.Unlock()
	if e.killOnDisconnect && clientGone {
		e.terminate(sandbox.ReasonKilled, e.killGrace)
	}
}

// kill carries out a KillExec.
func (e *exec) kill(k *wire.Kill) error {
	sig := unix.Signal(k.Signal)
	if sig == 0 {
		sig = unix.SIGTERM
	}
	ended := fmt.Errorf("kill exec %s: %w", k.ID, sandbox.ErrExecEnded)
	e.mu.Lock()
	pid, running := e.info.PID, !e.info.Done()
	if running {
		e.sent |= 1 << (uint(sig) - 1)
	}
	e.mu.Unlock()

	switch {
	case k.Tree && sig == unix.SIGKILL:
		if e.tree.empty() {
			return ended
		}
		e.tree.killAll(killLimit)
		return nil
	case k.Tree:
		if !e.tree.signal(sig) {
			return ended
		}
		return nil
	}
	err := e.srv.reaper.kill(pid, sig, k.Group)
	if errors.Is(err, unix.ESRCH) {
		return ended
	}
	return err
}

// resize sets the size of the terminal.
func (e *exec) resize(size sandbox.Size) {
	if e.tty != nil && size.Validate() == nil {
		resize(e.tty, size) //nolint:errcheck // a terminal that is gone has no size
	}
}

// forget lets everything of a finished exec go.
func (e *exec) forget() {
	e.log.close()
	e.tree.close()
}

// signalName returns "SIGKILL" and the like.
func signalName(s unix.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(s))
}

// envNames returns the names of variables.
func envNames(env []string) []string {
	names := make([]string, 0, len(env))
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
