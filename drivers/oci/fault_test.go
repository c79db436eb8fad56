package oci_test

import (
	"errors"
	"fmt"
	"os"
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
