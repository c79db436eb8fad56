package sandboxtest

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func ending(e *env) {
	e.cases([]testCase{
		{"C01-child-holds-output", childHoldsOutput},
		{"C01-leftover-ends", leftoverEnds},
		{"C02-all-of-the-leaders-output", leadersOutput},
		{"C05-timeout", timeouts},
		{"D01-D02-timeout-ends-the-tree", timeoutEndsTree},
		{"D02-kill-tree", killTree},
		{"D02-stop-ends-the-tree", stopEndsTree},
		{"D04-hangup", hangup},
		{"D04-lease", lease},
		{"D05-no-limit-nobody-set", noDefaultLimit},
		{"F01-F02-no-zombies", noZombies},
		{"kill", kill},
	})
}

func childHoldsOutput(e *env) {
	id := e.started()
	for _, session := range []bool{false, true, false} {
		res := e.run(id, e.commands.Spawn(0, time.Hour, session))
		e.wantEnd(res.ExecInfo, sandbox.ReasonExit, 0)
		if string(res.Stdout) != "ok\n" {
			e.Errorf("it printed %q", res.Stdout)
		}
		if !res.OutputIncomplete {
			e.Error("nothing says that a child still held the output")
		}
		if !e.has(sandbox.FeatureExecCgroup) {
			continue
		}
		if res.Leftover != 1 {
			e.Errorf("%d processes are left over", res.Leftover)
		}
		e.ok(e.d.KillExec(e.ctx, id, res.ID, sandbox.KillOptions{Signal: 9, Tree: true}))
		e.eventually("nothing is left over", func() bool {
			x, err := e.d.InspectExec(e.ctx, id, res.ID)
			return err == nil && x.Leftover == 0
		})
		e.wantErr(e.d.KillExec(e.ctx, id, res.ID, sandbox.KillOptions{Signal: 9, Tree: true}), sandbox.ErrExecEnded)
		x, err := e.d.InspectExec(e.ctx, id, res.ID)
		e.ok(err)
		e.wantEnd(x, sandbox.ReasonExit, 0) // written once
	}
}

// leftoverEnds: what an exec leaves behind ends with the box, and none of it is
// told of when the box runs again.
func leftoverEnds(e *env) {
	id := e.started()
	res := e.run(id, e.commands.Spawn(0, time.Hour, true))
	told := func(when string) {
		e.Helper()
		x, err := e.d.InspectExec(e.ctx, id, res.ID)
		e.ok(err)
		if x.Leftover != 0 {
			e.Errorf("%s: %d processes are left over", when, x.Leftover)
		}
		all, err := e.d.ListExecs(e.ctx, id)
		e.ok(err)
		for _, x := range all {
			if x.Leftover != 0 {
				e.Errorf("%s: %d processes are listed as left over", when, x.Leftover)
			}
		}
	}
	e.ok(e.d.Stop(e.ctx, id, 0))
	told("stopped")
	e.ok(e.d.Start(e.ctx, id))
	told("started again")
}

func leadersOutput(e *env) {
	const n = 500_000
	id := e.started()
	res := e.run(id, e.commands.Spawn(n, time.Hour, false))
	if string(res.Stdout) != numbers(n)+"ok\n" {
		e.Errorf("%d bytes came", len(res.Stdout))
	}
}

func timeouts(e *env) {
	id := e.started()
	res, late := e.timedOut(id, e.commands.Sleep(time.Hour), time.Hour, func(sandbox.ExecResult) bool { return true })
	e.wantEnd(res.ExecInfo, sandbox.ReasonTimeout, 143)
	if late < 0 {
		e.Errorf("the answer came %v before the timeout", -late)
	}
	// Deaf ones are killed after the grace: their own, else the default.
	ready := func(res sandbox.ExecResult) bool { return string(res.Stdout) == "ready\n" }
	for _, grace := range []time.Duration{300 * time.Millisecond, 0} {
		res, late = e.timedOut(id, e.commands.Trap(), grace, ready)
		e.wantEnd(res.ExecInfo, sandbox.ReasonTimeout, 137)
		if want := cmp.Or(grace, sandbox.DefaultKillGrace); late < want {
			e.Errorf("it was killed after a grace of %v; wanted is %v", late, want)
		}
	}
	// Timed out never goes with 0, whatever the command says.
	for _, n := range []int{0, 9} {
		res, _ = e.timedOut(id, e.commands.TrapExit(n), time.Hour, ready)
		if res.Reason != sandbox.ReasonTimeout || code(res.ExecInfo) == 0 || res.Signal != "" {
			e.Errorf("a command that answers its timeout with %d ended by %s with %d (signal %q)", n, res.Reason, code(res.ExecInfo), res.Signal)
		}
	}
	// A leader that ends before is left alone, and what its child does is no
	// matter of the timeout.
	for want, cmd := range map[int][]string{4: e.commands.Exit(4), 0: e.commands.Spawn(0, time.Hour, false)} {
		res = e.run(id, cmd, func(s *sandbox.ExecSpec) { s.Timeout = time.Hour })
		e.wantEnd(res.ExecInfo, sandbox.ReasonExit, want)
	}
}

