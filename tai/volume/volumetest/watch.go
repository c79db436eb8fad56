package volumetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/taibox/taibox/tai/volume"
)

func watches(e *env) {
	e.run("api_and_box", watchBoth)
	e.run("new_directories", watchNewDirs)
	e.run("links_are_not_followed", watchLinks)
	e.run("of_a_file", watchFile)
	e.run("ends", watchEnds)
	e.run("slow_reader", watchSlow)
}

// watch watches a path until the test ends.
func (e *env) watch(id, name string) <-chan volume.FileEvent {
	e.Helper()
	ctx, cancel := context.WithCancelCause(e.ctx())
	events, err := e.v.Watch(ctx, id, name)
	e.ok(err)
	e.Cleanup(func() {
		cancel(nil)
		e.drained(events)
	})
	return events
}

// drained checks that a channel is closed soon.
func (e *env) drained(events <-chan volume.FileEvent) {
	e.Helper()
	deadline := time.After(patience)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-deadline:
			e.Error("the watch does not end")
			return
		}
	}
}

// told waits for an event, whatever comes before it.
func (e *env) told(events <-chan volume.FileEvent, want volume.FileEvent) []volume.FileEvent {
	e.Helper()
	deadline := time.After(patience)
	var before []volume.FileEvent
	for {
		select {
		case got, ok := <-events:
			if !ok {
				e.Fatalf("the watch ended, and never told %+v", want)
			}
			if got == want {
				return before
			}
			before = append(before, got)
		case <-deadline:
			e.Fatalf("not told %+v, but %+v", want, before)
		}
	}
}

func watchBoth(e *env) {
	id := e.workspace()
	box := e.box(id)
	e.write(id, "d/old", "x")
	events := e.watch(id, ".")
	e.write(id, "d/new", "x")
	e.told(events, volume.FileEvent{Kind: volume.FileCreated, Path: "d/new"})
	e.write(id, "d/old", "y") // replaced
	e.told(events, volume.FileEvent{Kind: volume.FileModified, Path: "d/old"})
	e.plantFile(filepath.Join(box, "by-box"), "")
	e.told(events, volume.FileEvent{Kind: volume.FileCreated, Path: "by-box"})
	e.plantFile(filepath.Join(box, "by-box"), "data")
	e.told(events, volume.FileEvent{Kind: volume.FileModified, Path: "by-box"})
	e.ok(os.Chmod(filepath.Join(box, "d", "old"), 0o600))
	e.told(events, volume.FileEvent{Kind: volume.FileModified, Path: "d/old"})
	e.ok(e.v.Rename(e.ctx(), id, "d", "e"))
	e.told(events, volume.FileEvent{Kind: volume.FileRemoved, Path: "d", Dir: true})
	e.told(events, volume.FileEvent{Kind: volume.FileCreated, Path: "e", Dir: true})
	e.ok(os.Remove(filepath.Join(box, "e", "old")))
	e.told(events, volume.FileEvent{Kind: volume.FileRemoved, Path: "e/old"})
	e.ok(e.v.Remove(e.ctx(), id, "e", volume.RemoveOptions{All: true}))
	e.told(events, volume.FileEvent{Kind: volume.FileRemoved, Path: "e", Dir: true})
	// A path below, and only that.
	e.write(id, "in/f", "x")
	e.write(id, "out/f", "x")
	below := e.watch(id, "in")
	e.write(id, "out/g", "x")
	e.write(id, "in/g", "x")
	for _, other := range e.told(below, volume.FileEvent{Kind: volume.FileCreated, Path: "in/g"}) {
		e.Errorf("told of %+v", other)
	}
	_, err := e.v.Watch(e.ctx(), id, "nosuch")
	e.fails(err, volume.ErrFileNotFound)
}

// watchNewDirs makes files in directories quicker than they can be watched.
func watchNewDirs(e *env) {
	id := e.workspace()
	box := e.box(id)
	events := e.watch(id, ".")
	const dirs, filesEach = 50, 4
	want := map[string]bool{}
	for i := range dirs {
		dir := fmt.Sprintf("%d/a/b", i)
		e.ok(os.MkdirAll(filepath.Join(box, dir), 0o755))
		for j := range filesEach {
			name := fmt.Sprintf("%s/%d", dir, j)
			e.plantFile(filepath.Join(box, name), "x")
			want[name] = true
		}
	}
	deadline := time.After(patience)
	for len(want) > 0 {
		select {
		case got := <-events:
			if got.Kind == volume.FileGap {
				e.Fatal("missed events")
			}
			if got.Kind == volume.FileCreated {
				delete(want, got.Path)
			}
		case <-deadline:
			e.Fatalf("never told of %d files", len(want))
		}
	}
}

