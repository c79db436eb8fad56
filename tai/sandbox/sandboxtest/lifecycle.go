package sandboxtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func lifecycle(e *env) {
	e.cases([]testCase{
		{"info", boxInfo},
		{"restart", restart},
		{"stop-created", stopCreated},
		{"stop-signals", stopSignals},
		{"not-running", notRunning},
		{"list", listBoxes},
		{"entrypoint", entrypoint},
		{"no-start", noStart},
		{"G08-remove-from-every-state", removeFromEveryState},
		{"G08-id-is-free-again", idIsFree},
		{"G08-missing-image", missingImageThenGood},
	})
	e.test("from-disk", fromDisk)
}

// reopened closes the driver and opens it again. Only for tests beside which no
// other runs.
func (e *env) reopened() {
	e.Helper()
	e.ok(e.d.Close())
	e.d = e.open(e.T, e.dir)
}

// fromDisk walks through a box's life, repeats each step, and looks again after
// each with a driver that only knows what was kept.
func fromDisk(e *env) {
	step := func(want sandbox.State) func(id string) {
		return func(id string) {
			e.Helper()
			e.wantState(id, want)
			if !e.has(sandbox.FeatureSurvives) {
				return
			}
			before := e.inspect(id)
			e.reopened()
			after := e.inspect(id)
			if after.State != want || after.CreatedAt.UnixMilli() != before.CreatedAt.UnixMilli() ||
				after.StartedAt.UnixMilli() != before.StartedAt.UnixMilli() || after.Labels["k"] != "v" ||
				after.MemoryBytes != before.MemoryBytes || after.WorkDir != before.WorkDir || after.User != before.User {
				e.Errorf("after reopening the box is another one:\n%+v\n%+v", before, after)
			}
		}
	}
	id := e.create(func(s *sandbox.Spec) { s.Labels = map[string]string{"k": "v"} })
	step(sandbox.StateCreated)(id)
	for range 2 {
		e.ok(e.d.Start(e.ctx, id))
		step(sandbox.StateRunning)(id)
	}
	e.run(id, e.commands.Write("/tmp/f", "kept"))
	for range 2 {
		e.ok(e.d.Stop(e.ctx, id, time.Second))
		step(sandbox.StateStopped)(id)
	}
	e.ok(e.d.Start(e.ctx, id))
	step(sandbox.StateRunning)(id)
	if res := e.run(id, e.commands.Cat("/tmp/f")); string(res.Stdout) != "kept\n" {
		e.Errorf("the file is %q", res.Stdout)
	}
	e.ok(e.d.Remove(e.ctx, id))
	for range 2 {
		e.wantErr(e.d.Remove(e.ctx, id), sandbox.ErrNotFound)
		_, err := e.d.Inspect(e.ctx, id)
		e.wantErr(err, sandbox.ErrNotFound)
		e.reopened()
	}
}