// timedOut runs a command beyond its timeout, and gives it a longer one as long
// as it is too short for the command to begin: a slow machine takes its time.
// late is how long after the timeout the answer came.
func (e *env) timedOut(id string, cmd []string, grace time.Duration, begun func(sandbox.ExecResult) bool) (res sandbox.ExecResult, late time.Duration) {
	e.Helper()
	for timeout := 500 * time.Millisecond; ; timeout *= 2 {
		began := time.Now()
		res = e.run(id, cmd, func(s *sandbox.ExecSpec) { s.Timeout, s.KillGrace = timeout, grace })
		late = time.Since(began) - timeout
		if begun(res) {
			return res, late
		}
	}
}

// still checks that nobody writes to a file any more.
func (e *env) still(id, file string) {
	e.Helper()
	size := func() int { return len(e.run(id, e.commands.Cat(file)).Stdout) }
	before := size()
	time.Sleep(300 * time.Millisecond)
	if after := size(); after != before || before == 0 {
		e.Errorf("%s grew from %d to %d bytes", file, before, after)
	}
}

func timeoutEndsTree(e *env) {
	e.need(sandbox.FeatureExecCgroup)
	id := e.started()
	res, _ := e.timedOut(id, e.commands.BusyTree("/tmp/grows"), 300*time.Millisecond, func(sandbox.ExecResult) bool {
		return len(e.run(id, e.commands.Cat("/tmp/grows")).Stdout) > 0
	})
	if res.Reason != sandbox.ReasonTimeout || code(res.ExecInfo) == 0 || res.Leftover != 0 {
		e.Errorf("it ended by %s with %d, %d are left over", res.Reason, code(res.ExecInfo), res.Leftover)
	}
	e.still(id, "/tmp/grows")
}

// busyTree starts a tree and waits until it does what it does.
func (e *env) busyTree(id string) sandbox.Stream {
	e.Helper()
	s := e.stream(id, e.commands.BusyTree("/tmp/grows"))
	e.waitFor(s, "ready")
	e.eventually("the tree is busy", func() bool { return len(e.run(id, e.commands.Cat("/tmp/grows")).Stdout) > 10 })
	return s
}

func killTree(e *env) {
	e.need(sandbox.FeatureExecCgroup)
	id := e.started()
	s := e.busyTree(id)
	e.ok(e.d.KillExec(e.ctx, id, s.ID(), sandbox.KillOptions{Signal: 9, Tree: true}))
	e.wantEnd(e.wait(id, s.ID()), sandbox.ReasonKilled, 137)
	e.eventually("nothing is left over", func() bool {
		x, err := e.d.InspectExec(e.ctx, id, s.ID())
		return err == nil && x.Leftover == 0
	})
	e.still(id, "/tmp/grows")
}

func stopEndsTree(e *env) {
	id := e.started()
	s := e.busyTree(id)
	e.ok(e.d.Stop(e.ctx, id, 100*time.Millisecond))
	if x := e.wait(id, s.ID()); x.Reason != sandbox.ReasonStop || x.Leftover != 0 {
		e.Errorf("it ended by %s, %d are left over", x.Reason, x.Leftover)
	}
	e.ok(e.d.Start(e.ctx, id))
	e.still(id, "/tmp/grows")
}

func killOnDisconnect(s *sandbox.ExecSpec) { s.OnDisconnect = sandbox.OnDisconnectKill }

