package oci_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/tai/sandbox"
)

// mounted is a data directory on a file system of its own.
func mounted(t *testing.T, fstype, opts string) oci.Config {
	t.Helper()
	machine(t)
	cfg := config(t, instanceOf(t))
	if err := syscall.Mount(fstype, cfg.DataDir, fstype, 0, opts); err != nil {
		t.Skipf("mount %s: %v", fstype, err)
	}
	t.Cleanup(func() { syscall.Unmount(cfg.DataDir, syscall.MNT_DETACH) })
	dismantle(t, cfg)
	return cfg
}

// A full disk: creates fail and leave nothing, running boxes can be used and
// removed, and afterwards all is well again.
func TestFullDisk(t *testing.T) {
	cfg := mounted(t, "tmpfs", "size=24m,mode=700")
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	res := sh(t, d, "b1", "cat /dev/zero >/tmp/big; echo $?; df / | tail -1")
	if !strings.HasPrefix(string(res.Stdout), "1\n") {
		t.Fatalf("the disk was not filled: %q %q", res.Stdout, res.Stderr)
	}
	before := len(traces(t, cfg))
	_, err := d.Create(t.Context(), sandbox.Spec{ID: "b2", Image: sandbox.HostFS})
	if !errors.Is(err, sandbox.ErrNoSpace) || !strings.Contains(err.Error(), "b2") {
		t.Errorf("create on a full disk: %v", err)
	}
	if after := len(traces(t, cfg)); after != before {
		t.Errorf("%d things were left by the failed create", after-before)
	}
	// What can be read still can, and the file can be removed from inside.
	if res := sh(t, d, "b1", "echo still here"); string(res.Stdout) != "still here\n" {
		t.Errorf("exec on a full disk: %q %q", res.Stdout, res.Stderr)
	}
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Fatalf("remove on a full disk: %v", err)
	}
	wantNoTraces(t, cfg)
	started(t, d, sandbox.Spec{ID: "b2"})
}

// fill takes all room of a disk, that of its last directory too.
func fill(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size, step := int64(0), int64(16<<20); step >= 1<<10; {
		if syscall.Fallocate(int(f.Fd()), 0, size, step) == nil {
			size += step
		} else {
			step /= 2
		}
	}
	for i := 0; err == nil; i++ {
		err = os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o700)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// A box that is started on a full disk says so, and not that something of it
// is read-only: an overlay without room for its work directory is.
func TestStartOnFullDisk(t *testing.T) {
	for _, at := range []string{"rootfs", "runtime", "record"} {
		t.Run(at, func(t *testing.T) { startOnFullDisk(t, at) })
	}
}

func startOnFullDisk(t *testing.T, at string) {
	machine(t)
	cfg := config(t, instanceOf(t))
	disk := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 64<<20)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-m", "0", disk}, {"mount", "-o", "loop", disk, cfg.DataDir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%q: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { syscall.Unmount(cfg.DataDir, syscall.MNT_DETACH) })
	dismantle(t, cfg)
	ballast := filepath.Join(cfg.DataDir, "ballast")
	full := false
	cfg.Step = func(op, step, id string) error {
		if op == "start" && step == at && id == "b2" && !full { // the record just had room
			full = true
			fill(t, ballast)
		}
		return nil
	}
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"}) // hostfs has been made
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: "b2", Image: sandbox.HostFS}); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), "b2"); !errors.Is(err, sandbox.ErrNoSpace) {
		t.Errorf("start on a full disk: %v", err)
	}
	if err := os.RemoveAll(ballast); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), "b2"); err != nil {
		t.Fatal(err)
	}
}

