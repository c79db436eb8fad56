package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/taibox/taibox/internal/durable"
)

type state struct{ A, B int }

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	for i, write := range []func(string, any) error{durable.WriteJSON, durable.NoteJSON} {
		want := state{i, i + 1}
		if err := write(path, want); err != nil {
			t.Fatal(err)
		}
		var got state
		if err := durable.ReadJSON(path, &got); err != nil || got != want {
			t.Errorf("read %+v, %v; want %+v", got, err, want)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := durable.Write(path, []byte("{")); err != nil {
		t.Fatal(err)
	}
	var got state
	if err := durable.ReadJSON(path, &got); err == nil {
		t.Errorf("half a file was read: %+v", got)
	}
	if err := durable.ReadJSON(filepath.Join(dir, "none"), &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	wantNames(t, dir, 1)
}

// What cannot take the old file's place leaves that as it was, and nothing else.
func TestFailure(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := durable.Write(path, []byte("x")); err == nil {
		t.Error("a directory was replaced")
	}
	if err := durable.WriteJSON(filepath.Join(dir, "other"), func() {}); err == nil {
		t.Error("a function was written")
	}
	wantNames(t, dir, 1)
}

// Of several writers each leaves the whole of its own, and readers see no half.
func TestParallel(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	if err := durable.NoteJSON(path, state{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				var got state
				if err := errors.Join(durable.NoteJSON(path, state{i, i}), durable.ReadJSON(path, &got)); err != nil || got.A != got.B {
					t.Errorf("read %+v, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
	wantNames(t, dir, 1)
}

// What a killed process left half written goes, and nothing else.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	if err := durable.Sweep(filepath.Join(dir, "none")); err != nil {
		t.Errorf("an absent directory: %v", err)
	}
	kept := []string{".profile", ".x.json", "123", "e1.json", "e1.log", "e1.log.7"}
	for _, name := range append(kept, ".e1.json.1234567890", ".state.7") {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := durable.Sweep(dir); err != nil {
		t.Fatal(err)
	}
	wantNames(t, dir, len(kept))
	for _, name := range kept {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func wantNames(t *testing.T, dir string, n int) {
	t.Helper()
	if names, err := os.ReadDir(dir); err != nil || len(names) != n {
		t.Errorf("left in the directory: %v, %v", names, err)
	}
}
