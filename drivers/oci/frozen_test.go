package oci_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/tai/sandbox"
)

// pid1 is the process on this machine that is PID 1 of a box.
func pid1(t *testing.T, cfg oci.Config, id string) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/run/taibox/%s/b/%s/pid", cfg.Instance, id))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// C04, L08: a box whose PID 1 does not answer is looked at like any other,
// holds nobody else up, costs nothing however often it is asked for, and goes.
func TestC04FrozenBox(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	if err := syscall.Kill(pid1(t, cfg, "b1"), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stuck := make(chan error, 1)
	go func() {
		_, err := d.Exec(ctx, "b1", sandbox.ExecSpec{Args: []string{"true"}})
		stuck <- err
	}()
	look := func() {
		t.Helper()
		st, err := d.Stats(t.Context(), "b1")
		if err != nil || st.OverheadBytes < 1<<20 || st.Pids == 0 || st.MemoryBytes == 0 {
			t.Fatalf("stats %+v, %v", st, err)
		}
		infos, err := d.List(t.Context(), sandbox.Filter{})
		if err != nil || len(infos) != 1 || infos[0].State != sandbox.StateRunning {
			t.Fatalf("list %+v, %v", infos, err)
		}
		if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateRunning {
			t.Fatalf("inspect %+v, %v", info, err)
		}
	}
	look()
	goroutines, files := goruntime.NumGoroutine(), descriptors(t)
	for range 200 {
		look()
	}
	const others = 50 // the pool and the watchers come and go
	waitFor(t, func() bool { return goruntime.NumGoroutine() < goroutines+others && descriptors(t) < files+others }, "goroutines and descriptors to stay few")

	started(t, d, sandbox.Spec{ID: "b2"})
	if res := sh(t, d, "b2", "echo ok"); string(res.Stdout) != "ok\n" {
		t.Errorf("a neighbour says %q", res.Stdout)
	}
	if err := d.Remove(t.Context(), "b2"); err != nil {
		t.Error(err)
	}
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Error(err)
	}
	cancel(errors.New("the test is over"))
	if err := <-stuck; err == nil {
		t.Error("an exec in a frozen box succeeds")
	}
	wantNoTraces(t, cfg)
}
