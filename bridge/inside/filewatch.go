package inside

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

const (
	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_EXCL_UNLINK | unix.IN_ONLYDIR
	maxWatched    = 1 << 16 // directories
	maxWatchNames = 1 << 20 // names in all of them
	maxTold       = 1 << 16 // changes at once; a gap stands for more
	watchPage     = 512     // changes in one frame, which the longest paths do not fill
	watchBuffer   = 64 << 10
)

// tempPrefix begins the names of files that are not finished.
const tempPrefix = ".taibox-"

// treeWatch follows a tree by inotify, as the user this process is.
type treeWatch struct {
	fd     int
	root   string
	only   string // the one name that counts, for a file
	dirs   map[int]*watchedDir
	names  int // in all of dirs
	out    []wire.FileChange
	missed bool // not all is in out
}

// watchedDir is a directory that is followed. Names says what is in it, so that
// what replaces a file is not taken for a new one.
type watchedDir struct {
	path  string // relative to the root; "" is the root
	names map[string]bool
}

// watchFiles tells what changes at a path and below until the link ends.
func watchFiles(conn *wire.Conn, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return watchError(err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	w := &treeWatch{fd: fd, root: path, dirs: map[int]*watchedDir{}}
	if !info.IsDir() {
		w.root, w.only = filepath.Dir(path), filepath.Base(path)
	}
	if err := w.add("", false); err != nil {
		return err
	}
	if err := replyFollowed(conn, path); err != nil {
		return err
	}
	gone := linkEnd(conn)
	go func() {
		<-gone
		events.Close() //nolint:errcheck // it ends the read below
	}()
	buf := make([]byte, watchBuffer)
	for {
		n, err := events.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.events(buf[:n]); err != nil {
			return err
		}
		if err := w.send(conn); err != nil {
			return err
		}
	}
}

// send tells what was noted. A reader that does not take it makes the kernel's
// queue overflow, which is told.
func (w *treeWatch) send(conn *wire.Conn) error {
	if w.missed { // last: who looks again then sees all that was left out
		w.out = append(w.out, wire.FileChange{Kind: string(sandbox.FileGap)})
	}
	for page := range slices.Chunk(w.out, watchPage) {
		if err := conn.WriteJSON(wire.TypeReply, page); err != nil {
			return err
		}
	}
	w.out, w.missed = nil, false
	return nil
}

func watchError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("%w: the machine watches as much as it may: %w", sandbox.ErrFileBusy, err)
	}
	return os.NewSyscallError("inotify", err)
}

// add follows a directory and all below it. What is found in one that is new is
// told: it may have been made before it was followed. What cannot be looked
// into is left out, but for the root.
func (w *treeWatch) add(rel string, isNew bool) error {
	at := filepath.Join(w.root, rel)
	mask := uint32(watchMask)
	if rel != "" {
		mask |= unix.IN_DONT_FOLLOW
	}
	id, err := unix.InotifyAddWatch(w.fd, at, mask)
	if err == nil && len(w.dirs) >= maxWatched {
		err = unix.ENOSPC
	}
	if err != nil {
		if rel != "" && !errors.Is(err, unix.ENOSPC) {
			return nil
		}
		if errors.Is(err, unix.ENOSPC) {
			return watchError(err)
		}
		return &fs.PathError{Op: "watch", Path: at, Err: err}
	}
	if old := w.dirs[id]; old != nil {
		if old.path == rel {
			return nil // what is in it was found, and what changes is told
		}
		w.names -= len(old.names) // it was moved, which is yet to be told
	}
	d := &watchedDir{path: rel, names: map[string]bool{}}
	w.dirs[id] = d
	entries, err := os.ReadDir(at)
	if err != nil {
		return nil //nolint:nilerr // it is gone again, or may be passed through only
	}
	for _, e := range entries {
		if !w.counts(e.Name()) {
			continue
		}
		if err := w.found(d, e.Name(), e.IsDir(), isNew); err != nil {
			return err
		}
	}
	return nil
}

