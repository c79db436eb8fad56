package volumetest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/taibox/taibox/tai/volume"
)

func workspaces(e *env) {
	e.run("create_get_list_delete", createGetListDelete)
	e.run("update", updateMeta)
	e.run("ids", badIDs)
	e.run("settings", badSettings)
	e.run("gone_after_delete", goneAfterDelete)
	e.run("pin", pins)
	e.run("usage", measures)
	e.run("mount_path_stays", mountPathStays)
	e.run("deep_tree_is_deleted", deepTree)
}

func createGetListDelete(e *env) {
	before := time.Now().Add(-time.Minute)
	for _, id := range []string{"b", "a", "c"} {
		info, err := e.v.Create(e.ctx(), id, volume.Options{Meta: json.RawMessage(`{"name":"` + id + `"}`)})
		e.ok(err)
		if info.ID != id || info.CreatedAt.Before(before) || string(info.Meta) != `{"name":"`+id+`"}` {
			e.Errorf("made %+v", info)
		}
		got, err := e.v.Get(e.ctx(), id)
		e.ok(err)
		e.equal("get after create", got, info)
	}
	_, err := e.v.Create(e.ctx(), "b", volume.Options{})
	e.fails(err, volume.ErrAlreadyExists)
	got, err := e.v.Get(e.ctx(), "b")
	e.ok(err)
	if string(got.Meta) != `{"name":"b"}` {
		e.Errorf("a second create changed the first one's metadata to %s", got.Meta)
	}
	infos, err := e.v.List(e.ctx())
	e.ok(err)
	ids := []string{}
	for _, info := range infos {
		ids = append(ids, info.ID)
	}
	e.equal("list", ids, []string{"a", "b", "c"})
	e.ok(e.v.Delete(e.ctx(), "b"))
	e.fails(e.v.Delete(e.ctx(), "b"), volume.ErrNotFound)
	_, err = e.v.Get(e.ctx(), "b")
	e.fails(err, volume.ErrNotFound)
	// Its id is free, and the next one is empty.
	_, err = e.v.Create(e.ctx(), "b", volume.Options{})
	e.ok(err)
	e.equal("tree of the next one", e.tree("b", "."), []string{})
	for _, id := range []string{"a", "b", "c"} {
		e.ok(e.v.Delete(e.ctx(), id))
	}
	infos, err = e.v.List(e.ctx())
	e.ok(err)
	e.equal("list in the end", infos, []volume.Info{})
}

func updateMeta(e *env) {
	id := e.workspace()
	info, err := e.v.Get(e.ctx(), id)
	e.ok(err)
	e.equal("default metadata", string(info.Meta), "{}")
	info, err = e.v.Update(e.ctx(), id, volume.Update{Meta: json.RawMessage(`{"a":[1,2]}`)})
	e.ok(err)
	e.equal("metadata", string(info.Meta), `{"a":[1,2]}`)
	info, err = e.v.Update(e.ctx(), id, volume.Update{})
	e.ok(err)
	e.equal("metadata after an empty update", string(info.Meta), `{"a":[1,2]}`)
	_, err = e.v.Update(e.ctx(), id, volume.Update{Meta: json.RawMessage(`[1]`)})
	e.fails(err, volume.ErrInvalid)
	_, err = e.v.Update(e.ctx(), id, volume.Update{Quota: &volume.Quota{Bytes: -1}})
	e.fails(err, volume.ErrInvalid)
	_, err = e.v.Update(e.ctx(), "nosuch", volume.Update{})
	e.fails(err, volume.ErrNotFound)
}

func badIDs(e *env) {
	for _, id := range []string{
		"", ".", "..", "/", "a/b", "../a", "%2f", "A", "_", "a_b", strings.Repeat("a", 64), "ä", "a\x00b", "a\n", "-x", "x-", ".removing-x",
		".workspace.json", "a b", "~",
	} {
		_, err := e.v.Create(e.ctx(), id, volume.Options{})
		e.fails(err, volume.ErrInvalid)
		_, err = e.v.Get(e.ctx(), id)
		e.fails(err, volume.ErrNotFound, volume.ErrInvalid)
		e.fails(e.v.Delete(e.ctx(), id), volume.ErrNotFound, volume.ErrInvalid)
		_, err = e.v.Stat(e.ctx(), id, ".")
		e.fails(err, volume.ErrNotFound, volume.ErrInvalid)
		_, err = e.v.MountPath(e.ctx(), id)
		e.fails(err, volume.ErrNotFound, volume.ErrInvalid)
	}
}

func badSettings(e *env) {
	for _, o := range []volume.Options{
		{Meta: json.RawMessage("x")},
		{Meta: json.RawMessage("[]")},
		{Meta: json.RawMessage("null")},
		{Meta: json.RawMessage(`{"a":1}{}`)},
		{Meta: json.RawMessage(`"` + strings.Repeat("x", 2<<20) + `"`)},
		{Quota: volume.Quota{Bytes: -1}},
		{Quota: volume.Quota{Files: -1}},
		{Quota: volume.Quota{Bytes: 1}},
	} {
		_, err := e.v.Create(e.ctx(), "bad", o)
		e.fails(err, volume.ErrInvalid)
		_, err = e.v.Get(e.ctx(), "bad")
		e.fails(err, volume.ErrNotFound)
	}
}

