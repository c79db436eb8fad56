package sandboxtest

import (
	"context"
	"fmt"
	"slices"

	"github.com/taibox/taibox/tai/sandbox"
)

func events(e *env) {
	e.cases([]testCase{
		{"order", eventOrder},
		{"end-with-context", eventsEnd},
	})
	e.test("gap", eventGap) // by itself: it floods every reader
}

// eventOrder: what happens to a box is told in order, with its labels.
func eventOrder(e *env) {
	evs, err := e.d.Events(e.ctx)
	e.ok(err)
	id := e.create(func(s *sandbox.Spec) { s.Labels = map[string]string{"k": "v"} })
	e.ok(e.d.Start(e.ctx, id))
	x := e.run(id, e.commands.Exit(4))
	e.ok(e.d.Stop(e.ctx, id, 0))
	e.ok(e.d.Start(e.ctx, id))
	e.ok(e.d.Remove(e.ctx, id))

	want := []string{"created", "running", "exec running", "exec exited 4", "stopped", "running", "removed"}
	var got []string
	for len(got) == 0 || got[len(got)-1] != "removed" {
		ev := e.event(evs)
		if ev.Box != id {
			continue
		}
		if ev.Labels["k"] != "v" || ev.Time.IsZero() {
			e.Errorf("an event lacks what it should have: %+v", ev)
		}
		switch ev.Type {
		case sandbox.EventState:
			got = append(got, string(ev.State))
		case sandbox.EventRemoved:
			got = append(got, "removed")
		case sandbox.EventExec:
			if ev.Exec.ID != x.ID {
				continue
			}
			what := "exec " + string(ev.Exec.State)
			if ev.Exec.Done() {
				what += fmt.Sprint(" ", code(*ev.Exec))
			}
			got = append(got, what)
		default:
		}
	}
	// The states on the way there may be told or not.
	got = slices.DeleteFunc(got, func(s string) bool {
		return slices.Contains([]string{"creating", "stopping", "removing", "exec starting"}, s)
	})
	if !slices.Equal(got, want) {
		e.Errorf("told was %v; wanted is %v", got, want)
	}
}

func eventsEnd(e *env) {
	ctx, cancel := context.WithCancelCause(e.ctx)
	evs, err := e.d.Events(ctx)
	e.ok(err)
	cancel(errCause)
	for {
		select {
		case _, ok := <-evs:
			if !ok {
				return
			}
		case <-e.ctx.Done():
			e.Fatal("the channel was not closed")
		}
	}
}

// eventGap: a reader that sleeps holds nobody up, and is told what it missed.
func eventGap(e *env) {
	evs, err := e.d.Events(e.ctx)
	e.ok(err)
	id := e.started()
	flood := func() {
		for _, err := range concurrently(50, func(int) error {
			_, err := e.d.Exec(e.ctx, id, sandbox.ExecSpec{Args: e.commands.Exit(0)})
			return err
		}) {
			e.ok(err)
		}
	}
	e.eventually("the channel is full", func() bool {
		flood()
		return len(evs) == cap(evs)
	})
	flood()
	flood()
	// The gap comes with the last event that fit, or with the next one.
	for range 2 * cap(evs) {
		if len(evs) == 0 {
			e.run(id, e.commands.Exit(0))
		}
		if e.event(evs).Type == sandbox.EventGap {
			e.run(id, e.commands.Exit(0))
			for e.event(evs).Type != sandbox.EventExec { //nolint:revive // it goes on
			}
			return
		}
	}
	e.Error("events were missed, and no gap was told")
}
