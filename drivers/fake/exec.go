package fake

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

const (
	// drainLimit is how long an ended exec waits for children that hold its output.
	drainLimit = 100 * time.Millisecond
	// Finished execs that a box keeps, and bytes of output over all of them.
	maxFinished      = 1000
	maxFinishedBytes = 1 << 30
	// timedOutCode stands in for the 0 of a command that took its timeout well.
	timedOutCode = 124
)

// exec is one exec. The mutex of its box guards what changes.
type exec struct {
	d    *Driver // whose programs it runs
	b    *box
	spec sandbox.ExecSpec // with all defaults filled in
	log  *outputLog
	in   *input
	done chan struct{} // closed once the record is final

	info    sandbox.ExecInfo
	size    sandbox.Size
	leader  *Proc
	tree    map[*Proc]struct{}      // what runs of it
	ending  sandbox.ExecReason      // why we are ending it; empty if we are not
	sent    map[syscall.Signal]bool // signals of KillExec
	holder  *stream
	timeout *time.Timer
	kill    *time.Timer
	lease   *time.Timer
}

// startExec makes an exec and starts its leader.
func (d *Driver) startExec(ctx context.Context, b *box, spec sandbox.ExecSpec) (*exec, error) {
	if err := d.step(ctx, "exec.start", b.id); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usableLocked(); err != nil {
		return nil, err
	}
	if b.fullLocked() {
		return nil, sandbox.ErrProcessLimit
	}
	e, err := b.newExecLocked(spec)
	if err != nil {
		return nil, err
	}
	e.d = d
	run, problem := d.programLocked(b, &e.spec)
	e.info.Error = problem
	e.info.Clip()
	b.pruneLocked()
	b.execs[e.info.ID] = e
	b.order = append(b.order, e)

	p := b.newProcLocked(e, e.spec.Args, false)
	e.leader, e.info.PID = p, p.PID
	if e.spec.Timeout > 0 {
		e.timeout = time.AfterFunc(e.spec.Timeout, func() { e.terminate(sandbox.ReasonTimeout) })
	}
	e.toldLocked()
	b.m.work.run(func() {
		code := run(p.ctx, p)
		e.leaderEnded(p, code)
	})
	return e, nil
}

// newExecLocked checks a spec against the box and fills in what it leaves open.
func (b *box) newExecLocked(spec sandbox.ExecSpec) (*exec, error) {
	spec.ID = cmp.Or(spec.ID, sandbox.NewID("e-"))
	if b.execs[spec.ID] != nil {
		return nil, sandbox.ErrExecExists
	}
	if spec.Entrypoint {
		args := spec.Args
		if len(args) == 0 {
			args = b.info.Cmd
		}
		spec.Args = slices.Concat(b.info.Entrypoint, args)
		if len(spec.Args) == 0 {
			return nil, errNoCommand
		}
	}
	spec.User = cmp.Or(spec.User, b.info.User)
	uid, err := lookUser(spec.User)
	if err != nil {
		return nil, err
	}
	spec.WorkDir = path.Clean(cmp.Or(spec.WorkDir, b.info.WorkDir))
	if !b.dirs[spec.WorkDir] {
		return nil, fmt.Errorf("%w: %s", sandbox.ErrDirNotFound, spec.WorkDir)
	}
	spec.Size = orDefault(spec.Size, sandbox.Size{Cols: 80, Rows: 24})
	spec.KillGrace = cmp.Or(spec.KillGrace, sandbox.DefaultKillGrace)
	spec.Lease = cmp.Or(spec.Lease, sandbox.DefaultLease)
	spec.OnDisconnect = cmp.Or(spec.OnDisconnect, sandbox.OnDisconnectKeep)
	spec.MaxLog = cmp.Or(spec.MaxLog, sandbox.DefaultMaxLog)
	e := &exec{
		b: b, spec: spec, log: newLog(spec.MaxLog), in: newInput(), done: make(chan struct{}),
		size: spec.Size, tree: map[*Proc]struct{}{}, sent: map[syscall.Signal]bool{},
		info: sandbox.ExecInfo{
			ID: spec.ID, Box: b.id, Args: slices.Clone(spec.Args), EnvNames: slices.Sorted(maps.Keys(spec.Env)),
			User: spec.User, WorkDir: spec.WorkDir, TTY: spec.TTY, Started: time.Now(), State: sandbox.ExecRunning,
		},
	}
	e.spec.Env = b.envLocked(spec, uid)
	if spec.ID != sandbox.EntrypointExec {
		e.log.hold(0) // by the stream that the start returns, before a byte is written
	}
	if !spec.Stdin {
		e.in.end()
	}
	return e, nil
}

