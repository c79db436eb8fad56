package local

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/volume"
)

// TestWatchGoesOnAfterTheKernelLostEvents plays the kernel: its queue does not
// overflow on demand.
func TestWatchGoesOnAfterTheKernelLostEvents(t *testing.T) {
	ctx := context.Background()
	v, err := Open(ctx, Config{Dir: filepath.Join(t.TempDir(), "w")})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := v.Create(ctx, "ws", volume.Options{}); err != nil {
		t.Fatal(err)
	}
	data, err := v.MountPath(ctx, "ws")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(data, "d", "e"), 0o755); err != nil {
		t.Fatal(err)
	}
	tr, err := v.tree("ws")
	if err != nil {
		t.Fatal(err)
	}
	defer tr.release()
	w, err := tr.watch(".")
	if err != nil {
		t.Fatal(err)
	}
	defer w.inotify.Close()
	// What these say is lost.
	if err := os.MkdirAll(filepath.Join(data, "new", "f"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(data, "d")); err != nil {
		t.Fatal(err)
	}
	w.push(volume.FileCreated, "stale", false)
	if !w.event(&inotifyEvent{id: -1, mask: unix.IN_Q_OVERFLOW}) {
		t.Fatal("the watch ended")
	}
	events, _ := w.take()
	if len(events) != 1 || events[0] != (volume.FileEvent{Kind: volume.FileGap, Path: ".", Dir: true}) {
		t.Errorf("told %+v", events)
	}
	paths := map[string]bool{}
	for _, d := range w.byID {
		paths[d.path] = true
	}
	if len(paths) != 3 || !paths["."] || !paths["new"] || !paths["new/f"] {
		t.Errorf("followed are %v", paths)
	}
}
