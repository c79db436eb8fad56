package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/internal/ziptree"
	"github.com/taibox/taibox/tai/volume"
)

// Unzip unpacks a zip archive.
func (v *Volume) Unzip(ctx context.Context, id, src, dst string, o volume.ArchiveOptions) (volume.ArchiveResult, error) {
	o = limits(o)
	return v.unpackFile(ctx, "unzip", id, src, dst, o, func(f *os.File, size int64, s *tartree.Stage) error {
		return ziptree.Unpack(f, size, s, ziptree.Limits{Entries: o.MaxEntries, Ratio: o.MaxRatio, Free: freeBytes})
	})
}

// Untar unpacks a tar archive.
func (v *Volume) Untar(ctx context.Context, id, src, dst string, o volume.ArchiveOptions) (volume.ArchiveResult, error) {
	return v.unpackFile(ctx, "untar", id, src, dst, limits(o), func(f *os.File, _ int64, s *tartree.Stage) error {
		return tartree.UnpackTo(f, s)
	})
}

// Untgz unpacks a compressed tar archive.
func (v *Volume) Untgz(ctx context.Context, id, src, dst string, o volume.ArchiveOptions) (volume.ArchiveResult, error) {
	o = limits(o)
	return v.unpackFile(ctx, "untgz", id, src, dst, o, func(f *os.File, _ int64, s *tartree.Stage) error {
		r, err := newInflater(f, o)
		if err != nil {
			return err
		}
		return tartree.UnpackTo(r, s)
	})
}

func (v *Volume) unpackFile(ctx context.Context, verb, id, src, dst string, o volume.ArchiveOptions, run func(f *os.File, size int64, s *tartree.Stage) error) (volume.ArchiveResult, error) {
	return v.archive(ctx, verb, id, src, dst, func(t *tree, src, dst string) (volume.ArchiveResult, error) {
		f, st, err := t.open(src)
		if err != nil {
			return volume.ArchiveResult{}, err
		}
		defer f.Close()
		return t.unpack(ctx, dst, o, func(s *tartree.Stage) error { return run(f, st.Size, s) })
	})
}

// CopyTo unpacks a tar stream into a directory.
func (v *Volume) CopyTo(ctx context.Context, id, dir string, archive io.Reader, o volume.ArchiveOptions) error {
	_, err := onFile(ctx, v, "copy to", id, dir, func(t *tree, dir string) (volume.ArchiveResult, error) {
		return t.unpack(ctx, dir, limits(o), func(s *tartree.Stage) error {
			return tartree.UnpackTo(tartree.CtxReader(ctx, archive), s)
		})
	})
	return err
}

// unpack makes the files of an archive where no box sees them and, once all are
// whole and on the disk, moves them to their places.
func (t *tree) unpack(ctx context.Context, dst string, o volume.ArchiveOptions, run func(*tartree.Stage) error) (res volume.ArchiveResult, err error) {
	tmp, err := t.temp()
	if err != nil {
		return res, err
	}
	name := newName("x")
	if err := tmp.Mkdir(name, 0o700); err != nil {
		return res, err
	}
	defer func() {
		if rerr := tmp.RemoveAll(name); rerr != nil {
			t.v.log.Warn("half an archive stays until the volume is opened again", slog.String("workspace", t.space.id), slog.Any("err", rerr))
		}
	}()
	root, err := tmp.OpenRoot(name)
	if err != nil {
		return res, err
	}
	defer root.Close()
	from, err := nofollow.Of(root)
	if err != nil {
		return res, err
	}
	defer from.Close()
	own, err := from.Again()
	if err != nil {
		return res, err
	}
	stage := tartree.NewStage(ctx, own, tartree.Limits{Entries: o.MaxEntries, Bytes: o.MaxBytes, Depth: o.MaxDepth})
	err = run(stage)
	stage.Close()
	if err == nil {
		err = from.Sync()
	}
	if err == nil {
		err = t.settle(ctx, from, dst)
	}
	if err != nil {
		return res, err
	}
	return volume.ArchiveResult{Entries: stage.Entries(), Bytes: stage.Bytes()}, nil
}

// settle moves an unpacked tree into a directory, which is made if it is
// missing, or leaves all as it was.
func (t *tree) settle(ctx context.Context, from *nofollow.Dir, dst string) (err error) {
	var made []string // the deepest first
	for dir := dst; dir != "."; dir = path.Dir(dir) {
		if _, err := t.root.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, dir)
	}
	defer func() {
		if err != nil {
			for _, dir := range made {
				t.root.Remove(dir) //nolint:errcheck // somebody else may use it by now
			}
		}
	}()
	root, err := t.syncDir(dst, true)
	if err != nil {
		return err
	}
	defer root.Close()
	to, err := nofollow.Of(root)
	if err != nil {
		return err
	}
	defer to.Close()
	m := &merger{ctx: ctx}
	err = m.look(from, to, "")
	if err == nil {
		err = m.dir(from, to, "")
	}
	if err == nil {
		err = to.Sync()
	}
	if err != nil {
		return errors.Join(err, m.undo(from, to))
	}
	return nil
}