// calls are all that can be done with a workspace.
func (e *env) calls(id string) map[string]func() error {
	ctx := e.ctx()
	return map[string]func() error{
		"get":       func() error { _, err := e.v.Get(ctx, id); return err },
		"update":    func() error { _, err := e.v.Update(ctx, id, volume.Update{}); return err },
		"delete":    func() error { return e.v.Delete(ctx, id) },
		"usage":     func() error { _, err := e.v.Usage(ctx, id); return err },
		"mount":     func() error { _, err := e.v.MountPath(ctx, id); return err },
		"snapshot":  func() error { _, err := e.v.CreateSnapshot(ctx, id, "s"); return err },
		"snapshots": func() error { _, err := e.v.ListSnapshots(ctx, id); return err },
		"restore":   func() error { return e.v.RestoreSnapshot(ctx, id, "s") },
		"unsnap":    func() error { return e.v.RemoveSnapshot(ctx, id, "s") },
		"diff":      func() error { _, err := e.v.Diff(ctx, id, "", ""); return err },
		"watch":     func() error { _, err := e.v.Watch(ctx, id, "."); return err },
	}
}

// fileCalls are all that can be done with a path. Those that need another
// path take "other".
func (e *env) fileCalls(id, name string) map[string]func() error {
	ctx := e.ctx()
	return map[string]func() error{
		"read": func() error { _, err := e.v.ReadFile(ctx, id, name); return err },
		"open": func() error {
			r, _, err := e.v.Open(ctx, id, name, volume.OpenOptions{})
			if err == nil {
				r.Close()
			}
			return err
		},
		"write": func() error {
			_, err := e.v.WriteFile(ctx, id, name, strings.NewReader("written"), volume.WriteOptions{})
			return err
		},
		"writeParents": func() error {
			_, err := e.v.WriteFile(ctx, id, name, strings.NewReader("written"), volume.WriteOptions{Parents: true})
			return err
		},
		"stat": func() error { _, err := e.v.Stat(ctx, id, name); return err },
		"list": func() error { _, err := e.v.ListDir(ctx, id, name); return err },
		"walk": func() error {
			for _, err := range e.v.Walk(ctx, id, name) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"remove":     func() error { return e.v.Remove(ctx, id, name, volume.RemoveOptions{}) },
		"removeAll":  func() error { return e.v.Remove(ctx, id, name, volume.RemoveOptions{All: true}) },
		"renameFrom": func() error { return e.v.Rename(ctx, id, name, "other") },
		"renameTo":   func() error { return e.v.Rename(ctx, id, "other", name) },
		"mkdir":      func() error { return e.v.MkdirAll(ctx, id, name, 0) },
		"copyFrom":   func() error { return e.v.Copy(ctx, id, name, "other2") },
		"copyTo":     func() error { return e.v.Copy(ctx, id, "other", name) },
		"watch":      func() error { _, err := e.v.Watch(ctx, id, name); return err },
	}
}

func goneAfterDelete(e *env) {
	id := e.workspace()
	e.write(id, "a/b", "x")
	e.ok(e.v.Delete(e.ctx(), id))
	for name, call := range e.calls(id) {
		if err := call(); err == nil {
			e.Errorf("%s of a deleted workspace works", name)
		} else {
			e.fails(err, volume.ErrNotFound)
		}
	}
	for _, call := range e.fileCalls(id, "a/b") {
		e.fails(call(), volume.ErrNotFound)
	}
}

func measures(e *env) {
	id := e.workspace()
	empty, err := e.v.Usage(e.ctx(), id)
	e.ok(err)
	e.write(id, "d/full", strings.Repeat("x", 1<<20))
	full, err := e.v.Usage(e.ctx(), id)
	e.ok(err)
	if n := full.Bytes - empty.Bytes; n < 1<<20 || n > 1<<20+64<<10 {
		e.Errorf("a file of 1 MiB takes %d bytes", n)
	}
	e.equal("files", full.Files-empty.Files, int64(2))
	// A hole takes nothing.
	box := e.box(id)
	e.plantFile(filepath.Join(box, "hole"), "")
	e.ok(os.Truncate(filepath.Join(box, "hole"), 1<<40))
	hole, err := e.v.Usage(e.ctx(), id)
	e.ok(err)
	if n := hole.Bytes - full.Bytes; n > 64<<10 {
		e.Errorf("a hole takes %d bytes", n)
	}
}

func mountPathStays(e *env) {
	id := e.workspace()
	dir := e.box(id)
	before, err := os.Stat(dir)
	e.ok(err)
	e.write(id, "a/b", "x")
	_, err = e.v.CreateSnapshot(e.ctx(), id, "s")
	e.ok(err)
	e.write(id, "a/c", "y")
	e.ok(e.v.RestoreSnapshot(e.ctx(), id, "s"))
	_, err = e.v.Update(e.ctx(), id, volume.Update{Meta: json.RawMessage("{}")})
	e.ok(err)
	after, err := os.Stat(e.box(id))
	e.ok(err)
	if !os.SameFile(before, after) {
		e.Error("what boxes have mounted is another directory by now")
	}
}

// deepTree is deeper than any path is long, and than files can be open.
func deepTree(e *env) {
	id := e.workspace()
	box := e.box(id)
	root, err := os.OpenRoot(box)
	e.ok(err)
	for range 3000 {
		e.ok(root.Mkdir("d", 0o755))
		sub, err := root.OpenRoot("d")
		e.ok(err)
		root.Close()
		root = sub
	}
	root.Close()
	e.ok(os.Mkdir(filepath.Join(box, "other"), 0o755))
	for name, call := range map[string]func() error{
		"walk": e.fileCalls(id, ".")["walk"], "snapshot": e.calls(id)["snapshot"], "copy": func() error { return e.v.Copy(e.ctx(), id, "d", "e") },
	} {
		if err := call(); err == nil {
			e.Errorf("%s of a tree without a bottom works", name)
		} else {
			e.fails(err, volume.ErrFileKind)
		}
	}
	e.ok(e.v.Remove(e.ctx(), id, "d", volume.RemoveOptions{All: true}))
	e.equal("tree", fmt.Sprint(e.tree(id, ".")), "[other]")
}
