package local_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/taibox/taibox/internal/quota"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
)

// crashArg makes the test's program one that kills itself at a step.
const crashArg = "crash-at-step"

// crashOps change a workspace as a whole. Each ends in a state that is the one
// before or the one after.
func crashOps() map[string]func(ctx context.Context, v *local.Volume) error {
	limited := volume.Options{}
	if method := quotaMethod(); method != quota.None {
		limited.Quota = volume.Quota{Bytes: 8 << 20}
	}
	return map[string]func(ctx context.Context, v *local.Volume) error{
		"create": func(ctx context.Context, v *local.Volume) error {
			_, err := v.Create(ctx, "new", volume.Options{})
			return err
		},
		"createLimited": func(ctx context.Context, v *local.Volume) error { _, err := v.Create(ctx, "new", limited); return err },
		"update": func(ctx context.Context, v *local.Volume) error {
			_, err := v.Update(ctx, "ws", volume.Update{Meta: []byte(`{"n":2}`)})
			return err
		},
		"delete":        func(ctx context.Context, v *local.Volume) error { return v.Delete(ctx, "ws") },
		"deleteLimited": func(ctx context.Context, v *local.Volume) error { return v.Delete(ctx, "limited") },
		"snapshot": func(ctx context.Context, v *local.Volume) error {
			_, err := v.CreateSnapshot(ctx, "ws", "two")
			return err
		},
		"unsnapshot": func(ctx context.Context, v *local.Volume) error { return v.RemoveSnapshot(ctx, "ws", "one") },
		"restore":    func(ctx context.Context, v *local.Volume) error { return v.RestoreSnapshot(ctx, "ws", "one") },
	}
}

func quotaMethod() quota.Method {
	e, err := quota.Open(os.TempDir())
	if err != nil {
		return quota.None
	}
	return e.Method()
}

// crashMain is the program that is killed: its arguments are a directory, an
// operation and which of its steps is the last.
func crashMain(args []string) {
	var at, n int
	fmt.Sscan(args[2], &at)
	v, err := local.Open(context.Background(), local.Config{Dir: args[0], Step: func(string) error {
		if n++; n == at {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := crashOps()[args[1]](context.Background(), v); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}

// prepare makes what the operations work on.
func prepare(t *testing.T, v *local.Volume) {
	t.Helper()
	ctx := context.Background()
	create(t, v, "ws", volume.Options{Meta: []byte(`{"n":1}`)})
	o := volume.Options{}
	if quotaMethod() != quota.None {
		o.Quota = volume.Quota{Bytes: 8 << 20}
	}
	create(t, v, "limited", o)
	write := func(name, data string) {
		t.Helper()
		if _, err := v.WriteFile(ctx, "ws", name, strings.NewReader(data), volume.WriteOptions{Parents: true}); err != nil {
			t.Fatal(err)
		}
	}
	write("a", "1")
	write("d/b", "1")
	if _, err := v.CreateSnapshot(ctx, "ws", "one"); err != nil {
		t.Fatal(err)
	}
	write("a", "2")
	write("e/c", "2")
	if err := v.Remove(ctx, "ws", "d", volume.RemoveOptions{All: true}); err != nil {
		t.Fatal(err)
	}
}

func TestG01KilledAtEachStep(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for op := range crashOps() {
		t.Run(op, func(t *testing.T) {
			for at := 1; ; at++ {
				dir := filepath.Join(t.TempDir(), "w")
				v := open(t, local.Config{Dir: dir})
				prepare(t, v)
				v.Close()
				cmd := exec.Command(self, crashArg, dir, op, fmt.Sprint(at))
				out, err := cmd.CombinedOutput()
				killed := cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled()
				if err != nil && !killed {
					t.Fatalf("step %d: %v: %s", at, err, out)
				}
				afterCrash(t, dir, op, !killed)
				if !killed {
					if at == 1 {
						t.Error("the operation has no step")
					}
					return
				}
			}
		})
	}
}

// afterCrash checks that a volume is whole, and that the operation works now
// unless it was done.
func afterCrash(t *testing.T, dir, op string, done bool) {
	t.Helper()
	ctx := context.Background()
	v := open(t, local.Config{Dir: dir})
	defer v.Close()
	err := crashOps()[op](ctx, v)
	gone := errors.Is(err, volume.ErrNotFound) || errors.Is(err, volume.ErrSnapshotNotFound)
	there := errors.Is(err, volume.ErrAlreadyExists) || errors.Is(err, volume.ErrSnapshotExists)
	if err != nil && !gone && !there {
		t.Errorf("the operation again: %v", err)
	}
	if done && err == nil && op != "update" && op != "restore" {
		t.Error("the operation was done, and can be done again")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	infos, err := v.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(infos) {
		t.Errorf("in the directory is %v, and the workspaces are %v", entries, infos)
	}
	if op == "restore" {
		changes, err := v.Diff(ctx, "ws", "one", "")
		if err != nil || len(changes) > 0 {
			t.Errorf("after the restore: %v, %v", changes, err)
		}
	}
	for _, info := range infos {
		for _, sub := range []string{"tmp", "snapshots"} {
			left, err := os.ReadDir(filepath.Join(dir, info.ID, "fs", sub))
			if err != nil {
				t.Error(err)
			}
			for _, e := range left {
				if sub == "tmp" || strings.HasPrefix(e.Name(), ".") {
					t.Errorf("left in %s: %s", sub, e.Name())
				}
			}
		}
		if err := v.Delete(ctx, info.ID); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the end: %v, %v", left, err)
	}
}

// TestFailedSteps lets each step of each operation fail: the workspace is as
// before, and the operation can be repeated.
func TestFailedSteps(t *testing.T) {
	ctx := context.Background()
	errStep := errors.New("the step failed")
	for op, call := range crashOps() {
		t.Run(op, func(t *testing.T) {
			for at := 1; ; at++ {
				n, failed := 0, false
				dir := filepath.Join(t.TempDir(), "w")
				armed := false
				v := open(t, local.Config{Dir: dir, Step: func(string) error {
					if !armed {
						return nil
					}
					if n++; n == at {
						failed = true
						return errStep
					}
					return nil
				}})
				prepare(t, v)
				armed = true
				err := call(ctx, v)
				armed = false
				if failed && err == nil && !strings.HasPrefix(op, "delete") {
					t.Errorf("step %d failed, and nobody was told", at)
				}
				v.Close()
				afterCrash(t, dir, op, err == nil)
				if !failed {
					return
				}
			}
		})
	}
}
