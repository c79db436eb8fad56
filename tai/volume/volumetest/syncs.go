package volumetest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/tai/volume"
)

func syncs(e *env) {
	e.run("pushAndPull", pushAndPull)
	e.run("between", syncBetween)
	e.run("options", syncOptions)
	e.run("TestK05CutSync", cutSync)
	e.run("TestK07Holes", syncHoles)
	e.run("TestJ01Links", syncLinks)
	e.run("many", syncMany)
	e.run("errors", syncErrors)
}

func pushAndPull(e *env) {
	id := e.workspace()
	e.varied(id, "src")
	out := filepath.Join(e.TempDir(), "out")
	res, err := e.v.SyncPull(e.ctx(), id, "src", treesync.Dir(out), volume.SyncOptions{})
	e.ok(err)
	e.ok(e.v.Remove(e.ctx(), id, "src/pipe", volume.RemoveOptions{})) // such are left out
	e.equal("pulled", withoutRoot(picture(e.T, out)), withoutRoot(e.below(id, "src")))
	if res.FilesTotal == 0 || res.FilesSynced != res.FilesTotal || res.BytesSynced != res.BytesTotal {
		e.Errorf("%+v", res)
	}
	push := func(o volume.SyncOptions) volume.SyncResult {
		res, err := e.v.SyncPush(e.ctx(), id, "back/here", treesync.Dir(out), o)
		e.ok(err)
		return res
	}
	push(volume.SyncOptions{})
	e.equal("pushed", withoutRoot(e.below(id, "back/here")), withoutRoot(e.below(id, "src")))
	info, err := e.v.Stat(e.ctx(), id, "back/here/d/e/f")
	e.ok(err)
	e.equal("time", info.ModTime.Unix(), int64(1e9))
	if res := push(volume.SyncOptions{Checksum: true, Delete: true}); res.FilesSynced != 0 || res.BytesSent != 0 || res.FilesRemoved != 0 {
		e.Errorf("a second time: %+v", res)
	}
	// What changes on the way is what a box sees.
	e.ok(os.RemoveAll(filepath.Join(out, "empty")))
	e.plantFile(filepath.Join(out, "empty"), "a file now")
	e.ok(os.Remove(filepath.Join(out, "dangling")))
	e.plantFile(filepath.Join(out, "dangling/dir/f"), "f")
	push(volume.SyncOptions{Delete: true})
	e.equal("pushed again", withoutRoot(e.below(id, "back/here")), withoutRoot(picture(e.T, out)))
}

// withoutRoot leaves out what a picture says of the directory itself.
func withoutRoot(p string) string {
	_, rest, _ := strings.Cut(p, "\n")
	return rest
}

func syncBetween(e *env) {
	a, b := e.workspace(), e.workspace()
	e.write(a, "x/f", "data")
	end, err := e.v.SyncEnd(e.ctx(), a, "x")
	e.ok(err)
	_, err = e.v.SyncPush(e.ctx(), b, ".", end, volume.SyncOptions{Delete: true})
	e.ok(err)
	e.equal("tree", slices.DeleteFunc(e.tree(b, "."), func(s string) bool { return s == "lost+found" }), []string{"f"})
	// A workspace that is gone is gone for its sides, too.
	e.ok(e.v.Delete(e.ctx(), a))
	_, err = e.v.SyncPush(e.ctx(), b, ".", end, volume.SyncOptions{Delete: true})
	e.fails(err, volume.ErrNotFound)
	e.holds(b, "f", "data")
}

