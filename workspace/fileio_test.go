package workspace_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/tai/registry"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/workspace"
)

func TestFiles(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.create(workspace.CreateOptions{ID: "a"})
	w.ok(w.m.WriteFile(ctx, "a", "src/deep/a.txt", []byte("hello\n"), 0o640))
	data, err := w.m.ReadFile(ctx, "a", "src/deep/a.txt")
	if err != nil || string(data) != "hello\n" {
		t.Errorf("read is %q, %v", data, err)
	}
	list, err := w.m.ListDir(ctx, "a", "src/deep")
	if err != nil || len(list) != 1 || list[0].Name != "a.txt" || list[0].Mode.Perm() != 0o640 {
		t.Errorf("listed is %+v, %v", list, err)
	}
	dir, err := w.m.MountPath(ctx, "a")
	w.ok(err)
	if data, err := os.ReadFile(filepath.Join(dir, "src/deep/a.txt")); err != nil || string(data) != "hello\n" {
		t.Errorf("on the node there is %q, %v", data, err)
	}
	w.ok(w.m.Remove(ctx, "a", "src"))
	_, err = w.m.ReadFile(ctx, "a", "src/deep/a.txt")
	w.wantErr(err, volume.ErrFileNotFound)
	_, err = w.m.ReadFile(ctx, "a", "../b")
	w.wantErr(err, volume.ErrPath)
	if _, err := w.m.Usage(ctx, "a"); err != nil {
		t.Error(err)
	}
	_, err = w.m.Volume(ctx, &workspace.Workspace{ID: "nosuch", Node: registry.Local})
	w.wantErr(err, workspace.ErrNotFound)
}

func TestFS(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.create(workspace.CreateOptions{ID: "a"})
	fsys, err := w.m.FS(ctx, "a")
	w.ok(err)
	defer fsys.Close()
	w.ok(fsys.MkdirAll("x/y", 0o755))
	w.ok(fsys.WriteFile("x/y/z", []byte("1"), 0o644))
	w.ok(fsys.Rename("x/y/z", "x/moved"))
	var seen []string
	w.ok(fs.WalkDir(fsys, ".", func(p string, _ fs.DirEntry, err error) error {
		seen = append(seen, p)
		return err
	}))
	if diff := cmp.Diff([]string{".", "x", "x/moved", "x/y"}, seen); diff != "" {
		t.Errorf("walked (-want +got):\n%s", diff)
	}
	_, err = w.m.FS(ctx, "nosuch")
	w.wantErr(err, workspace.ErrNotFound)
}

func TestSnapshots(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.create(workspace.CreateOptions{ID: "a"})
	w.ok(w.m.WriteFile(ctx, "a", "f", []byte("one"), 0))
	_, err := w.m.CreateSnapshot(ctx, "a", "s1")
	w.ok(err)
	_, err = w.m.CreateSnapshot(ctx, "a", "s1")
	w.wantErr(err, workspace.ErrSnapshotExists)
	w.ok(w.m.WriteFile(ctx, "a", "f", []byte("other"), 0))
	changes, err := w.m.Diff(ctx, "a", "s1", "")
	if err != nil || len(changes) != 1 || changes[0] != (volume.Change{Path: "f", Kind: volume.Modified}) {
		t.Errorf("the difference is %+v, %v", changes, err)
	}
	w.ok(w.m.RestoreSnapshot(ctx, "a", "s1"))
	if data, err := w.m.ReadFile(ctx, "a", "f"); err != nil || string(data) != "one" {
		t.Errorf("restored is %q, %v", data, err)
	}
	if list, err := w.m.ListSnapshots(ctx, "a"); err != nil || len(list) != 1 || list[0].Name != "s1" {
		t.Errorf("there are %+v, %v", list, err)
	}
	w.ok(w.m.RemoveSnapshot(ctx, "a", "s1"))
	w.wantErr(w.m.RemoveSnapshot(ctx, "a", "s1"), workspace.ErrSnapshotNotFound)
}
