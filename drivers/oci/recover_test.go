package oci_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/tai/sandbox"
)

var errUndead = errors.New("a process does not die")

// undead is an instance whose boxes cannot be torn down while the switch is on,
// as if a process in them did not die.
func undead(t *testing.T) (oci.Config, *atomic.Bool) {
	t.Helper()
	machine(t)
	cfg := config(t, instanceOf(t))
	stuck := new(atomic.Bool)
	cfg.Step = func(op, step, _ string) error {
		if op == "teardown" && step == "kill" && stuck.Load() {
			return errUndead
		}
		return nil
	}
	dismantle(t, cfg)
	return cfg, stuck
}

// until waits for an event of a box that is told of soon.
func until(t *testing.T, events <-chan sandbox.Event, is func(sandbox.Event) bool) {
	t.Helper()
	late := time.After(2 * time.Minute)
	for {
		select {
		case e := <-events:
			if is(e) {
				return
			}
		case <-late:
			t.Fatal("nothing was told")
		}
	}
}

// G04, G08: a box whose removal was cut and cannot be finished keeps nobody
// else from being reached. It is listed, and its removal ends by itself or by
// hand once it can.
func TestG04RemovalThatCannotBeFinished(t *testing.T) {
	for _, how := range []string{"by_itself", "by_hand"} {
		t.Run(how, func(t *testing.T) {
			cfg, stuck := undead(t)
			d := open(t, cfg)
			started(t, d, sandbox.Spec{ID: "b1", Labels: map[string]string{"a": "b"}})
			started(t, d, sandbox.Spec{ID: "b2"})
			stuck.Store(true)
			if err := d.Remove(t.Context(), "b1"); !errors.Is(err, errUndead) {
				t.Fatalf("remove: %v", err)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = open(t, cfg)
			wantHalfRemoved(t, d, "b1")
			if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.Labels["a"] != "b" {
				t.Errorf("labels %v, %v", info.Labels, err)
			}
			if res := sh(t, d, "b2", "echo alive"); string(res.Stdout) != "alive\n" {
				t.Errorf("its neighbour says %q %q", res.Stdout, res.Stderr)
			}
			endRemoval(t, d, how, stuck)
			started(t, d, sandbox.Spec{ID: "b1"})
		})
	}
}

// The same for what has lost its record.
func TestStrayThatCannotBeRemoved(t *testing.T) {
	for _, how := range []string{"by_itself", "by_hand"} {
		t.Run(how, func(t *testing.T) {
			cfg, stuck := undead(t)
			d := open(t, cfg)
			started(t, d, sandbox.Spec{ID: "b1"})
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(filepath.Join(cfg.DataDir, "boxes", "b1")); err != nil {
				t.Fatal(err)
			}
			stuck.Store(true)
			d = open(t, cfg)
			wantHalfRemoved(t, d, "b1")
			endRemoval(t, d, how, stuck)
			wantNoTraces(t, cfg)
		})
	}
}

func wantHalfRemoved(t *testing.T, d *oci.Driver, id string) {
	t.Helper()
	infos, err := d.List(t.Context(), sandbox.Filter{})
	if err != nil || len(infos) == 0 || infos[0].ID != id || infos[0].State != sandbox.StateRemoving || !strings.Contains(infos[0].Error, errUndead.Error()) {
		t.Errorf("boxes: %+v, %v", infos, err)
	}
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: id, Image: sandbox.HostFS}); !errors.Is(err, sandbox.ErrAlreadyExists) {
		t.Errorf("create: %v", err)
	}
	if err := d.Start(t.Context(), id); !errors.Is(err, sandbox.ErrRemoving) {
		t.Errorf("start: %v", err)
	}
	if _, err := d.Stat(t.Context(), id, "/", sandbox.FileOptions{}); !errors.Is(err, sandbox.ErrRemoving) {
		t.Errorf("its files: %v", err)
	}
}

func endRemoval(t *testing.T, d *oci.Driver, how string, stuck *atomic.Bool) {
	t.Helper()
	events, err := d.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stuck.Store(false)
	if how == "by_hand" {
		if err := d.Remove(t.Context(), "b1"); err != nil && !errors.Is(err, sandbox.ErrNotFound) { // it went by itself just now
			t.Fatal(err)
		}
	}
	until(t, events, func(e sandbox.Event) bool { return e.Type == sandbox.EventRemoved && e.Box == "b1" })
}

// G08: a create that fails and cannot be undone leaves a box that can be removed.
func TestG08CreateThatCannotBeUndone(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	upper := filepath.Join(cfg.DataDir, "boxes", "b1", "fs", "upper")
	oops := errors.New("oops")
	cfg.Step = func(op, step, _ string) error {
		if op != "create" || step != "ready" {
			return nil
		}
		return errors.Join(oops, syscall.Mount("tmpfs", upper, "tmpfs", 0, ""))
	}
	dismantle(t, cfg)
	d := open(t, cfg)
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: "b1", Image: sandbox.HostFS}); !errors.Is(err, oops) {
		t.Errorf("create: %v", err)
	}
	info, err := d.Inspect(t.Context(), "b1")
	if err != nil || info.State != sandbox.StateRemoving || !strings.Contains(info.Error, upper) {
		t.Errorf("state %s, %q, %v", info.State, info.Error, err)
	}
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: "b1", Image: sandbox.HostFS}); !errors.Is(err, sandbox.ErrAlreadyExists) {
		t.Errorf("create again: %v", err)
	}
	if err := syscall.Unmount(upper, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	wantNoTraces(t, cfg)
}