func watchLinks(e *env) {
	id := e.workspace()
	box := e.box(id)
	e.ok(os.Symlink(e.canary, filepath.Join(box, "out")))
	events := e.watch(id, ".")
	e.ok(os.Symlink(e.canary, filepath.Join(box, "out2")))
	e.told(events, volume.FileEvent{Kind: volume.FileCreated, Path: "out2"})
	outside := filepath.Join(e.canary, "sub", "made")
	e.ok(os.WriteFile(outside, nil, 0o600))
	e.ok(os.Remove(outside))
	outside = filepath.Join(e.canary, "made")
	e.ok(os.WriteFile(outside, nil, 0o600))
	e.ok(os.Remove(outside))
	e.write(id, "last", "x")
	for _, other := range e.told(events, volume.FileEvent{Kind: volume.FileCreated, Path: "last"}) {
		e.Errorf("told of %+v", other)
	}
	_, err := e.v.Watch(e.ctx(), id, "out")
	e.fails(err, volume.ErrFileDenied)
}

func watchFile(e *env) {
	id := e.workspace()
	e.write(id, "d/f", "x")
	e.write(id, "d/g", "x")
	events := e.watch(id, "d/f")
	e.write(id, "d/g", "y")
	e.write(id, "d/f", "y")
	for _, other := range e.told(events, volume.FileEvent{Kind: volume.FileModified, Path: "d/f"}) {
		e.Errorf("told of %+v", other)
	}
	e.ok(e.v.Remove(e.ctx(), id, "d/f", volume.RemoveOptions{}))
	e.told(events, volume.FileEvent{Kind: volume.FileRemoved, Path: "d/f"})
	e.write(id, "d/f", "z")
	e.told(events, volume.FileEvent{Kind: volume.FileCreated, Path: "d/f"})
}

func watchEnds(e *env) {
	id := e.workspace()
	ctx, cancel := context.WithCancelCause(e.ctx())
	events, err := e.v.Watch(ctx, id, ".")
	e.ok(err)
	cancel(errors.New("enough"))
	e.drained(events)
	events, err = e.v.Watch(e.ctx(), id, ".")
	e.ok(err)
	e.ok(e.v.Delete(e.ctx(), id))
	e.drained(events)
}

func watchSlow(e *env) {
	id := e.workspace()
	box := e.box(id)
	events := e.watch(id, ".")
	for i := range 20_000 {
		f, err := os.Create(filepath.Join(box, fmt.Sprint(i)))
		e.ok(err)
		f.Close()
	}
	// It is told that it missed some, and goes on from there.
	deadline := time.After(patience)
	for gap := false; !gap; {
		select {
		case got := <-events:
			gap = got.Kind == volume.FileGap
		case <-deadline:
			e.Fatal("a reader that fell behind is not told")
		}
	}
	e.write(id, "last", "x")
	e.told(events, volume.FileEvent{Kind: volume.FileCreated, Path: "last"})
}

// reopen is about what is there after the process ended.
func reopen(e *env) {
	id := e.workspaceWith(volume.Options{Meta: []byte(`{"k":"v"}`)})
	e.write(id, "d/f", "x")
	_, err := e.v.CreateSnapshot(e.ctx(), id, "s")
	e.ok(err)
	info, err := e.v.Get(e.ctx(), id)
	e.ok(err)
	gone := e.workspace()
	e.ok(e.v.Delete(e.ctx(), gone))
	limited := ""
	if e.v.Features().Has(volume.FeatureQuota) {
		limited = e.workspaceWith(volume.Options{Quota: volume.Quota{Bytes: 16 << 20}})
		e.write(limited, "f", "in the quota")
	}
	events, err := e.v.Watch(e.ctx(), id, ".")
	e.ok(err)
	e.ok(e.v.Close())
	e.drained(events)
	_, err = e.v.Get(e.ctx(), id)
	if err == nil {
		e.Error("a closed volume answers")
	}
	e.v = e.open(e.T, e.dir)
	again, err := e.v.Get(e.ctx(), id)
	e.ok(err)
	e.equal("after reopening", again, info)
	_, err = e.v.Pin(e.ctx(), id, info.CreatedAt)
	e.ok(err)
	e.holds(id, "d/f", "x")
	e.write(id, "d/f", "y")
	e.ok(e.v.RestoreSnapshot(e.ctx(), id, "s"))
	e.holds(id, "d/f", "x")
	_, err = e.v.Get(e.ctx(), gone)
	e.fails(err, volume.ErrNotFound)
	if limited != "" {
		e.holds(limited, "f", "in the quota")
	}
}
