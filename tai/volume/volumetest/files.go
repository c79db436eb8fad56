package volumetest

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/taibox/taibox/tai/volume"
)

func files(e *env) {
	e.run("write_and_read", writeAndRead)
	e.run("modes_and_owners", modesAndOwners)
	e.run("half_written_is_nothing", halfWritten)
	e.run("reader_keeps_what_it_opened", readerKeeps)
	e.run("stat_list_walk", statListWalk)
	e.run("remove", removes)
	e.run("rename", renames)
	e.run("mkdir", mkdirs)
	e.run("copy", copies)
	e.run("paths", paths)
	e.run("too_large_in_one_piece", tooLarge)
}

func writeAndRead(e *env) {
	id := e.workspace()
	_, err := e.v.WriteFile(e.ctx(), id, "a/b/c", strings.NewReader("x"), volume.WriteOptions{})
	e.fails(err, volume.ErrFileNotFound)
	before := time.Now().Add(-time.Minute)
	info := e.write(id, "a/b/c", "hello")
	if info.Path != "a/b/c" || info.Name != "c" || info.Size != 5 || info.Mode != 0o644 || info.ModTime.Before(before) || info.Version == "" {
		e.Errorf("written: %+v", info)
	}
	stat, err := e.v.Stat(e.ctx(), id, "a/b/c")
	e.ok(err)
	e.equal("stat after write", stat, info)
	e.holds(id, "a/b/c", "hello")
	e.write(id, "./a//b/./c", "other")
	e.holds(id, "a/b/c", "other")
	e.write(id, "empty", "")
	e.holds(id, "empty", "")
	data, err := os.ReadFile(filepath.Join(e.box(id), "a", "b", "c"))
	e.ok(err)
	e.equal("in the box", string(data), "other")
	_, err = e.v.WriteFile(e.ctx(), id, "a", strings.NewReader("x"), volume.WriteOptions{})
	e.fails(err, volume.ErrFileKind)
	_, err = e.v.WriteFile(e.ctx(), id, ".", strings.NewReader("x"), volume.WriteOptions{})
	e.fails(err, volume.ErrFileKind)
	_, err = e.v.WriteFile(e.ctx(), id, "empty/x", strings.NewReader("x"), volume.WriteOptions{Parents: true})
	e.fails(err, volume.ErrFileKind)
	_, err = e.v.ReadFile(e.ctx(), id, "a")
	e.fails(err, volume.ErrFileKind)
	_, err = e.v.ReadFile(e.ctx(), id, "nosuch")
	e.fails(err, volume.ErrFileNotFound)
}

func modesAndOwners(e *env) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	id := e.workspace()
	put := func(name string, mode fs.FileMode) fs.FileMode {
		info, err := e.v.WriteFile(e.ctx(), id, name, strings.NewReader("x"), volume.WriteOptions{Mode: mode, Parents: true})
		e.ok(err)
		return info.Mode
	}
	e.equal("default", put("d/e/f", 0), fs.FileMode(0o644))
	e.equal("kept", put("d/e/f", 0), fs.FileMode(0o644))
	e.equal("set", put("d/e/f", 0o640), fs.FileMode(0o640))
	e.equal("kept after set", put("d/e/f", 0), fs.FileMode(0o640))
	e.equal("of a new file", put("run", 0o777), fs.FileMode(0o777))
	e.equal("setuid is dropped", put("suid", fs.ModeSetuid|0o755), fs.FileMode(0o755))
	e.ok(e.v.MkdirAll(e.ctx(), id, "m/n", 0o750))
	for name, want := range map[string]fs.FileMode{
		".": fs.ModeDir | 0o755, "d": fs.ModeDir | 0o755, "d/e": fs.ModeDir | 0o755, "m/n": fs.ModeDir | 0o750,
	} {
		info, err := e.v.Stat(e.ctx(), id, name)
		e.ok(err)
		e.equal("mode of "+name, info.Mode, want)
	}
	box := e.box(id)
	err := filepath.WalkDir(box, func(name string, d fs.DirEntry, err error) error {
		e.ok(err)
		info, err := d.Info()
		e.ok(err)
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() {
			e.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
		return nil
	})
	e.ok(err)
	// What a box keeps from others is no secret to the API.
	e.ok(os.Chmod(filepath.Join(box, "run"), 0))
	if os.Geteuid() == 0 {
		e.holds(id, "run", "x")
	}
}

var errBroken = errors.New("the source broke")

