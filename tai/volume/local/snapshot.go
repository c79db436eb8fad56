package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/durable"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

const (
	newPrefix    = ".new-"
	snapshotFile = "snapshot.json"
	treeDir      = "tree"
	indexFile    = "index"
)

// toldSnapshot wraps what goes wrong with a snapshot.
func toldSnapshot(verb, id, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s snapshot %.64q of workspace %s: %w", verb, name, id, noSpace(err))
}

func validSnapshot(name string) error {
	if err := taisandbox.ValidateID(name); err != nil {
		return fmt.Errorf("%w: name of a snapshot: %w", volume.ErrInvalid, err)
	}
	return nil
}

// withTurn makes a call that nothing else may disturb that changes the
// workspace as a whole.
func (v *Volume) withTurn(ctx context.Context, id string, call func(s *space) error) error {
	s, err := v.space(id)
	if err != nil {
		return err
	}
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	return call(s)
}

// CreateSnapshot keeps the workspace as it is now.
func (v *Volume) CreateSnapshot(ctx context.Context, id, name string) (volume.Snapshot, error) {
	var snap volume.Snapshot
	err := validSnapshot(name)
	if err == nil {
		err = v.withTurn(ctx, id, func(s *space) (err error) {
			snap, err = v.snapshot(ctx, s, name)
			return err
		})
	}
	return snap, toldSnapshot("create", id, name, err)
}

func (v *Volume) snapshot(ctx context.Context, s *space, name string) (_ volume.Snapshot, err error) {
	var none volume.Snapshot
	if _, err := os.Lstat(filepath.Join(s.snapshotsDir(), name)); err == nil {
		return none, volume.ErrSnapshotExists
	}
	newest, err := s.newest()
	if err != nil {
		return none, err
	}
	if err := v.step("snapshot.copy"); err != nil {
		return none, err
	}
	half := newName(newPrefix)
	dir := filepath.Join(s.snapshotsDir(), half)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return none, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.removeSnapshotDir(half))
		}
	}()
	snap := volume.Snapshot{Name: name, CreatedAt: time.Now().UTC()}
	if err := s.keep(ctx, dir, newest, &snap); err != nil {
		return none, err
	}
	if err := durable.WriteJSON(filepath.Join(dir, snapshotFile), &snap); err != nil {
		return none, err
	}
	if err := syncFS(dir); err != nil {
		return none, err
	}
	if err := v.step("snapshot.publish"); err != nil {
		return none, err
	}
	if err := os.Rename(dir, filepath.Join(s.snapshotsDir(), name)); err != nil {
		return none, err
	}
	return snap, durable.SyncDir(s.snapshotsDir())
}

