package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/taibox/taibox/sandbox"
)

func TestFilesByName(t *testing.T) {
	r := newRig(t)
	b := r.create(sandbox.CreateOptions{ID: "b1"})
	ctx, m := t.Context(), r.m
	must(t, m.MkDir(ctx, "b1", "/tmp/a/b"))
	must(t, m.MkDir(ctx, "b1", "/tmp/a/b"))
	must(t, m.WriteFile(ctx, "b1", "/tmp/a/b/f", []byte("text")))
	data, err := m.ReadFile(ctx, "b1", "/tmp/a/b/f")
	must(t, err)
	if string(data) != "text" {
		t.Errorf("read was %q", data)
	}
	info, err := m.Stat(ctx, "b1", "/tmp/a/b")
	must(t, err)
	if info.Name != "b" || info.Path != "/tmp/a/b" || !info.IsDir || !info.Mode.IsDir() {
		t.Errorf("it is %+v", info)
	}
	list, err := m.ListDir(ctx, "b1", "/tmp/a/b")
	must(t, err)
	if len(list) != 1 || list[0].Path != "/tmp/a/b/f" || list[0].Size != 4 || list[0].IsDir {
		t.Errorf("listed is %+v", list)
	}
	must(t, b.Stop(ctx))
	must(t, m.WriteFile(ctx, "b1", "/tmp/a/b/f", []byte("of a stopped box")))
	must(t, m.RemoveFile(ctx, "b1", "/tmp/a"))
	must(t, m.RemoveFile(ctx, "b1", "/tmp/a"))
	if _, err := m.ReadFile(ctx, "b1", "/tmp/a/b/f"); !errors.Is(err, sandbox.ErrFileNotFound) {
		t.Errorf("read removed: %v", err)
	}
	if _, err := m.ReadFile(ctx, "none", "/tmp"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("read in no box: %v", err)
	}
}

func TestCopyByName(t *testing.T) {
	r := newRig(t)
	r.create(sandbox.CreateOptions{ID: "b1"})
	ctx, dir := t.Context(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("text"), 0o640))
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "l")))
	must(t, r.m.CopyToContainer(ctx, "b1", dir, "/tmp/new"))
	err := r.m.CopyFromContainer(ctx, "b1", "/tmp/new", filepath.Join(dir, "back"))
	if err == nil || !strings.Contains(err.Error(), "/etc/passwd") {
		t.Errorf("the link that leads out is not told: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "back", "f"))
	must(t, err)
	if string(data) != "text" {
		t.Errorf("back came %q", data)
	}
}

// A file call keeps its box busy, and is activity.
func TestFilesAreActivity(t *testing.T) {
	r := newRig(t)
	b := r.create(sandbox.CreateOptions{ID: "b1"})
	must(t, r.m.WriteFile(t.Context(), "b1", "/tmp/f", []byte("text")))
	before := b.Snapshot().LastActive
	f, _, err := b.OpenFile(t.Context(), "/tmp/f", sandbox.FileOptions{})
	must(t, err)
	if s := b.Snapshot(); !slices.Contains(s.Busy, "files") {
		t.Errorf("it is busy with %v", s.Busy)
	}
	must(t, f.Close())
	if s := b.Snapshot(); slices.Contains(s.Busy, "files") || !s.LastActive.After(before) {
		t.Errorf("it is busy with %v, last active %v", s.Busy, s.LastActive)
	}
}

func TestKillProcess(t *testing.T) {
	r := newRig(t)
	b := r.create(sandbox.CreateOptions{ID: "b1"})
	ctx := t.Context()
	s, err := r.m.Stream(ctx, "b1", []string{"sleep", "infinity"})
	must(t, err)
	defer s.Cancel()
	for _, pattern := range []string{"sleeep", "^infinity"} {
		if err := r.m.KillProcess(ctx, "b1", pattern); !errors.Is(err, sandbox.ErrExecNotFound) {
			t.Errorf("%s: %v", pattern, err)
		}
	}
	for _, pattern := range []string{"", "("} {
		if err := r.m.KillProcess(ctx, "b1", pattern); !errors.Is(err, sandbox.ErrInvalidSpec) {
			t.Errorf("%s: %v", pattern, err)
		}
	}
	must(t, r.m.KillProcess(ctx, "b1", "^sleep inf"))
	execs, err := b.Execs(ctx)
	must(t, err)
	info, err := b.WaitExec(ctx, execs[0].ID)
	must(t, err)
	if info.Signal != "SIGTERM" {
		t.Errorf("it ended by %q", info.Signal)
	}
	res, err := r.m.Exec(ctx, "b1", []string{"echo", "on"})
	must(t, err)
	if res.Stdout != "on\n" {
		t.Errorf("the output is %q", res.Stdout)
	}
}
