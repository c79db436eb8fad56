package volumetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/taibox/taibox/tai/volume"
)

// quotas is about what the file system enforces.
func quotas(e *env) {
	if !e.v.Features().Has(volume.FeatureQuota) {
		e.run("L01-is-refused", func(e *env) {
			_, err := e.v.Create(e.ctx(), "limited", volume.Options{Quota: volume.Quota{Bytes: 16 << 20}})
			e.fails(err, volume.ErrUnsupported)
			_, err = e.v.Get(e.ctx(), "limited")
			e.fails(err, volume.ErrNotFound)
			id := e.workspace()
			_, err = e.v.Update(e.ctx(), id, volume.Update{Quota: &volume.Quota{Files: 100}})
			e.fails(err, volume.ErrUnsupported)
		})
		return
	}
	e.run("L01-bytes", quotaBytes)
	e.run("L01-files", quotaFiles)
	e.run("grows", quotaGrows)
}

// fillUp writes files of a MiB until there is no space, and tells how many
// were written.
func (e *env) fillUp(id, prefix string, most int) int {
	e.Helper()
	data := strings.Repeat("x", 1<<20)
	for n := range most {
		_, err := e.v.WriteFile(e.ctx(), id, fmt.Sprintf("%s-%d", prefix, n), strings.NewReader(data), volume.WriteOptions{})
		if errors.Is(err, volume.ErrNoSpace) {
			return n
		}
		e.ok(err)
	}
	return most
}

func quotaBytes(e *env) {
	id := e.workspaceWith(volume.Options{Quota: volume.Quota{Bytes: 32 << 20}})
	info, err := e.v.Get(e.ctx(), id)
	e.ok(err)
	e.equal("quota", info.Quota, volume.Quota{Bytes: 32 << 20})
	if n := e.fillUp(id, "f", 64); n < 28 || n > 32 {
		e.Errorf("%d files of 1 MiB fit into 32 MiB", n)
	}
	// A box is stopped alike, and snapshots count.
	err = os.WriteFile(filepath.Join(e.box(id), "by-box"), make([]byte, 8<<20), 0o600)
	if err == nil {
		e.Error("a box writes beyond the quota")
	}
	e.ok(os.Remove(filepath.Join(e.box(id), "by-box")))
	_, err = e.v.CreateSnapshot(e.ctx(), id, "s")
	e.fails(err, volume.ErrNoSpace)
	snaps, err := e.v.ListSnapshots(e.ctx(), id)
	e.ok(err)
	e.equal("snapshots", snaps, []volume.Snapshot{})
	// What is removed is free again, and what could not be written is not there.
	for _, path := range e.tree(id, ".") {
		if info, err := e.v.Stat(e.ctx(), id, path); err != nil || info.Size != 1<<20 {
			e.Errorf("left of what did not fit: %+v, %v", info, err)
		}
		e.ok(e.v.Remove(e.ctx(), id, path, volume.RemoveOptions{}))
	}
	if n := e.fillUp(id, "again", 20); n != 20 {
		e.Errorf("only %d MiB are free after all was removed", n)
	}
}

func quotaFiles(e *env) {
	id := e.workspaceWith(volume.Options{Quota: volume.Quota{Bytes: 64 << 20, Files: 100}})
	made := 0
	for ; made < 200; made++ {
		_, err := e.v.WriteFile(e.ctx(), id, fmt.Sprint(made), strings.NewReader("x"), volume.WriteOptions{})
		if errors.Is(err, volume.ErrNoSpace) {
			break
		}
		e.ok(err)
	}
	e.equal("files that fit into 100", made, 100)
	e.ok(e.v.Remove(e.ctx(), id, "0", volume.RemoveOptions{}))
	e.write(id, "again", "x")
}

func quotaGrows(e *env) {
	id := e.workspaceWith(volume.Options{Quota: volume.Quota{Bytes: 16 << 20, Files: 50}})
	dir, err := os.Stat(e.box(id))
	e.ok(err)
	small := e.fillUp(id, "small", 64)
	info, err := e.v.Update(e.ctx(), id, volume.Update{Quota: &volume.Quota{Bytes: 64 << 20, Files: 500}})
	if errors.Is(err, volume.ErrUnsupported) { // then it stays as it was
		info, err := e.v.Get(e.ctx(), id)
		e.ok(err)
		e.equal("quota", info.Quota, volume.Quota{Bytes: 16 << 20, Files: 50})
		e.equal("files of 1 MiB that fit", e.fillUp(id, "more", 64), 0)
		return
	}
	e.ok(err)
	e.equal("quota", info.Quota, volume.Quota{Bytes: 64 << 20, Files: 500})
	more := e.fillUp(id, "more", 100)
	if n := small + more; n < 58 || n > 64 {
		e.Errorf("%d files of 1 MiB fit into 64 MiB", n)
	}
	for i := range 300 {
		e.ok(e.v.MkdirAll(e.ctx(), id, fmt.Sprintf("dir/%d", i), 0))
		if i == 0 {
			e.ok(e.v.Remove(e.ctx(), id, "more-0", volume.RemoveOptions{}))
		}
	}
	after, err := os.Stat(e.box(id))
	e.ok(err)
	if !os.SameFile(dir, after) {
		e.Error("what boxes have mounted is another directory by now")
	}
	_, err = e.v.Update(e.ctx(), id, volume.Update{Quota: &volume.Quota{Bytes: 8 << 20, Files: 500}})
	if err == nil {
		// Where it can shrink, it must hold.
		if n := e.fillUp(id, "less", 10); n > 0 {
			e.Error("a smaller quota is not enforced")
		}
	} else {
		e.fails(err, volume.ErrUnsupported)
	}
}
