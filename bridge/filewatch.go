package bridge

import (
	"context"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// maxChanges bounds what one frame tells.
const maxChanges = 1 << 16

// WatchFiles tells what changes at a path and below until ctx ends; then the
// channel is closed. So it is when the box ends or what watches in it, after a
// [sandbox.FileGap].
func (c *Client) WatchFiles(ctx context.Context, name string, o FileOptions) (<-chan sandbox.FileEvent, error) {
	conn, info, err := c.openFile(ctx, wire.FileWatch, name, "", o)
	if err != nil {
		return nil, err
	}
	root := path.Clean(name)
	if !info.Mode.IsDir() {
		root = path.Dir(root)
	}
	out := make(chan sandbox.FileEvent)
	stop := c.bound(ctx, conn)
	go func() {
		defer close(out)
		defer c.part(conn)
		defer stop()
		relayChanges(ctx, conn, root, out)
		if ctx.Err() == nil {
			gap, _ := checkChange(root, &wire.FileChange{Kind: string(sandbox.FileGap)})
			relay(ctx, out, gap)
		}
	}()
	return out, nil
}

// relayChanges passes on what a bridge tells, as long as it makes sense.
func relayChanges(ctx context.Context, conn *wire.Conn, root string, out chan<- sandbox.FileEvent) {
	for {
		var changes []wire.FileChange
		if end, err := receiveNext(ctx, conn, &changes); end || err != nil || len(changes) > maxChanges {
			return
		}
		for i := range changes {
			e, ok := checkChange(root, &changes[i])
			if !ok || !relay(ctx, out, e) {
				return
			}
		}
	}
}

func relay(ctx context.Context, out chan<- sandbox.FileEvent, e sandbox.FileEvent) bool {
	select {
	case out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// checkChange refuses what no change can be.
func checkChange(root string, c *wire.FileChange) (sandbox.FileEvent, bool) {
	rel := string(c.Path)
	e := sandbox.FileEvent{Kind: sandbox.FileEventKind(c.Kind), Path: path.Join(root, rel), Dir: c.Dir}
	switch e.Kind {
	case sandbox.FileGap:
		e.Path, e.Dir = root, true
		return e, true
	case sandbox.FileCreated, sandbox.FileModified, sandbox.FileRemoved:
		return e, rel != "" && len(rel) <= unix.PathMax && !strings.ContainsRune(rel, 0) && path.Clean("/"+rel) == "/"+rel
	}
	return e, false
}
