package volumetest

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/taibox/taibox/tai/volume"
)

// oddNames are names that a file system takes and programs trip over.
func oddNames() []string {
	return []string{
		"a\nb", "\xff\xfe", "-rf", "a b", `"`, "'", "%2F", "é", "e\u0301", "🚀", strings.Repeat("x", 255), ".git", "trailing ", "*", "\x01\x1b[31m", "a\\b", "CON",
	}
}

func names(e *env) {
	e.run("TestK08NamesAreBytes", func(e *env) {
		id := e.workspace()
		for _, name := range oddNames() {
			e.write(id, name, name)
			e.write(id, "dir-"+name[:min(len(name), 200)]+"/"+name, name)
		}
		infos, err := e.v.ListDir(e.ctx(), id, ".")
		e.ok(err)
		listed := map[string]bool{}
		for _, info := range infos {
			listed[info.Name] = true
		}
		_, err = e.v.CreateSnapshot(e.ctx(), id, "s")
		e.ok(err)
		for _, name := range oddNames() {
			if !listed[name] {
				e.Errorf("%q is not listed", name)
			}
			e.holds(id, name, name)
			stat, err := e.v.Stat(e.ctx(), id, name)
			e.ok(err)
			e.equal("name", stat.Name, name)
			e.ok(e.v.Rename(e.ctx(), id, name, "moved"))
			e.ok(e.v.Rename(e.ctx(), id, "moved", name))
			e.ok(e.v.Copy(e.ctx(), id, name, "copied"))
			e.ok(e.v.Remove(e.ctx(), id, "copied", volume.RemoveOptions{}))
			e.ok(e.v.Remove(e.ctx(), id, name, volume.RemoveOptions{}))
			e.ok(e.v.Remove(e.ctx(), id, "dir-"+name[:min(len(name), 200)], volume.RemoveOptions{All: true}))
		}
		e.equal("tree", e.tree(id, "."), []string{})
		e.ok(e.v.RestoreSnapshot(e.ctx(), id, "s"))
		for _, name := range oddNames() {
			e.holds(id, name, name)
		}
	})
}

func kinds(e *env) {
	e.run("TestJ07SpecialFilesAreNotRead", func(e *env) {
		id := e.workspace()
		box := e.box(id)
		e.write(id, "other", "x")
		e.ok(syscall.Mkfifo(filepath.Join(box, "pipe"), 0o666))
		l, err := (&net.ListenConfig{}).Listen(e.ctx(), "unix", filepath.Join(box, "sock"))
		e.ok(err)
		defer l.Close()
		special := []string{"pipe", "sock"}
		if os.Geteuid() == 0 {
			if err := syscall.Mknod(filepath.Join(box, "zero"), syscall.S_IFCHR|0o666, 1<<8|5); err == nil {
				special = append(special, "zero")
			}
		}
		for _, name := range special {
			stat, err := e.v.Stat(e.ctx(), id, name)
			e.ok(err)
			if stat.Mode.IsRegular() || stat.Size != 0 {
				e.Errorf("%+v", stat)
			}
			calls := e.fileCalls(id, name)
			for _, verb := range []string{"read", "open", "write", "list", "copyFrom", "mkdir"} {
				e.fails(calls[verb](), volume.ErrFileKind, volume.ErrFileDenied)
			}
			e.ok(e.v.Rename(e.ctx(), id, name, name+"2"))
		}
		_, err = e.v.CreateSnapshot(e.ctx(), id, "s")
		e.ok(err)
		e.ok(e.v.RestoreSnapshot(e.ctx(), id, "s"))
		for _, name := range special {
			e.ok(e.v.Remove(e.ctx(), id, name+"2", volume.RemoveOptions{}))
		}
		e.equal("tree", e.tree(id, "."), []string{"other"})
	})
}

