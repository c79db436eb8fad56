package volumetest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/taibox/taibox/tai/volume"
)

// archiveKind is a kind of archive of trees.
type archiveKind struct {
	name   string
	pack   func(ctx context.Context, id, src, dst string) (volume.ArchiveResult, error)
	unpack func(ctx context.Context, id, src, dst string, o volume.ArchiveOptions) (volume.ArchiveResult, error)
}

func (e *env) kinds() []archiveKind {
	return []archiveKind{{"tar", e.v.Tar, e.v.Untar}, {"tgz", e.v.Tgz, e.v.Untgz}, {"zip", e.v.Zip, e.v.Unzip}}
}

func archives(e *env) {
	for _, k := range e.kinds() {
		e.run("roundTrip/"+k.name, func(e *env) { archiveRoundTrip(e, k) })
		e.run("itself/"+k.name, func(e *env) { packsNotItself(e, k) })
		e.run("merge/"+k.name, func(e *env) { archiveMerges(e, k) })
		e.run("TestK07Holes/"+k.name, func(e *env) { archiveHoles(e, k) })
	}
	e.run("copy", copyTrees)
	e.run("gzip", gzips)
	e.run("TestJ10BadTars", func(e *env) {
		for _, bad := range evilTars() {
			e.run(bad.name, func(e *env) { refused(e, bad, "tar") })
		}
	})
	e.run("TestJ10BadZips", func(e *env) {
		for _, bad := range evilZips() {
			e.run(bad.name, func(e *env) { refused(e, bad, "zip") })
		}
	})
	e.run("TestJ10Bombs", bombs)
	e.run("TestJ10SetuidIsDropped", setuidIsDropped)
	e.run("TestJ11NoHelperIsRun", noHelperIsRun)
	e.run("TestJ08LinksThatAreThere", linksThatAreThere)
	e.run("TestJ03ArchiveRace", archiveRace)
	e.run("cancel", archiveCancelled)
	e.run("noSpace", archiveNoSpace)
	e.run("errors", archiveErrors)
}

// below describes what is at and below a path of the workspace, as a box sees it.
func (e *env) below(id, name string) string {
	e.Helper()
	return picture(e.T, filepath.Join(e.box(id), name))
}

// varied plants a tree of all that can be packed.
func (e *env) varied(id, dir string) {
	e.Helper()
	box := filepath.Join(e.box(id), dir)
	for i, name := range oddNames() { // K08
		e.plantFile(filepath.Join(box, name), strings.Repeat(name, i))
	}
	e.plantFile(filepath.Join(box, "d/e/f"), strings.Repeat("data", 100_000))
	e.ok(os.MkdirAll(filepath.Join(box, "empty/dir"), 0o755))
	e.ok(os.Symlink("../d", filepath.Join(box, "empty/l")))
	e.ok(os.Symlink("nowhere", filepath.Join(box, "dangling")))
	e.ok(os.Chmod(filepath.Join(box, "d/e/f"), 0o751))
	e.ok(os.Chmod(filepath.Join(box, "empty"), 0o1750))
	e.ok(os.Chtimes(filepath.Join(box, "d/e/f"), time.Time{}, time.Unix(1e9, 0)))
	e.ok(syscall.Mkfifo(filepath.Join(box, "pipe"), 0o600))
}