func halfWritten(e *env) {
	id := e.workspace()
	e.write(id, "f", "whole")
	source := func() io.Reader {
		return io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), errReader{})
	}
	_, err := e.v.WriteFile(e.ctx(), id, "f", source(), volume.WriteOptions{})
	e.fails(err, errBroken)
	e.holds(id, "f", "whole")
	_, err = e.v.WriteFile(e.ctx(), id, "new", source(), volume.WriteOptions{})
	e.fails(err, errBroken)
	e.equal("tree", e.tree(id, "."), []string{"f"})
	usage, err := e.v.Usage(e.ctx(), id)
	e.ok(err)
	if usage.Bytes > 256<<10 {
		e.Errorf("%d bytes are left of what was half written", usage.Bytes)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errBroken }

func readerKeeps(e *env) {
	id := e.workspace()
	old := strings.Repeat("old", 1<<19)
	e.write(id, "f", old)
	r, info, err := e.v.Open(e.ctx(), id, "f", volume.OpenOptions{})
	e.ok(err)
	defer r.Close()
	e.equal("size", info.Size, int64(len(old)))
	first := make([]byte, 1000)
	_, err = io.ReadFull(r, first)
	e.ok(err)
	e.write(id, "f", "new")
	e.ok(e.v.Remove(e.ctx(), id, "f", volume.RemoveOptions{}))
	rest, err := io.ReadAll(r)
	e.ok(err)
	if string(first)+string(rest) != old {
		e.Error("a reader saw what was written after it opened the file")
	}
}

func statListWalk(e *env) {
	id := e.workspace()
	for _, name := range []string{"b/x", "b/y/z", "a", "b-", "c/d"} {
		e.write(id, name, name)
	}
	e.ok(os.Symlink("b/x", filepath.Join(e.box(id), "l")))
	e.equal("walk", e.tree(id, "."), []string{"a", "b", "b/x", "b/y", "b/y/z", "b-", "c", "c/d", "l"})
	e.equal("walk below", e.tree(id, "b"), []string{"b/x", "b/y", "b/y/z"})
	e.equal("walk of a file", e.tree(id, "a"), []string{})
	infos, err := e.v.ListDir(e.ctx(), id, "")
	e.ok(err)
	got := []string{}
	for _, info := range infos {
		got = append(got, info.Name)
		stat, err := e.v.Stat(e.ctx(), id, info.Path)
		e.ok(err)
		e.equal("stat and list", info, stat)
	}
	e.equal("list", got, []string{"a", "b", "b-", "c", "l"})
	link, err := e.v.Stat(e.ctx(), id, "l")
	e.ok(err)
	if link.Mode.Type() != fs.ModeSymlink || link.Link != "b/x" {
		e.Errorf("link: %+v", link)
	}
	e.holds(id, "l", "b/x")
	root, err := e.v.Stat(e.ctx(), id, ".")
	e.ok(err)
	if root.Path != "." || !root.Mode.IsDir() {
		e.Errorf("root: %+v", root)
	}
	_, err = e.v.ListDir(e.ctx(), id, "a")
	e.fails(err, volume.ErrFileKind)
	_, err = e.v.ListDir(e.ctx(), id, "nosuch")
	e.fails(err, volume.ErrFileNotFound)
	n := 0
	for range e.v.Walk(e.ctx(), id, ".") { // one that stops early
		if n++; n == 2 {
			break
		}
	}
}

func removes(e *env) {
	id := e.workspace()
	e.write(id, "d/e/f", "x")
	e.write(id, "keep", "x")
	e.fails(e.v.Remove(e.ctx(), id, "d", volume.RemoveOptions{}), volume.ErrFileBusy)
	e.fails(e.v.Remove(e.ctx(), id, "nosuch", volume.RemoveOptions{}), volume.ErrFileNotFound)
	e.ok(e.v.Remove(e.ctx(), id, "nosuch", volume.RemoveOptions{All: true}))
	e.ok(e.v.Remove(e.ctx(), id, "no/such", volume.RemoveOptions{All: true}))
	e.fails(e.v.Remove(e.ctx(), id, ".", volume.RemoveOptions{All: true}), volume.ErrPath)
	e.fails(e.v.Remove(e.ctx(), id, "", volume.RemoveOptions{}), volume.ErrPath)
	e.ok(e.v.Remove(e.ctx(), id, "d/e/f", volume.RemoveOptions{}))
	e.ok(e.v.Remove(e.ctx(), id, "d/e", volume.RemoveOptions{}))
	e.write(id, "d/g/h", "x")
	// A link goes, and not what it leads to.
	e.ok(os.Symlink("../keep", filepath.Join(e.box(id), "d", "l")))
	e.ok(os.Symlink("d", filepath.Join(e.box(id), "m")))
	e.ok(e.v.Remove(e.ctx(), id, "m", volume.RemoveOptions{All: true}))
	e.equal("tree", e.tree(id, "."), []string{"d", "d/g", "d/g/h", "d/l", "keep"})
	e.ok(e.v.Remove(e.ctx(), id, "d", volume.RemoveOptions{All: true}))
	e.equal("tree", e.tree(id, "."), []string{"keep"})
}

