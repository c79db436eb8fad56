package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/taibox/taibox/internal/durable"
	"github.com/taibox/taibox/internal/quota"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// discard unmounts and deletes a directory of the volume.
func (v *Volume) discard(dir string) error {
	var rec record
	if err := durable.ReadJSON(filepath.Join(dir, recordName), &rec); err == nil && rec.Layout == quota.Project && rec.Project != 0 {
		defer v.quota.LimitProject(rec.Project, quota.Limits{}) //nolint:errcheck // an id without files costs nothing
	}
	if err := quota.DetachImage(filepath.Join(dir, "fs")); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := removeTree(int(parent.Fd()), filepath.Base(dir), int(parent.Fd()), removingPrefix); err != nil {
		return err
	}
	return parent.Sync()
}

// abandon deletes a workspace that was never finished. It gets another name
// before: half of it could be taken for one that has lost its record.
func (v *Volume) abandon(dir string) error {
	to := filepath.Join(v.dir, newName(removingPrefix))
	err := os.Rename(dir, to)
	if err == nil {
		err = durable.SyncDir(v.dir)
	}
	if err == nil {
		err = v.step("create.abandon")
	}
	if err == nil {
		err = v.discard(to)
	}
	return err
}

// load reads the workspaces of the directory, and finishes what was cut.
func (v *Volume) load(ctx context.Context) error {
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		dir := filepath.Join(v.dir, e.Name())
		if strings.HasPrefix(e.Name(), removingPrefix) {
			if err := v.discard(dir); err != nil {
				v.log.Warn("a deleted workspace is left", slog.String("dir", dir), slog.Any("err", err))
			}
			continue
		}
		if !e.IsDir() || taisandbox.ValidateID(e.Name()) != nil {
			continue
		}
		if err := v.loadSpace(dir); err != nil {
			return err
		}
	}
	return nil
}

func (v *Volume) loadSpace(dir string) error {
	if err := sweepDir(dir, isRecordTemp); err != nil {
		v.log.Warn("half-written records of a workspace are left", slog.String("dir", dir), slog.Any("err", err))
	}
	var rec record
	err := durable.ReadJSON(filepath.Join(dir, recordName), &rec)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.loadUnknown(dir)
		return nil
	case err != nil:
		return err
	case rec.Phase == phaseCreating:
		if err := v.abandon(dir); err != nil {
			v.log.Warn("a workspace that was not finished is left", slog.String("dir", dir), slog.Any("err", err))
		}
		return nil
	}
	if rec.Version != recordVersion || rec.ID != filepath.Base(dir) {
		return fmt.Errorf("%s: version %d of workspace %q is not for this version of taibox", dir, rec.Version, rec.ID)
	}
	s := newSpace(dir, &rec)
	if err := v.enforced(&rec); err != nil {
		v.log.Error("a workspace is not mounted in boxes", slog.String("workspace", rec.ID), slog.Any("err", err))
	}
	if rec.Layout == quota.Image {
		// A workspace that cannot be mounted must not keep the others away. It is
		// there, and its files are not.
		if err := quota.AttachImage(s.imageFile(), s.fsDir()); err != nil {
			v.log.Error("a workspace cannot be mounted", slog.String("workspace", rec.ID), slog.Any("err", err))
			v.spaces[rec.ID] = s
			return nil
		}
	}
	s.sweep(v.log)
	v.spaces[rec.ID] = s
	return nil
}

// loadUnknown takes a directory without a record. The first thing in that of a
// new workspace is its record: what is empty is one that was never begun, and
// all else is not ours to delete.
func (v *Volume) loadUnknown(dir string) {
	if err := os.Remove(dir); err != nil {
		v.log.Error("a directory among the workspaces has no record: restore it, or move the directory away",
			slog.String("dir", dir), slog.String("record", recordName), slog.Any("err", err))
	}
}

// isRecordTemp reports whether a name is that of a record that was never
// finished, as package durable names it.
func isRecordTemp(name string) bool { return strings.HasPrefix(name, "."+recordName+".") }

// sweep deletes what is half written or half deleted.
func (s *space) sweep(log *slog.Logger) {
	for dir, half := range map[string]func(name string) bool{
		s.tmpDir():       func(string) bool { return true },
		s.snapshotsDir(): func(name string) bool { return strings.HasPrefix(name, ".") },
	} {
		if err := sweepDir(dir, half); err != nil {
			log.Warn("half-written files of a workspace are left", slog.String("workspace", s.id), slog.Any("err", err))
		}
	}
}

func sweepDir(dir string, half func(name string) bool) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	for _, name := range names {
		if half(name) {
			err = errors.Join(err, removeTree(int(d.Fd()), name, int(d.Fd()), removingPrefix))
		}
	}
	return err
}