func boxInfo(e *env) {
	before := time.Now().Add(-time.Second)
	spec := e.spec(func(s *sandbox.Spec) {
		s.Labels = map[string]string{"a": "b"}
		s.WorkDir = "/tmp/x/y"
		s.User = "1000"
		if e.has(sandbox.FeaturePidsLimit) {
			s.Pids = 100
		}
	})
	made, err := e.d.Create(e.ctx, spec)
	e.ok(err)
	e.removeLater(spec.ID)
	spec.Labels["a"] = "changed" // the driver has its own copy
	for _, info := range []sandbox.Info{made, e.inspect(spec.ID)} {
		if info.ID != spec.ID || info.ContainerID == "" || info.Image != e.image || info.Labels["a"] != "b" ||
			info.Isolation != sandbox.IsolationContainer || info.WorkDir != spec.WorkDir || info.User != "1000" || info.Pids != spec.Pids {
			e.Errorf("info is %+v", info)
		}
		if info.State != sandbox.StateCreated || info.CreatedAt.Before(before) || !info.StartedAt.IsZero() || !info.StoppedAt.IsZero() {
			e.Errorf("a new box is %s, created %v, started %v, stopped %v", info.State, info.CreatedAt, info.StartedAt, info.StoppedAt)
		}
		if len(info.Phases) == 0 {
			e.Error("nothing says where the time went")
		}
	}
	e.ok(e.d.Start(e.ctx, spec.ID))
	started := e.inspect(spec.ID)
	if started.StartedAt.Before(made.CreatedAt) || !started.StoppedAt.IsZero() {
		e.Errorf("a running box was started %v, stopped %v", started.StartedAt, started.StoppedAt)
	}
	if res := e.run(spec.ID, e.commands.Pwd()); string(res.Stdout) != spec.WorkDir+"\n" {
		e.Errorf("the working directory is %q", res.Stdout)
	}
	if res := e.run(spec.ID, e.commands.UID()); string(res.Stdout) != "1000\n" {
		e.Errorf("the user is %q", res.Stdout)
	}
	// A driver may answer from what it remembers, so that one box that hangs
	// does not hang the list: that can be a moment old.
	e.eventually("the box is idle", func() bool {
		used := e.inspect(spec.ID)
		return used.RunningExecs == 0 && !used.LastExecAt.Before(started.StartedAt)
	})
	e.ok(e.d.Stop(e.ctx, spec.ID, 0))
	if stopped := e.inspect(spec.ID); stopped.StoppedAt.Before(started.StartedAt) || stopped.Reason == "" {
		e.Errorf("a stopped box was stopped %v, for %q", stopped.StoppedAt, stopped.Reason)
	}
}

// restart keeps files and the records of execs, and no process.
func restart(e *env) {
	id := e.started()
	done := e.run(id, e.commands.Echo("before"))
	running := e.stream(id, e.commands.Sleep(time.Hour))
	e.eventually("one exec runs", func() bool { return e.inspect(id).RunningExecs == 1 })
	e.ok(e.d.Stop(e.ctx, id, 0))
	x := e.wait(id, running.ID())
	if x.Reason != sandbox.ReasonStop {
		e.Errorf("a stopped exec ended by %s", x.Reason)
	}
	check := func() {
		e.Helper()
		list, err := e.d.ListExecs(e.ctx, id)
		e.ok(err)
		if len(list) != 2 || list[0].ID != done.ID || list[1].ID != running.ID() {
			e.Errorf("the execs are %+v", list)
		}
		s, err := e.d.AttachExec(e.ctx, id, done.ID, sandbox.AttachOptions{})
		e.ok(err)
		defer s.Close()
		if t := e.read(s, 0); string(t.out) != "before\n" {
			e.Errorf("the output is %q", t.out)
		}
	}
	check()
	e.ok(e.d.Start(e.ctx, id))
	check()
	e.eventually("after a restart no exec runs", func() bool { return e.inspect(id).RunningExecs == 0 })
}

func stopCreated(e *env) {
	id := e.create()
	for range 2 {
		e.ok(e.d.Stop(e.ctx, id, time.Second))
	}
	e.ok(e.d.Start(e.ctx, id))
	e.wantState(id, sandbox.StateRunning)
}

// stopSignals gives commands the time of the grace, and no more.
func stopSignals(e *env) {
	id := e.started()
	seven, eight := e.stream(id, e.commands.TrapExit(7)), e.stream(id, e.commands.TrapExit(8))
	e.waitFor(seven, "ready")
	e.waitFor(eight, "ready")
	e.soon("a stop that nothing holds up", func() { e.ok(e.d.Stop(e.ctx, id, time.Hour)) })
	e.wantEnd(e.wait(id, seven.ID()), sandbox.ReasonStop, 7)
	e.wantEnd(e.wait(id, eight.ID()), sandbox.ReasonStop, 8)

	e.ok(e.d.Start(e.ctx, id))
	deaf := e.stream(id, e.commands.Trap())
	e.waitFor(deaf, "ready")
	began := time.Now()
	e.ok(e.d.Stop(e.ctx, id, 500*time.Millisecond))
	if took := time.Since(began); took < 400*time.Millisecond {
		e.Errorf("a stop with a grace of 500ms was done after %v, though a command did not end", took)
	}
	e.wantEnd(e.wait(id, deaf.ID()), sandbox.ReasonStop, 137)
	e.wantState(id, sandbox.StateStopped)
}