func syncOptions(e *env) {
	id := e.workspace()
	src := e.TempDir()
	for name, text := range map[string]string{".gitignore": "*.log\n!keep.log\n", "a.log": "x", "keep.log": "k", ".git/HEAD": "x", "key": "x", "f": "f"} {
		e.plantFile(filepath.Join(src, name), text)
	}
	for _, name := range []string{"old.log", "key", "gone", ".git/index"} {
		e.write(id, "w/"+name, "mine")
	}
	var told []volume.SyncResult
	o := volume.SyncOptions{Delete: true, DryRun: true, IndexOptions: volume.IndexOptions{GitIgnore: true, Exclude: []string{"key"}}}
	before := e.tree(id, ".")
	dry, err := e.v.SyncPush(e.ctx(), id, "w", treesync.Dir(src), o)
	e.ok(err)
	e.equal("after a dry run", e.tree(id, "."), before)
	o.DryRun, o.Progress = false, func(r volume.SyncResult) { told = append(told, r) }
	res, err := e.v.SyncPush(e.ctx(), id, "w", treesync.Dir(src), o)
	e.ok(err)
	e.equal("tree", e.tree(id, "w"), []string{"w/.git", "w/.git/index", "w/.gitignore", "w/f", "w/keep.log", "w/key", "w/old.log"})
	e.holds(id, "w/key", "mine")
	if len(told) == 0 || told[len(told)-1].FilesSynced != res.FilesSynced {
		e.Errorf("told was %+v of %+v", told, res)
	}
	dry.BytesSent = res.BytesSent
	e.equal("foretold", dry, res)
}

// cutEnd is a side whose stream breaks off.
type cutEnd struct {
	volume.SyncEnd
	left int
}