func renames(e *env) {
	id := e.workspace()
	e.write(id, "a", "1")
	e.write(id, "b", "2")
	e.write(id, "d/f", "3")
	e.ok(e.v.Rename(e.ctx(), id, "a", "b"))
	e.holds(id, "b", "1")
	e.ok(e.v.Rename(e.ctx(), id, "d", "e"))
	e.holds(id, "e/f", "3")
	e.fails(e.v.Rename(e.ctx(), id, "nosuch", "x"), volume.ErrFileNotFound)
	e.fails(e.v.Rename(e.ctx(), id, "b", "no/such"), volume.ErrFileNotFound)
	e.fails(e.v.Rename(e.ctx(), id, "b", "e"), volume.ErrFileKind)
	e.fails(e.v.Rename(e.ctx(), id, "e", "e/g"), volume.ErrFileKind)
	e.fails(e.v.Rename(e.ctx(), id, ".", "x"), volume.ErrPath)
	e.fails(e.v.Rename(e.ctx(), id, "b", "."), volume.ErrPath)
	e.fails(e.v.Rename(e.ctx(), id, "b", "../x"), volume.ErrPath)
	e.equal("tree", e.tree(id, "."), []string{"b", "e", "e/f"})
}

func mkdirs(e *env) {
	id := e.workspace()
	e.ok(e.v.MkdirAll(e.ctx(), id, "a/b/c", 0))
	e.ok(e.v.MkdirAll(e.ctx(), id, "a/b", 0o700)) // stays as it is
	info, err := e.v.Stat(e.ctx(), id, "a/b")
	e.ok(err)
	e.equal("mode", info.Mode, fs.ModeDir|0o755)
	e.ok(e.v.MkdirAll(e.ctx(), id, ".", 0))
	e.write(id, "f", "x")
	e.fails(e.v.MkdirAll(e.ctx(), id, "f", 0), volume.ErrFileKind)
	e.fails(e.v.MkdirAll(e.ctx(), id, "f/g", 0), volume.ErrFileKind)
	e.ok(os.Symlink("a/b", filepath.Join(e.box(id), "l")))
	e.ok(e.v.MkdirAll(e.ctx(), id, "l/d", 0))
	e.equal("tree", e.tree(id, "."), []string{"a", "a/b", "a/b/c", "a/b/d", "f", "l"})
}

func copies(e *env) {
	id := e.workspace()
	box := e.box(id)
	e.write(id, "d/f", "data")
	_, err := e.v.WriteFile(e.ctx(), id, "d/run", strings.NewReader("x"), volume.WriteOptions{Mode: 0o750})
	e.ok(err)
	e.ok(e.v.MkdirAll(e.ctx(), id, "d/empty", 0o700))
	e.ok(os.Symlink("f", filepath.Join(box, "d", "in")))
	e.ok(os.Symlink("/etc/passwd", filepath.Join(box, "d", "out")))
	e.ok(e.v.Copy(e.ctx(), id, "d", "e"))
	e.equal("copy", e.tree(id, "e"), []string{"e/empty", "e/f", "e/in", "e/out", "e/run"})
	e.holds(id, "e/f", "data")
	for _, name := range []string{"", "/f", "/run", "/empty", "/in", "/out"} {
		a, err := e.v.Stat(e.ctx(), id, "d"+name)
		e.ok(err)
		b, err := e.v.Stat(e.ctx(), id, "e"+name)
		e.ok(err)
		if a.Mode != b.Mode || a.Link != b.Link || a.Size != b.Size || !a.ModTime.Equal(b.ModTime) && a.Mode.IsRegular() {
			e.Errorf("copied %+v to %+v", a, b)
		}
	}
	e.write(id, "d/f", "changed")
	e.holds(id, "e/f", "data")
	e.ok(e.v.Copy(e.ctx(), id, "d/f", "g"))
	e.holds(id, "g", "changed")
	e.fails(e.v.Copy(e.ctx(), id, "d/f", "g"), volume.ErrFileExists)
	e.fails(e.v.Copy(e.ctx(), id, "d", "e"), volume.ErrFileExists)
	e.fails(e.v.Copy(e.ctx(), id, "nosuch", "x"), volume.ErrFileNotFound)
	e.fails(e.v.Copy(e.ctx(), id, "g", "no/such"), volume.ErrFileNotFound)
	e.fails(e.v.Copy(e.ctx(), id, "g", "."), volume.ErrPath)
	e.ok(e.v.Copy(e.ctx(), id, "d", "d/d")) // into itself, once
	e.equal("copy in itself", e.tree(id, "d/d"), []string{"d/d/empty", "d/d/f", "d/d/in", "d/d/out", "d/d/run"})
	e.ok(e.v.Copy(e.ctx(), id, ".", "all"))
	e.holds(id, "all/e/f", "data")
}