// counts reports whether a name in a directory is to be told of.
func (w *treeWatch) counts(name string) bool {
	return (w.only == "" || name == w.only) && !strings.HasPrefix(name, tempPrefix)
}

// found takes in what was in a directory that is followed from now on.
func (w *treeWatch) found(d *watchedDir, name string, isDir, isNew bool) error {
	if err := w.know(d, name); err != nil {
		return err
	}
	rel := filepath.Join(d.path, name)
	if isNew {
		w.tell(sandbox.FileCreated, rel, isDir)
	}
	if isDir && w.only == "" {
		return w.add(rel, isNew)
	}
	return nil
}

// know notes that a name is in a directory.
func (w *treeWatch) know(d *watchedDir, name string) error {
	d.names[name] = true
	if w.names++; w.names > maxWatchNames {
		return fmt.Errorf("%w: more than %d files are there to be watched", sandbox.ErrFileBusy, maxWatchNames)
	}
	return nil
}

// events takes in what the kernel tells.
func (w *treeWatch) events(buf []byte) error {
	for len(buf) >= unix.SizeofInotifyEvent {
		id := int(int32(binary.NativeEndian.Uint32(buf[0:4])))
		mask := binary.NativeEndian.Uint32(buf[4:8])
		n := int(binary.NativeEndian.Uint32(buf[12:16]))
		buf = buf[unix.SizeofInotifyEvent:]
		if n > len(buf) {
			return fmt.Errorf("%w: an event of inotify is cut", wire.ErrProtocol)
		}
		name, _, _ := bytes.Cut(buf[:n], []byte{0})
		buf = buf[n:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			w.missed = true
			if err := w.again(); err != nil {
				return err
			}
			continue
		}
		d := w.dirs[id]
		switch {
		case d == nil:
		case mask&unix.IN_IGNORED != 0:
			w.names -= len(d.names)
			delete(w.dirs, id)
		case len(name) > 0:
			if err := w.event(d, string(name), mask); err != nil {
				return err
			}
		}
	}
	return nil
}

// again looks at the whole tree anew, since something was missed.
func (w *treeWatch) again() error {
	for id := range w.dirs {
		unix.InotifyRmWatch(w.fd, uint32(id)) //nolint:errcheck // it may be gone
	}
	w.dirs, w.names = map[int]*watchedDir{}, 0
	if err := w.add("", false); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// event takes in one event of a name in a directory.
func (w *treeWatch) event(d *watchedDir, name string, mask uint32) error {
	if !w.counts(name) {
		return nil
	}
	rel, isDir := filepath.Join(d.path, name), mask&unix.IN_ISDIR != 0
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		kind := sandbox.FileCreated
		if d.names[name] {
			kind = sandbox.FileModified
		} else if err := w.know(d, name); err != nil {
			return err
		}
		w.tell(kind, rel, isDir)
		if isDir && w.only == "" {
			return w.add(rel, true)
		}
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		if d.names[name] {
			delete(d.names, name)
			w.names--
		}
		w.tell(sandbox.FileRemoved, rel, isDir)
		if isDir && mask&unix.IN_MOVED_FROM != 0 {
			w.forget(rel)
		}
	default:
		w.tell(sandbox.FileModified, rel, isDir)
	}
	return nil
}

// forget no longer follows what was moved away.
func (w *treeWatch) forget(rel string) {
	for id, d := range w.dirs {
		if d.path == rel || strings.HasPrefix(d.path, rel+"/") {
			unix.InotifyRmWatch(w.fd, uint32(id)) //nolint:errcheck // it may be gone
			w.names -= len(d.names)
			delete(w.dirs, id)
		}
	}
}

// tell notes a change, once if it comes again and again.
func (w *treeWatch) tell(kind sandbox.FileEventKind, rel string, dir bool) {
	if len(w.out) == maxTold {
		w.missed = true
		return
	}
	c := wire.FileChange{Kind: string(kind), Path: []byte(rel), Dir: dir}
	if n := len(w.out); n > 0 && w.out[n-1].Kind == c.Kind && bytes.Equal(w.out[n-1].Path, c.Path) {
		return
	}
	w.out = append(w.out, c)
}