// envLocked is the environment of a command: the image's, the box's, the
// exec's, and what every command expects.
func (b *box) envLocked(spec sandbox.ExecSpec, uid int) map[string]string {
	env := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "HOSTNAME": cmp.Or(b.spec.Hostname, b.id)}
	if uid != 0 {
		env["HOME"] = "/home"
	}
	if spec.TTY {
		env["TERM"] = "xterm"
	}
	for _, kv := range b.image.Config.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	maps.Copy(env, b.spec.Env)
	maps.Copy(env, spec.Env)
	return env
}

// pruneLocked forgets the oldest finished execs beyond what is kept.
func (b *box) pruneLocked() {
	finished, bytes := 0, int64(0)
	for i, e := range slices.Backward(b.order) {
		if !e.info.Done() {
			continue
		}
		first, end := e.log.bounds()
		finished, bytes = finished+1, bytes+end-first
		if finished >= maxFinished || bytes > maxFinishedBytes {
			delete(b.execs, e.info.ID)
			b.order = slices.Delete(b.order, i, i+1)
		}
	}
}

// leaderEnded is the one place where an exec ends by itself: its leader is gone.
func (e *exec) leaderEnded(p *Proc, code int) {
	sig, oom := p.finish()
	e.b.mu.Lock()
	if e.timeout != nil {
		e.timeout.Stop() // in time: what children do is no matter of the timeout
	}
	ending := e.ending
	e.b.mu.Unlock()

	incomplete := false
	if ending != "" {
		e.waitTree(nil, func(*Proc) bool { return true })
	} else {
		t := time.NewTimer(drainLimit)
		defer t.Stop()
		incomplete = !e.waitTree(t.C, func(c *Proc) bool { return c.holdsOutput })
	}

	e.b.mu.Lock()
	defer e.b.mu.Unlock()
	if e.info.Done() {
		return // lost with its box
	}
	e.info.OutputIncomplete = incomplete
	code &= 0xff
	if sig != 0 {
		code = 128 + int(sig)
		e.info.Signal = unix.SignalName(sig)
	}
	e.info.Reason = e.reasonLocked(sig, oom)
	if e.info.Reason == sandbox.ReasonTimeout && code == 0 {
		code = timedOutCode
	}
	e.finalLocked(sandbox.ExecExited, &code)
}

func (e *exec) reasonLocked(sig syscall.Signal, oom bool) sandbox.ExecReason {
	switch {
	case oom:
		return sandbox.ReasonOOM
	case e.ending != "":
		return e.ending
	case sig != 0 && e.sent[sig]:
		return sandbox.ReasonKilled
	case sig != 0:
		return sandbox.ReasonSignal
	}
	return sandbox.ReasonExit
}

// waitTree waits until no process of the tree satisfies want, and reports
// whether that came before the timer.
func (e *exec) waitTree(timer <-chan time.Time, want func(*Proc) bool) bool {
	for {
		var wait <-chan struct{}
		e.b.mu.Lock()
		for p := range e.tree {
			if want(p) {
				wait = p.ended
			}
		}
		e.b.mu.Unlock()
		if wait == nil {
			return true
		}
		select {
		case <-wait:
		case <-timer:
			return false
		}
	}
}

