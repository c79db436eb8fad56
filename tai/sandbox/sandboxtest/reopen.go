package sandboxtest

import (
	"slices"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// reopen is run one after the other: each closes the driver.
func reopen(e *env) {
	if !e.has(sandbox.FeatureSurvives) {
		e.Skip("boxes do not outlive the driver")
	}
	for _, c := range []testCase{
		{"exec-goes-on", execGoesOn},
		{"output-is-whole", outputIsWhole},
		{"words-are-bytes", wordsAreBytes},
		{"ended-while-closed", endedWhileClosed},
		{"timeout-while-closed", timeoutWhileClosed},
		{"lease-while-closed", leaseWhileClosed},
		{"old-streams-break", oldStreamsBreak},
		{"closed-driver", closedDriver},
		{"G05-inventory", inventory},
	} {
		e.test(c.name, c.run)
	}
}

func execGoesOn(e *env) {
	id := e.started()
	s := e.stream(id, e.commands.Cat(), withStdin)
	_, err := s.Write([]byte("before "))
	e.ok(err)
	e.waitFor(s, "before ")
	e.reopened()
	e.wantState(id, sandbox.StateRunning)
	x, err := e.d.InspectExec(e.ctx, id, s.ID())
	e.ok(err)
	if x.State != sandbox.ExecRunning || x.Bytes != 7 {
		e.Errorf("the exec is %s with %d bytes", x.State, x.Bytes)
	}
	again, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Hold: true, Since: 7})
	e.ok(err)
	defer again.Close()
	_, err = again.Write([]byte("after"))
	e.ok(err)
	e.ok(again.CloseWrite())
	if t := e.read(again, 7); string(t.out) != "after" {
		e.Errorf("came %q", t.out)
	}
	e.wantEnd(e.wait(id, s.ID()), sandbox.ReasonExit, 0)
}

// outputIsWhole: a client resumes by offset, and has every byte once.
func outputIsWhole(e *env) {
	const n = 1_000_000
	id := e.started()
	s := e.stream(id, e.commands.Count(n))
	t, err := readUntil(s, 0, func(t text) bool { return t.end > 100_000 })
	e.ok(err)
	e.reopened()
	again, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Hold: true, Since: t.end})
	e.ok(err)
	defer again.Close()
	rest := e.read(again, t.end)
	if rest.lost > 0 || string(t.out)+string(rest.out) != numbers(n) {
		e.Errorf("%d and %d bytes came, %d were lost", len(t.out), len(rest.out), rest.lost)
	}
}

// wordsAreBytes: what is not UTF-8 gets to the command, and is on record.
func wordsAreBytes(e *env) {
	const raw = "\xff\xfeé"
	cmd := e.commands.Echo(raw)
	id := e.started(func(s *sandbox.Spec) {
		s.Entrypoint, s.Env = &cmd, map[string]string{"RAW": raw}
	})
	e.wait(id, sandbox.EntrypointExec)
	res := e.run(id, cmd)
	if string(res.Stdout) != raw+"\n" {
		e.Errorf("%q was said as %q", raw, res.Stdout)
	}
	for range 2 {
		x, err := e.d.InspectExec(e.ctx, id, res.ID)
		e.ok(err)
		if !slices.Equal(x.Args, cmd) || !slices.Equal(e.inspect(id).Entrypoint, cmd) {
			e.Errorf("the record has %q, the box %q; wanted is %q", x.Args, e.inspect(id).Entrypoint, cmd)
		}
		if env := e.run(id, e.commands.Env()).Stdout; !contains(env, "RAW="+raw+"\n") {
			e.Errorf("the environment is %q", env)
		}
		e.reopened()
	}
}

func endedWhileClosed(e *env) {
	id := e.started()
	s := e.stream(id, e.commands.Drain(3), withStdin)
	e.ok(s.CloseWrite())
	quick := e.run(id, e.commands.Exit(7))
	slow := e.stream(id, e.commands.Sleep(300*time.Millisecond))
	e.ok(e.d.Close())
	time.Sleep(600 * time.Millisecond)
	e.d = e.open(e.T, e.dir)
	e.wantEnd(e.wait(id, s.ID()), sandbox.ReasonExit, 0)
	e.wantEnd(e.wait(id, quick.ID), sandbox.ReasonExit, 7)
	e.wantEnd(e.wait(id, slow.ID()), sandbox.ReasonExit, 0)
	v, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{})
	e.ok(err)
	defer v.Close()
	if t := e.read(v, 0); string(t.out) != numbers(3) {
		e.Errorf("came %q", t.out)
	}
}

