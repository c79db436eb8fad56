package oci_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/tai/sandbox"
)

// ended waits until nothing of a box's processes is left, with no driver open.
func ended(t *testing.T, cfg oci.Config, id string) {
	t.Helper()
	if !endsWithin(t, cfg, id, 30*time.Second) {
		t.Fatalf("box %s still has processes", id)
	}
}

func endsWithin(t *testing.T, cfg oci.Config, id string, limit time.Duration) bool {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		alive := false
		for _, pattern := range []string{"/sys/fs/cgroup/taibox-" + cfg.Instance, "/sys/fs/cgroup/*/taibox-" + cfg.Instance} {
			found, err := filepath.Glob(filepath.Join(pattern, id, "cgroup.procs"))
			if err != nil {
				t.Fatal(err)
			}
			more, err := filepath.Glob(filepath.Join(pattern, id, "*", "cgroup.procs"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range append(found, more...) {
				data, err := os.ReadFile(f)
				alive = alive || err == nil && len(strings.TrimSpace(string(data))) > 0
			}
		}
		if !alive {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Boxes whose server does not come back end by themselves, and the next server
// knows why.
func TestOrphans(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	cfg.OrphanAfter = 5 * time.Second
	dismantle(t, cfg)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "orphan", Labels: map[string]string{"a": "b"}})
	if _, err := d.ExecStream(t.Context(), "orphan", sandbox.ExecSpec{Args: []string{"sleep", "600"}}); err != nil {
		t.Fatal(err)
	}
	sh(t, d, "orphan", "echo kept >/root/file")
	// As long as the server is there nothing happens.
	time.Sleep(2 * cfg.OrphanAfter)
	if info, err := d.Inspect(t.Context(), "orphan"); err != nil || info.State != sandbox.StateRunning {
		t.Fatalf("with its server there it is %s, %v", info.State, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	ended(t, cfg, "orphan")

	d = open(t, cfg)
	info, err := d.Inspect(t.Context(), "orphan")
	if err != nil || info.State != sandbox.StateStopped || info.Reason != "orphan" || info.Error != "" {
		t.Fatalf("the next server finds %s, %q, %q, %v", info.State, info.Reason, info.Error, err)
	}
	execs, err := d.ListExecs(t.Context(), "orphan")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range execs {
		if !e.Done() {
			t.Errorf("exec %s is %s", e.ID, e.State)
		}
	}
	// It can be started again, and then has a new note.
	if err := d.Start(t.Context(), "orphan"); err != nil {
		t.Fatal(err)
	}
	if res := sh(t, d, "orphan", "cat /root/file"); string(res.Stdout) != "kept\n" {
		t.Errorf("its file has %q", res.Stdout)
	}
	if err := d.Stop(t.Context(), "orphan", 0); err != nil {
		t.Fatal(err)
	}
	if info, err := d.Inspect(t.Context(), "orphan"); err != nil || info.Reason != "user" {
		t.Errorf("stopped by hand it says %q, %v", info.Reason, err)
	}
}

// A server that comes back in time finds its boxes running, with what it says
// itself as to orphans.
func TestOrphanServerComesBack(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	cfg.OrphanAfter = time.Hour
	dismantle(t, cfg)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.OrphanAfter = 5 * time.Second
	for try := range 10 { // a server that is gone at once may not have said it yet
		d = open(t, cfg)
		if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateRunning {
			t.Fatalf("it is %s, %v", info.State, err)
		}
		sh(t, d, "b1", fmt.Sprintf("sleep 0.%d", try))
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if endsWithin(t, cfg, "b1", 10*cfg.OrphanAfter) {
			return
		}
	}
	t.Error("the second server's setting does not hold")
}

// A max lifetime ends its box without a server, and only then by the node.
func TestMaxLifetimeWithoutServer(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "short", MaxLifetime: time.Second})
	started(t, d, sandbox.Spec{ID: "long", MaxLifetime: time.Hour})
	time.Sleep(1500 * time.Millisecond)
	if info, err := d.Inspect(t.Context(), "short"); err != nil || info.State != sandbox.StateRunning {
		t.Fatalf("with its server there it is %s, %v", info.State, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	ended(t, cfg, "short")
	d = open(t, cfg)
	if info, err := d.Inspect(t.Context(), "short"); err != nil || info.State != sandbox.StateStopped || info.Reason != "max-lifetime" {
		t.Errorf("short is %s, %q, %v", info.State, info.Reason, err)
	}
	if info, err := d.Inspect(t.Context(), "long"); err != nil || info.State != sandbox.StateRunning {
		t.Errorf("long is %s, %q, %v", info.State, info.Reason, err)
	}
}

// The note comes out of the box: what it says is believed only as far as it
// can be true, and it is bounded.
func TestEndNoteIsHostile(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	cfg.OrphanAfter = 5 * time.Second
	dismantle(t, cfg)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	ended(t, cfg, "b1")
	if err := os.WriteFile(filepath.Join(cfg.DataDir, "boxes", "b1", "end"), []byte("user, says the box\x1b[31m"+strings.Repeat("x", 1<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateFailed || info.Reason != "lost" {
		t.Errorf("it is %s, %q, %v", info.State, info.Reason, err)
	}
}

// The reason of a stop is kept with the box.
func TestStopForKeepsTheReason(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	if err := d.StopFor(t.Context(), "b1", 0, "idle"); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(t.Context(), "b1", 0); err != nil { // again: nothing changes
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateStopped || info.Reason != "idle" {
		t.Errorf("it is %s, %q, %v", info.State, info.Reason, err)
	}
}
