package server_test

import (
	"context"
	"testing"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// waited is a machine that tells when somebody waits for an exec.
type waited struct {
	*fake.Driver
	began chan<- struct{}
}

func (w *waited) WaitExec(ctx context.Context, id, exec string) (taisandbox.ExecInfo, error) {
	w.began <- struct{}{}
	return w.Driver.WaitExec(ctx, id, exec)
}

// TestWaitsOutlastRestarts: whoever waits gets the result, however often the
// server stops in order meanwhile.
func TestWaitsOutlastRestarts(t *testing.T) {
	began := make(chan struct{}, 16)
	w := (&world{t: t, wrap: func(d *fake.Driver) taisandbox.Sandbox { return &waited{d, began} }}).begin()
	w.create(rest.CreateBox{ID: "b1"})
	if _, err := w.ExecDetached(w.ctx, "b1", rest.ExecRequest{ID: "job", Cmd: []string{"trap-exit", "3"}}); err != nil {
		t.Fatal(err)
	}
	type result struct {
		exec rest.Exec
		err  error
	}
	done := make(chan result, 1)
	go func() {
		e, err := w.WaitExec(w.ctx, "b1", "job")
		done <- result{e, err}
	}()
	box := make(chan result, 1)
	go func() {
		_, err := w.WaitBox(w.ctx, "b1")
		box <- result{err: err}
	}()
	wait := func() {
		t.Helper()
		select {
		case <-began:
		case r := <-done:
			t.Fatalf("the wait ended: %+v %v", r.exec, r.err)
		}
	}
	for range 2 {
		wait()
		w.restart()
	}
	wait()
	eventually(t, "the command is ready", func() bool {
		e, err := w.GetExec(w.ctx, "b1", "job")
		return err == nil && e.Bytes > 0
	})
	if err := w.KillExec(w.ctx, "b1", "job", taisandbox.KillOptions{Signal: 15}); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.err != nil || r.exec.ExitCode == nil || *r.exec.ExitCode != 3 {
		t.Errorf("the exec: %+v %v", r.exec, r.err)
	}
	if err := w.StopBox(w.ctx, "b1", nil); err != nil {
		t.Fatal(err)
	}
	if r := <-box; r.err != nil {
		t.Errorf("the box: %v", r.err)
	}
}
