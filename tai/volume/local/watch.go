package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/volume"
)

const (
	// maxPending bounds what a reader of a watch may fall behind.
	maxPending = 8192
	watchBatch = 1024 // names of a directory that are read at once
)

// Watch tells what changes at a path and below.
func (v *Volume) Watch(ctx context.Context, id, name string) (<-chan volume.FileEvent, error) {
	clean, err := cleanPath(name)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, told("watch", id, name, err)
	}
	t, err := v.tree(id)
	if err != nil {
		return nil, told("watch", id, name, err)
	}
	w, err := t.watch(ctx, clean)
	if err != nil {
		err = told("watch", id, name, t.space.goneOr(err))
		t.release()
		return nil, err
	}
	out := make(chan volume.FileEvent)
	done := make(chan struct{})
	err = v.goAll(func() {
		defer close(done)
		w.read()
	}, func() {
		defer close(out)
		defer t.release()
		w.send(ctx, v, out)
		w.inotify.Close()
		<-done
		w.release()
	})
	if err != nil {
		w.release()
		t.release()
		return nil, told("watch", id, name, err)
	}
	return out, nil
}

// watcher follows a tree by inotify. Only read changes what it knows of it.
type watcher struct {
	ctx     context.Context //nolint:containedctx // it is that of the call that watches
	t       *tree
	inotify *os.File
	only    string // the one path that counts, for a file
	top     *watched
	byID    map[int]*watched
	names   int // in all of them

	mu      sync.Mutex
	pending []volume.FileEvent
	ended   bool
	more    chan struct{} // has room for one signal
}

// watched is a directory that is followed. Names says what is in it, so that
// what replaces a file is not taken for a new one.
type watched struct {
	id    int
	path  string
	names map[string]*watched // nil for what is no directory
}

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_EXCL_UNLINK | unix.IN_ONLYDIR

// watch begins to follow a path. The caller releases the watcher.
func (t *tree) watch(ctx context.Context, name string) (_ *watcher, err error) {
	info, err := t.root.Stat(name)
	if err != nil {
		return nil, err
	}
	if err := t.v.inotify.begin(); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.v.inotify.end()
		return nil, watchLimit(err)
	}
	w := &watcher{ctx: ctx, t: t, inotify: os.NewFile(uintptr(fd), "inotify"), byID: map[int]*watched{}, more: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			w.release()
		}
	}()
	at := name
	if !info.IsDir() {
		w.only, at = name, path.Dir(name)
	}
	dir, err := t.root.OpenFile(at, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if w.top, err = w.add(dir, at, nil); err != nil {
		return nil, err
	}
	return w, nil
}

// release gives back what the watcher has taken. Nothing reads it any more.
func (w *watcher) release() {
	w.inotify.Close()
	w.t.v.inotify.forget(len(w.byID))
	w.t.v.inotify.end()
}

// watchLimit explains why the kernel watches no more.
func watchLimit(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: the machine watches as many directories as it may (sysctl fs.inotify.max_user_watches)", volume.ErrFileBusy)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w: the machine has as many watches as it may (sysctl fs.inotify.max_user_instances)", volume.ErrFileBusy)
	}
	return os.NewSyscallError("inotify", err)
}

// add follows an open directory and all that is in it. Found is told of what
// is there already, if anybody is to know.
func (w *watcher) add(dir *os.File, name string, found func(name string, dir bool)) (_ *watched, err error) {
	if depthOf(name) >= maxDepth {
		return nil, fmt.Errorf("%w: directories are more than %d deep", volume.ErrFileKind, maxDepth)
	}
	if err := w.t.v.inotify.follow(len(w.byID)); err != nil {
		return nil, err
	}
	// The kernel takes a path, and that of a descriptor leads nowhere else.
	id, err := unix.InotifyAddWatch(w.fd(), fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), watchMask)
	if err != nil {
		w.t.v.inotify.forget(1)
		return nil, watchLimit(err)
	}
	if old := w.byID[id]; old != nil { // it was moved, and that is not told yet
		w.forget(old)
	}
	d := &watched{id: id, path: name, names: map[string]*watched{}}
	w.byID[id] = d
	defer func() {
		if err != nil {
			w.drop(d)
		}
	}()
	if w.only != "" {
		if _, err := w.t.root.Lstat(w.only); err == nil {
			return d, w.enter(d, path.Base(w.only))
		}
		return d, nil
	}
	for {
		if w.ctx.Err() != nil {
			return nil, context.Cause(w.ctx)
		}
		entries, err := dir.ReadDir(watchBatch)
		if errors.Is(err, io.EOF) || vanished(err) {
			return d, nil
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if err := w.addEntry(d, dir, e, found); err != nil {
				return nil, err
			}
		}
	}
}