func notRunning(e *env) {
	id := e.create()
	check := func() {
		e.Helper()
		_, err := e.d.Exec(e.ctx, id, sandbox.ExecSpec{Args: e.commands.Echo("x")})
		e.wantErr(err, sandbox.ErrNotRunning)
		_, err = e.d.ExecStream(e.ctx, id, sandbox.ExecSpec{Args: e.commands.Echo("x")})
		e.wantErr(err, sandbox.ErrNotRunning)
		if e.has(sandbox.FeatureStats) {
			_, err = e.d.Stats(e.ctx, id)
			e.wantErr(err, sandbox.ErrNotRunning)
		}
		if e.has(sandbox.FeaturePorts) {
			_, err = e.d.Ports(e.ctx, id)
			e.wantErr(err, sandbox.ErrNotRunning)
			_, err = e.d.Dial(e.ctx, id, 80)
			e.wantErr(err, sandbox.ErrNotRunning)
		}
	}
	check()
	e.ok(e.d.Start(e.ctx, id))
	e.ok(e.d.Stop(e.ctx, id, 0))
	check()
}

func listBoxes(e *env) {
	mark := sandbox.NewID("l-")
	var ids []string
	for i := range 3 {
		ids = append(ids, e.create(func(s *sandbox.Spec) {
			s.Labels = map[string]string{"mark": mark, "n": fmt.Sprint(i)}
		}))
	}
	e.ok(e.d.Start(e.ctx, ids[1]))
	for _, c := range []struct {
		filter sandbox.Filter
		want   []string
	}{
		{sandbox.Filter{Labels: map[string]string{"mark": mark}}, ids},
		{sandbox.Filter{Labels: map[string]string{"mark": mark, "n": "2"}}, ids[2:]},
		{sandbox.Filter{Labels: map[string]string{"mark": mark}, States: []sandbox.State{sandbox.StateRunning}}, ids[1:2]},
		{sandbox.Filter{Labels: map[string]string{"mark": mark}, States: []sandbox.State{sandbox.StateRunning, sandbox.StateCreated}}, ids},
		{sandbox.Filter{Labels: map[string]string{"mark": mark, "none": ""}}, nil},
	} {
		infos, err := e.d.List(e.ctx, c.filter)
		e.ok(err)
		var got []string
		for _, info := range infos {
			got = append(got, info.ID)
		}
		if !slices.Equal(got, c.want) {
			e.Errorf("the list of %+v is %v; wanted is %v", c.filter, got, c.want)
		}
	}
}

func entrypoint(e *env) {
	entry := e.commands.Entrypoint()
	id := e.started(func(s *sandbox.Spec) { s.Entrypoint = &entry })
	x, err := e.d.InspectExec(e.ctx, id, sandbox.EntrypointExec)
	e.ok(err)
	if x.State != sandbox.ExecRunning {
		e.Errorf("the entrypoint is %s (%s %d)", x.State, x.Reason, code(x))
	}
	s, err := e.d.AttachExec(e.ctx, id, sandbox.EntrypointExec, sandbox.AttachOptions{})
	e.ok(err)
	defer s.Close()
	e.waitFor(s, "started\n")

	// Its end is recorded, and is not the end of the box.
	e.ok(e.d.KillExec(e.ctx, id, sandbox.EntrypointExec, sandbox.KillOptions{Signal: 9}))
	e.wantEnd(e.wait(id, sandbox.EntrypointExec), sandbox.ReasonKilled, 137)
	e.wantState(id, sandbox.StateRunning)

	// exec goes through it if asked for.
	res := e.run(id, e.commands.Echo("args"), func(s *sandbox.ExecSpec) { s.Entrypoint = true })
	if string(res.Stdout) != "started\nargs\n" {
		e.Errorf("through the entrypoint the output is %q", res.Stdout)
	}
	if res := e.run(id, e.commands.Echo("args")); string(res.Stdout) != "args\n" {
		e.Errorf("beside the entrypoint the output is %q", res.Stdout)
	}

	// It runs again after a restart.
	e.ok(e.d.Stop(e.ctx, id, 0))
	e.ok(e.d.Start(e.ctx, id))
	x, err = e.d.InspectExec(e.ctx, id, sandbox.EntrypointExec)
	e.ok(err)
	if x.State != sandbox.ExecRunning {
		e.Errorf("after a restart the entrypoint is %s", x.State)
	}
}