// keep copies the files to the directory of a new snapshot. What did not change
// since the newest one is a hard link to that: a box never gets hold of either.
func (s *space) keep(ctx context.Context, dir, newest string, snap *volume.Snapshot) error {
	data, err := os.Open(s.dataDir())
	if err != nil {
		return err
	}
	defer data.Close()
	to, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer to.Close()
	file, err := os.OpenFile(filepath.Join(dir, indexFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	index := newIndexWriter(file, snap.CreatedAt)
	c := &copier{ctx: ctx, done: func(e *entry) error {
		snap.Files++
		if e.kind() != unix.S_IFREG {
			return nil
		}
		snap.Bytes += e.st.Size
		return index.add(e.path, markOf(&e.st))
	}}
	if newest != "" {
		old, err := s.openSnapshot(newest)
		if err != nil {
			return errors.Join(err, index.close())
		}
		defer old.close()
		c.share = old.share
	}
	// From here on each write to memory that is mapped changes the file's time.
	if err := unix.Syncfs(int(data.Fd())); err != nil {
		return errors.Join(os.NewSyscallError("syncfs", err), index.close())
	}
	st, err := statOf(data)
	if err == nil {
		err = c.dirOf(data, &st, int(to.Fd()), treeDir)
	}
	return errors.Join(err, index.close())
}

// kept is a snapshot, open to be compared with.
type kept struct {
	root  *os.Root
	index *indexReader
}

// openSnapshot opens a snapshot. The caller closes it.
func (s *space) openSnapshot(name string) (*kept, error) {
	dir := filepath.Join(s.snapshotsDir(), name)
	root, err := os.OpenRoot(filepath.Join(dir, treeDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, volume.ErrSnapshotNotFound
	}
	if err != nil {
		return nil, err
	}
	index, err := openIndex(filepath.Join(dir, indexFile))
	if err != nil {
		root.Close()
		return nil, err
	}
	return &kept{root: root, index: index}, nil
}

func (k *kept) close() {
	k.root.Close()
	k.index.close()
}

// share makes a file as a hard link to the one that is kept, if it is the same.
func (k *kept) share(e *entry, dir int, base string) (bool, error) {
	same, err := k.index.has(e.path, &e.st)
	if err != nil || !same {
		return false, err
	}
	f, err := k.root.OpenFile(e.path, openFlags, 0)
	if err != nil {
		return false, nil // then it is copied
	}
	defer f.Close()
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), dir, base, unix.AT_SYMLINK_FOLLOW)
	return err == nil, nil // a file can have only so many links: then it is copied
}

// newest returns the name of the newest snapshot, if there is any.
func (s *space) newest() (string, error) {
	snaps, err := s.snapshots()
	if err != nil || len(snaps) == 0 {
		return "", err
	}
	return snaps[len(snaps)-1].Name, nil
}

// snapshots returns the snapshots, oldest first.
func (s *space) snapshots() ([]volume.Snapshot, error) {
	entries, err := os.ReadDir(s.snapshotsDir())
	if err != nil {
		return nil, err
	}
	snaps := []volume.Snapshot{}
	for _, e := range entries {
		if taisandbox.ValidateID(e.Name()) != nil {
			continue
		}
		var snap volume.Snapshot
		err := durable.ReadJSON(filepath.Join(s.snapshotsDir(), e.Name(), snapshotFile), &snap)
		if errors.Is(err, fs.ErrNotExist) { // it is being removed
			continue
		}
		if err != nil {
			return nil, err
		}
		snaps = append(snaps, snap)
	}
	slices.SortFunc(snaps, func(a, b volume.Snapshot) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name))
	})
	return snaps, nil
}

// ListSnapshots returns the snapshots, oldest first.
func (v *Volume) ListSnapshots(ctx context.Context, id string) ([]volume.Snapshot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s, err := v.space(id)
	if err != nil {
		return nil, toldSpace("list snapshots of", id, err)
	}
	snaps, err := s.snapshots()
	if err = s.foundOr(err); err != nil {
		return nil, toldSpace("list snapshots of", id, err)
	}
	return snaps, nil
}

// RemoveSnapshot deletes a snapshot.
func (v *Volume) RemoveSnapshot(ctx context.Context, id, name string) error {
	err := validSnapshot(name)
	if err == nil {
		err = v.withTurn(ctx, id, func(s *space) error {
			if err := v.step("unsnapshot.rename"); err != nil {
				return err
			}
			half := newName(removingPrefix)
			err := os.Rename(filepath.Join(s.snapshotsDir(), name), filepath.Join(s.snapshotsDir(), half))
			if errors.Is(err, fs.ErrNotExist) {
				return volume.ErrSnapshotNotFound
			}
			if err == nil {
				err = durable.SyncDir(s.snapshotsDir())
			}
			if err == nil {
				err = v.step("unsnapshot.files")
			}
			if err != nil {
				return err
			}
			return s.removeSnapshotDir(half)
		})
	}
	return toldSnapshot("remove", id, name, err)
}

// removeSnapshotDir deletes a directory among the snapshots.
func (s *space) removeSnapshotDir(name string) error {
	d, err := os.Open(s.snapshotsDir())
	if err != nil {
		return err
	}
	defer d.Close()
	return removeTree(int(d.Fd()), name, int(d.Fd()), removingPrefix)
}

// syncFS writes all of the file system that a directory is on to the disk.
func syncFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(d.Fd())))
}
