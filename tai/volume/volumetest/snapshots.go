package volumetest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/taibox/taibox/tai/volume"
)

func snapshots(e *env) {
	e.run("create_list_remove", snapshotLife)
	e.run("restore", snapshotRestore)
	e.run("diff", snapshotDiff)
	e.run("many_of_one_tree", manySnapshots)
	e.run("writes_in_place_reach_none", inPlace)
	e.run("while_written", snapshotWhileWritten)
}

func snapshotLife(e *env) {
	id := e.workspace()
	e.write(id, "a", "12345")
	e.write(id, "d/b", "678")
	first, err := e.v.CreateSnapshot(e.ctx(), id, "one")
	e.ok(err)
	if first.Name != "one" || first.Bytes != 8 || first.Files != 3 || first.CreatedAt.IsZero() {
		e.Errorf("made %+v", first)
	}
	_, err = e.v.CreateSnapshot(e.ctx(), id, "one")
	e.fails(err, volume.ErrSnapshotExists)
	second, err := e.v.CreateSnapshot(e.ctx(), id, "a-second")
	e.ok(err)
	list, err := e.v.ListSnapshots(e.ctx(), id)
	e.ok(err)
	e.equal("list", list, []volume.Snapshot{first, second})
	e.equal("the workspace itself", e.tree(id, "."), []string{"a", "d", "d/b"})
	e.ok(e.v.RemoveSnapshot(e.ctx(), id, "one"))
	e.fails(e.v.RemoveSnapshot(e.ctx(), id, "one"), volume.ErrSnapshotNotFound)
	list, err = e.v.ListSnapshots(e.ctx(), id)
	e.ok(err)
	e.equal("list", list, []volume.Snapshot{second})
	// What the second shares with the first is still there.
	e.ok(e.v.Remove(e.ctx(), id, "a", volume.RemoveOptions{}))
	e.ok(e.v.RestoreSnapshot(e.ctx(), id, "a-second"))
	e.holds(id, "a", "12345")
}

func snapshotRestore(e *env) {
	id := e.workspace()
	box := e.box(id)
	e.write(id, "same", "same")
	e.write(id, "changed", "before")
	e.write(id, "gone/deep/f", "before")
	e.write(id, "kind", "a file")
	e.write(id, "kind2/f", "in a directory")
	e.write(id, "mode", "x")
	e.ok(os.Symlink("same", filepath.Join(box, "link")))
	e.ok(e.v.MkdirAll(e.ctx(), id, "empty", 0o700))
	before := picture(e.T, box)
	_, err := e.v.CreateSnapshot(e.ctx(), id, "s")
	e.ok(err)
	same, err := os.Stat(filepath.Join(box, "same"))
	e.ok(err)

	e.write(id, "changed", "after!")
	e.write(id, "new/f", "x")
	e.ok(e.v.Remove(e.ctx(), id, "gone", volume.RemoveOptions{All: true}))
	e.ok(e.v.Remove(e.ctx(), id, "kind", volume.RemoveOptions{All: true}))
	e.ok(e.v.MkdirAll(e.ctx(), id, "kind/sub", 0))
	e.ok(e.v.Remove(e.ctx(), id, "kind2", volume.RemoveOptions{All: true}))
	e.ok(os.Symlink("/etc", filepath.Join(box, "kind2")))
	e.ok(os.Remove(filepath.Join(box, "link")))
	e.ok(os.Symlink("changed", filepath.Join(box, "link")))
	e.ok(os.Chmod(filepath.Join(box, "mode"), 0o777))
	e.ok(os.Chmod(filepath.Join(box, "empty"), 0o777))
	for range 2 { // a repeat does nothing
		e.ok(e.v.RestoreSnapshot(e.ctx(), id, "s"))
		e.equal("restored", picture(e.T, box), before)
		changes, err := e.v.Diff(e.ctx(), id, "s", "")
		e.ok(err)
		e.equal("diff after restore", changes, []volume.Change{})
	}
	after, err := os.Stat(filepath.Join(box, "same"))
	e.ok(err)
	if !os.SameFile(same, after) {
		e.Error("a file that did not differ was replaced")
	}
}

