package volumetest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/taibox/taibox/tai/volume"
)

func errorClasses(e *env) {
	e.run("no_such_workspace", func(e *env) {
		for name, call := range e.calls("nosuch") {
			if err := call(); err == nil {
				e.Errorf("%s works", name)
			} else {
				e.fails(err, volume.ErrNotFound)
			}
		}
		for _, call := range e.fileCalls("nosuch", "x") {
			e.fails(call(), volume.ErrNotFound)
		}
	})
	e.run("no_such_snapshot", func(e *env) {
		id := e.workspace()
		e.fails(e.v.RestoreSnapshot(e.ctx(), id, "nosuch"), volume.ErrSnapshotNotFound)
		e.fails(e.v.RemoveSnapshot(e.ctx(), id, "nosuch"), volume.ErrSnapshotNotFound)
		_, err := e.v.Diff(e.ctx(), id, "nosuch", "")
		e.fails(err, volume.ErrSnapshotNotFound)
		_, err = e.v.Diff(e.ctx(), id, "", "nosuch")
		e.fails(err, volume.ErrSnapshotNotFound)
		for _, name := range []string{".", "..", "a/b", "A", ".new-x", "a\x00"} {
			_, err := e.v.CreateSnapshot(e.ctx(), id, name)
			e.fails(err, volume.ErrInvalid)
			e.fails(e.v.RestoreSnapshot(e.ctx(), id, name), volume.ErrInvalid)
			e.fails(e.v.RemoveSnapshot(e.ctx(), id, name), volume.ErrInvalid)
		}
	})
}

var errAsked = errors.New("somebody asked to stop")