func archiveRoundTrip(e *env, k archiveKind) {
	id := e.workspace()
	e.varied(id, "src")
	if k.name == "zip" { // it has no such names
		e.ok(e.v.Remove(e.ctx(), id, `src/a\b`, volume.RemoveOptions{}))
	}
	_, err := k.pack(e.ctx(), id, "src", "out/a")
	e.fails(err, volume.ErrFileNotFound)
	packed, err := k.pack(e.ctx(), id, "src", "a")
	e.ok(err)
	unpacked, err := k.unpack(e.ctx(), id, "a", "new/place", volume.ArchiveOptions{})
	e.ok(err)
	if packed.Bytes != unpacked.Bytes || packed.Entries != unpacked.Entries || packed.Bytes == 0 {
		e.Errorf("packed were %+v, unpacked %+v", packed, unpacked)
	}
	e.ok(e.v.Remove(e.ctx(), id, "src/pipe", volume.RemoveOptions{})) // such are left out
	e.equal("unpacked", e.below(id, "new/place/src"), e.below(id, "src"))
	info, err := e.v.Stat(e.ctx(), id, "new/place/src/d/e/f")
	e.ok(err)
	e.equal("time", info.ModTime.Unix(), int64(1e9))
	e.equal("mode", info.Mode, fs.FileMode(0o751))
	// One file, and the root.
	_, err = k.pack(e.ctx(), id, "src/d/e/f", "one")
	e.ok(err)
	_, err = k.unpack(e.ctx(), id, "one", ".", volume.ArchiveOptions{})
	e.ok(err)
	e.holds(id, "f", strings.Repeat("data", 100_000))
	e.ok(e.v.Remove(e.ctx(), id, "new", volume.RemoveOptions{All: true}))
	_, err = k.pack(e.ctx(), id, ".", "whole")
	e.ok(err)
	_, err = k.unpack(e.ctx(), id, "whole", "copy", volume.ArchiveOptions{})
	e.ok(err)
	e.equal("unpacked root", e.below(id, "copy/src"), e.below(id, "src"))
}

func packsNotItself(e *env, k archiveKind) {
	id := e.workspace()
	e.write(id, "f", "data")
	first, err := k.pack(e.ctx(), id, ".", "a")
	e.ok(err)
	again, err := k.pack(e.ctx(), id, ".", "a")
	e.ok(err)
	e.equal("packed again", again, first)
	_, err = k.pack(e.ctx(), id, "f", "f")
	e.fails(err, volume.ErrPath)
	e.holds(id, "f", "data")
}

// archiveMerges unpacks over what is there: all of it or nothing.
func archiveMerges(e *env, k archiveKind) {
	id := e.workspace()
	e.write(id, "t/d/new", "new")
	e.write(id, "t/d/f", "new")
	e.write(id, "t/z", "new")
	_, err := k.pack(e.ctx(), id, "t", "a")
	e.ok(err)
	e.write(id, "dst/t/d/f", "old")
	e.write(id, "dst/t/d/kept", "old")
	e.write(id, "dst/t/z/inside", "a file cannot replace this")
	before := e.below(id, "dst")
	_, err = k.unpack(e.ctx(), id, "a", "dst", volume.ArchiveOptions{})
	e.fails(err, volume.ErrFileKind)
	e.equal("after a failure", e.below(id, "dst"), before)
	e.ok(e.v.Remove(e.ctx(), id, "dst/t/z", volume.RemoveOptions{All: true}))
	_, err = k.unpack(e.ctx(), id, "a", "dst", volume.ArchiveOptions{})
	e.ok(err)
	e.holds(id, "dst/t/d/f", "new")
	e.holds(id, "dst/t/d/new", "new")
	e.holds(id, "dst/t/d/kept", "old")
	e.holds(id, "dst/t/z", "new")
	e.equal("tree", e.tree(id, "dst"), []string{"dst/t", "dst/t/d", "dst/t/d/f", "dst/t/d/kept", "dst/t/d/new", "dst/t/z"})
}

func archiveHoles(e *env, k archiveKind) {
	id := e.workspace()
	const size = 8 << 30
	big := filepath.Join(e.box(id), "big")
	e.plantFile(big, "x")
	e.ok(os.Truncate(big, size))
	f, err := os.OpenFile(big, os.O_WRONLY, 0)
	e.ok(err)
	_, err = f.WriteAt([]byte("middle"), size/2)
	e.ok(errors.Join(err, f.Close()))
	_, err = k.pack(e.ctx(), id, "big", "a")
	if k.name == "zip" { // which has none
		e.fails(err, volume.ErrFileBusy)
		_, err = e.v.Gzip(e.ctx(), id, "big", "a")
		e.fails(err, volume.ErrFileBusy)
		e.equal("tree", e.tree(id, "."), []string{"big"})
		return
	}
	e.ok(err)
	info, err := e.v.Stat(e.ctx(), id, "a")
	e.ok(err)
	if info.Size > 1<<20 {
		e.Errorf("the archive has %d bytes", info.Size)
	}
	res, err := k.unpack(e.ctx(), id, "a", "out", volume.ArchiveOptions{})
	e.ok(err)
	e.equal("unpacked bytes", res.Bytes, int64(size))
	var st syscall.Stat_t
	e.ok(syscall.Stat(filepath.Join(e.box(id), "out/big"), &st))
	if st.Size != size || st.Blocks > 4096 {
		e.Errorf("it has %d bytes in %d blocks", st.Size, st.Blocks)
	}
	e.equal("in the middle", e.piece(id, "out/big", volume.OpenOptions{Offset: size / 2, Limit: 6}), "middle")
	e.equal("at the beginning", e.piece(id, "out/big", volume.OpenOptions{Limit: 2}), "x\x00")
}

