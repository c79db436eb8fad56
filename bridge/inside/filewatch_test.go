package inside

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// newWatch follows a directory, or one file in it.
func newWatch(t *testing.T, root, only string) *treeWatch {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	w := &treeWatch{fd: fd, root: root, only: only, dirs: map[int]*watchedDir{}}
	if err := w.add("", false); err != nil {
		t.Fatal(err)
	}
	return w
}

// pending takes in what the kernel has to tell.
func (w *treeWatch) pending(t *testing.T) {
	t.Helper()
	buf := make([]byte, watchBuffer)
	for {
		n, err := unix.Read(w.fd, buf)
		if err != nil {
			return // nothing more
		}
		if err := w.events(buf[:n]); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *treeWatch) wantNames(t *testing.T, want int) {
	t.Helper()
	known := 0
	for _, d := range w.dirs {
		known += len(d.names)
	}
	if w.names != want || known != want {
		t.Errorf("%d names are counted and %d known, of %d", w.names, known, want)
	}
}

// TestWatchCountsOnce looks at directories again, as happens when what was
// found in a new one is told by the kernel too.
func TestWatchCountsOnce(t *testing.T) {
	root := t.TempDir()
	w := newWatch(t, root, "")
	if err := os.MkdirAll(filepath.Join(root, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/one", "a/b/two", "a/b/" + tempPrefix + "x"} {
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w.pending(t)
	for range 3 {
		if err := w.add("a", true); err != nil {
			t.Fatal(err)
		}
	}
	w.wantNames(t, 4)
	told := map[string]int{}
	for _, c := range w.out {
		if c.Kind == string(sandbox.FileCreated) {
			told[string(c.Path)]++
		}
	}
	if len(told) != 4 || told["a"] != 1 || told["a/one"] != 1 || told["a/b"] != 1 || told["a/b/two"] != 1 {
		t.Errorf("told as created: %v", told)
	}

	// Found at a new place before the move is told.
	if err := os.Rename(filepath.Join(root, "a"), filepath.Join(root, "c")); err != nil {
		t.Fatal(err)
	}
	if err := w.add("c", true); err != nil {
		t.Fatal(err)
	}
	w.wantNames(t, 4)
	w.pending(t)
	w.wantNames(t, 4)
	if err := os.RemoveAll(filepath.Join(root, "c")); err != nil {
		t.Fatal(err)
	}
	w.pending(t)
	w.wantNames(t, 0)
}

func TestWatchOfFileCountsOne(t *testing.T) {
	root := t.TempDir()
	for i := range 10 {
		if err := os.WriteFile(filepath.Join(root, strconv.Itoa(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	newWatch(t, root, "7").wantNames(t, 1)
}

// TestWatchTellsGap of more than is worth telling.
func TestWatchTellsGap(t *testing.T) {
	for name, c := range map[string]struct {
		changes int
		missed  bool
		want    int
	}{"all": {maxTold, false, maxTold}, "more": {maxTold + 1, false, maxTold + 1}, "overflow": {1, true, 2}, "none": {0, false, 0}} {
		t.Run(name, func(t *testing.T) {
			w := &treeWatch{missed: c.missed}
			for i := range c.changes {
				w.tell(sandbox.FileCreated, strconv.Itoa(i), false)
			}
			var out bytes.Buffer
			if err := w.send(wire.NewConn(sink{Buffer: &out})); err != nil {
				t.Fatal(err)
			}
			var got []wire.FileChange
			for in := wire.NewConn(sink{Buffer: &out}); len(got) < c.want; {
				_, p, err := in.ReadFrame()
				var page []wire.FileChange
				if err != nil || json.Unmarshal(p, &page) != nil || len(page) > watchPage {
					t.Fatalf("a page of %d: %v", len(page), err)
				}
				got = append(got, page...)
			}
			for i, change := range got {
				if gap := change.Kind == string(sandbox.FileGap); gap != (i >= c.changes || i >= maxTold) {
					t.Errorf("change %d is %+v", i, change)
				}
			}
			if len(got) != c.want || len(w.out) > 0 || w.missed {
				t.Errorf("%d changes were sent, %d are left", len(got), len(w.out))
			}
		})
	}
}

// sink is a connection that keeps what is written.
type sink struct {
	*bytes.Buffer
	net.Conn
}

func (s sink) Read(p []byte) (int, error)  { return s.Buffer.Read(p) }
func (s sink) Write(p []byte) (int, error) { return s.Buffer.Write(p) }
