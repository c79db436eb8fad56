package volumetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/tai/volume"
)

// Subject opens the volume under test on a directory. Opening the same
// directory again, after Close, must find the same workspaces.
type Subject func(t *testing.T, dir string) volume.Volume

// patience bounds each test and each wait that should end at once.
const patience = 2 * time.Minute

// Run runs every group as a subtest.
func Run(t *testing.T, open Subject) {
	for _, g := range []struct {
		name string
		run  func(*env)
	}{
		{"workspaces", workspaces},
		{"errors", errorClasses},
		{"files", files},
		{"ranges", ranges},
		{"conditional", conditional},
		{"names", names},
		{"sizes", sizes},
		{"kinds", kinds},
		{"links", links},
		{"races", races},
		{"cancel", cancellation},
		{"parallel", parallel},
		{"snapshots", snapshots},
		{"watch", watches},
		{"archives", archives},
		{"syncs", syncs},
		{"quotas", quotas},
		{"reopen", reopen},
	} {
		t.Run(g.name, func(t *testing.T) { runGroup(t, open, g.run) })
	}
}

// group is what the tests of one group share.
type group struct {
	open   Subject
	dir    string // of the volume
	canary string // beside it
	v      volume.Volume
	count  atomic.Int64
}

func runGroup(t *testing.T, open Subject, run func(*env)) {
	base := t.TempDir()
	g := &group{open: open, dir: filepath.Join(base, "node", "workspaces"), canary: filepath.Join(base, "canary")}
	plant(t, g.canary)
	before := picture(t, g.canary)
	if err := os.MkdirAll(filepath.Dir(g.dir), 0o700); err != nil {
		t.Fatal(err)
	}
	g.v = open(t, g.dir)
	t.Cleanup(func() {
		g.end(t)
		if diff := cmp.Diff(before, picture(t, g.canary)); diff != "" {
			t.Errorf("something outside the workspaces was touched (-before +after):\n%s", diff)
		}
	})
	run(&env{T: t, group: g})
}

// end deletes the workspaces, and checks that nothing of them is left.
func (g *group) end(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errPatience)
	defer cancel()
	infos, err := g.v.List(ctx)
	if err != nil {
		t.Errorf("list in the end: %v", err)
	}
	for _, info := range infos {
		if err := g.v.Delete(ctx, info.ID); err != nil {
			t.Errorf("delete %s in the end: %v", info.ID, err)
		}
	}
	if err := g.v.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := g.v.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	left, err := os.ReadDir(g.dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the volume's directory: %v, %v", left, err)
	}
}

var errPatience = errors.New("the test's patience is over")

// plant makes the tree that must not change.
func plant(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{"sub/deep", "empty"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]fs.FileMode{"secret": 0o600, "sub/run": 0o755, "sub/deep/open": 0o666} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("untouched "+name), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("secret", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
}

// picture describes all that is below a directory: bytes, modes, owners.
func picture(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		rel, _ := filepath.Rel(dir, name)
		fmt.Fprintf(&b, "%q %v %d:%d", rel, info.Mode(), st.Uid, st.Gid)
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", data)
		case info.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(name)
			fmt.Fprintf(&b, " -> %q", to)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// env is a test of a group.
type env struct {
	*testing.T
	*group
}

// run runs a test as a subtest.
func (e *env) run(name string, f func(*env)) {
	e.Helper()
	e.Run(name, func(t *testing.T) { f(&env{T: t, group: e.group}) })
}

// ctx is for one test.
func (e *env) ctx() context.Context {
	ctx, cancel := context.WithTimeoutCause(e.Context(), patience, errPatience)
	e.Cleanup(cancel)
	return ctx
}

// workspace makes a workspace for one test.
func (e *env) workspace() string {
	e.Helper()
	return e.workspaceWith(volume.Options{})
}

func (e *env) workspaceWith(o volume.Options) string {
	e.Helper()
	id := fmt.Sprintf("ws-%d", e.count.Add(1))
	_, err := e.v.Create(e.ctx(), id, o)
	e.ok(err)
	return id
}

// box returns the directory that a box would have mounted.
func (e *env) box(id string) string {
	e.Helper()
	if !e.v.Features().Has(volume.FeatureMount) {
		e.Skip("the volume does not say where its files are")
	}
	dir, err := e.v.MountPath(e.ctx(), id)
	e.ok(err)
	return dir
}

func (e *env) ok(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// fails checks that an error is of one of the kinds.
func (e *env) fails(err error, kinds ...error) {
	e.Helper()
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return
		}
	}
	e.Errorf("got error %v, want one of %q", err, kinds)
}

func (e *env) write(id, name, data string) volume.FileInfo {
	e.Helper()
	info, err := e.v.WriteFile(e.ctx(), id, name, strings.NewReader(data), volume.WriteOptions{Parents: true})
	e.ok(err)
	return info
}

func (e *env) read(id, name string) string {
	e.Helper()
	data, err := e.v.ReadFile(e.ctx(), id, name)
	e.ok(err)
	return string(data)
}

// holds checks what is in a file.
func (e *env) holds(id, name, want string) {
	e.Helper()
	data, err := e.v.ReadFile(e.ctx(), id, name)
	if err != nil {
		e.Error(err)
	} else if !bytes.Equal(data, []byte(want)) {
		e.Errorf("%s holds %.100q (%d bytes), want %.100q (%d bytes)", name, data, len(data), want, len(want))
	}
}

// tree lists the paths of a workspace, below name and without it.
func (e *env) tree(id, name string) []string {
	e.Helper()
	paths := []string{}
	for info, err := range e.v.Walk(e.ctx(), id, name) {
		e.ok(err)
		if info.Path != name {
			paths = append(paths, info.Path)
		}
	}
	return paths
}

func (e *env) equal(what string, got, want any) {
	e.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		e.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// plantFile makes a file as a box does.
func (e *env) plantFile(name, data string) {
	e.Helper()
	e.ok(os.MkdirAll(filepath.Dir(name), 0o755))
	e.ok(os.WriteFile(name, []byte(data), 0o644))
}
