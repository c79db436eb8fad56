package treesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/filemode"
	"github.com/taibox/taibox/internal/gitignore"
	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/tai/volume"
)

// Tree is a directory of this machine as a side of a sync. No link in it is
// ever followed.
type Tree struct {
	// Open opens the directory for one call. Unless it is to be made, one that is
	// missing is [fs.ErrNotExist].
	Open func(ctx context.Context, create bool) (*Place, error)
	// Error, if set, turns the errors of files into those that its callers know.
	Error func(error) error
}

func (t *Tree) error(err error) error {
	if err == nil || t.Error == nil {
		return err
	}
	return t.Error(err)
}

// Place is the directory of a [Tree] while it is open.
type Place struct {
	Root *nofollow.Dir
	// Temp is where files are half written, on the same file system. Default
	// beside the file.
	Temp *nofollow.Dir
	// Owned gives directories to uid and gid 0, whatever their parents'.
	Owned bool
}

func (p *Place) close() {
	p.Root.Close()
	if p.Temp != nil {
		p.Temp.Close()
	}
}

// Dir returns a directory of this machine as a side of a sync. It need not be
// there yet. The last element of the path, and those before it, may be links.
func Dir(dir string) *Tree {
	return &Tree{Open: func(_ context.Context, create bool) (*Place, error) {
		if create {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		d, err := nofollow.Of(root)
		if err != nil {
			return nil, err
		}
		return &Place{Root: d}, nil
	}}
}

// Index lists the tree, see [volume.SyncEnd].
func (t *Tree) Index(ctx context.Context, o volume.IndexOptions) iter.Seq2[volume.SyncEntry, error] {
	return t.index(ctx, o, false)
}

// index is Index that may remove what a sync that was killed left half written.
func (t *Tree) index(ctx context.Context, o volume.IndexOptions, tidy bool) iter.Seq2[volume.SyncEntry, error] {
	return func(yield func(volume.SyncEntry, error) bool) {
		p, err := t.Open(ctx, false)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err == nil {
			defer p.close()
			err = walk(ctx, p, o, tidy, yield)
		}
		if err != nil && !errors.Is(err, errStop) {
			yield(volume.SyncEntry{}, t.error(err))
		}
	}
}

func walk(ctx context.Context, p *Place, o volume.IndexOptions, tidy bool, yield func(volume.SyncEntry, error) bool) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	exclude, err := excluded(o)
	if err != nil {
		return err
	}
	w := &walker{ctx: ctx, o: o, tidy: tidy, yield: yield, exclude: exclude}
	return w.dir(p.Root, "", nil)
}

// errStop ends a walk that nobody wants any more.
var errStop = errors.New("stop")

type walker struct {
	ctx     context.Context //nolint:containedctx // it lives for one call
	o       volume.IndexOptions
	tidy    bool
	yield   func(volume.SyncEntry, error) bool
	exclude *gitignore.Matcher
	depth   int
	held    int // names of the directories on the way
}

func (w *walker) dir(d *nofollow.Dir, rel string, ignore *gitignore.Matcher) error {
	names, err := d.Names()
	w.held += len(names)
	defer func() { w.held -= len(names) }()
	if err == nil && w.held > nofollow.MaxNames {
		err = nofollow.ErrTooMany
	}
	if errors.Is(err, nofollow.ErrTooMany) {
		err = fmt.Errorf("%w: %.256q: %w", volume.ErrTooLarge, rel, err)
	}
	if err != nil {
		return err
	}
	slices.Sort(names)
	if w.o.GitIgnore {
		if ignore, err = subIgnore(d, rel, ignore); err != nil {
			return err
		}
	}
	for _, name := range names {
		if strings.HasPrefix(name, tempPrefix) {
			if w.tidy {
				d.RemoveLeft(name, tempPrefix)
			}
			continue
		}
		if w.o.GitIgnore && name == ".git" {
			continue
		}
		if err := w.entry(d, name, path.Join(rel, name), ignore); err != nil {
			return err
		}
	}
	return nil
}

// subIgnore adds the patterns of a directory's own .gitignore. A link is none.
func subIgnore(d *nofollow.Dir, rel string, ignore *gitignore.Matcher) (*gitignore.Matcher, error) {
	f, _, err := d.OpenRegular(".gitignore")
	if nofollow.Vanished(err) || errors.Is(err, nofollow.ErrKind) {
		return ignore, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxIgnoreFile {
		return nil, fmt.Errorf("%w: %.256q: more than %d bytes", volume.ErrTooLarge, path.Join(rel, ".gitignore"), maxIgnoreFile)
	}
	return addIgnore(ignore, rel, data)
}

func (w *walker) entry(d *nofollow.Dir, name, rel string, ignore *gitignore.Matcher) error {
	if err := context.Cause(w.ctx); err != nil {
		return err
	}
	st, err := d.Lstat(name)
	if nofollow.Vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	e := volume.SyncEntry{Path: rel, Mode: filemode.Of(st.Mode) & (kinds | bits), ModTime: time.Unix(st.Mtim.Unix())}
	isDir := e.Mode.IsDir()
	if w.exclude.Ignored(rel, isDir) || ignore.Ignored(rel, isDir) {
		return nil
	}
	switch e.Mode & kinds {
	case 0:
		e.Size = st.Size
	case fs.ModeDir:
		return w.sub(d, name, e, ignore)
	case fs.ModeSymlink:
		if e.Link, err = d.Readlink(name); err != nil {
			return nil //nolint:nilerr // it is no link any more: as if it were gone
		}
	default:
		return nil
	}
	if !w.yield(e, nil) {
		return errStop
	}
	return nil
}

func (w *walker) sub(d *nofollow.Dir, name string, e volume.SyncEntry, ignore *gitignore.Matcher) error {
	if w.depth++; w.depth >= nofollow.MaxDepth || len(e.Path) >= maxString {
		return &fs.PathError{Op: "sync", Path: e.Path, Err: unix.ENAMETOOLONG}
	}
	defer func() { w.depth-- }()
	sub, err := d.Open(name)
	if nofollow.Vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	if !w.yield(e, nil) {
		return errStop
	}
	return w.dir(sub, e.Path, ignore)
}