func links(e *env) {
	e.run("TestJ01LinksLeadNowhere", func(e *env) {
		id := e.workspace()
		box := e.box(id)
		e.write(id, "other", "x")
		up := "../../../../canary"
		for name, to := range map[string]string{
			"esc": "/", "leak": filepath.Join(e.canary, "secret"), "out": e.canary, "up": up, "upfile": up + "/secret",
			"chain": "out", "chain2": "./chain", "loop": "loop", "updown": "sub/../../../../../canary", "wsup": "..", "wsroot": "../../..",
		} {
			e.ok(os.Symlink(to, filepath.Join(box, name)))
		}
		e.ok(os.Mkdir(filepath.Join(box, "sub"), 0o755))
		for _, name := range []string{
			"esc", "leak", "out", "up", "upfile", "chain", "chain2", "loop", "updown", "wsup", "wsroot",
			"esc/etc/passwd", "out/secret", "out/sub/deep/open", "out/sub", "up/secret", "chain/secret", "chain2/secret", "updown/secret", "out/new", "up/sub/new",
			"wsup/tmp", "wsup/snapshots", "wsroot/x", "loop/x",
		} {
			for verb, call := range e.fileCalls(id, name) {
				err := call()
				through := strings.Contains(name, "/")
				switch {
				case through && verb == "removeAll" && errors.Is(err, volume.ErrFileNotFound), through && err == nil:
					e.Errorf("%s of %s works: %v", verb, name, err)
				case err == nil && (verb == "stat" || verb == "walk" || verb == "remove" || verb == "removeAll" || strings.HasPrefix(verb, "rename") || verb == "copyFrom"):
					// They are about the link itself.
				case err == nil:
					e.Errorf("%s of %s works", verb, name)
				default:
					e.fails(err, volume.ErrFileDenied, volume.ErrFileKind, volume.ErrFileNotFound, volume.ErrFileExists, volume.ErrPath)
				}
				// What the link itself lost is put back.
				e.ok(os.RemoveAll(filepath.Join(box, "other2")))
				if !through {
					e.ok(os.RemoveAll(filepath.Join(box, "other")))
					e.plantFile(filepath.Join(box, "other"), "x")
					relink(e, box, name, up)
				}
			}
		}
	})
	e.run("TestJ02DanglingLinksMakeNothing", func(e *env) {
		id := e.workspace()
		box := e.box(id)
		target := filepath.Join(e.canary, "outside_new")
		e.ok(os.Symlink(target, filepath.Join(box, "f")))
		e.ok(os.Symlink(filepath.Join(e.canary, "newdir"), filepath.Join(box, "d")))
		e.ok(os.Symlink("../../../../canary/rel", filepath.Join(box, "r")))
		for _, name := range []string{"f", "d/x", "d/x/y", "r", "d", "f/x"} {
			for _, verb := range []string{"write", "writeParents", "mkdir", "copyTo", "renameTo"} {
				e.ok(os.RemoveAll(filepath.Join(box, "other")))
				e.plantFile(filepath.Join(box, "other"), "x")
				err := e.fileCalls(id, name)[verb]()
				if verb == "renameTo" && !strings.Contains(name, "/") && err == nil {
					e.ok(os.Remove(filepath.Join(box, name))) // it took the link's place
					e.ok(os.Symlink(target, filepath.Join(box, name)))
					continue
				}
				if err == nil {
					e.Errorf("%s of %s works", verb, name)
				}
			}
		}
		// One that stays inside is written through.
		e.ok(os.Symlink("inside", filepath.Join(box, "in")))
		e.write(id, "in", "x")
		e.holds(id, "inside", "x")
		info, err := e.v.Stat(e.ctx(), id, "in")
		e.ok(err)
		e.equal("link", info.Link, "inside")
		e.ok(os.Mkdir(filepath.Join(box, "sub"), 0o755))
		e.ok(os.Symlink("../inside", filepath.Join(box, "sub", "back")))
		e.write(id, "sub/back", "y")
		e.holds(id, "inside", "y")
	})
	e.run("TestJ05OtherWorkspacesAreOutside", func(e *env) {
		a, b := e.workspace(), e.workspace()
		e.write(b, "secret", "of b")
		e.write(a, "other", "x")
		boxA, boxB := e.box(a), e.box(b)
		rel, err := filepath.Rel(boxA, boxB)
		e.ok(err)
		e.ok(os.Symlink(rel, filepath.Join(boxA, "rel")))
		e.ok(os.Symlink(boxB, filepath.Join(boxA, "abs")))
		for _, name := range []string{"rel/secret", "abs/secret", "rel/new", "abs/new"} {
			for verb, call := range e.fileCalls(a, name) {
				if err := call(); err == nil {
					e.Errorf("%s of %s works", verb, name)
				}
			}
		}
		e.equal("tree of the other", e.tree(b, "."), []string{"secret"})
		e.holds(b, "secret", "of b")
	})
	e.run("TestK01FilesOfBothSides", func(e *env) {
		id := e.workspace()
		box := e.box(id)
		_, err := e.v.WriteFile(e.ctx(), id, "a/b/c.txt", strings.NewReader("x"), volume.WriteOptions{Mode: 0o640, Parents: true})
		e.ok(err)
		for _, name := range []string{"a", "a/b", "a/b/c.txt"} {
			info, err := os.Lstat(filepath.Join(box, name))
			e.ok(err)
			if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != os.Geteuid() {
				e.Errorf("%s belongs to %d", name, st.Uid)
			}
		}
		info, err := os.Lstat(filepath.Join(box, "a", "b", "c.txt"))
		e.ok(err)
		e.equal("mode", info.Mode(), fs.FileMode(0o640))
		e.ok(os.WriteFile(filepath.Join(box, "private"), []byte("by the box"), 0o600))
		e.holds(id, "private", "by the box")
	})
}