// merger moves a tree into another. All it does can be taken back.
type merger struct {
	ctx  context.Context //nolint:containedctx // it lives for one call
	done []move
}

// move is an entry that is in its place.
type move struct {
	dir, name string
	swapped   bool // what was there is where it came from
}

// look refuses what cannot be merged, before anything is moved.
func (m *merger) look(from, to *nofollow.Dir, under string) error {
	return m.pairs(from, to, func(name string, was, is uint32) error {
		rel := path.Join(under, name)
		switch {
		case is == 0 || is == was && was != unix.S_IFDIR:
			return nil
		case was == unix.S_IFDIR && is == unix.S_IFLNK:
			return fmt.Errorf("%w: %.256q: it goes through a link", volume.ErrArchive, rel)
		case was == unix.S_IFDIR && is != unix.S_IFDIR:
			return &fs.PathError{Op: "unpack", Path: rel, Err: unix.ENOTDIR}
		case was != unix.S_IFDIR && is == unix.S_IFDIR:
			return &fs.PathError{Op: "unpack", Path: rel, Err: unix.EISDIR}
		case was != unix.S_IFDIR:
			return nil
		}
		a, b, err := openBoth(from, to, name)
		if err != nil {
			return err
		}
		defer a.Close()
		defer b.Close()
		return m.look(a, b, rel)
	})
}

func openBoth(from, to *nofollow.Dir, name string) (a, b *nofollow.Dir, err error) {
	if a, err = from.Open(name); err != nil {
		return nil, nil, err
	}
	if b, err = to.Open(name); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// pairs tells of each entry of a directory what it is here and, if anything, there.
func (m *merger) pairs(from, to *nofollow.Dir, visit func(name string, was, is uint32) error) error {
	names, err := from.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := context.Cause(m.ctx); err != nil {
			return err
		}
		was, err := from.Lstat(name)
		if err != nil {
			return err
		}
		is, err := to.Lstat(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := visit(name, was.Mode&unix.S_IFMT, is.Mode&unix.S_IFMT); err != nil {
			return err
		}
	}
	return nil
}

// dir moves what is in one directory to another.
func (m *merger) dir(from, to *nofollow.Dir, under string) error {
	return m.pairs(from, to, func(name string, was, is uint32) error {
		if was == unix.S_IFDIR && is == unix.S_IFDIR {
			a, b, err := openBoth(from, to, name)
			if err != nil {
				return err
			}
			defer a.Close()
			defer b.Close()
			return m.dir(a, b, path.Join(under, name))
		}
		err := moveNew(from.Fd(), name, to.Fd(), name)
		swapped := errors.Is(err, unix.EEXIST) && was != unix.S_IFDIR
		if swapped {
			err = m.swap(from, to, name)
		}
		if err != nil {
			return &fs.PathError{Op: "unpack", Path: path.Join(under, name), Err: err}
		}
		m.done = append(m.done, move{under, name, swapped})
		return nil
	})
}

// swap puts a file or link in the place of another, which is kept.
func (m *merger) swap(from, to *nofollow.Dir, name string) error {
	if st, err := to.Lstat(name); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EISDIR
	}
	return unix.Renameat2(from.Fd(), name, to.Fd(), name, unix.RENAME_EXCHANGE)
}

// undo takes all back, the last first.
func (m *merger) undo(from, to *nofollow.Dir) error {
	a, err := from.Again()
	if err != nil {
		return err
	}
	fromAt := nofollow.NewCursor(a)
	defer fromAt.Close()
	b, err := to.Again()
	if err != nil {
		return err
	}
	toAt := nofollow.NewCursor(b)
	defer toAt.Close()
	var failed error
	for _, d := range slices.Backward(m.done) {
		dir := cmp.Or(d.dir, ".")
		was, err := fromAt.To(dir, nil)
		if err == nil {
			var is *nofollow.Dir
			if is, err = toAt.To(dir, nil); err == nil {
				err = takeBack(is, was, d)
			}
		}
		if err != nil && !nofollow.Vanished(err) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func takeBack(is, was *nofollow.Dir, d move) error {
	flags := uint(unix.RENAME_NOREPLACE)
	if d.swapped {
		flags = unix.RENAME_EXCHANGE
	}
	if err := unix.Renameat2(is.Fd(), d.name, was.Fd(), d.name, flags); err != nil {
		return &fs.PathError{Op: "take back", Path: path.Join(d.dir, d.name), Err: err}
	}
	return nil
}