func noStart(e *env) {
	entry := e.commands.Entrypoint()
	id := e.started(func(s *sandbox.Spec) { s.Entrypoint, s.NoStart = &entry, true })
	_, err := e.d.InspectExec(e.ctx, id, sandbox.EntrypointExec)
	e.wantErr(err, sandbox.ErrExecNotFound)
	none := []string{}
	id = e.started(func(s *sandbox.Spec) { s.Entrypoint = &none })
	_, err = e.d.InspectExec(e.ctx, id, sandbox.EntrypointExec)
	e.wantErr(err, sandbox.ErrExecNotFound)
}

func removeFromEveryState(e *env) {
	for name, bring := range map[string]func(id string){
		"created": func(string) {},
		"running": func(id string) { e.ok(e.d.Start(e.ctx, id)) },
		"stopped": func(id string) {
			e.ok(e.d.Start(e.ctx, id))
			e.ok(e.d.Stop(e.ctx, id, 0))
		},
		"busy": func(id string) {
			e.ok(e.d.Start(e.ctx, id))
			e.waitFor(e.stream(id, e.commands.Trap()), "ready")
		},
		"stopping": func(id string) {
			e.ok(e.d.Start(e.ctx, id))
			e.waitFor(e.stream(id, e.commands.Trap()), "ready")
			go e.d.Stop(e.ctx, id, time.Hour)
			e.eventually("stopping", func() bool { return e.inspect(id).State == sandbox.StateStopping })
		},
	} {
		id := e.create()
		bring(id)
		e.soon("removing a box that is "+name, func() { e.ok(e.d.Remove(e.ctx, id)) })
		_, err := e.d.Inspect(e.ctx, id)
		e.wantErr(err, sandbox.ErrNotFound)
		_, err = e.d.ListExecs(e.ctx, id)
		e.wantErr(err, sandbox.ErrNotFound)
	}
}

func idIsFree(e *env) {
	spec := e.spec()
	e.removeLater(spec.ID)
	for i := range 20 {
		_, err := e.d.Create(e.ctx, spec)
		e.ok(err)
		if i%2 == 0 {
			e.ok(e.d.Start(e.ctx, spec.ID))
			if list, err := e.d.ListExecs(e.ctx, spec.ID); err != nil || len(list) > 0 {
				e.Fatalf("a new box has the execs of the one before: %v, %v", list, err)
			}
			e.run(spec.ID, e.commands.Exit(0))
		}
		e.ok(e.d.Remove(e.ctx, spec.ID))
	}
}

func missingImageThenGood(e *env) {
	spec := e.spec()
	e.removeLater(spec.ID)
	bad := spec
	bad.Image = "example.test/none:1"
	_, err := e.d.Create(e.ctx, bad)
	e.wantErr(err, sandbox.ErrImageNotFound)
	_, err = e.d.Inspect(e.ctx, spec.ID)
	e.wantErr(err, sandbox.ErrNotFound)
	_, err = e.d.Create(e.ctx, spec)
	e.ok(err)
	e.wantState(spec.ID, sandbox.StateCreated)
}
