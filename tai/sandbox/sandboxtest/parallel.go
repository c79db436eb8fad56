package sandboxtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func parallel(e *env) {
	e.cases([]testCase{
		{"G07-creates-of-one-id", createsOfOneID},
		{"G16-removes-join", removesJoin},
		{"G16-stop-and-remove", stopAndRemove},
		{"G23-many-boxes", manyBoxes},
		{"many-execs", manyExecs},
		{"starts-and-stops", startsAndStops},
		{"exec-and-remove", execAndRemove},
	})
}

func createsOfOneID(e *env) {
	spec := e.spec()
	e.removeLater(spec.ID)
	won := 0
	for _, err := range concurrently(100, func(int) error { _, err := e.d.Create(e.ctx, spec); return err }) {
		if err == nil {
			won++
		} else {
			e.wantErr(err, sandbox.ErrAlreadyExists)
		}
	}
	if won != 1 {
		e.Errorf("%d creates won", won)
	}
	e.ok(e.d.Start(e.ctx, spec.ID))
	e.run(spec.ID, e.commands.Exit(0))
}

func removesJoin(e *env) {
	id := e.started()
	e.waitFor(e.stream(id, e.commands.Trap()), "ready")
	evs, err := e.d.Events(e.ctx)
	e.ok(err)
	for _, err := range concurrently(20, func(int) error { return e.d.Remove(e.ctx, id) }) {
		if err != nil {
			e.wantErr(err, sandbox.ErrNotFound)
		}
	}
	removed := 0
	for removed == 0 || len(evs) > 0 {
		if ev := e.event(evs); ev.Box == id && ev.Type == sandbox.EventRemoved {
			removed++
		}
	}
	if removed != 1 {
		e.Errorf("%d events tell of one remove", removed)
	}
}

func stopAndRemove(e *env) {
	for range 5 {
		id := e.started()
		e.stream(id, e.commands.Sleep(time.Hour))
		for i, err := range concurrently(20, func(i int) error {
			if i%2 == 0 {
				return e.d.Stop(e.ctx, id, time.Second)
			}
			return e.d.Remove(e.ctx, id)
		}) {
			if err != nil && !errors.Is(err, sandbox.ErrNotFound) && !(i%2 == 0 && errors.Is(err, sandbox.ErrRemoving)) {
				e.Error(err)
			}
		}
		_, err := e.d.Inspect(e.ctx, id)
		e.wantErr(err, sandbox.ErrNotFound)
	}
}

func manyBoxes(e *env) {
	ids := make([]string, 12)
	for i := range ids {
		ids[i] = sandbox.NewID("t-")
		e.removeLater(ids[i])
	}
	for _, err := range concurrently(len(ids), func(i int) error {
		spec := e.spec(func(s *sandbox.Spec) { s.ID = ids[i] })
		if _, err := e.d.Create(e.ctx, spec); err != nil {
			return err
		}
		if err := e.d.Start(e.ctx, spec.ID); err != nil {
			return err
		}
		res, err := e.d.Exec(e.ctx, spec.ID, sandbox.ExecSpec{Args: e.commands.Echo(spec.ID)})
		if err != nil {
			return err
		}
		if string(res.Stdout) != spec.ID+"\n" || res.Box != spec.ID {
			return fmt.Errorf("box %s printed %q", spec.ID, res.Stdout)
		}
		return e.d.Remove(e.ctx, spec.ID)
	}) {
		e.ok(err)
	}
}

func manyExecs(e *env) {
	id := e.started()
	for _, err := range concurrently(50, func(i int) error {
		in := pattern(10_000 + i)
		res, err := e.d.Exec(e.ctx, id, sandbox.ExecSpec{Args: e.commands.Cat(), StdinData: in})
		if err != nil {
			return err
		}
		if string(res.Stdout) != string(in) {
			return fmt.Errorf("exec %d got %d bytes of somebody", i, len(res.Stdout))
		}
		return nil
	}) {
		e.ok(err)
	}
	if list, err := e.d.ListExecs(e.ctx, id); err != nil || len(list) != 50 {
		e.Errorf("%d execs are listed, %v", len(list), err)
	}
}

func startsAndStops(e *env) {
	id := e.create()
	for range 3 {
		for _, err := range concurrently(8, func(int) error { return e.d.Start(e.ctx, id) }) {
			e.ok(err)
		}
		e.wantState(id, sandbox.StateRunning)
		for _, err := range concurrently(8, func(int) error { return e.d.Stop(e.ctx, id, 0) }) {
			e.ok(err)
		}
		e.wantState(id, sandbox.StateStopped)
	}
}

// execAndRemove: an exec that meets a remove ends or is refused, in words.
func execAndRemove(e *env) {
	id := e.started()
	errs := concurrently(20, func(i int) error {
		if i == 10 {
			return e.d.Remove(e.ctx, id)
		}
		_, err := e.d.Exec(e.ctx, id, sandbox.ExecSpec{Args: e.commands.Sleep(100 * time.Millisecond)})
		return err
	})
	for _, err := range errs {
		ok := err == nil
		for _, want := range []error{sandbox.ErrNotFound, sandbox.ErrRemoving, sandbox.ErrNotRunning, sandbox.ErrExecNotFound, sandbox.ErrBridgeLost} {
			ok = ok || errors.Is(err, want)
		}
		if !ok {
			e.Errorf("an exec that met a remove gives %v", err)
		}
	}
}
