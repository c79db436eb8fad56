package inside

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

// Limits of what comes after a leader's end.
const (
	// drainQuiet is how long nothing more may come from children that hold the
	// output of a leader that has ended, and drainLimit how long something may.
	drainQuiet = 500 * time.Millisecond
	drainLimit = 10 * time.Second

	pollLeast = time.Millisecond
	pollMost  = 20 * time.Millisecond
)

// supervise watches over a running exec to its end. It alone decides how the
// exec ended.
func (e *exec) supervise(pid int, exited <-chan unix.WaitStatus) {
	status, asked, ended := e.await(pid, exited)
	v := e.judge(status, asked)
	kills := e.srv.oom.look() - e.oomBefore
	incomplete := e.drain()
	e.tree.leftover() // lets go of the cgroup, if nothing is left

	e.finish(func(info *sandbox.ExecInfo) {
		info.Ended = ended
		info.OutputIncomplete = incomplete
		info.OOMKills = kills
		info.ExitCode, info.Signal, info.Reason = &v.code, v.signal, v.reason
	})
}

// verdict is how a leader ended, and why.
type verdict struct {
	code   int
	signal string
	reason sandbox.ExecReason
}

// judge is called once the leader was reaped. asked is why we ended it, if we did.
func (e *exec) judge(status unix.WaitStatus, asked sandbox.ExecReason) verdict {
	v := verdict{code: status.ExitStatus(), reason: sandbox.ReasonExit}
	if status.Signaled() {
		sig := status.Signal()
		v.code, v.signal = 128+int(sig), signalName(sig)
		switch {
		case e.wasSent(sig):
			v.reason = sandbox.ReasonKilled
		case sig == unix.SIGKILL && asked == "" && e.srv.oom.claim(e.oomBefore):
			v.reason = sandbox.ReasonOOM
		default:
			v.reason = sandbox.ReasonSignal
		}
	}
	if asked != "" {
		v.reason = asked
		if asked == sandbox.ReasonTimeout && v.code == 0 {
			v.code = codeTimeout // running past its time is no success, whatever the command says
		}
	}
	return v
}

// wasSent reports whether a client sent a signal.
func (e *exec) wasSent(sig unix.Signal) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sent&(1<<(uint(sig)-1)) != 0
}

const codeTimeout = 124

// await returns when the leader was reaped and, if we were to end the exec
// before that, nothing of its tree lives. asked is why we were, if so.
func (e *exec) await(pid int, exited <-chan unix.WaitStatus) (status unix.WaitStatus, asked sandbox.ExecReason, ended time.Time) {
	var timeout, force, poll <-chan time.Time
	if e.timeout > 0 {
		t := time.NewTimer(e.timeout)
		defer t.Stop()
		timeout = t.C
	}
	look := time.NewTicker(oomLook)
	defer look.Stop()
	end := e.end
	wait := pollLeast
	for killing := false; ; {
		select {
		case status = <-exited:
			exited, timeout, ended = nil, nil, time.Now()
			close(e.reaped)
			if asked == "" {
				return status, "", ended
			}
		case <-look.C:
			e.srv.oom.look()
		case <-timeout:
			timeout = nil
			e.terminate(sandbox.ReasonTimeout, e.killGrace)
		case <-end:
			end = nil
			var grace time.Duration
			asked, grace = e.asked()
			e.tree.look()
			e.srv.reaper.kill(pid, unix.SIGTERM, true) //nolint:errcheck // it may just have ended
			t := time.NewTimer(grace)
			defer t.Stop()
			force, poll = t.C, time.After(wait)
		case <-force:
			killing, wait = true, pollLeast
			e.tree.kill()
			poll = time.After(wait)
		case <-poll:
			if exited == nil && e.tree.empty() {
				return status, asked, time.Now()
			}
			if killing {
				e.tree.kill()
			}
			wait = min(2*wait, pollMost)
			poll = time.After(wait)
		}
	}
}

func (e *exec) asked() (sandbox.ExecReason, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ending, e.grace
}

// drain waits until what the leader wrote is in the log, and a little for what
// children still write. It reports whether one of them may write more.
func (e *exec) drain() (incomplete bool) {
	owed := make([]int64, len(e.output))
	for i, p := range e.output {
		owed[i] = p.owed()
	}
	limit := time.NewTimer(drainLimit)
	defer limit.Stop()
	quiet := time.NewTimer(drainQuiet)
	defer quiet.Stop()
	isQuiet, isLate := false, false
	for {
		paid, ended := true, true
		for i, p := range e.output {
			paid = paid && p.paid(owed[i])
			ended = ended && p.atEnd()
		}
		if ended {
			return false
		}
		if paid && (isQuiet || isLate) {
			return true
		}
		select {
		case <-e.progress:
			isQuiet = false
			quiet.Reset(drainQuiet)
		case <-quiet.C:
			isQuiet = true
		case <-limit.C:
			isLate = true
		}
	}
}
