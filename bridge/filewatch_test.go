package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// watch begins a watch of the files at a path.
func watch(t *testing.T, c *bridge.Client, path string) <-chan sandbox.FileEvent {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	events, err := c.WatchFiles(ctx, path, bridge.FileOptions{})
	if err != nil {
		cancel(nil)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel(errors.New("the test ends"))
		for range events { // until it is closed
		}
	})
	return events
}

// TestWatchLargeTree moves so much into a directory that is watched that one
// message cannot tell it.
func TestWatchLargeTree(t *testing.T) {
	b := start(t)
	root, aside := t.TempDir(), t.TempDir()
	deep := filepath.Join(append([]string{aside, "tree"}, strings.Fields(strings.Repeat(strings.Repeat("d", 250)+" ", 13))...)...)
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	const files = 1200
	for i := range files {
		if err := os.WriteFile(filepath.Join(deep, fmt.Sprint(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	events := watch(t, b.Client, root)
	if err := os.Rename(filepath.Join(aside, "tree"), filepath.Join(root, "tree")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "last"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	seen, bytes := map[string]bool{}, 0
	for e := range events {
		if e.Kind == sandbox.FileGap {
			t.Fatal("not all is told")
		}
		if e.Path == filepath.Join(root, "last") {
			break
		}
		if e.Kind == sandbox.FileCreated && !e.Dir {
			seen[e.Path] = true
			bytes += len(e.Path) - len(root)
		}
	}
	if len(seen) != files || bytes < wire.MaxJSON*3/4 {
		t.Errorf("%d files with %d bytes of names were told, of %d", len(seen), bytes, files)
	}
}

// TestWatchEnds says what a reader of files that are watched gets at the end.
func TestWatchEnds(t *testing.T) {
	change := func(path string) []wire.FileChange {
		return []wire.FileChange{{Kind: string(sandbox.FileCreated), Path: []byte(path)}}
	}
	for name, say := range map[string]func(c *wire.Conn){
		"link_lost": func(*wire.Conn) {},
		"error": func(c *wire.Conn) {
			c.WriteJSON(wire.TypeError, wire.NewError(sandbox.ErrFileBusy))
		},
		"nonsense": func(c *wire.Conn) { c.WriteJSON(wire.TypeReply, change("../etc")) },
	} {
		t.Run(name, func(t *testing.T) {
			c := hostile(t, func(conn *wire.Conn, _ wire.Request) {
				conn.WriteJSON(wire.TypeReply, wire.FileInfo{Mode: 0o040755})
				conn.WriteJSON(wire.TypeReply, change("a"))
				say(conn)
			})
			var got []sandbox.FileEvent
			for e := range watch(t, c, "/srv") {
				got = append(got, e)
			}
			if len(got) != 2 || got[0].Path != "/srv/a" || got[1] != (sandbox.FileEvent{Kind: sandbox.FileGap, Path: "/srv", Dir: true}) {
				t.Errorf("%+v", got)
			}
		})
	}
}