func hangup(e *env) {
	id := e.box()
	s := e.stream(id, e.commands.Sleep(time.Hour), killOnDisconnect)
	e.ok(s.Hangup())
	e.ok(s.Hangup())
	e.ok(s.Close())
	e.soon("the end of one whose client is gone", func() {
		e.wantEnd(e.wait(id, s.ID()), sandbox.ReasonKilled, 143)
	})
	if _, err := s.Recv(); err == nil || isEOF(err) {
		e.Errorf("a stream that was hung up gives %v", err)
	}

	deaf := e.stream(id, e.commands.Trap(), killOnDisconnect, func(s *sandbox.ExecSpec) { s.KillGrace = 200 * time.Millisecond })
	e.waitFor(deaf, "ready")
	e.ok(deaf.Hangup())
	e.wantEnd(e.wait(id, deaf.ID()), sandbox.ReasonKilled, 137)

	kept := e.stream(id, e.commands.TrapExit(6))
	e.waitFor(kept, "ready")
	e.ok(kept.Hangup())
	time.Sleep(200 * time.Millisecond)
	x, err := e.d.InspectExec(e.ctx, id, kept.ID())
	e.ok(err)
	if x.State != sandbox.ExecRunning {
		e.Errorf("one that is to be kept is %s, by %s", x.State, x.Reason)
	}
	again, err := e.d.AttachExec(e.ctx, id, kept.ID(), sandbox.AttachOptions{Hold: true})
	e.ok(err)
	defer again.Close()
	e.waitFor(again, "ready")
	e.ok(e.d.KillExec(e.ctx, id, kept.ID(), sandbox.KillOptions{Group: true}))
	if x := e.wait(id, kept.ID()); code(x) != 6 {
		e.Errorf("it ended with %d", code(x))
	}

	// A viewer's going away is nobody's end.
	s = e.stream(id, e.commands.Sleep(time.Hour), killOnDisconnect)
	v, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{})
	e.ok(err)
	e.ok(v.Hangup())
	time.Sleep(200 * time.Millisecond)
	if x, err := e.d.InspectExec(e.ctx, id, s.ID()); err != nil || x.Done() {
		e.Errorf("a viewer hung up, and the exec is %s, %v", x.State, err)
	}
}

// lease: a lost link is no lost client, for a while.
func lease(e *env) {
	id := e.box()
	resumed, back, lease := e.resumed(id)
	lost := e.stream(id, e.commands.Sleep(time.Hour), killOnDisconnect, withLease(lease))
	began := time.Now()
	e.ok(lost.Close())
	e.wantEnd(e.wait(id, lost.ID()), sandbox.ReasonKilled, 143)
	if took := time.Since(began); took < lease {
		e.Errorf("with a lease of %v it was killed after %v", lease, took)
	}
	// Now the lease of the other one, which began before, would be over too.
	time.Sleep(300 * time.Millisecond)
	if x, err := e.d.InspectExec(e.ctx, id, resumed.ID()); err != nil || x.Done() {
		e.Errorf("one whose client came back is %s, by %s, %v", x.State, x.Reason, err)
	}
	e.ok(back.Hangup())
	e.wantEnd(e.wait(id, resumed.ID()), sandbox.ReasonKilled, 143)
}

func withLease(d time.Duration) func(*sandbox.ExecSpec) {
	return func(s *sandbox.ExecSpec) { s.Lease = d }
}

// resumed starts a command, loses it and holds it again within its lease, which
// is longer where a slow machine takes longer.
func (e *env) resumed(id string) (s, back sandbox.Stream, lease time.Duration) {
	e.Helper()
	for lease = 300 * time.Millisecond; ; lease *= 2 {
		s = e.stream(id, e.commands.Sleep(time.Hour), killOnDisconnect, withLease(lease))
		began := time.Now()
		e.ok(s.Close())
		back, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Hold: true})
		e.ok(err)
		e.Cleanup(func() { back.Close() })
		if time.Since(began) < lease {
			return s, back, lease
		}
	}
}

// noDefaultLimit can only look at the record: that a command without a timeout
// runs for days is the fake's test, on a clock of its own.
func noDefaultLimit(e *env) {
	id := e.box()
	s := e.stream(id, e.commands.Sleep(time.Hour))
	e.ok(s.Close())
	ctx, cancel := context.WithTimeoutCause(e.ctx, 3*time.Second, errors.New("it runs"))
	defer cancel()
	if x, err := e.d.WaitExec(ctx, id, s.ID()); err == nil {
		e.Errorf("one without a timeout ended by %s", x.Reason)
	}
}

func noZombies(e *env) {
	e.need(sandbox.FeatureStats)
	id := e.started()
	pids := func() int64 {
		s, err := e.d.Stats(e.ctx, id)
		e.ok(err)
		return s.Pids
	}
	before := pids()
	for range 40 {
		e.run(id, e.commands.Spawn(0, 50*time.Millisecond, true))
	}
	// Threads of our own may come and go; forty zombies may not stay.
	e.eventually("all children are reaped", func() bool { return pids() < before+10 })
}

func kill(e *env) {
	id := e.box()
	s := e.stream(id, e.commands.Sleep(time.Hour))
	e.wantErr(e.d.KillExec(e.ctx, id, s.ID(), sandbox.KillOptions{Signal: -1}), sandbox.ErrInvalidSpec)
	e.wantErr(e.d.KillExec(e.ctx, id, s.ID(), sandbox.KillOptions{Signal: 1000}), sandbox.ErrInvalidSpec)
	e.ok(e.d.KillExec(e.ctx, id, s.ID(), sandbox.KillOptions{Signal: 9}))
	x := e.wait(id, s.ID())
	e.wantEnd(x, sandbox.ReasonKilled, 137)
	if x.Signal != "SIGKILL" {
		e.Errorf("the signal is %q", x.Signal)
	}
}