// finalLocked writes the end of the record, once.
func (e *exec) finalLocked(s sandbox.ExecState, code *int) {
	if e.info.Done() {
		return
	}
	for _, t := range []*time.Timer{e.timeout, e.kill, e.lease} {
		if t != nil {
			t.Stop()
		}
	}
	e.info.State, e.info.ExitCode, e.info.Ended = s, code, time.Now()
	e.in.shut()
	e.toldLocked()
	close(e.done)
	e.log.finish()
}

// loseLocked ends the record of an exec whose end nobody will see.
func (e *exec) loseLocked() {
	if !e.info.Done() {
		e.info.Reason = sandbox.ReasonLost
		e.finalLocked(sandbox.ExecLost, nil)
	}
}

// toldLocked publishes the record as it is.
func (e *exec) toldLocked() {
	info := e.recordLocked()
	e.b.info.LastExecAt = time.Now()
	e.b.m.events.publish(sandbox.Event{
		Time: time.Now(), Type: sandbox.EventExec, Box: e.b.id, Labels: maps.Clone(e.b.info.Labels), Exec: &info,
	})
}

// recordLocked returns a copy of the record that the caller may keep.
func (e *exec) recordLocked() sandbox.ExecInfo {
	info := e.info
	info.Args, info.EnvNames = slices.Clone(info.Args), slices.Clone(info.EnvNames)
	if info.ExitCode != nil {
		code := *info.ExitCode
		info.ExitCode = &code
	}
	info.FirstOffset, info.Bytes = e.log.bounds()
	info.Truncated = info.FirstOffset > 0
	if info.Done() {
		info.Leftover = len(e.tree)
	} else {
		info.InputOpen, info.InputBytes = e.in.progress()
	}
	return info
}

// endingLocked says why the exec ends from here on. It reports false if
// something else said it before, or the leader is gone already.
func (e *exec) endingLocked(why sandbox.ExecReason) bool {
	_, runs := e.tree[e.leader]
	if !runs || e.ending != "" {
		return false
	}
	e.ending = why
	return true
}

// terminate ends the exec: TERM to the leader's group, after the grace KILL to
// the whole tree.
func (e *exec) terminate(why sandbox.ExecReason) {
	e.b.mu.Lock()
	if !e.endingLocked(why) {
		e.b.mu.Unlock()
		return
	}
	e.kill = time.AfterFunc(e.spec.KillGrace, func() { e.signal(syscall.SIGKILL, func(*Proc) bool { return true }) })
	e.b.mu.Unlock()
	e.signal(syscall.SIGTERM, func(p *Proc) bool { return p.inGroup })
}

// signal sends sig to those of the tree that to selects, and reports how many
// there were.
func (e *exec) signal(sig syscall.Signal, to func(*Proc) bool) int {
	e.b.mu.Lock()
	var ps []*Proc
	for p := range e.tree {
		if to(p) {
			ps = append(ps, p)
		}
	}
	e.b.mu.Unlock()
	for _, p := range ps {
		p.Signal(sig)
	}
	return len(ps)
}

// lookUser resolves "user[:group]" as the box's own files would.
func lookUser(s string) (uid int, err error) {
	name, group, hasGroup := strings.Cut(s, ":")
	uid, ok := number(name, map[string]int{"root": 0, "user": 1000, "nobody": 65534})
	if !ok {
		return 0, fmt.Errorf("%w: user %q", sandbox.ErrUserNotFound, name)
	}
	if hasGroup {
		if _, ok := number(group, map[string]int{"root": 0, "user": 1000, "nogroup": 65534}); !ok {
			return 0, fmt.Errorf("%w: group %q", sandbox.ErrUserNotFound, group)
		}
	}
	return uid, nil
}

func number(s string, names map[string]int) (int, bool) {
	if n, ok := names[s]; ok {
		return n, true
	}
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err == nil
}