func snapshotDiff(e *env) {
	id := e.workspace()
	box := e.box(id)
	for _, name := range []string{"a", "b/c", "b/d", "m", "r/x/y"} {
		e.write(id, name, "1")
	}
	e.ok(os.Symlink("a", filepath.Join(box, "l")))
	_, err := e.v.CreateSnapshot(e.ctx(), id, "one")
	e.ok(err)
	e.write(id, "b/c", "2")
	e.write(id, "b/n/f", "new")
	e.ok(e.v.Remove(e.ctx(), id, "r", volume.RemoveOptions{All: true}))
	e.ok(os.Chmod(filepath.Join(box, "m"), 0o600))
	e.ok(os.Remove(filepath.Join(box, "l")))
	e.ok(os.Symlink("b", filepath.Join(box, "l")))
	want := []volume.Change{
		{Path: "b/c", Kind: volume.Modified},
		{Path: "b/n", Kind: volume.Added, Dir: true},
		{Path: "b/n/f", Kind: volume.Added},
		{Path: "l", Kind: volume.Modified},
		{Path: "m", Kind: volume.Modified},
		{Path: "r", Kind: volume.Removed, Dir: true},
		{Path: "r/x", Kind: volume.Removed, Dir: true},
		{Path: "r/x/y", Kind: volume.Removed},
	}
	changes, err := e.v.Diff(e.ctx(), id, "one", "")
	e.ok(err)
	e.equal("from a snapshot", changes, want)
	_, err = e.v.CreateSnapshot(e.ctx(), id, "two")
	e.ok(err)
	changes, err = e.v.Diff(e.ctx(), id, "one", "two")
	e.ok(err)
	e.equal("between snapshots", changes, want)
	back := make([]volume.Change, len(want))
	for i, c := range want {
		switch c.Kind {
		case volume.Added:
			c.Kind = volume.Removed
		case volume.Removed:
			c.Kind = volume.Added
		case volume.Modified:
		}
		back[i] = c
	}
	changes, err = e.v.Diff(e.ctx(), id, "", "one")
	e.ok(err)
	e.equal("to a snapshot", changes, back)
	for _, name := range []string{"", "one"} {
		changes, err = e.v.Diff(e.ctx(), id, name, name)
		e.ok(err)
		e.equal("with itself", changes, []volume.Change{})
	}
}

func manySnapshots(e *env) {
	id := e.workspace()
	e.write(id, "large", strings.Repeat("x", 4<<20))
	used := func() int64 {
		u, err := e.v.Usage(e.ctx(), id)
		e.ok(err)
		return u.Bytes
	}
	// A file that changed a moment ago is not known as unchanged yet; soon it is.
	count, last := 0, used()
	for more := int64(1 << 30); more > 1<<20; count++ {
		if count > 200 {
			e.Fatalf("snapshot after snapshot of an unchanged file takes %d bytes", more)
		}
		e.write(id, "small", strconv.Itoa(count))
		_, err := e.v.CreateSnapshot(e.ctx(), id, "s"+strconv.Itoa(count))
		e.ok(err)
		now := used()
		last, more = now, now-last
		if more > 1<<20 && count > 10 { // let the clock go on
			e.ok(e.v.RemoveSnapshot(e.ctx(), id, "s"+strconv.Itoa(count-5)))
			last = used()
		}
	}
	for _, n := range []int{count - 1, count - 2} {
		if n < 0 {
			continue
		}
		e.ok(e.v.RestoreSnapshot(e.ctx(), id, "s"+strconv.Itoa(n)))
		e.holds(id, "small", strconv.Itoa(n))
		e.holds(id, "large", strings.Repeat("x", 4<<20))
	}
}

// inPlace is about boxes that write into files, before and after a restore.
func inPlace(e *env) {
	id := e.workspace()
	box := e.box(id)
	e.write(id, "f", "first")
	for _, name := range []string{"a", "b", "c"} {
		_, err := e.v.CreateSnapshot(e.ctx(), id, name)
		e.ok(err)
	}
	scribble := func() {
		f, err := os.OpenFile(filepath.Join(box, "f"), os.O_WRONLY, 0)
		e.ok(err)
		_, err = f.WriteString("FIRST")
		e.ok(err)
		e.ok(f.Close())
		e.ok(os.Chmod(filepath.Join(box, "f"), 0o666))
	}
	for _, name := range []string{"a", "b", "c", "a"} {
		scribble()
		e.holds(id, "f", "FIRST")
		e.ok(e.v.RestoreSnapshot(e.ctx(), id, name))
		e.holds(id, "f", "first")
	}
	_, err := e.v.Update(e.ctx(), id, volume.Update{Meta: json.RawMessage("{}")})
	e.ok(err)
}

func snapshotWhileWritten(e *env) {
	id := e.workspace()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := string(rune('a' + i%5))
			e.v.WriteFile(e.ctx(), id, "d/"+name, strings.NewReader(strings.Repeat(name, 10_000)), volume.WriteOptions{Parents: true})
			if i%7 == 0 {
				e.v.Remove(e.ctx(), id, "d", volume.RemoveOptions{All: true})
			}
		}
	})
	for _, name := range []string{"one", "two", "three"} {
		if _, err := e.v.CreateSnapshot(e.ctx(), id, name); err != nil {
			e.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	for _, name := range []string{"one", "two", "three"} {
		e.ok(e.v.RestoreSnapshot(e.ctx(), id, name))
		for _, path := range e.tree(id, ".") {
			if base, ok := strings.CutPrefix(path, "d/"); ok {
				e.holds(id, path, strings.Repeat(base, 10_000))
			}
		}
	}
}