// relink puts back a link that a call moved or removed.
func relink(e *env, box, name, up string) {
	e.Helper()
	to := map[string]string{
		"esc": "/", "leak": filepath.Join(e.canary, "secret"), "out": e.canary, "up": up, "upfile": up + "/secret",
		"chain": "out", "chain2": "./chain", "loop": "loop", "updown": "sub/../../../../../canary", "wsup": "..", "wsroot": "../../..",
	}[name]
	e.ok(os.RemoveAll(filepath.Join(box, name)))
	e.ok(os.Symlink(to, filepath.Join(box, name)))
}

// races is about directories that turn into links while they are gone through.
func races(e *env) {
	e.run("TestJ03DirectoriesSwappedForLinks", func(e *env) {
		id := e.workspace()
		box := e.box(id)
		e.write(id, "d/sub/deep/open", "inside")
		e.write(id, "d/secret", "inside")
		e.write(id, "other", "x")
		e.ok(os.Symlink(e.canary, filepath.Join(box, "evil")))
		e.ok(os.Symlink(filepath.Join(e.canary, "sub"), filepath.Join(box, "d", "evil")))
		// The box has both directories open: it cannot get out by its own links.
		top, err := os.Open(box)
		e.ok(err)
		defer top.Close()
		sub, err := os.Open(filepath.Join(box, "d"))
		e.ok(err)
		defer sub.Close()
		ctx, cancel := context.WithTimeoutCause(e.ctx(), raceTime, errRaceOver)
		defer cancel()
		var wg sync.WaitGroup
		defer wg.Wait()
		// A directory and a link to the outside change places, on two levels.
		wg.Go(func() { swapLoop(ctx, top, "d", e.canary) })
		wg.Go(func() { swapLoop(ctx, sub, "sub", filepath.Join(e.canary, "sub")) })
		for _, work := range raceWork(e, id) {
			wg.Go(func() {
				for ctx.Err() == nil {
					work()
				}
			})
		}
	})
}

const raceTime = 3 * time.Second

var errRaceOver = errors.New("the race is over")

// raceWork is what the API does meanwhile. All may fail; what comes back must
// be from inside.
func raceWork(e *env, id string) []func() {
	ctx := e.ctx()
	inside := func(name string) {
		data, err := e.v.ReadFile(ctx, id, name)
		if err == nil && strings.HasPrefix(string(data), "untouched") {
			e.Errorf("%s was read from outside", name)
		}
	}
	put := func(name string) {
		e.v.WriteFile(ctx, id, name, strings.NewReader("inside"), volume.WriteOptions{Parents: true})
	}
	return []func(){
		func() { inside("d/secret"); inside("d/sub/deep/open"); inside("d/sub/run") },
		func() { put("d/secret"); put("d/sub/deep/open"); put("d/sub/new"); put("d/new") },
		func() {
			e.v.Remove(ctx, id, "d/secret", volume.RemoveOptions{})
			e.v.Remove(ctx, id, "d/sub", volume.RemoveOptions{All: true})
			e.v.MkdirAll(ctx, id, "d/sub/deep", 0o700)
		},
		func() {
			e.v.Rename(ctx, id, "d/sub/deep", "d/moved")
			e.v.Rename(ctx, id, "d/moved", "d/sub/deep")
		},
		func() {
			e.v.Copy(ctx, id, "d", "copy")
			e.v.Remove(ctx, id, "copy", volume.RemoveOptions{All: true})
		},
		func() {
			for info, err := range e.v.Walk(ctx, id, ".") {
				if err == nil && strings.Contains(info.Path, "/empty") {
					e.Errorf("a walk went outside: %s", info.Path)
				}
			}
			if infos, err := e.v.ListDir(ctx, id, "d"); err == nil {
				for _, info := range infos {
					if info.Name == "empty" || info.Name == "link" {
						e.Error("the outside was listed")
					}
				}
			}
		},
		func() {
			e.v.CreateSnapshot(ctx, id, "s")
			e.v.Diff(ctx, id, "s", "")
			e.v.RestoreSnapshot(ctx, id, "s")
			e.v.RemoveSnapshot(ctx, id, "s")
		},
	}
}