// What was done to a box on a full disk holds, though its record could not be
// written, also when the process ends before there is room again.
func TestStoppedOnFullDisk(t *testing.T) {
	cfg := mounted(t, "tmpfs", "size=24m,mode=700")
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	started(t, d, sandbox.Spec{ID: "b2"})
	if res := sh(t, d, "b1", "cat /dev/zero >/tmp/big; echo $?"); string(res.Stdout) != "1\n" {
		t.Fatalf("the disk was not filled: %q %q", res.Stdout, res.Stderr)
	}
	if err := d.Stop(t.Context(), "b2", 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = open(t, cfg)
		if info, err := d.Inspect(t.Context(), "b2"); err != nil || info.State != sandbox.StateStopped || info.Reason != "user" {
			t.Errorf("state %s, reason %s, %v", info.State, info.Reason, err)
		}
		if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateRunning {
			t.Errorf("state %s, reason %s, %v", info.State, info.Reason, err)
		}
	}
	// One whose start was cut by that is as if it had not begun.
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(cfg.DataDir, "boxes", "b1", "box.json")
	rec, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cut := strings.Replace(string(rec), `"state":"running"`, `"state":"created"`, 1)
	if cut == string(rec) {
		t.Fatalf("no state in %s", rec)
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0) // in its place: there is no other
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(cut); err != nil {
		t.Fatal(err)
	}
	f.Close()
	d = open(t, cfg)
	if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateCreated {
		t.Errorf("state %s, reason %s, %s, %v", info.State, info.Reason, info.Error, err)
	}
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), "b2"); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	if info, err := d.Inspect(t.Context(), "b2"); err != nil || info.State != sandbox.StateRunning {
		t.Errorf("state %s, reason %s, %v: what was set aside is older", info.State, info.Reason, err)
	}
	if err := d.Remove(t.Context(), "b2"); err != nil {
		t.Fatal(err)
	}
	wantNoTraces(t, cfg)
	if left, err := filepath.Glob("/run/taibox/" + cfg.Instance + "/aside/*"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// A file system that cannot be id-mapped is named, and nothing runs without.
func TestFileSystemWithoutIDMapping(t *testing.T) {
	cfg := mounted(t, "ramfs", "mode=700")
	d := open(t, cfg)
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: "b1", Image: sandbox.HostFS}); err != nil {
		t.Fatal(err)
	}
	err := d.Start(t.Context(), "b1")
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), cfg.DataDir) || !strings.Contains(err.Error(), "doctor") {
		t.Errorf("start: %v", err)
	}
	if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateCreated {
		t.Errorf("state %s, %v", info.State, err)
	}
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Error(err)
	}
	wantNoTraces(t, cfg)
}

// bridgePID reads a box's PID 1 from its record.
func bridgePID(t *testing.T, cfg oci.Config, id string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(cfg.DataDir, "boxes", id, "box.json"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(data), `"pid":`)
	var pid int
	if _, err := fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &pid); !ok || err != nil {
		t.Fatalf("no pid in %s", data)
	}
	return pid
}

// G14, G17: a box that died behind our back is failed with a reason at once,
// says so to whoever calls, can be started again, and keeps its files.
func TestG14DiedBehindOurBack(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	sh(t, d, "b1", "echo kept >/tmp/f")
	events, err := d.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{ID: "long", Args: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := syscall.Kill(bridgePID(t, cfg, "b1"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for e := range events {
		if e.Type == sandbox.EventState {
			if e.State != sandbox.StateFailed || e.Reason != "bridge-lost" {
				t.Errorf("event: %s, %s", e.State, e.Reason)
			}
			break
		}
	}
	if _, err := s.Recv(); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("its reader: %v", err)
	}
	if _, err := d.Exec(t.Context(), "b1", sandbox.ExecSpec{Args: []string{"true"}}); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("exec: %v", err)
	}
	info, err := d.WaitExec(t.Context(), "b1", "long")
	if err != nil || info.State != sandbox.ExecLost || info.ExitCode != nil || info.Reason != sandbox.ReasonLost {
		t.Errorf("the exec's record: %+v, %v", info, err)
	}
	if err := d.Start(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	if res := sh(t, d, "b1", "cat /tmp/f"); string(res.Stdout) != "kept\n" {
		t.Errorf("after the start: %q", res.Stdout)
	}
}

// An exec that an earlier process made a log for, and came no further with, is
// not there, and can be started.
func TestExecThatNeverBegan(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cfg.DataDir, "boxes", "b1", "execs", "e1.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	if s, err := d.AttachExec(t.Context(), "b1", "e1", sandbox.AttachOptions{Hold: true}); !errors.Is(err, sandbox.ErrExecNotFound) {
		t.Errorf("attach: %v, %v", s, err)
	}
	res, err := d.Exec(t.Context(), "b1", sandbox.ExecSpec{ID: "e1", Args: []string{"echo", "hi"}})
	if err != nil || string(res.Stdout) != "hi\n" {
		t.Errorf("exec: %q, %v", res.Stdout, err)
	}
}

// Whoever reads while a box is removed is told that, and not of our sockets.
func TestRemovedUnderReader(t *testing.T) {
	d, _ := box(t, sandbox.Spec{})
	s, err := d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{Args: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read := make(chan error, 1)
	go func() {
		_, err := s.Recv()
		if errors.Is(err, io.EOF) { // it was told in time: the record says the same
			var info sandbox.ExecInfo
			if info, err = s.Wait(t.Context()); err == nil && info.Reason != sandbox.ReasonExit {
				err = sandbox.ErrRemoving
			}
		}
		read <- err
	}()
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	err = <-read
	if !errors.Is(err, sandbox.ErrRemoving) && !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("its reader: %v", err)
	}
}

// Whoever writes a file meanwhile is told the same.
func TestRemovedUnderWriter(t *testing.T) {
	d, _ := box(t, sandbox.Spec{})
	r, w := io.Pipe()
	defer w.Close()
	wrote := make(chan error, 1)
	go func() {
		_, err := d.WriteFile(t.Context(), "b1", "/tmp/f", r, sandbox.FileOptions{})
		wrote <- err
	}()
	if _, err := w.Write([]byte("some")); err != nil { // it is under way
		t.Fatal(err)
	}
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	go w.Close()
	if err := <-wrote; !errors.Is(err, sandbox.ErrRemoving) && !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("its writer: %v", err)
	}
}

