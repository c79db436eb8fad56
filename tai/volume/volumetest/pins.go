package volumetest

import (
	"io"
	"strings"
	"time"

	"github.com/taibox/taibox/tai/volume"
)

// pins checks that who may use a workspace never gets to another one that has
// its id.
func pins(e *env) {
	id := e.workspace()
	e.write(id, "d/f", "mine")
	info, err := e.v.Get(e.ctx(), id)
	e.ok(err)
	_, err = e.v.Pin(e.ctx(), id, info.CreatedAt.Add(time.Nanosecond))
	e.fails(err, volume.ErrNotFound)
	_, err = e.v.Pin(e.ctx(), "nosuch", info.CreatedAt)
	e.fails(err, volume.ErrNotFound)
	v, err := e.v.Pin(e.ctx(), id, info.CreatedAt)
	e.ok(err)
	pinned := &env{T: e.T, group: &group{v: v}}
	pinned.holds(id, "d/f", "mine")
	pinned.write(id, "d/g", "mine too")
	e.holds(id, "d/g", "mine too")
	_, err = v.ReadFile(e.ctx(), e.workspace(), "d/f")
	e.fails(err, volume.ErrNotFound)

	ends := []volume.SyncEnd{}
	for _, v := range []volume.Volume{e.v, v} {
		end, err := v.SyncEnd(e.ctx(), id, "d")
		e.ok(err)
		ends = append(ends, end)
	}
	e.ok(e.v.Delete(e.ctx(), id))
	_, err = e.v.Create(e.ctx(), id, volume.Options{})
	e.ok(err)
	e.write(id, "d/f", "theirs")
	for name, call := range pinned.calls(id) {
		if err := call(); err == nil {
			e.Errorf("%s reaches the other workspace", name)
		} else {
			e.fails(err, volume.ErrNotFound)
		}
	}
	for name, call := range pinned.fileCalls(id, "d/f") {
		if err := call(); err == nil {
			e.Errorf("%s reaches a file of the other workspace", name)
		} else {
			e.fails(err, volume.ErrNotFound)
		}
	}
	for _, end := range ends {
		for _, err := range end.Index(e.ctx(), volume.IndexOptions{}) {
			e.fails(err, volume.ErrNotFound)
		}
		_, err := end.Hashes(e.ctx(), []string{"f"})
		e.fails(err, volume.ErrNotFound)
		e.fails(end.Fetch(e.ctx(), []string{"f"}, io.Discard), volume.ErrNotFound)
		e.fails(end.Apply(e.ctx(), []string{"f"}, strings.NewReader("")), volume.ErrNotFound)
	}
	e.ok(v.Close())
	e.holds(id, "d/f", "theirs")
	e.equal("tree", e.tree(id, "."), []string{"d", "d/f"})
}