func copyTrees(e *env) {
	id := e.workspace()
	e.varied(id, "src")
	r, err := e.v.CopyFrom(e.ctx(), id, "src")
	e.ok(err)
	e.ok(e.v.CopyTo(e.ctx(), id, "in/here", r, volume.ArchiveOptions{}))
	e.ok(r.Close())
	e.ok(r.Close())
	e.ok(e.v.Remove(e.ctx(), id, "src/pipe", volume.RemoveOptions{}))
	e.equal("copied", e.below(id, "in/here/src"), e.below(id, "src"))
	r, err = e.v.CopyFrom(e.ctx(), id, "")
	e.ok(err)
	h, err := tar.NewReader(r).Next()
	e.ok(err)
	e.equal("first name", h.Name, "./")
	e.ok(r.Close()) // in the middle
	_, err = r.Read(make([]byte, 1<<20))
	if err == nil {
		e.Error("a closed stream can be read")
	}
	for name, want := range map[string]error{"none": volume.ErrFileNotFound, "../up": volume.ErrPath, "/abs": volume.ErrPath} {
		_, err := e.v.CopyFrom(e.ctx(), id, name)
		e.fails(err, want)
	}
	e.fails(e.v.CopyTo(e.ctx(), id, "in/here/src/d/e/f", bytes.NewReader(tarOf(fileEntry("x"))), volume.ArchiveOptions{}), volume.ErrFileKind)
	// A source that fails is no bad archive.
	err = e.v.CopyTo(e.ctx(), id, "failed", io.MultiReader(bytes.NewReader(tarOf(fileEntry("x"))[:700]), failing{}), volume.ArchiveOptions{})
	e.fails(err, errSource)
	_, err = e.v.Stat(e.ctx(), id, "failed")
	e.fails(err, volume.ErrFileNotFound)
}

var errSource = errors.New("the source fails")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errSource }

func gzips(e *env) {
	id := e.workspace()
	data := strings.Repeat("some data ", 100_000)
	e.write(id, "f", data)
	res, err := e.v.Gzip(e.ctx(), id, "f", "f.gz")
	e.ok(err)
	e.equal("result", res, volume.ArchiveResult{Entries: 1, Bytes: int64(len(data))})
	res, err = e.v.Gunzip(e.ctx(), id, "f.gz", "g", volume.ArchiveOptions{})
	e.ok(err)
	e.equal("result", res, volume.ArchiveResult{Entries: 1, Bytes: int64(len(data))})
	e.holds(id, "g", data)
	zipped := e.read(id, "f.gz")
	zr, err := gzip.NewReader(strings.NewReader(zipped))
	e.ok(err)
	plain, err := io.ReadAll(zr)
	e.ok(err)
	e.equal("for others", len(plain), len(data))
	for name, bad := range map[string]string{"cut": zipped[:len(zipped)/2], "empty": "", "text": "text", "checksum": zipped[:len(zipped)-8] + "\x00\x00\x00\x00" + zipped[len(zipped)-4:], "more": zipped + "more"} {
		e.write(id, "bad.gz", bad)
		_, err := e.v.Gunzip(e.ctx(), id, "bad.gz", "bad-"+name, volume.ArchiveOptions{})
		e.fails(err, volume.ErrArchive)
		_, err = e.v.Stat(e.ctx(), id, "bad-"+name)
		e.fails(err, volume.ErrFileNotFound)
	}
	_, err = e.v.Gunzip(e.ctx(), id, "f.gz", "small", volume.ArchiveOptions{MaxBytes: 1000})
	e.fails(err, volume.ErrArchive)
	_, err = e.v.Gzip(e.ctx(), id, ".", "dir.gz")
	e.fails(err, volume.ErrFileKind)
}

