package local

import (
	"context"
	"errors"
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
	w, err := tr.watch(ctx, ".")
	if err != nil {
		t.Fatal(err)
	}
	defer w.release()
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

// TestWatchesAreBounded: together they take a share of what the machine has, and
// give all of it back.
func TestWatchesAreBounded(t *testing.T) {
	v := openInternal(t)
	mustCreate(t, v, "ws")
	for _, dir := range []string{"a/b", "a/c"} {
		if err := v.MkdirAll(t.Context(), "ws", dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	usual := v.inotify.most
	watch := func(path string) (end func(), err error) {
		ctx, cancel := context.WithCancelCause(t.Context())
		events, err := v.Watch(ctx, "ws", path)
		return func() {
			cancel(nil)
			for range events { // it is closed once all is given back
			}
		}, err
	}
	for _, c := range []struct {
		name  string
		most  watchLimits
		first string // what is watched before
	}{
		{"watches", watchLimits{1, usual.dirs, usual.ownDirs, usual.ownNames, usual.share}, "a/b"},
		{"directories", watchLimits{usual.watches, 4, usual.ownDirs, usual.ownNames, usual.share}, "a/b"},
		{"more-directories", watchLimits{usual.watches, 6, usual.ownDirs, usual.ownNames, usual.share}, "a"},
		{"own-directories", watchLimits{usual.watches, usual.dirs, 3, usual.ownNames, usual.share}, "a"},
		{"own-names", watchLimits{usual.watches, usual.dirs, usual.ownDirs, 2, usual.share}, "a"},
		{"share", watchLimits{usual.watches, 8, usual.ownDirs, usual.ownNames, 1}, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v.inotify.most = c.most
			end, err := watch(c.first)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := watch("."); !errors.Is(err, volume.ErrFileBusy) {
				t.Errorf("got %v, want %v", err, volume.ErrFileBusy)
			}
			end()
			if v.inotify.watches != 0 || v.inotify.dirs != 0 {
				t.Errorf("%d watches and %d directories are not given back", v.inotify.watches, v.inotify.dirs)
			}
			v.inotify.most = usual
			if end, err = watch("."); err != nil {
				t.Fatal(err)
			}
			end()
		})
	}
}

// TestWatchesLeaveSomeForOthers: whoever has as many watches as one owner may,
// of trees without end, leaves a quarter of the directories.
func TestWatchesLeaveSomeForOthers(t *testing.T) {
	i := shareOfInotify()
	i.most.dirs, i.most.share = 640, 640/watchShares
	watch := func() (took int) {
		for i.follow(took) == nil {
			took++
		}
		return took
	}
	if took := watch(); took != 320 {
		t.Errorf("the first has %d", took)
	}
	for range 15 {
		if took := watch(); took != 10 {
			t.Errorf("a further one has %d", took)
		}
	}
	if left := i.most.dirs - i.dirs; left < i.most.dirs/4 {
		t.Errorf("%d are left", left)
	}
}

// TestWatchCountsNames plays the kernel, as above.
func TestWatchCountsNames(t *testing.T) {
	v := openInternal(t)
	mustCreate(t, v, "ws")
	if err := v.MkdirAll(t.Context(), "ws", "d/e", 0); err != nil {
		t.Fatal(err)
	}
	tr, err := v.tree("ws")
	if err != nil {
		t.Fatal(err)
	}
	defer tr.release()
	v.inotify.most.ownNames = 3
	w, err := tr.watch(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	defer w.release()
	tell := func(mask uint32, name string) {
		t.Helper()
		if !w.event(&inotifyEvent{id: w.top.id, mask: mask, name: name}) {
			t.Fatal("the watch ended")
		}
	}
	gap := volume.FileEvent{Kind: volume.FileGap, Path: ".", Dir: true}
	tell(unix.IN_CREATE, "f")
	if events, _ := w.take(); len(events) != 1 || events[0].Kind != volume.FileCreated || w.names != 3 {
		t.Errorf("told %+v, and counted %d names", events, w.names)
	}
	tell(unix.IN_MOVED_TO, "f")
	tell(unix.IN_CREATE, "g")
	if events, _ := w.take(); len(events) != 1 || events[0] != gap || w.names != 3 {
		t.Errorf("told %+v, and counted %d names", events, w.names)
	}
	tell(unix.IN_DELETE, "g")
	tell(unix.IN_DELETE, "f")
	tell(unix.IN_DELETE|unix.IN_ISDIR, "d")
	if w.names != 0 || len(w.byID) != 1 || v.inotify.dirs != 1 {
		t.Errorf("left are %d names in %d directories, %d for all", w.names, len(w.byID), v.inotify.dirs)
	}
}

// TestWatchEndsBeforeItHasBegun: nobody wants to know of a large tree any more.
func TestWatchEndsBeforeItHasBegun(t *testing.T) {
	v := openInternal(t)
	mustCreate(t, v, "ws")
	tr, err := v.tree("ws")
	if err != nil {
		t.Fatal(err)
	}
	defer tr.release()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStop)
	if _, err := tr.watch(ctx, "."); !errors.Is(err, errStop) {
		t.Errorf("got %v, want %v", err, errStop)
	}
	if v.inotify.watches != 0 || v.inotify.dirs != 0 {
		t.Errorf("%d watches and %d directories are not given back", v.inotify.watches, v.inotify.dirs)
	}
}
