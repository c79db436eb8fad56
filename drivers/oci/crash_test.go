package oci_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/tai/sandbox"
)

// crashJob is what a process that will be killed does: it opens the driver,
// takes one box through its whole life, and kills itself at the step that
// TAIBOX_CRASH_AT names ("op.step"), or after so many milliseconds.
func crashJob(data string) int {
	ctx := context.Background()
	at := os.Getenv("TAIBOX_CRASH_AT")
	if ms, err := strconv.Atoi(at); err == nil {
		time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { syscall.Kill(os.Getpid(), syscall.SIGKILL) })
	}
	cfg := configAt(data, os.Getenv("TAIBOX_CRASH_INSTANCE"))
	cfg.Step = func(op, step, _ string) error {
		if op+"."+step == at {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal is there
		}
		return nil
	}
	d, err := oci.Open(ctx, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, do := range []func() error{
		func() error {
			dir := filepath.Join(data, "mounted")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			_, err := d.Create(ctx, sandbox.Spec{
				ID: "b1", Image: sandbox.HostFS, MemoryBytes: 256 << 20, User: "1000",
				Mounts: []sandbox.Mount{{Source: dir, Target: "/workspace", Workspace: "ws-test"}},
			})
			return err
		},
		func() error { return d.Start(ctx, "b1") },
		func() error {
			_, err := d.Exec(ctx, "b1", sandbox.ExecSpec{Args: []string{"true"}})
			return err
		},
		func() error { return d.Stop(ctx, "b1", 0) },
		func() error { return d.Start(ctx, "b1") },
		func() error { return d.Remove(ctx, "b1") },
	} {
		if err := do(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}

func crash(t *testing.T, cfg oci.Config, at string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TAIBOX_CRASH_JOB="+cfg.DataDir, "TAIBOX_CRASH_AT="+at, "TAIBOX_CRASH_INSTANCE="+cfg.Instance)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != -1) {
		t.Fatalf("the process was to be killed at %s, but ended with %v: %s", at, err, out)
	}
}

// G01, G04: after a kill at any step the box is whole or gone, it can be
// removed, its id is free again, and nothing is left.
func TestG01KilledAtEachStep(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	for _, at := range []string{
		"create.image", "create.intent", "create.directories", "create.ready",
		"start.namespaces", "start.rootfs", "start.mounts", "start.runtime", "start.record", "stop.bridge",
		"remove.intent", "remove.end", "remove.files",
		"teardown.kill", "teardown.runtime", "teardown.cgroups", "teardown.mounts",
	} {
		t.Run(strings.ReplaceAll(at, ".", "_"), func(t *testing.T) {
			crash(t, cfg, at)
			survive(t, cfg)
		})
	}
}

// The same at moments that nobody chose.
func TestG01KilledAtAnyMoment(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	for ms := 3; ms < 300; ms += 23 {
		t.Run(strconv.Itoa(ms), func(t *testing.T) {
			crash(t, cfg, strconv.Itoa(ms))
			survive(t, cfg)
		})
	}
}

// survive opens the driver after a crash and checks what it finds.
func survive(t *testing.T, cfg oci.Config) {
	t.Helper()
	ctx := t.Context()
	d, err := oci.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	infos, err := d.List(ctx, sandbox.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		switch info.State {
		case sandbox.StateRunning:
			if res := sh(t, d, info.ID, "echo alive"); string(res.Stdout) != "alive\n" {
				t.Errorf("running box says %q %q", res.Stdout, res.Stderr)
			}
		case sandbox.StateCreated, sandbox.StateStopped:
			if err := d.Start(ctx, info.ID); err != nil {
				t.Errorf("start what was found: %v", err)
			}
		case sandbox.StateStopping: // its stop is being finished
		default:
			t.Errorf("box %s is %s: %s %s", info.ID, info.State, info.Reason, info.Error)
		}
		if err := d.Remove(ctx, info.ID); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	wantNoTraces(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	if res := sh(t, d, "b1", "exit 3"); code(res) != 3 {
		t.Errorf("a new box of that id ends with %d", code(res))
	}
	if err := d.Remove(ctx, "b1"); err != nil {
		t.Error(err)
	}
	wantNoTraces(t, cfg)
}
