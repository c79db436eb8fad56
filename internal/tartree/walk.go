package tartree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/nofollow"
)

// Visitor takes what a walk finds. The names are those of the archive. A file
// is as long as its description says, or was cut meanwhile.
type Visitor interface {
	Dir(name string, info fs.FileInfo) error
	Link(name, target string, info fs.FileInfo) error
	File(name string, info fs.FileInfo, f *os.File) error
}

// Walk hands the file or tree at rel below root to a visitor, under the name
// as. Sockets, pipes and devices are left out, and so are what is in /proc and
// its like, the file skip, which may be nil, and what vanishes meanwhile; asked
// for by name they are an error.
func Walk(ctx context.Context, root *os.Root, rel, as string, skip fs.FileInfo, v Visitor) error {
	w := &walk{ctx: ctx, root: root, rel: rel, as: as, skip: skip, v: v}
	info, err := root.Lstat(rel)
	if err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return w.dir(".", true)
	case mode.IsRegular(), mode.Type() == fs.ModeSymlink:
		return w.entry(".", true)
	}
	return &fs.PathError{Op: "pack", Path: rel, Err: unix.EINVAL}
}

type walk struct {
	ctx  context.Context //nolint:containedctx // it lives for one call
	root *os.Root
	rel  string // what is packed
	as   string
	skip fs.FileInfo
	v    Visitor
	held int // names of the directories on the way
}

// at is the name of something below what is packed.
func (w *walk) at(rel string) string { return path.Join(w.rel, rel) }

// dir hands on a directory and all that is in it.
func (w *walk) dir(rel string, top bool) error {
	if err := context.Cause(w.ctx); err != nil {
		return err
	}
	f, err := w.root.OpenFile(w.at(rel), openFlags|unix.O_DIRECTORY, 0)
	if vanished(err) && !top {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		err = w.v.Dir(path.Join(w.as, rel), info)
	}
	var names []string
	madeUp := false
	if err == nil {
		madeUp, err = isMadeUp(f)
	}
	if err == nil && !madeUp {
		names, err = nofollow.ReadNames(f)
		w.held += len(names)
		defer func() { w.held -= len(names) }()
	}
	if err == nil && w.held > nofollow.MaxNames {
		err = nofollow.ErrTooMany
	}
	if errors.Is(err, nofollow.ErrTooMany) {
		err = fmt.Errorf("pack %s: %w: %w", path.Join(w.as, rel), unix.EFBIG, err)
	}
	f.Close() //nolint:errcheck // only read
	switch {
	case err != nil:
		return err
	case madeUp && top:
		return &fs.PathError{Op: "pack", Path: w.root.Name(), Err: unix.EINVAL}
	}
	slices.Sort(names)
	for _, n := range names {
		if err := w.entry(path.Join(rel, n), false); err != nil {
			return err
		}
	}
	return nil
}

// entry hands on what is in a directory. What is gone by now is not there.
func (w *walk) entry(rel string, top bool) error {
	info, err := w.root.Lstat(w.at(rel))
	if vanished(err) && !top {
		return nil
	}
	if err != nil {
		return err
	}
	if w.skip != nil && os.SameFile(info, w.skip) {
		return nil
	}
	as := path.Join(w.as, rel)
	switch mode := info.Mode(); {
	case mode.IsDir():
		return w.dir(rel, false)
	case mode.Type() == fs.ModeSymlink:
		target, err := w.root.Readlink(w.at(rel))
		if vanished(err) || errors.Is(err, unix.EINVAL) { // no link any more
			return nil
		}
		if err != nil {
			return err
		}
		return w.v.Link(as, target, info)
	case mode.IsRegular():
		err := w.file(rel, as, info, top)
		if vanished(err) && !top {
			return nil
		}
		return err
	}
	return nil
}

func (w *walk) file(rel, as string, seen fs.FileInfo, top bool) error {
	f, err := w.root.OpenFile(w.at(rel), openFlags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !os.SameFile(seen, info) || !info.Mode().IsRegular():
		return fmt.Errorf("pack %s: %w", as, errReplaced)
	}
	if top { // the directory that is walked tells of all in it
		if madeUp, err := isMadeUp(f); err != nil || madeUp {
			return errors.Join(err, &fs.PathError{Op: "pack", Path: as, Err: unix.EINVAL})
		}
	}
	return w.v.File(as, info, f)
}

// vanished reports that a file went, or that another kind of file, or one
// that leads out, stands in its place.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, errReplaced)
}

var errReplaced = errors.New("it was replaced while it was read")
