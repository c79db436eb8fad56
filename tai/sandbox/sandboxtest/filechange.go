package sandboxtest

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/taibox/taibox/tai/sandbox"
)

// writeConditions: a write over a version, or over nothing.
func writeConditions(e *env) {
	id, dir := e.box(), e.place()
	write := func(text string, o sandbox.FileOptions) (sandbox.FileInfo, error) {
		return e.files().WriteFile(e.ctx, id, dir+"/f", strings.NewReader(text), o)
	}
	first, err := write("one", sandbox.FileOptions{IfAbsent: true})
	e.ok(err)
	_, err = write("bad", sandbox.FileOptions{IfAbsent: true})
	e.wantErr(err, sandbox.ErrFileExists)
	if got := e.stat(id, dir+"/f"); first.Version == "" || got.Version != first.Version {
		e.Errorf("written was version %q, and there is %q", first.Version, got.Version)
	}
	second, err := write("two", sandbox.FileOptions{IfVersion: first.Version})
	e.ok(err)
	if second.Version == first.Version {
		e.Errorf("version %q is that of both", first.Version)
	}
	_, err = write("bad", sandbox.FileOptions{IfVersion: first.Version})
	e.wantErr(err, sandbox.ErrFileChanged)
	if got := e.readFile(id, dir+"/f", sandbox.FileOptions{}); got != "two" {
		e.Errorf("what must not be written was: %q", got)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 8 {
		wg.Go(func() {
			if _, err := write("x", sandbox.FileOptions{IfVersion: second.Version}); err == nil {
				mu.Lock()
				won++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if won != 1 {
		e.Errorf("%d writers over one version won", won)
	}
}

// watchFiles: what changes in a directory and below is told.
func watchFiles(e *env) {
	w, ok := sandbox.As[sandbox.FileWatcher](e.d)
	if has := e.has(sandbox.FeatureFileWatch); has != ok {
		e.Fatalf("the feature is %v, and the method is there: %v", has, ok)
	}
	if !ok {
		return
	}
	id, dir := e.box(), e.place()
	e.writeFile(id, dir+"/old", "x")
	_, err := w.WatchFiles(e.ctx, id, dir+"/none", sandbox.FileOptions{})
	e.wantErr(err, sandbox.ErrFileNotFound)
	_, err = w.WatchFiles(e.ctx, "nosuch", dir, sandbox.FileOptions{})
	e.wantErr(err, sandbox.ErrNotFound)
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	events, err := w.WatchFiles(ctx, id, dir, sandbox.FileOptions{})
	e.ok(err)
	var got []sandbox.FileEvent
	want := func(kind sandbox.FileEventKind, name string) {
		e.Helper()
		for {
			if slices.ContainsFunc(got, func(ev sandbox.FileEvent) bool { return ev.Kind == kind && ev.Path == dir+name }) {
				got = nil
				return
			}
			ev, open := <-events
			if !open {
				e.Fatalf("the watch ended; %s of %s was not told, but %+v", kind, name, got)
			}
			got = append(got, ev)
		}
	}
	e.writeFile(id, dir+"/new", "x")
	want(sandbox.FileCreated, "/new")
	e.writeFile(id, dir+"/old", "y")
	want(sandbox.FileModified, "/old")
	e.ok(e.files().MkDir(e.ctx, id, dir+"/a/b", sandbox.FileOptions{All: true}))
	e.writeFile(id, dir+"/a/b/\xff\n", "x")
	want(sandbox.FileCreated, "/a/b/\xff\n")
	e.ok(e.files().Rename(e.ctx, id, dir+"/a", dir+"/c", sandbox.FileOptions{}))
	want(sandbox.FileCreated, "/c")
	e.writeFile(id, dir+"/c/b/f", "x")
	want(sandbox.FileCreated, "/c/b/f")
	e.ok(e.files().RemoveFile(e.ctx, id, dir+"/old", sandbox.FileOptions{}))
	want(sandbox.FileRemoved, "/old")
	cancel(nil)
	for range events { // it is closed
	}
}
