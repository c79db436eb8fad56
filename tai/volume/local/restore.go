package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/volume"
)

// RestoreSnapshot makes the workspace what it was. It touches only what
// differs. Sockets, pipes and devices, which no snapshot has, stay where
// nothing else is to be.
func (v *Volume) RestoreSnapshot(ctx context.Context, id, name string) error {
	err := validSnapshot(name)
	if err == nil {
		err = v.withTurn(ctx, id, func(s *space) error { return v.restore(ctx, s, name) })
	}
	return toldSnapshot("restore", id, name, err)
}

func (v *Volume) restore(ctx context.Context, s *space, name string) error {
	old, err := s.openSnapshot(name)
	if err != nil {
		return err
	}
	defer old.close()
	t, err := v.treeOf(s)
	if err != nil {
		return err
	}
	defer t.release()
	tmp, err := t.openTemp()
	if err != nil {
		return err
	}
	defer tmp.Close()
	from, err := old.root.Open(".")
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := t.root.Open(".")
	if err != nil {
		return err
	}
	defer to.Close()
	r := &restorer{ctx: ctx, v: v, index: old.index, tmp: int(tmp.Fd()), copier: copier{ctx: ctx}}
	if err := r.dir(from, to, ".", 0); err != nil {
		return err
	}
	return syncFS(s.tmpDir())
}

// restorer makes one tree what another is.
type restorer struct {
	ctx    context.Context //nolint:containedctx // it is that of the call
	v      *Volume
	index  *indexReader
	tmp    int
	copier copier
}

// dir makes an open directory what another is.
func (r *restorer) dir(from, to *os.File, name string, depth int) error {
	if depth >= maxDepth {
		return fmt.Errorf("%w: directories are more than %d deep", volume.ErrFileKind, maxDepth)
	}
	pairs, err := pairDir(r.ctx, from, to, name)
	if err != nil {
		return err
	}
	for i := range pairs {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if err := r.v.step("restore.entry"); err != nil {
			return err
		}
		if err := r.entry(&pairs[i], depth); err != nil {
			return err
		}
	}
	want, err := statOf(from)
	if err != nil {
		return err
	}
	return fixMeta(to, &want)
}

// entry makes one name of a directory what it was.
func (r *restorer) entry(p *pair, depth int) error {
	was, is := p.a, p.b
	if was == nil {
		if isOther(is) {
			return nil
		}
		return removeTree(p.bDir, p.base, r.tmp, "r")
	}
	if is != nil && is.kind() != was.kind() && (was.isDir() || is.isDir()) {
		if err := removeTree(p.bDir, p.base, r.tmp, "r"); err != nil {
			return err
		}
		is = nil
	}
	switch was.kind() {
	case unix.S_IFDIR:
		return r.subDir(p, depth)
	case unix.S_IFLNK:
		return r.link(was, is, p)
	case unix.S_IFREG:
		return r.file(was, is, p)
	}
	return nil
}

func (r *restorer) subDir(p *pair, depth int) error {
	from, err := openDirAt(p.aDir, p.base)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := unix.Mkdirat(p.bDir, p.base, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "mkdir", Path: p.path, Err: err}
	}
	to, err := openDirAt(p.bDir, p.base)
	if err != nil {
		return err
	}
	defer to.Close()
	return r.dir(from, to, p.path, depth+1)
}

func (r *restorer) link(was, is *entry, p *pair) error {
	want, err := readlinkat(was.dir, was.base)
	if err != nil {
		return err
	}
	if is != nil && is.kind() == unix.S_IFLNK {
		if have, err := readlinkat(is.dir, is.base); err == nil && have == want {
			return nil
		}
	}
	name := newName("l")
	if err := linkAt(want, &was.st, r.tmp, name); err != nil {
		return err
	}
	return r.place(name, p)
}

func (r *restorer) file(was, is *entry, p *pair) error {
	if is != nil && is.kind() == unix.S_IFREG {
		same, err := r.same(was, is, p.path)
		if same || err != nil && !vanished(err) {
			return err
		}
	}
	name := newName("f")
	if err := r.copier.file(was, r.tmp, name); err != nil {
		return errors.Join(err, removeTree(r.tmp, name, r.tmp, "r"))
	}
	return r.place(name, p)
}

// same reports whether a file is what it was, but for what can be mended.
func (r *restorer) same(was, is *entry, name string) (bool, error) {
	// Its own state then says it all.
	if same, err := r.index.has(name, &is.st); same || err != nil {
		return same, err
	}
	same, err := sameContents(r.ctx, was, is)
	if err != nil || !same {
		return false, err
	}
	f, err := is.open()
	if err != nil {
		return false, err
	}
	defer f.Close()
	return true, fixMeta(f, &was.st)
}

// place moves what was made to where it is to be.
func (r *restorer) place(name string, p *pair) error {
	if err := unix.Renameat(r.tmp, name, p.bDir, p.base); err != nil {
		return errors.Join(&os.PathError{Op: "rename", Path: p.path, Err: err}, removeTree(r.tmp, name, r.tmp, "r"))
	}
	return nil
}

