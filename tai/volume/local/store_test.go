package local_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
)

// TestG05StoreOfVersion1: a workspace of the first layout is there after an
// upgrade, with its files and snapshots. A change of layout gets a fixture of
// its own and leaves this one alone.
func TestG05StoreOfVersion1(t *testing.T) {
	root := filepath.Join(t.TempDir(), "workspaces")
	dir := filepath.Join(root, "ws1")
	for from, to := range map[string]string{"workspace.json": ".workspace.json", "snapshot.json": "fs/snapshots/before/snapshot.json"} {
		data, err := os.ReadFile(filepath.Join("testdata", "v1", from))
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, to), string(data))
	}
	put(t, filepath.Join(dir, "fs", "tmp", "upload"), "half written")
	put(t, filepath.Join(dir, "fs", "data", "dir", "hello.txt"), "changed\n")
	put(t, filepath.Join(dir, "fs", "snapshots", "before", "index"), "")
	put(t, filepath.Join(dir, "fs", "snapshots", "before", "tree", "dir", "hello.txt"), "hello\n")

	v := open(t, local.Config{Dir: root})
	at := func(s string) time.Time {
		when, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	list, err := v.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]volume.Info{{
		ID: "ws1", CreatedAt: at("2026-11-30T11:01:18.606576091Z"),
		Meta: []byte(`{"name":"Proj","owner":"ann","labels":{"team":"red"},"updated_at":"2026-11-30T11:01:18.606505276Z"}`),
	}}, list); diff != "" {
		t.Error(diff)
	}
	snaps, err := v.ListSnapshots(t.Context(), "ws1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]volume.Snapshot{{Name: "before", CreatedAt: at("2026-11-30T11:01:18.622777438Z"), Bytes: 6, Files: 2}}, snaps); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{"changed\n", "hello\n"} {
		if data, err := v.ReadFile(t.Context(), "ws1", "dir/hello.txt"); err != nil || string(data) != want {
			t.Errorf("the file is %q, %v; want %q", data, err, want)
		}
		if err := v.RestoreSnapshot(t.Context(), "ws1", "before"); err != nil {
			t.Fatal(err)
		}
	}
}

// put writes a file, with the directories above.
func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