// The same while no driver is open: G02.
func TestG02DiedWhileNobodyLooked(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	pid := bridgePID(t, cfg, "b1")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateFailed || info.Reason != "lost" {
		t.Errorf("state %s, reason %q, %v", info.State, info.Reason, err)
	}
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Error(err)
	}
	wantNoTraces(t, cfg)
}

// The kernel killed PID 1 for memory: told apart from other deaths, also when
// execs had been killed for memory before.
func TestA07BridgeAfterOOM(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{MemoryBytes: 64 << 20})
	if res := python(t, d, "b1", "b=bytearray(400<<20)"); res.Reason != sandbox.ReasonOOM {
		t.Fatalf("reason %s", res.Reason)
	}
	if err := syscall.Kill(bridgePID(t, cfg, "b1"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		info, err := d.Inspect(t.Context(), "b1")
		return err == nil && info.State == sandbox.StateFailed
	}, "the box to fail")
	if info, _ := d.Inspect(t.Context(), "b1"); info.Reason != "bridge-lost" || info.OOMKills != 1 {
		t.Errorf("reason %q, %d kills", info.Reason, info.OOMKills)
	}
}

// The same while no driver is open.
func TestA07BridgeAfterOOMWhileNobodyLooked(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{MemoryBytes: 64 << 20})
	if res := python(t, d, "b1", "b=bytearray(400<<20)"); res.Reason != sandbox.ReasonOOM {
		t.Fatalf("reason %s", res.Reason)
	}
	pid := bridgePID(t, cfg, "b1")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.Reason != "lost" || info.OOMKills != 1 {
		t.Errorf("reason %q, %d kills, %v", info.Reason, info.OOMKills, err)
	}
}

// A failing step undoes what was done before it.
func TestFailedSteps(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	oops := errors.New("oops")
	at := ""
	cfg.Step = func(op, step, _ string) error {
		if op+"."+step == at {
			return oops
		}
		return nil
	}
	d := open(t, cfg)
	for _, at = range []string{"create.image", "create.intent", "create.directories", "create.ready"} {
		if _, err := d.Create(t.Context(), sandbox.Spec{ID: "b1", Image: sandbox.HostFS}); !errors.Is(err, oops) {
			t.Errorf("%s: %v", at, err)
		}
		wantNoTraces(t, cfg)
	}
	at = ""
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: "b1", Image: sandbox.HostFS}); err != nil {
		t.Fatal(err)
	}
	created := traces(t, cfg)
	for _, at = range []string{"start.namespaces", "start.rootfs", "start.runtime", "start.record"} {
		if err := d.Start(t.Context(), "b1"); !errors.Is(err, oops) {
			t.Errorf("%s: %v", at, err)
		}
		if left := traces(t, cfg); len(left) != len(created) {
			t.Errorf("%s left %v", at, left)
		}
		if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateCreated {
			t.Errorf("%s: state %s, %v", at, info.State, err)
		}
	}
	for _, at = range []string{"remove.intent", "remove.end", "remove.files"} {
		if err := d.Remove(t.Context(), "b1"); !errors.Is(err, oops) {
			t.Errorf("%s: %v", at, err)
		}
	}
	at = ""
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	wantNoTraces(t, cfg)
}
