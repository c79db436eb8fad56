package bridge

import (
	"context"
	"encoding/json"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// maxChanges bounds what one frame tells.
const maxChanges = 1 << 16

// WatchFiles tells what changes at a path and below until ctx or the box ends;
// then the channel is closed.
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
		for {
			t, payload, err := conn.ReadFrame()
			if err != nil || t != wire.TypeReply {
				return
			}
			var changes []wire.FileChange
			if json.Unmarshal(payload, &changes) != nil || len(changes) > maxChanges {
				return
			}
			for i := range changes {
				e, ok := checkChange(root, &changes[i])
				if !ok {
					return
				}
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out, nil
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
