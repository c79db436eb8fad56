package sandboxtest

import (
	"context"
	"errors"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func cancellation(e *env) {
	e.cases([]testCase{
		{"already", alreadyCancelled},
		{"exec-midway", execMidway},
		{"exec-deadline", execDeadline},
		{"waits-midway", waitsMidway},
		{"stop-midway", stopMidway},
		{"create-midway", createMidway},
		{"remove-midway", removeMidway},
		{"stream-outlives-its-context", streamOutlives},
	})
}

var errCause = errors.New("the caller went home")

// already returns a context that ended before the call.
func (e *env) already() context.Context {
	ctx, cancel := context.WithCancelCause(e.ctx)
	cancel(errCause)
	return ctx
}

// midway returns a context that ends soon.
func (e *env) midway(d time.Duration) context.Context {
	ctx, cancel := context.WithCancelCause(e.ctx)
	t := time.AfterFunc(d, func() { cancel(errCause) })
	e.Cleanup(func() { t.Stop(); cancel(nil) })
	return ctx
}

// alreadyCancelled: no call does anything.
func alreadyCancelled(e *env) {
	id := e.started()
	s := e.stream(id, e.commands.Sleep(time.Hour))
	ctx, spec := e.already(), sandbox.ExecSpec{Args: e.commands.Echo("x")}
	fresh := e.spec()
	for name, call := range map[string]func() error{
		"create":  func() error { _, err := e.d.Create(ctx, fresh); return err },
		"start":   func() error { return e.d.Start(ctx, id) },
		"stop":    func() error { return e.d.Stop(ctx, id, 0) },
		"remove":  func() error { return e.d.Remove(ctx, id) },
		"exec":    func() error { _, err := e.d.Exec(ctx, id, spec); return err },
		"stream":  func() error { _, err := e.d.ExecStream(ctx, id, spec); return err },
		"wait":    func() error { _, err := e.d.WaitExec(ctx, id, s.ID()); return err },
		"kill":    func() error { return e.d.KillExec(ctx, id, s.ID(), sandbox.KillOptions{}) },
		"waiting": func() error { _, err := s.Wait(ctx); return err },
	} {
		e.soon(name, func() {
			if err := call(); !errors.Is(err, errCause) {
				e.Errorf("%s: the error is %q; wanted is the cause", name, errText(err))
			}
		})
	}
	_, err := e.d.Inspect(e.ctx, fresh.ID)
	e.wantErr(err, sandbox.ErrNotFound)
	e.wantState(id, sandbox.StateRunning)
	list, err := e.d.ListExecs(e.ctx, id)
	e.ok(err)
	if len(list) != 1 || list[0].Done() {
		e.Errorf("the execs are %+v", list)
	}
}

func execMidway(e *env) {
	id := e.box()
	spec := sandbox.ExecSpec{ID: sandbox.NewID("x-"), Args: e.commands.Trap(), KillGrace: 200 * time.Millisecond}
	ctx, cancel := context.WithCancelCause(e.ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := e.d.Exec(ctx, id, spec)
		ended <- err
	}()
	var s sandbox.Stream
	e.eventually("the exec is there", func() bool {
		var err error
		s, err = e.d.AttachExec(e.ctx, id, spec.ID, sandbox.AttachOptions{})
		return err == nil
	})
	defer s.Close()
	e.waitFor(s, "ready")
	e.soon("a cancelled exec", func() {
		cancel(errCause)
		e.wantErr(<-ended, errCause)
	})
	// It is killed with its tree, whatever it ignores.
	x := e.wait(id, spec.ID)
	e.wantEnd(x, sandbox.ReasonKilled, 137)
	if x.Leftover != 0 {
		e.Errorf("%d are left over", x.Leftover)
	}
}

func execDeadline(e *env) {
	ctx, cancel := context.WithTimeoutCause(e.ctx, 200*time.Millisecond, errCause)
	defer cancel()
	e.soon("an exec past its deadline", func() {
		_, err := e.d.Exec(ctx, e.box(), sandbox.ExecSpec{Args: e.commands.Sleep(time.Hour)})
		e.wantErr(err, errCause)
	})
}

func waitsMidway(e *env) {
	id := e.box()
	s := e.stream(id, e.commands.Sleep(time.Hour))
	for name, wait := range map[string]func(ctx context.Context) error{
		"record": func(ctx context.Context) error { _, err := e.d.WaitExec(ctx, id, s.ID()); return err },
		"stream": func(ctx context.Context) error { _, err := s.Wait(ctx); return err },
	} {
		e.soon(name, func() { e.wantErr(wait(e.midway(100*time.Millisecond)), errCause) })
	}
	if x, err := e.d.InspectExec(e.ctx, id, s.ID()); err != nil || x.Done() {
		e.Errorf("a wait given up ended the exec: %s, %v", x.State, err)
	}
}

// stopMidway: the caller does not wait for the grace, and the box is in a state
// from which all goes on.
func stopMidway(e *env) {
	id := e.started()
	e.waitFor(e.stream(id, e.commands.Trap()), "ready")
	e.soon("a cancelled stop", func() { e.wantErr(e.d.Stop(e.midway(200*time.Millisecond), id, time.Hour), errCause) })
	switch s := e.inspect(id).State; s {
	case sandbox.StateRunning, sandbox.StateStopping, sandbox.StateStopped:
	default:
		e.Errorf("after a cancelled stop the box is %s", s)
	}
	e.soon("the remove after it", func() { e.ok(e.d.Remove(e.ctx, id)) })
}

// createMidway: wherever a create is cut, there is a whole box or none.
func createMidway(e *env) {
	for d := time.Duration(0); d < 60*time.Millisecond; d = d*2 + 100*time.Microsecond {
		spec := e.spec()
		_, err := e.d.Create(e.midway(d), spec)
		if err == nil {
			e.ok(e.d.Start(e.ctx, spec.ID))
			e.run(spec.ID, e.commands.Exit(0))
			e.ok(e.d.Remove(e.ctx, spec.ID))
			continue
		}
		e.wantErr(err, errCause)
		_, err = e.d.Inspect(e.ctx, spec.ID)
		e.wantErr(err, sandbox.ErrNotFound)
	}
}

// removeMidway: a remove given up may be done or not; the next one is.
func removeMidway(e *env) {
	for d := time.Duration(0); d < 60*time.Millisecond; d = d*2 + 100*time.Microsecond {
		id := e.started()
		if err := e.d.Remove(e.midway(d), id); err != nil {
			e.wantErr(err, errCause)
		}
		if err := e.d.Remove(e.ctx, id); err != nil {
			e.wantErr(err, sandbox.ErrNotFound)
		}
		_, err := e.d.Inspect(e.ctx, id)
		e.wantErr(err, sandbox.ErrNotFound)
	}
}

func streamOutlives(e *env) {
	ctx, cancel := context.WithCancelCause(e.ctx)
	s, err := e.d.ExecStream(ctx, e.box(), sandbox.ExecSpec{Args: e.commands.Cat(), Stdin: true})
	e.ok(err)
	defer s.Close()
	cancel(errCause)
	time.Sleep(50 * time.Millisecond)
	_, err = s.Write([]byte("still here"))
	e.ok(err)
	e.ok(s.CloseWrite())
	if t := e.read(s, 0); string(t.out) != "still here" {
		e.Errorf("came %q", t.out)
	}
}
