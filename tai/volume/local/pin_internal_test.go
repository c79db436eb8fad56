package local

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/taibox/taibox/tai/volume"
)

func openInternal(t *testing.T) *Volume {
	t.Helper()
	v, err := Open(t.Context(), Config{Dir: filepath.Join(t.TempDir(), "w")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func mustCreate(t *testing.T, v *Volume, id string) {
	t.Helper()
	if _, err := v.Create(t.Context(), id, volume.Options{}); err != nil {
		t.Fatal(err)
	}
}

// TestFoundWorkspaceIsNoOther: a call that has found its workspace goes on with
// the paths of another one.
func TestFoundWorkspaceIsNoOther(t *testing.T) {
	ctx := t.Context()
	v := openInternal(t)
	mustCreate(t, v, "ws")
	s, err := v.space("ws")
	if err != nil {
		t.Fatal(err)
	}
	had, err := v.treeOf(s)
	if err != nil {
		t.Fatal(err)
	}
	defer had.release()
	if err := v.Delete(ctx, "ws"); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, v, "ws")
	if _, err := v.WriteFile(ctx, "ws", "f", strings.NewReader("theirs"), volume.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := v.CreateSnapshot(ctx, "ws", "theirs"); err != nil {
		t.Fatal(err)
	}
	_, opened := v.treeOf(s)
	_, half := had.temp()
	_, usage := s.usage(ctx)
	for name, err := range map[string]error{"open": opened, "temporary files": half, "usage": usage, "remount": s.remount()} {
		if !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("%s: got %v, want %v", name, err, volume.ErrNotFound)
		}
	}
	v = &Volume{shared: v.shared, pin: s}
	if snaps, err := v.ListSnapshots(ctx, "ws"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("got %v, %v", snaps, err)
	}
}

// TestProjectsAreReadUnderTheLock is for the race detector.
func TestProjectsAreReadUnderTheLock(t *testing.T) {
	v := openInternal(t)
	mustCreate(t, v, "ws")
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 10 {
			if _, err := v.Update(context.Background(), "ws", volume.Update{Meta: []byte(`{"a":1}`)}); err != nil {
				t.Error(err)
			}
		}
	})
	for range 1000 {
		if v.hasProject(1) {
			t.Fatal("nobody has a project")
		}
	}
	wg.Wait()
}
