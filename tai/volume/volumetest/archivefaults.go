package volumetest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/taibox/taibox/tai/volume"
)

// archiveRace swaps directories for links to the outside meanwhile.
func archiveRace(e *env) {
	id := e.workspace()
	box := e.box(id)
	e.write(id, "d/sub/deep/open", "inside")
	e.write(id, "src/sub/deep/open", "new")
	e.write(id, "src/secret", "new")
	_, err := e.v.Tar(e.ctx(), id, "src/sub", "sub.tar")
	e.ok(err)
	_, err = e.v.Zip(e.ctx(), id, "src/sub", "sub.zip")
	e.ok(err)
	e.ok(os.Symlink(e.canary, filepath.Join(box, "evil")))
	e.ok(os.Symlink(filepath.Join(e.canary, "sub"), filepath.Join(box, "d", "evil")))
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
	wg.Go(func() { swapLoop(ctx, top, "d", e.canary) })
	wg.Go(func() { swapLoop(ctx, sub, "sub", filepath.Join(e.canary, "sub")) })
	src, err := e.v.SyncEnd(ctx, id, "src")
	e.ok(err)
	for _, work := range []func(){
		func() { e.v.Untar(ctx, id, "sub.tar", "d", volume.ArchiveOptions{}) },
		func() { e.v.Unzip(ctx, id, "sub.zip", "d", volume.ArchiveOptions{}) },
		func() {
			e.v.CopyTo(ctx, id, "d/sub", bytes.NewReader(tarOf(fileEntry("deep/open"), fileEntry("run"))), volume.ArchiveOptions{})
		},
		func() { e.v.SyncPush(ctx, id, "d", src, volume.SyncOptions{Checksum: true, Delete: true}) },
		func() {
			if r, err := e.v.CopyFrom(ctx, id, "d"); err == nil {
				data, _ := io.ReadAll(r)
				r.Close()
				if bytes.Contains(data, []byte("untouched")) {
					e.Error("something outside was packed")
				}
			}
		},
	} {
		wg.Go(func() {
			for ctx.Err() == nil {
				work()
			}
		})
	}
}

func archiveCancelled(e *env) {
	id := e.workspace()
	e.write(id, "src/f", strings.Repeat("x", 1<<20))
	before := e.tree(id, ".")
	ctx, cancel := context.WithCancelCause(e.ctx())
	cancel(errSource)
	for _, k := range e.kinds() {
		_, err := k.pack(ctx, id, "src", "a")
		e.fails(err, errSource)
		_, err = k.unpack(ctx, id, "src/f", "out", volume.ArchiveOptions{})
		e.fails(err, errSource)
	}
	_, err := e.v.CopyFrom(ctx, id, "src")
	e.fails(err, errSource)
	// Midway.
	ctx, cancel = context.WithCancelCause(e.ctx())
	defer cancel(nil)
	data := tarOf(fileEntry("a"), fileEntry("b"), fileEntry("c"))
	stopping := readerFunc(func(p []byte) (int, error) {
		if len(data) == 0 {
			return 0, io.EOF
		}
		n := copy(p[:min(len(p), 512)], data)
		if data = data[n:]; len(data) < 2048 {
			cancel(errSource)
		}
		return n, nil
	})
	e.fails(e.v.CopyTo(ctx, id, "out", stopping, volume.ArchiveOptions{}), errSource)
	e.equal("tree", e.tree(id, "."), before)
}

// archiveNoSpace fills a quota by an archive.
func archiveNoSpace(e *env) {
	if !e.v.Features().Has(volume.FeatureQuota) {
		e.Skip("the volume has no quotas")
	}
	id := e.workspaceWith(volume.Options{Quota: volume.Quota{Bytes: 32 << 20}})
	var hs []tar.Header
	for i := range 40 {
		hs = append(hs, tar.Header{Name: fmt.Sprint("f", i)})
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range hs {
		h.Size, h.Mode = 1<<20, 0o644
		e.ok(tw.WriteHeader(&h))
		_, err := io.CopyN(tw, zeroReader{}, h.Size)
		e.ok(err)
	}
	e.ok(tw.Close())
	e.fails(e.v.CopyTo(e.ctx(), id, "out", bytes.NewReader(buf.Bytes()), volume.ArchiveOptions{}), volume.ErrNoSpace)
	e.equal("tree", slices.DeleteFunc(e.tree(id, "."), func(s string) bool { return s == "lost+found" }), []string{})
	e.write(id, "f", "there is room again")
}

func archiveErrors(e *env) {
	id := e.workspace()
	e.write(id, "f", "text")
	for _, k := range e.kinds() {
		for what, call := range map[string]func(id, src, dst string) error{
			"pack": func(id, src, dst string) error { _, err := k.pack(e.ctx(), id, src, dst); return err },
			"unpack": func(id, src, dst string) error {
				_, err := k.unpack(e.ctx(), id, src, dst, volume.ArchiveOptions{})
				return err
			},
		} {
			for _, c := range []struct {
				id, src, dst string
				want         error
			}{
				{"none", "f", "a", volume.ErrNotFound},
				{id, "none", "a", volume.ErrFileNotFound},
				{id, "../f", "a", volume.ErrPath},
				{id, "/f", "a", volume.ErrPath},
				{id, "f", "../a", volume.ErrPath},
				{id, "f", "/a", volume.ErrPath},
				{id, "f\x00", "a", volume.ErrPath},
			} {
				if err := call(c.id, c.src, c.dst); !errors.Is(err, c.want) {
					e.Errorf("%s %s %q to %q: %v, want %v", what, k.name, c.src, c.dst, err, c.want)
				}
			}
		}
	}
	e.equal("tree", e.tree(id, "."), []string{"f"})
}
