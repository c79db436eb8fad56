package sandboxtest

import (
	"errors"
	"strings"

	"github.com/taibox/taibox/tai/sandbox"
)

func limits(e *env) {
	e.cases([]testCase{
		{"A07a-leader-out-of-memory", leaderOOM},
		{"A07b-child-out-of-memory", childOOM},
		{"L04-pids", pidsLimit},
		{"open-files", openFiles},
		{"read-only", readOnly},
		{"shown", limitsShown},
	})
}

const smallMemory = 64 << 20

func leaderOOM(e *env) {
	e.need(sandbox.FeatureMemoryLimit)
	id := e.started(func(s *sandbox.Spec) { s.MemoryBytes = smallMemory })
	evs, err := e.d.Events(e.ctx)
	e.ok(err)
	res := e.run(id, e.commands.Alloc(4*smallMemory))
	e.wantEnd(res.ExecInfo, sandbox.ReasonOOM, 137)
	if res.OOMKills < 1 || res.Signal != "SIGKILL" {
		e.Errorf("the record says %d kills, %q", res.OOMKills, res.Signal)
	}
	for {
		if ev := e.event(evs); ev.Box == id && ev.Type == sandbox.EventOOM {
			break
		}
	}
	if n := e.inspect(id).OOMKills; n < 1 {
		e.Errorf("the box says %d kills", n)
	}
	// The box is none the worse for it, and it is remembered.
	e.wantState(id, sandbox.StateRunning)
	e.run(id, e.commands.Exit(0))
	e.ok(e.d.Stop(e.ctx, id, 0))
	e.wantEnd(e.wait(id, res.ID), sandbox.ReasonOOM, 137)
	if n := e.inspect(id).OOMKills; n < 1 {
		e.Errorf("after a stop the box says %d kills", n)
	}
}

func childOOM(e *env) {
	e.need(sandbox.FeatureMemoryLimit)
	id := e.started(func(s *sandbox.Spec) { s.MemoryBytes = smallMemory })
	res := e.run(id, e.commands.AllocChild(4*smallMemory))
	e.wantEnd(res.ExecInfo, sandbox.ReasonExit, 0)
	if string(res.Stdout) != "survived\n" || res.OOMKills < 1 || e.inspect(id).OOMKills < 1 {
		e.Errorf("it printed %q, the record says %d kills, the box %d", res.Stdout, res.OOMKills, e.inspect(id).OOMKills)
	}
}

func pidsLimit(e *env) {
	e.need(sandbox.FeaturePidsLimit)
	id := e.started(func(s *sandbox.Spec) { s.Pids = 20 })
	if res := e.run(id, e.commands.Fork(100)); code(res.ExecInfo) == 0 {
		e.Error("a hundred processes fit into twenty")
	}
	// The limit is the users': what we need ourselves is not taken from it.
	e.eventually("there is room again", func() bool {
		res, err := e.d.Exec(e.ctx, id, sandbox.ExecSpec{Args: e.commands.Fork(10)})
		if errors.Is(err, sandbox.ErrProcessLimit) {
			return false
		}
		e.ok(err)
		return code(res.ExecInfo) == 0
	})
}

func openFiles(e *env) {
	id := e.started(func(s *sandbox.Spec) { s.OpenFiles = 64 })
	if res := e.run(id, e.commands.OpenFiles()); strings.TrimSpace(string(res.Stdout)) != "64" {
		e.Errorf("the limit is %q", res.Stdout)
	}
}

func readOnly(e *env) {
	e.need(sandbox.FeatureReadOnlyRoot)
	id := e.started(func(s *sandbox.Spec) { s.ReadOnly = true })
	if res := e.run(id, e.commands.Write("/etc/evil", "x")); code(res.ExecInfo) == 0 {
		e.Error("/etc can be written")
	}
	if res := e.run(id, e.commands.Write("/tmp/fine", "x")); code(res.ExecInfo) != 0 {
		e.Errorf("/tmp cannot be written: %q", res.Stderr)
	}
	id = e.started()
	if res := e.run(id, e.commands.Write("/etc/fine", "x")); code(res.ExecInfo) != 0 {
		e.Errorf("without read-only /etc cannot be written: %q", res.Stderr)
	}
}

func limitsShown(e *env) {
	id := e.create(func(s *sandbox.Spec) {
		s.OpenFiles = 100
		if e.has(sandbox.FeatureMemoryLimit) {
			s.MemoryBytes = smallMemory
		}
		if e.has(sandbox.FeatureCPULimit) {
			s.CPUs = 0.5
		}
		if e.has(sandbox.FeaturePidsLimit) {
			s.Pids = 33
		}
	})
	info := e.inspect(id)
	if info.OpenFiles != 100 ||
		e.has(sandbox.FeatureMemoryLimit) && info.MemoryBytes != smallMemory ||
		e.has(sandbox.FeatureCPULimit) && info.CPUs != 0.5 ||
		e.has(sandbox.FeaturePidsLimit) && info.Pids != 33 {
		e.Errorf("the limits are shown as %+v", info)
	}
	if !e.has(sandbox.FeatureStats) {
		return
	}
	e.ok(e.d.Start(e.ctx, id))
	s, err := e.d.Stats(e.ctx, id)
	e.ok(err)
	if s.Time.IsZero() || s.Pids < 1 || s.MemoryLimit != info.MemoryBytes {
		e.Errorf("the stats are %+v", s)
	}
}