// addEntry takes what is in a directory that is followed.
func (w *watcher) addEntry(d *watched, dir *os.File, e fs.DirEntry, found func(string, bool)) error {
	if err := w.enter(d, e.Name()); err != nil {
		return err
	}
	at := joinPath(d.path, e.Name())
	if found != nil {
		found(at, e.IsDir())
	}
	if !e.IsDir() {
		return nil
	}
	sub, err := w.addSub(dir, e.Name(), at, found)
	d.names[e.Name()] = sub
	return err
}

// enter notes a name of a directory.
func (w *watcher) enter(d *watched, name string) error {
	if _, known := d.names[name]; !known {
		if most := w.t.v.inotify.most.ownNames; w.names >= most {
			return fmt.Errorf("%w: more than %d files are there to be watched", volume.ErrFileBusy, most)
		}
		w.names++
	}
	d.names[name] = nil
	return nil
}

// addSub follows a directory in an open one. It is nil if it vanished.
func (w *watcher) addSub(dir *os.File, base, name string, found func(string, bool)) (*watched, error) {
	f, err := openDirAt(int(dir.Fd()), base)
	if err != nil {
		if vanished(err) {
			return nil, nil //nolint:nilnil // it is no error, and nothing to follow
		}
		return nil, err
	}
	defer f.Close()
	return w.add(f, name, found)
}

// fd returns the descriptor without making it block, as [os.File.Fd] does.
func (w *watcher) fd() (fd int) {
	if rc, err := w.inotify.SyscallConn(); err == nil {
		rc.Control(func(n uintptr) { fd = int(n) }) //nolint:errcheck // closed, it is no descriptor
	}
	return fd
}

// forget reports whether a directory was followed, and that no more.
func (w *watcher) forget(d *watched) bool {
	if w.byID[d.id] != d {
		return false
	}
	delete(w.byID, d.id)
	w.names -= len(d.names)
	w.t.v.inotify.forget(1)
	return true
}

// drop stops to follow a directory and all that was in it.
func (w *watcher) drop(d *watched) {
	if w.forget(d) {
		unix.InotifyRmWatch(w.fd(), uint32(d.id)) //nolint:errcheck // it is gone if the directory is
	}
	for _, sub := range d.names {
		if sub != nil {
			w.drop(sub)
		}
	}
}

// read takes what the kernel tells until the watcher is closed.
func (w *watcher) read() {
	defer w.end()
	buf := make([]byte, 64<<10)
	for {
		n, err := w.inotify.Read(buf)
		if err != nil {
			return
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			e := parseEvent(rest)
			rest = rest[unix.SizeofInotifyEvent+e.size:]
			if !w.event(&e) {
				return
			}
		}
	}
}

// end tells the sender that nothing comes any more.
func (w *watcher) end() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.signal()
}

// event takes one event. It is false when there is nothing to watch any more.
func (w *watcher) event(e *inotifyEvent) bool {
	if e.mask&unix.IN_Q_OVERFLOW != 0 {
		return w.again()
	}
	d := w.byID[e.id]
	switch {
	case d == nil:
		return true
	case e.mask&(unix.IN_IGNORED|unix.IN_DELETE_SELF|unix.IN_UNMOUNT) != 0:
		w.forget(d)
		return d != w.top
	case e.name == "":
		return true // of the directory itself: its parent tells
	}
	at := joinPath(d.path, e.name)
	if w.only != "" && at != w.only {
		return true
	}
	isDir := e.mask&unix.IN_ISDIR != 0
	sub, known := d.names[e.name]
	switch {
	case e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		if sub != nil {
			w.drop(sub)
		}
		if known {
			delete(d.names, e.name)
			w.names--
		}
		w.push(volume.FileRemoved, at, isDir)
	case e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		return w.created(d, e, at, known)
	case e.mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0:
		w.push(volume.FileModified, at, isDir)
	}
	return true
}