func cancellation(e *env) {
	e.run("already_cancelled", func(e *env) {
		id := e.workspace()
		e.write(id, "f", "x")
		e.write(id, "other", "x")
		ctx, cancel := context.WithCancelCause(e.ctx())
		cancel(errAsked)
		for name, call := range map[string]func() error{
			"create":   func() error { _, err := e.v.Create(ctx, "cancelled", volume.Options{}); return err },
			"get":      func() error { _, err := e.v.Get(ctx, id); return err },
			"list":     func() error { _, err := e.v.List(ctx); return err },
			"update":   func() error { _, err := e.v.Update(ctx, id, volume.Update{Meta: json.RawMessage("{}")}); return err },
			"delete":   func() error { return e.v.Delete(ctx, id) },
			"snapshot": func() error { _, err := e.v.CreateSnapshot(ctx, id, "s"); return err },
			"read":     func() error { _, err := e.v.ReadFile(ctx, id, "f"); return err },
			"write": func() error {
				_, err := e.v.WriteFile(ctx, id, "f", strings.NewReader("y"), volume.WriteOptions{})
				return err
			},
			"remove": func() error { return e.v.Remove(ctx, id, "f", volume.RemoveOptions{All: true}) },
			"rename": func() error { return e.v.Rename(ctx, id, "f", "g") },
			"copy":   func() error { return e.v.Copy(ctx, id, "f", "g") },
			"mkdir":  func() error { return e.v.MkdirAll(ctx, id, "d", 0) },
			"watch":  func() error { _, err := e.v.Watch(ctx, id, "."); return err },
		} {
			if err := call(); !errors.Is(err, errAsked) {
				e.Errorf("%s: %v, want %v", name, err, errAsked)
			}
		}
		e.equal("tree", e.tree(id, "."), []string{"f", "other"})
		e.holds(id, "f", "x")
		_, err := e.v.Get(e.ctx(), "cancelled")
		e.fails(err, volume.ErrNotFound)
	})
	e.run("cancelled_while_writing", func(e *env) {
		id := e.workspace()
		e.write(id, "f", "whole")
		ctx, cancel := context.WithCancelCause(e.ctx())
		n := 0
		src := readerFunc(func(p []byte) (int, error) {
			if n++; n == 10 {
				cancel(errAsked)
			}
			return len(p), nil
		})
		_, err := e.v.WriteFile(ctx, id, "f", src, volume.WriteOptions{})
		e.fails(err, errAsked)
		e.holds(id, "f", "whole")
	})
	e.run("cancelled_while_reading", func(e *env) {
		id := e.workspace()
		file := filepath.Join(e.box(id), "f")
		e.plantFile(file, "")
		e.ok(os.Truncate(file, 1<<40))
		ctx, cancel := context.WithCancelCause(e.ctx())
		r, _, err := e.v.Open(ctx, id, "f", volume.OpenOptions{})
		e.ok(err)
		defer r.Close()
		_, err = io.ReadFull(r, make([]byte, 1<<20))
		e.ok(err)
		cancel(errAsked)
		_, err = io.Copy(io.Discard, r)
		e.fails(err, errAsked)
	})
	e.run("cancelled_while_walking", func(e *env) {
		id := e.workspace()
		for i := range 100 {
			e.write(id, strconv.Itoa(i), "x")
		}
		ctx, cancel := context.WithCancelCause(e.ctx())
		defer cancel(nil)
		var last error
		n := 0
		for _, err := range e.v.Walk(ctx, id, ".") {
			if n++; n == 10 {
				cancel(errAsked)
			}
			last = err
		}
		e.fails(last, errAsked)
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func parallel(e *env) {
	e.run("TestK10WritersOfOneFile", func(e *env) {
		id := e.workspace()
		const writers, rounds, size = 16, 12, 100_000
		whole := func(data []byte) bool {
			return len(data) == size && strings.Trim(string(data), string(data[:1])) == ""
		}
		e.write(id, "f", strings.Repeat("0", size))
		var writing, reading sync.WaitGroup
		done := make(chan struct{})
		for i := range writers {
			writing.Go(func() {
				body := strings.Repeat(string(rune('a'+i)), size)
				for range rounds {
					if _, err := e.v.WriteFile(e.ctx(), id, "f", strings.NewReader(body), volume.WriteOptions{}); err != nil {
						e.Error(err)
					}
				}
			})
		}
		for range 2 {
			reading.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					data, err := e.v.ReadFile(e.ctx(), id, "f")
					if err != nil || !whole(data) {
						e.Errorf("a mixture was seen: %d bytes, %v", len(data), err)
						return
					}
				}
			})
		}
		writing.Wait()
		close(done)
		reading.Wait()
		e.equal("tree", e.tree(id, "."), []string{"f"})
	})
	e.run("creates_of_one_id", func(e *env) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		made := 0
		for range 16 {
			wg.Go(func() {
				_, err := e.v.Create(e.ctx(), "one", volume.Options{})
				switch {
				case err == nil:
					mu.Lock()
					made++
					mu.Unlock()
				case !errors.Is(err, volume.ErrAlreadyExists):
					e.Error(err)
				}
			})
		}
		wg.Wait()
		e.equal("made", made, 1)
	})
	e.run("delete_while_used", func(e *env) {
		for range 10 {
			id := e.workspace()
			e.write(id, "d/f", "x")
			e.write(id, "other", "x")
			var wg sync.WaitGroup
			stop := make(chan struct{})
			for verb, call := range e.fileCalls(id, "d/f") {
				if verb == "watch" {
					continue
				}
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							call()
						}
					}
				})
			}
			wg.Go(func() { e.calls(id)["snapshot"]() })
			err := e.v.Delete(e.ctx(), id)
			close(stop)
			wg.Wait()
			e.ok(err)
			_, err = e.v.Stat(e.ctx(), id, ".")
			e.fails(err, volume.ErrNotFound)
		}
	})
	e.run("deletes_of_one_id", func(e *env) {
		id := e.workspace()
		var wg sync.WaitGroup
		var mu sync.Mutex
		deleted := 0
		for range 8 {
			wg.Go(func() {
				err := e.v.Delete(e.ctx(), id)
				switch {
				case err == nil:
					mu.Lock()
					deleted++
					mu.Unlock()
				case !errors.Is(err, volume.ErrNotFound):
					e.Error(err)
				}
			})
		}
		wg.Wait()
		e.equal("deleted", deleted, 1)
	})
}