func (c *cutEnd) Fetch(ctx context.Context, names []string, w io.Writer) error {
	return c.SyncEnd.Fetch(ctx, names, writerFunc(func(p []byte) (int, error) {
		n, err := w.Write(p[:min(len(p), c.left)])
		c.left -= n
		if err == nil && n < len(p) {
			err = errSource
		}
		return n, err
	}))
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func cutSync(e *env) {
	id := e.workspace()
	src := e.TempDir()
	const files, size = 8, 600 << 10
	for i := range files {
		e.plantFile(filepath.Join(src, fmt.Sprint("f", i)), noise(size, int64(i)))
	}
	have := 0
	for rounds := 0; have < files; rounds++ {
		if rounds > files {
			e.Fatalf("there are %d files after %d rounds", have, rounds)
		}
		_, err := e.v.SyncPush(e.ctx(), id, "w", &cutEnd{treesync.Dir(src), 2 << 20}, volume.SyncOptions{})
		if err != nil {
			e.fails(err, errSource)
		}
		names := e.tree(id, "w")
		for _, name := range names {
			info, err := e.v.Stat(e.ctx(), id, name)
			e.ok(err)
			e.equal("size of "+name, info.Size, int64(size))
		}
		have = len(names)
	}
}

// noise is text that compresses badly.
func noise(n int, seed int64) string {
	b := make([]byte, n)
	x := uint64(seed)*2654435761 + 88172645463325252
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

func syncHoles(e *env) {
	id := e.workspace()
	src := e.TempDir()
	big := filepath.Join(src, "big")
	const size = 1 << 38
	e.plantFile(big, "x")
	e.ok(os.Truncate(big, size))
	_, err := e.v.SyncPush(e.ctx(), id, "w", treesync.Dir(src), volume.SyncOptions{})
	e.ok(err)
	var st syscall.Stat_t
	e.ok(syscall.Stat(filepath.Join(e.box(id), "w/big"), &st))
	if st.Size != size || st.Blocks > 1000 {
		e.Errorf("it has %d bytes in %d blocks", st.Size, st.Blocks)
	}
	e.ok(os.Chtimes(big, time.Unix(1, 0), time.Unix(1, 0)))
	res, err := e.v.SyncPush(e.ctx(), id, "w", treesync.Dir(src), volume.SyncOptions{})
	e.ok(err)
	e.equal("sent of what is the same", res.BytesSynced, int64(0))
}

func syncLinks(e *env) {
	id := e.workspace()
	src := e.TempDir()
	e.plantFile(filepath.Join(src, "out/secret"), "evil")
	e.plantFile(filepath.Join(src, "leak"), "new")
	e.ok(os.Symlink(e.canary, filepath.Join(src, "abs")))
	e.ok(os.Symlink("out/secret", filepath.Join(src, "ok")))
	box := e.box(id)
	e.ok(os.Mkdir(filepath.Join(box, "w"), 0o755))
	e.ok(os.Symlink(e.canary, filepath.Join(box, "w/out")))
	e.ok(os.Symlink(filepath.Join(e.canary, "secret"), filepath.Join(box, "w/leak")))
	e.ok(os.Symlink(e.canary, filepath.Join(box, "esc")))
	res, err := e.v.SyncPush(e.ctx(), id, "w", treesync.Dir(src), volume.SyncOptions{Delete: true})
	e.ok(err)
	e.equal("left out", res.LeftOut, []string{"abs"})
	e.holds(id, "w/out/secret", "evil")
	e.holds(id, "w/leak", "new")
	e.holds(id, "w/ok", "evil")
	for _, path := range []string{"esc", "esc/sub"} {
		_, err := e.v.SyncPush(e.ctx(), id, path, treesync.Dir(src), volume.SyncOptions{Delete: true})
		e.fails(err, volume.ErrFileDenied, volume.ErrPath)
		_, err = e.v.SyncPull(e.ctx(), id, path, treesync.Dir(filepath.Join(e.TempDir(), "x")), volume.SyncOptions{})
		e.fails(err, volume.ErrFileDenied, volume.ErrPath)
	}
}

func syncMany(e *env) {
	id := e.workspace()
	src := e.TempDir()
	for i := range 2000 {
		e.plantFile(filepath.Join(src, fmt.Sprint("d", i%37), fmt.Sprint("f", i)), fmt.Sprint(i))
	}
	res, err := e.v.SyncPush(e.ctx(), id, ".", treesync.Dir(src), volume.SyncOptions{})
	e.ok(err)
	e.equal("entries", res.FilesSynced, int64(2037))
	e.plantFile(filepath.Join(src, "d5/f42"), "changed")
	e.ok(os.Remove(filepath.Join(src, "d1/f1")))
	res, err = e.v.SyncPush(e.ctx(), id, "", treesync.Dir(src), volume.SyncOptions{Delete: true, IndexOptions: volume.IndexOptions{Exclude: []string{"/lost+found"}}})
	e.ok(err)
	if res.FilesSynced != 1 || res.FilesRemoved != 1 {
		e.Errorf("%+v", res)
	}
	e.holds(id, "d5/f42", "changed")
}

func syncErrors(e *env) {
	id := e.workspace()
	e.write(id, "f", "file")
	for _, c := range []struct {
		id, path string
		want     error
	}{{"none", ".", volume.ErrNotFound}, {id, "../x", volume.ErrPath}, {id, "/x", volume.ErrPath}, {id, "f", volume.ErrFileKind}} {
		dir := treesync.Dir(e.TempDir())
		if c.path != "f" {
			_, err := e.v.SyncEnd(e.ctx(), c.id, c.path)
			e.fails(err, c.want)
		}
		_, err := e.v.SyncPush(e.ctx(), c.id, c.path, dir, volume.SyncOptions{})
		e.fails(err, c.want)
		_, err = e.v.SyncPull(e.ctx(), c.id, c.path, dir, volume.SyncOptions{})
		e.fails(err, c.want)
	}
	ctx, cancel := context.WithCancelCause(e.ctx())
	cancel(errSource)
	_, err := e.v.SyncPush(ctx, id, "w", treesync.Dir(e.TempDir()), volume.SyncOptions{})
	e.fails(err, errSource)
	// What is not there is empty.
	res, err := e.v.SyncPull(e.ctx(), id, "none", treesync.Dir(filepath.Join(e.TempDir(), "x")), volume.SyncOptions{})
	e.ok(err)
	e.equal("result", res, volume.SyncResult{})
}