func timeoutWhileClosed(e *env) {
	id := e.started()
	s := e.stream(id, e.commands.Sleep(time.Hour), func(s *sandbox.ExecSpec) { s.Timeout = 300 * time.Millisecond })
	e.ok(e.d.Close())
	time.Sleep(600 * time.Millisecond)
	e.d = e.open(e.T, e.dir)
	e.wantEnd(e.wait(id, s.ID()), sandbox.ReasonTimeout, 143)
}

func leaseWhileClosed(e *env) {
	id := e.started()
	lost := e.stream(id, e.commands.Sleep(time.Hour), killOnDisconnect, func(s *sandbox.ExecSpec) { s.Lease = 300 * time.Millisecond })
	kept := e.stream(id, e.commands.Sleep(time.Hour), killOnDisconnect)
	e.ok(e.d.Close())
	time.Sleep(600 * time.Millisecond)
	e.d = e.open(e.T, e.dir)
	e.wantEnd(e.wait(id, lost.ID()), sandbox.ReasonKilled, 143)
	if x, err := e.d.InspectExec(e.ctx, id, kept.ID()); err != nil || x.Done() {
		e.Errorf("within its lease it is %s, by %s, %v", x.State, x.Reason, err)
	}
}

// oldStreamsBreak: what they say is not about the command.
func oldStreamsBreak(e *env) {
	id := e.started()
	s := e.stream(id, e.commands.Sleep(time.Hour), withStdin)
	done := make(chan error, 2)
	go func() {
		_, err := s.Recv()
		done <- err
	}()
	go func() {
		_, err := s.Wait(e.ctx)
		done <- err
	}()
	time.Sleep(50 * time.Millisecond)
	e.ok(e.d.Close())
	for range 2 {
		select {
		case err := <-done:
			if err == nil || isEOF(err) {
				e.Errorf("a broken link gives %v", err)
			}
		case <-e.ctx.Done():
			e.Fatal("a call is still blocked")
		}
	}
	if _, err := s.Write([]byte("x")); err == nil {
		e.Error("a broken link takes input")
	}
	e.d = e.open(e.T, e.dir)
}

func closedDriver(e *env) {
	id := e.started()
	evs, err := e.d.Events(e.ctx)
	e.ok(err)
	e.ok(e.d.Close())
	for range evs {
	}
	for name, call := range map[string]func() error{
		"inspect": func() error { _, err := e.d.Inspect(e.ctx, id); return err },
		"start":   func() error { return e.d.Start(e.ctx, id) },
		"exec": func() error {
			_, err := e.d.ExecStream(e.ctx, id, sandbox.ExecSpec{Args: e.commands.Exit(0)})
			return err
		},
		"remove": func() error { return e.d.Remove(e.ctx, id) },
	} {
		if call() == nil {
			e.Errorf("%s works on a closed driver", name)
		}
	}
	e.d = e.open(e.T, e.dir)
	e.wantState(id, sandbox.StateRunning)
}

func inventory(e *env) {
	var ids []string
	for range 5 {
		ids = append(ids, e.create())
	}
	e.ok(e.d.Start(e.ctx, ids[2]))
	e.reopened()
	infos, err := e.d.List(e.ctx, sandbox.Filter{})
	e.ok(err)
	if len(infos) != len(ids) {
		e.Fatalf("of %d boxes %d are known", len(ids), len(infos))
	}
	for i, info := range infos {
		if info.ID != ids[i] {
			e.Errorf("at %d is %s; wanted is %s", i, info.ID, ids[i])
		}
	}
	_, err = e.d.Create(e.ctx, e.spec(func(s *sandbox.Spec) { s.ID = ids[0] }))
	e.wantErr(err, sandbox.ErrAlreadyExists)
}