// A stop that could not clear up is made good by the next start.
func TestStartAfterFailedStop(t *testing.T) {
	cfg, stuck := undead(t)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	stuck.Store(true)
	if err := d.Stop(t.Context(), "b1", 0); !errors.Is(err, errUndead) {
		t.Errorf("stop: %v", err)
	}
	if err := d.Start(t.Context(), "b1"); !errors.Is(err, errUndead) {
		t.Errorf("start before it can be: %v", err)
	}
	stuck.Store(false)
	if err := d.Start(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	if res := sh(t, d, "b1", "echo alive"); string(res.Stdout) != "alive\n" {
		t.Errorf("it says %q %q", res.Stdout, res.Stderr)
	}
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	wantNoTraces(t, cfg)
}

// A stop that could not clear up has not succeeded when it is asked for again:
// it clears up, or fails as well.
func TestG13StopAfterFailedStop(t *testing.T) {
	cfg, stuck := undead(t)
	d := open(t, cfg)
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: "b1", Image: sandbox.HostFS}); err != nil {
		t.Fatal(err)
	}
	created := len(traces(t, cfg))
	if err := d.Start(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	stuck.Store(true)
	for range 2 {
		if err := d.Stop(t.Context(), "b1", 0); !errors.Is(err, errUndead) {
			t.Errorf("stop: %v", err)
		}
	}
	stuck.Store(false)
	for range 2 {
		if err := d.Stop(t.Context(), "b1", 0); err != nil {
			t.Errorf("stop: %v", err)
		}
		if left := traces(t, cfg); len(left) != created {
			t.Errorf("left: %q", left)
		}
	}
}

// Execs of a run that could not be cleared up when the driver was opened are
// lost as soon as it is.
func TestExecsOfRunThatWasNotSettled(t *testing.T) {
	cfg, stuck := undead(t)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	s, err := d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{ID: "long", Args: []string{"sleep", "600"}, OnDisconnect: sandbox.OnDisconnectKeep})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	_, pid := runOf(t, cfg, "b1")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	stuck.Store(true)
	d = open(t, cfg)
	stuck.Store(false)
	if err := d.Start(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if info, err := d.WaitExec(ctx, "b1", "long"); err != nil || info.State != sandbox.ExecLost {
		t.Errorf("its exec: %s, %v", info.State, err)
	}
	if info, err := d.Inspect(ctx, "b1"); err != nil || info.RunningExecs != 0 {
		t.Errorf("%d execs run, %v", info.RunningExecs, err)
	}
}