// refused checks that of a bad archive nothing is left, and nothing that was
// there has changed.
func refused(e *env, bad badArchive, kind string) {
	id := e.workspace()
	e.write(id, "dst/there", "old")
	e.write(id, "dst/top/f", "old")
	e.write(id, "archive", string(bad.data))
	before := e.tree(id, ".")
	o := bad.o
	check := func(what string, err error) {
		e.Helper()
		if !errors.Is(err, volume.ErrArchive) {
			e.Errorf("%s: got %v", what, err)
		}
		e.equal(what, e.tree(id, "."), before)
		e.holds(id, "dst/there", "old")
		e.holds(id, "dst/top/f", "old")
	}
	if kind == "zip" {
		_, err := e.v.Unzip(e.ctx(), id, "archive", "dst", o)
		check("unzip", err)
		_, err = e.v.Unzip(e.ctx(), id, "archive", "new/dir", o)
		check("unzip to what is not there", err)
		return
	}
	_, err := e.v.Untar(e.ctx(), id, "archive", "dst", o)
	check("untar", err)
	_, err = e.v.Untar(e.ctx(), id, "archive", "new/dir", o)
	check("untar to what is not there", err)
	check("copy to", e.v.CopyTo(e.ctx(), id, "dst", bytes.NewReader(bad.data), o))
	e.write(id, "archive", string(gzipped(bad.data)))
	_, err = e.v.Untgz(e.ctx(), id, "archive", "dst", o)
	check("untgz", err)
}

func bombs(e *env) {
	id := e.workspace()
	const size = 100 << 20
	e.write(id, "zeros.gz", string(zeroes(size)))
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	e.ok(tw.WriteHeader(&tar.Header{Name: "zeros", Size: size, Mode: 0o644}))
	_, err := io.CopyN(tw, zeroReader{}, size)
	e.ok(errors.Join(err, tw.Close(), zw.Close()))
	e.write(id, "zeros.tgz", buf.String())
	buf.Reset()
	fw := zip.NewWriter(&buf)
	w, err := fw.Create("zeros")
	e.ok(err)
	_, err = io.CopyN(w, zeroReader{}, size)
	e.ok(errors.Join(err, fw.Close()))
	e.write(id, "zeros.zip", buf.String())
	before := e.tree(id, ".")
	o := volume.ArchiveOptions{}
	_, err = e.v.Gunzip(e.ctx(), id, "zeros.gz", "out", o)
	e.fails(err, volume.ErrArchive)
	_, err = e.v.Untgz(e.ctx(), id, "zeros.tgz", "out", o)
	e.fails(err, volume.ErrArchive)
	_, err = e.v.Unzip(e.ctx(), id, "zeros.zip", "out", o)
	e.fails(err, volume.ErrArchive)
	e.equal("tree", e.tree(id, "."), before)
	// Who knows that it is right may say so.
	o.MaxRatio = 5000
	res, err := e.v.Unzip(e.ctx(), id, "zeros.zip", "out", o)
	e.ok(err)
	e.equal("bytes", res.Bytes, int64(size))
}

func setuidIsDropped(e *env) {
	id := e.workspace()
	h := tar.Header{Name: "f", Mode: 0o6755, Uid: 1234, Gid: 1234}
	d := tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o7777, Uid: 1234, Gid: 1234}
	e.ok(e.v.CopyTo(e.ctx(), id, "tar", bytes.NewReader(tarOf(h, d)), volume.ArchiveOptions{}))
	e.write(id, "z", string(zipOf(zipMode("f", fs.ModeSetuid|fs.ModeSetgid|0o755, "x"), zipMode("d/", fs.ModeDir|fs.ModeSetgid|fs.ModeSticky|0o777, ""))))
	_, err := e.v.Unzip(e.ctx(), id, "z", "zip", volume.ArchiveOptions{})
	e.ok(err)
	for _, dir := range []string{"tar", "zip"} {
		for name, mode := range map[string]uint32{"f": 0o100755, "d": 0o041777} {
			var st syscall.Stat_t
			e.ok(syscall.Lstat(filepath.Join(e.box(id), dir, name), &st))
			if st.Mode != mode || st.Uid != uint32(os.Geteuid()) || st.Gid != uint32(os.Getegid()) {
				e.Errorf("%s/%s has mode %o and is of %d:%d", dir, name, st.Mode, st.Uid, st.Gid)
			}
		}
	}
}