// fixMeta gives an open file the owner, mode and time that it had, if it has
// others.
func fixMeta(f *os.File, want *unix.Stat_t) error {
	have, err := statOf(f)
	if err != nil {
		return err
	}
	if have.Mode == want.Mode && have.Uid == want.Uid && have.Gid == want.Gid && have.Mtim == want.Mtim {
		return nil
	}
	return setMeta(f, want)
}

// Diff tells what leads from one state to the other.
func (v *Volume) Diff(ctx context.Context, id, from, to string) ([]volume.Change, error) {
	d := &differ{ctx: ctx, changes: []volume.Change{}}
	err := v.withTurn(ctx, id, func(s *space) error {
		a, err := d.open(s, from)
		if err != nil {
			return toldSnapshot("open", id, from, err)
		}
		defer a.Close()
		b, err := d.open(s, to)
		if err != nil {
			return toldSnapshot("open", id, to, err)
		}
		defer b.Close()
		defer d.close()
		if from == to {
			return nil
		}
		d.liveFrom, d.liveTo = from == "", to == ""
		return d.dir(a, b, ".", 0)
	})
	if err != nil {
		return nil, toldSpace("compare states of", id, err)
	}
	return d.changes, nil
}

// differ compares two trees.
type differ struct {
	ctx              context.Context //nolint:containedctx // it is that of the call
	kept             []*kept
	liveFrom, liveTo bool
	changes          []volume.Change
}

func (d *differ) open(s *space, name string) (*os.File, error) {
	if name == "" {
		return os.Open(s.dataDir())
	}
	if err := validSnapshot(name); err != nil {
		return nil, err
	}
	k, err := s.openSnapshot(name)
	if err != nil {
		return nil, err
	}
	d.kept = append(d.kept, k)
	return os.Open(filepath.Join(s.snapshotsDir(), name, treeDir))
}

func (d *differ) close() {
	for _, k := range d.kept {
		k.close()
	}
}

func (d *differ) add(kind volume.ChangeKind, e *entry) {
	d.changes = append(d.changes, volume.Change{Path: e.path, Kind: kind, Dir: e.isDir()})
}

func (d *differ) dir(a, b *os.File, name string, depth int) error {
	if depth >= maxDepth {
		return fmt.Errorf("%w: directories are more than %d deep", volume.ErrFileKind, maxDepth)
	}
	pairs, err := pairDir(d.ctx, a, b, name)
	if err != nil {
		return err
	}
	for i := range pairs {
		if err := d.entry(&pairs[i], depth); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) entry(p *pair, depth int) error {
	a, b := p.a, p.b
	if isOther(a) {
		a = nil
	}
	if isOther(b) {
		b = nil
	}
	switch {
	case a == nil && b == nil:
		return nil
	case a == nil:
		d.add(volume.Added, b)
		return d.all(volume.Added, b)
	case b == nil:
		d.add(volume.Removed, a)
		return d.all(volume.Removed, a)
	case a.kind() != b.kind():
		d.add(volume.Modified, b)
		return cmpOr(d.all(volume.Removed, a), func() error { return d.all(volume.Added, b) })
	}
	same, err := d.same(a, b, p.path)
	if err != nil && !vanished(err) {
		return err
	}
	if !same {
		d.add(volume.Modified, b)
	}
	if !a.isDir() {
		return nil
	}
	return d.subDir(p, depth)
}

// cmpOr returns an error, or that of what comes next.
func cmpOr(err error, next func() error) error {
	if err != nil {
		return err
	}
	return next()
}

// all adds all that is below a directory.
func (d *differ) all(kind volume.ChangeKind, e *entry) error {
	if !e.isDir() {
		return nil
	}
	return descend(d.ctx, e, func(sub *entry) error {
		if !isOther(sub) {
			d.add(kind, sub)
		}
		return nil
	}, 0)
}

func (d *differ) subDir(p *pair, depth int) error {
	a, err := openDirAt(p.aDir, p.base)
	if err != nil {
		return notVanished(err)
	}
	defer a.Close()
	b, err := openDirAt(p.bDir, p.base)
	if err != nil {
		return notVanished(err)
	}
	defer b.Close()
	return d.dir(a, b, p.path, depth+1)
}

func notVanished(err error) error {
	if vanished(err) {
		return nil
	}
	return err
}

// same reports whether two entries of one kind are the same.
func (d *differ) same(a, b *entry, name string) (bool, error) {
	if a.st.Mode != b.st.Mode && a.kind() != unix.S_IFLNK {
		return false, nil
	}
	switch a.kind() {
	case unix.S_IFLNK:
		x, err := readlinkat(a.dir, a.base)
		if err != nil {
			return false, err
		}
		y, err := readlinkat(b.dir, b.base)
		return x == y, err
	case unix.S_IFREG:
		if a.st.Size != b.st.Size {
			return false, nil
		}
		if a.st.Dev == b.st.Dev && a.st.Ino == b.st.Ino {
			return true, nil
		}
		live := a
		if d.liveTo {
			live = b
		}
		if d.liveFrom != d.liveTo {
			if same, err := d.kept[0].index.has(name, &live.st); same || err != nil {
				return same, err
			}
		}
		return sameContents(d.ctx, a, b)
	}
	return true, nil
}