func paths(e *env) {
	id := e.workspace()
	e.write(id, "other", "x")
	for _, name := range []string{
		"/", "/etc/passwd", "//etc", "..", "../x", "a/../b", "other/..", "./..", "a/..", "a\x00b", "\x00", strings.Repeat("a/", 2048) + "x", strings.Repeat("x", 256),
		"a/" + strings.Repeat("x", 300) + "/b",
	} {
		for verb, call := range e.fileCalls(id, name) {
			if err := call(); !errors.Is(err, volume.ErrPath) {
				e.Errorf("%s of %.20q: %v, want %v", verb, name, err, volume.ErrPath)
			}
		}
	}
	e.equal("tree", e.tree(id, "."), []string{"other"})
	// These are names like others.
	for _, name := range []string{"%2e%2e", `C:\x`, `..\x`, "...", "..a", "~", "a:b"} {
		e.write(id, name, name)
		e.holds(id, name, name)
	}
}

func tooLarge(e *env) {
	id := e.workspace()
	file := filepath.Join(e.box(id), "f")
	e.plantFile(file, "")
	e.ok(os.Truncate(file, volume.MaxReadFile+1))
	_, err := e.v.ReadFile(e.ctx(), id, "f")
	e.fails(err, volume.ErrTooLarge)
	e.ok(os.Truncate(file, volume.MaxReadFile))
	data, err := e.v.ReadFile(e.ctx(), id, "f")
	e.ok(err)
	e.equal("size", len(data), volume.MaxReadFile)
}

// sizes is about what is written being there, whatever its size.
func sizes(e *env) {
	e.run("TestK04WhatWasWrittenIsThere", func(e *env) {
		id := e.workspace()
		list := []int{0, 1, 4095, 4096, 4097, 18_000, 18_432, 19_000, 65_535, 65_536, 65_537, 1<<20 - 1, 1 << 20, 1<<20 + 1, 4 << 20, 100 << 20}
		for _, size := range list {
			if size > 8<<20 && testing.Short() {
				continue
			}
			want := sha256.New()
			src := io.TeeReader(io.LimitReader(rand.Reader, int64(size)), want)
			info, err := e.v.WriteFile(e.ctx(), id, "f", src, volume.WriteOptions{})
			e.ok(err)
			e.equal("size told", info.Size, int64(size))
			r, info, err := e.v.Open(e.ctx(), id, "f", volume.OpenOptions{})
			e.ok(err)
			got := sha256.New()
			n, err := io.Copy(got, r)
			r.Close()
			e.ok(err)
			if n != int64(size) || info.Size != n || string(got.Sum(nil)) != string(want.Sum(nil)) {
				e.Errorf("of %d bytes written %d came back, or others", size, n)
			}
		}
	})
	e.run("TestK07HolesStayHoles", func(e *env) {
		id := e.workspace()
		file := filepath.Join(e.box(id), "h")
		e.plantFile(file, "begin")
		e.ok(os.Truncate(file, 1<<40))
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		e.ok(err)
		_, err = f.WriteAt([]byte("end"), 1<<40)
		e.ok(err)
		e.ok(f.Close())
		e.ok(e.v.Copy(e.ctx(), id, "h", "copy"))
		_, err = e.v.CreateSnapshot(e.ctx(), id, "s")
		e.ok(err)
		e.ok(e.v.Remove(e.ctx(), id, "h", volume.RemoveOptions{}))
		changes, err := e.v.Diff(e.ctx(), id, "s", "")
		e.ok(err)
		e.equal("diff", changes, []volume.Change{{Path: "h", Kind: volume.Removed}})
		e.ok(e.v.RestoreSnapshot(e.ctx(), id, "s"))
		for _, name := range []string{"h", "copy"} {
			r, info, err := e.v.Open(e.ctx(), id, name, volume.OpenOptions{Offset: 1<<40 - 4})
			e.ok(err)
			data, err := io.ReadAll(r)
			r.Close()
			e.ok(err)
			e.equal("size", info.Size, int64(1<<40+3))
			e.equal("its end", string(data), "\x00\x00\x00\x00end")
		}
		usage, err := e.v.Usage(e.ctx(), id)
		e.ok(err)
		if usage.Bytes > 1<<20 {
			e.Errorf("holes take %d bytes", usage.Bytes)
		}
		_, err = e.v.ReadFile(e.ctx(), id, "h")
		e.fails(err, volume.ErrTooLarge)
	})
}