// noHelperIsRun plants programs that archives are made and unpacked by.
func noHelperIsRun(e *env) {
	id := e.workspace()
	box := e.box(id)
	marker := filepath.Join(e.TempDir(), "marker")
	for _, dir := range []string{"bin", "usr/bin", "."} {
		for _, name := range []string{"tar", "gzip", "gunzip", "unpigz", "pigz", "xz", "zstd", "bzip2", "unzip", "zip", "git", "rsync", "sh"} {
			e.plantFile(filepath.Join(box, dir, name), "#!/bin/sh\ntouch "+marker+"\n")
			e.ok(os.Chmod(filepath.Join(box, dir, name), 0o755))
		}
	}
	e.Setenv("PATH", filepath.Join(box, "bin")+":"+os.Getenv("PATH"))
	for _, k := range e.kinds() {
		_, err := k.pack(e.ctx(), id, "usr", "a")
		e.ok(err)
		_, err = k.unpack(e.ctx(), id, "a", "out", volume.ArchiveOptions{})
		e.ok(err)
	}
	for _, magic := range []string{"\xfd7zXZ\x00", "\x28\xb5\x2f\xfd", "BZh91AY", "\x1f\x8b"} {
		e.write(id, "odd", magic+strings.Repeat("x", 2000))
		_, err := e.v.Untar(e.ctx(), id, "odd", "out2", volume.ArchiveOptions{})
		e.fails(err, volume.ErrArchive)
		_, err = e.v.Untgz(e.ctx(), id, "odd", "out2", volume.ArchiveOptions{})
		e.fails(err, volume.ErrArchive)
	}
	end, err := e.v.SyncEnd(e.ctx(), id, "usr")
	e.ok(err)
	_, err = e.v.SyncPush(e.ctx(), id, "synced", end, volume.SyncOptions{IndexOptions: volume.IndexOptions{GitIgnore: true}})
	e.ok(err)
	if _, err := os.Lstat(marker); err == nil {
		e.Error("a program of the workspace was run")
	}
}

// linksThatAreThere has archives that would write through links of a box.
func linksThatAreThere(e *env) {
	id := e.workspace()
	box := e.box(id)
	e.plantFile(filepath.Join(box, "inside/f"), "old")
	e.ok(os.Symlink(e.canary, filepath.Join(box, "out")))
	e.ok(os.Symlink(filepath.Join(e.canary, "secret"), filepath.Join(box, "leak")))
	e.ok(os.Symlink("inside", filepath.Join(box, "in")))
	for _, name := range []string{"out/evil", "in/evil", "out/"} {
		h := fileEntry(name)
		if strings.HasSuffix(name, "/") {
			h = dirEntry(name)
		}
		e.fails(e.v.CopyTo(e.ctx(), id, ".", bytes.NewReader(tarOf(h)), volume.ArchiveOptions{}), volume.ErrArchive)
	}
	// A link in the place of a file is replaced, not followed.
	e.ok(e.v.CopyTo(e.ctx(), id, ".", bytes.NewReader(tarOf(fileEntry("leak"))), volume.ArchiveOptions{}))
	e.holds(id, "leak", "leak")
	// A destination may be reached by a link that stays inside, and by no other.
	e.ok(e.v.CopyTo(e.ctx(), id, "in", bytes.NewReader(tarOf(fileEntry("g"))), volume.ArchiveOptions{}))
	e.holds(id, "inside/g", "g")
	e.fails(e.v.CopyTo(e.ctx(), id, "out", bytes.NewReader(tarOf(fileEntry("g"))), volume.ArchiveOptions{}), volume.ErrFileDenied, volume.ErrPath)
	e.fails(e.v.CopyTo(e.ctx(), id, "out/new", bytes.NewReader(tarOf(fileEntry("g"))), volume.ArchiveOptions{}), volume.ErrFileDenied, volume.ErrPath)
	// Packed, a link is a link.
	_, err := e.v.Tar(e.ctx(), id, "out", "a.tar")
	e.ok(err)
	h, err := tar.NewReader(strings.NewReader(e.read(id, "a.tar"))).Next()
	e.ok(err)
	e.equal("link", h.Linkname, e.canary)
}