// What a removal has cleared up on the machine is not the box's any more, also
// if the removal cannot be finished.
func TestHalfRemovedBoxHasNoRun(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	oops, failing := errors.New("oops"), true
	cfg.Step = func(op, step, _ string) error {
		if op == "remove" && step == "files" && failing {
			return oops
		}
		return nil
	}
	dismantle(t, cfg)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	if err := d.Remove(t.Context(), "b1"); !errors.Is(err, oops) {
		t.Errorf("remove: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(cfg.DataDir, "boxes", "b1", "box.json"))
	var rec struct{ Run any }
	if err := errors.Join(err, json.Unmarshal(data, &rec)); err != nil || rec.Run != nil {
		t.Errorf("run %v, %v", rec.Run, err)
	}
	failing = false
}

// A box is removed however deep its directories are, with the descriptors that
// there are.
func TestRemoveDeepBox(t *testing.T) {
	d, _ := box(t, sandbox.Spec{})
	if res := python(t, d, "b1", "import os\nos.chdir('/tmp')\nfor i in range(3000): os.mkdir('d'); os.chdir('d')"); code(res) != 0 {
		t.Fatalf("%q", res.Stderr)
	}
	if res := python(t, d, "b1", "import os\nos.chdir('/root')\nfor i in range(3000): os.mkdir('d'); os.chdir('d')"); code(res) != 0 {
		t.Fatalf("%q", res.Stderr)
	}
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 1024, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	err := d.Remove(t.Context(), "b1")
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Error(err)
	}
}

// A box whose record says nothing goes on, and nobody gets its ids and address.
func TestUnreadableRecord(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	index, pid := runOf(t, cfg, "b1")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(cfg.DataDir, "boxes", "b1", "box.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateFailed || info.Reason != "record" {
		t.Errorf("state %s, reason %s, %v", info.State, info.Reason, err)
	}
	for _, id := range []string{"b2", "b3", "b4"} {
		started(t, d, sandbox.Spec{ID: id})
		if other, _ := runOf(t, cfg, id); other == index {
			t.Errorf("box %s has the ids of b1", id)
		}
	}
	if err := d.Start(t.Context(), "b1"); !errors.Is(err, sandbox.ErrNotRunning) || !strings.Contains(err.Error(), "record") {
		t.Errorf("start: %v", err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("its PID 1: %v", err)
	}
	if err := d.Stop(t.Context(), "b1", 0); !errors.Is(err, sandbox.ErrNotRunning) || !strings.Contains(err.Error(), "record") {
		t.Errorf("stop: %v", err)
	}
	for _, id := range []string{"b1", "b2", "b3", "b4"} {
		if err := d.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	wantNoTraces(t, cfg)
}

// The server of the instance finds a box without a readable record, and its
// removal goes on after a restart.
func TestUnreadableRecordIsManaged(t *testing.T) {
	cfg, stuck := undead(t)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cfg.DataDir, "boxes", "b1", "box.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	managed := sandbox.Filter{Labels: map[string]string{sandbox.LabelManagedBy: sandbox.ManagedBy, sandbox.LabelInstance: cfg.Instance}}
	if infos, err := d.List(t.Context(), managed); err != nil || len(infos) != 1 || infos[0].ID != "b1" {
		t.Errorf("boxes %+v, %v", infos, err)
	}
	stuck.Store(true)
	if err := d.Remove(t.Context(), "b1"); !errors.Is(err, errUndead) {
		t.Errorf("remove: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	if infos, err := d.List(t.Context(), managed); err != nil || len(infos) != 1 || infos[0].State != sandbox.StateRemoving {
		t.Errorf("boxes %+v, %v", infos, err)
	}
	endRemoval(t, d, "by_itself", stuck)
	wantNoTraces(t, cfg)
}

// runOf reads the run of a box from its record.
func runOf(t *testing.T, cfg oci.Config, id string) (index, pid int) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(cfg.DataDir, "boxes", id, "box.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rec struct{ Run struct{ Index, PID int } }
	if err := json.Unmarshal(data, &rec); err != nil || rec.Run.PID == 0 {
		t.Fatalf("record %s: %v", data, err)
	}
	return rec.Run.Index, rec.Run.PID
}

// No ID of a box is the name of a directory that is made ahead.
func TestBoxNamedLikeThePool(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	ids := []string{"pool-0", "pool-1", "pool-2", "pool-3"}
	for _, id := range ids {
		started(t, d, sandbox.Spec{ID: id})
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	for _, id := range ids {
		if res := sh(t, d, id, "echo alive"); string(res.Stdout) != "alive\n" {
			t.Errorf("box %s says %q %q", id, res.Stdout, res.Stderr)
		}
	}
}

// What a killed process was writing does not stay.
func TestHalfWrittenRecordsAreRemoved(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cfg.DataDir, "boxes", "b1")
	files := []string{filepath.Join(dir, ".box.json.12"), filepath.Join(dir, "execs", ".e1.json.34")}
	for _, f := range files {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open(t, cfg)
	for _, f := range files {
		if _, err := os.Stat(f); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// An exec that never began keeps nobody waiting and does not count.
func TestExecThatNeverBeganIsForgotten(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(cfg.DataDir, "boxes", "b1", "execs", "e1.log")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if info, err := d.WaitExec(ctx, "b1", "e1"); !errors.Is(err, sandbox.ErrExecNotFound) {
		t.Errorf("wait: %+v, %v", info, err)
	}
	if info, err := d.Inspect(ctx, "b1"); err != nil || info.RunningExecs != 0 {
		t.Errorf("%d execs run, %v", info.RunningExecs, err)
	}
	if execs, err := d.ListExecs(ctx, "b1"); err != nil || len(execs) > 0 {
		t.Errorf("execs %+v, %v", execs, err)
	}
	if err := d.KillExec(ctx, "b1", "e1", sandbox.KillOptions{}); !errors.Is(err, sandbox.ErrExecNotFound) {
		t.Errorf("kill: %v", err)
	}
	if _, err := os.Stat(log); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its log: %v", err)
	}
}

// An exec whose start was not answered in time, and that began all the same,
// is on record like any other.
func TestExecThatBeganLate(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	events, err := d.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, pid := runOf(t, cfg, "b1")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, err = d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{ID: "late", Args: []string{"sh", "-c", "echo hi; exit 3"}, OnDisconnect: sandbox.OnDisconnectKeep})
	if !errors.Is(err, sandbox.ErrBridgeLost) {
		t.Errorf("exec: %v", err)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, events, func(e sandbox.Event) bool { return e.Exec != nil && e.Exec.ID == "late" && e.Exec.Done() })
	if err := d.Stop(t.Context(), "b1", 0); err != nil {
		t.Fatal(err)
	}
	if info, err := d.InspectExec(t.Context(), "b1", "late"); err != nil || info.ExitCode == nil || *info.ExitCode != 3 {
		t.Errorf("its record: %+v, %v", info, err)
	}
	s, err := d.AttachExec(t.Context(), "b1", "late", sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if c, err := s.Recv(); err != nil || string(c.Data) != "hi\n" {
		t.Errorf("its log: %q, %v", c.Data, err)
	}
}