// created takes what is new in a directory, or replaces what was there.
func (w *watcher) created(d *watched, e *inotifyEvent, at string, known bool) bool {
	isDir := e.mask&unix.IN_ISDIR != 0
	switch {
	case !known:
		w.push(volume.FileCreated, at, isDir)
	case e.mask&unix.IN_MOVED_TO != 0:
		w.push(volume.FileModified, at, isDir)
	}
	if sub := d.names[e.name]; sub != nil {
		if !isDir || e.mask&unix.IN_MOVED_TO == 0 {
			return true // it was found already
		}
		w.drop(sub)
	}
	if w.enter(d, e.name) != nil {
		w.gap()
		return true
	}
	if !isDir || w.only != "" {
		return true
	}
	sub, err := w.follow(d, e.name, at)
	if err != nil { // what is in there is not told
		w.gap()
		return true
	}
	if sub != nil {
		d.names[e.name] = sub
	}
	return true
}

// follow follows a new directory, and tells what was made there before.
func (w *watcher) follow(d *watched, base, at string) (*watched, error) {
	dir, err := w.t.openExact(d.path)
	if err != nil {
		if vanished(err) {
			return nil, nil //nolint:nilnil // events tell what became of it
		}
		return nil, err
	}
	defer dir.Close()
	return w.addSub(dir, base, at, func(name string, isDir bool) { w.push(volume.FileCreated, name, isDir) })
}

// openExact opens a directory through directories alone, following no link.
func (t *tree) openExact(name string) (*os.File, error) {
	dir, err := t.root.OpenFile(".", os.O_RDONLY|unix.O_DIRECTORY, 0)
	if name == "." || err != nil {
		return dir, err
	}
	for part := range strings.SplitSeq(name, "/") {
		sub, err := openDirAt(int(dir.Fd()), part)
		dir.Close()
		if err != nil {
			return nil, err
		}
		dir = sub
	}
	return dir, nil
}

// again begins anew after the kernel lost events.
func (w *watcher) again() bool {
	w.gap()
	name := w.top.path
	w.drop(w.top)
	dir, err := w.t.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer dir.Close()
	w.top, err = w.add(dir, name, nil)
	return err == nil
}

// push tells of a change. The same change told last is not told twice.
func (w *watcher) push(kind volume.FileEventKind, name string, dir bool) {
	e := volume.FileEvent{Kind: kind, Path: name, Dir: dir}
	w.mu.Lock()
	if n := len(w.pending); n == 0 || w.pending[n-1] != e {
		w.pending = append(w.pending, e)
		if n >= maxPending {
			w.pending = append(w.pending[:0], volume.FileEvent{Kind: volume.FileGap, Path: w.topPath(), Dir: w.only == ""})
		}
	}
	w.mu.Unlock()
	w.signal()
}

// gap tells that events were missed; what was not taken yet is among them.
func (w *watcher) gap() {
	w.mu.Lock()
	w.pending = append(w.pending[:0], volume.FileEvent{Kind: volume.FileGap, Path: w.topPath(), Dir: w.only == ""})
	w.mu.Unlock()
	w.signal()
}

func (w *watcher) topPath() string {
	if w.only != "" {
		return w.only
	}
	return w.top.path
}

func (w *watcher) signal() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) take() (events []volume.FileEvent, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	events, w.pending = w.pending, nil
	return events, w.ended
}

// send hands on what is told, until somebody ends it.
func (w *watcher) send(ctx context.Context, v *Volume, out chan<- volume.FileEvent) {
	for {
		events, ended := w.take()
		for _, e := range events {
			select {
			case out <- e:
			case <-ctx.Done():
				return
			case <-v.ctx.Done():
				return
			case <-w.t.space.gone:
				return
			}
		}
		if ended && len(events) == 0 {
			return
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-w.more:
		case <-ctx.Done():
			return
		case <-v.ctx.Done():
			return
		case <-w.t.space.gone:
			return
		}
	}
}
