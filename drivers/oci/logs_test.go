package oci_test

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/taibox/taibox/tai/sandbox"
)

// onDisk is how much of the disk the files below dir take.
func onDisk(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// L02: however many execs print without end, a box has its share of the disk
// and no more.
func TestL02Logs(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	cfg.KeepExecBytes = 16 << 20
	dismantle(t, cfg)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	const execs = 20
	ids := make([]string, execs)
	for i := range ids {
		s, err := d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{Args: []string{"yes"}, OnDisconnect: sandbox.OnDisconnectKeep})
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = s.ID()
		s.Close()
	}
	// Each has printed what would be kept of it alone, four times the share
	// in all.
	for _, id := range ids {
		waitFor(t, func() bool {
			info, err := d.InspectExec(t.Context(), "b1", id)
			if err != nil {
				t.Fatal(err)
			}
			return info.Bytes > 4*cfg.KeepExecBytes && info.FirstOffset > 0
		}, "much output")
	}
	dir := filepath.Join(cfg.DataDir, "boxes", "b1", "execs")
	// The last ones have a least size, and a log a little more than its own.
	if got, most := onDisk(t, dir), cfg.KeepExecBytes+execs*(2<<20); got > most {
		t.Errorf("running execs have %d bytes of logs, more than %d", got, most)
	}
	for _, id := range ids {
		if err := d.KillExec(t.Context(), "b1", id, sandbox.KillOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return onDisk(t, dir) <= cfg.KeepExecBytes+execs*(64<<10) }, "the logs of finished execs to be trimmed")

	// An exec that asks for much gets what there is.
	s, err := d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{Args: []string{"yes"}, OnDisconnect: sandbox.OnDisconnectKeep, MaxLog: sandbox.MaxMaxLog})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	waitFor(t, func() bool {
		info, err := d.InspectExec(t.Context(), "b1", s.ID())
		return err == nil && info.FirstOffset > 0
	}, "its log to be full")
}
