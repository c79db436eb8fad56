package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/durable"
	"github.com/taibox/taibox/internal/quota"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

// recordVersion is the layout of a workspace's record on disk.
const recordVersion = 1

const (
	recordName = ".workspace.json"
	// removingPrefix begins the name of what is being deleted. It is no id.
	removingPrefix = ".removing-"
	// maxMeta bounds what a manager keeps with a workspace.
	maxMeta = 1 << 20
)

// phase says how far the making of a workspace has come.
type phase string

const (
	phaseCreating phase = "creating" // an intent: all that there is may be thrown away
	phaseReady    phase = "ready"
)

// record is what is known of a workspace on disk.
type record struct {
	Version   int             `json:"version"`
	ID        string          `json:"id"`
	Phase     phase           `json:"phase"`
	CreatedAt time.Time       `json:"created_at"`
	Layout    quota.Method    `json:"layout"`
	Project   uint32          `json:"project,omitempty"`
	Quota     volume.Quota    `json:"quota"`
	Meta      json.RawMessage `json:"meta"`
}

// space is a workspace. Its record changes by whoever has the turn.
type space struct {
	id   string
	dir  string        // of all that it has; another's once it is gone
	turn chan struct{} // has room for whoever changes it as a whole

	gone chan struct{} // closed when it is deleted, before anybody gets its id

	mu  sync.Mutex
	rec record
}

func newSpace(dir string, rec *record) *space {
	return &space{id: rec.ID, dir: dir, rec: *rec, turn: make(chan struct{}, 1), gone: make(chan struct{})}
}

func (s *space) fsDir() string        { return filepath.Join(s.dir, "fs") }
func (s *space) imageFile() string    { return filepath.Join(s.dir, "fs.img") }
func (s *space) dataDir() string      { return filepath.Join(s.dir, "fs", "data") }
func (s *space) tmpDir() string       { return filepath.Join(s.dir, "fs", "tmp") }
func (s *space) snapshotsDir() string { return filepath.Join(s.dir, "fs", "snapshots") }

func (s *space) record() record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

func (s *space) info() volume.Info {
	rec := s.record()
	return volume.Info{ID: rec.ID, Meta: slices.Clone(rec.Meta), Quota: rec.Quota, CreatedAt: rec.CreatedAt}
}

// goneOr says that the workspace is not there if that explains an error.
func (s *space) goneOr(err error) error {
	if err != nil && s.isGone() {
		return volume.ErrNotFound
	}
	return err
}

// foundOr says that the workspace is not there any more, in spite of what was
// found by its path: that may be another's. Else it is err.
func (s *space) foundOr(err error) error {
	if s.isGone() {
		return volume.ErrNotFound
	}
	return err
}

func (s *space) isGone() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// remount mounts a workspace that somebody unmounted.
func (s *space) remount() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.Layout != quota.Image || s.isGone() {
		return volume.ErrNotFound
	}
	return quota.AttachImage(s.imageFile(), s.fsDir())
}

// acquire waits for the turn to change a workspace as a whole.
func (s *space) acquire(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s.isGone() {
		s.release()
		return volume.ErrNotFound
	}
	return nil
}

func (s *space) release() { <-s.turn }

// toldSpace wraps what goes wrong with a workspace.
func toldSpace(verb, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s workspace %s: %w", verb, id, noSpace(err))
}

// noSpace names a full disk or quota, and not where it is. What else the system
// says of files of ours is nobody's concern but the administrator's.
func noSpace(err error) error {
	if errors.Is(err, volume.ErrUnsupported) {
		return err
	}
	for _, full := range []unix.Errno{unix.ENOSPC, unix.EDQUOT} {
		if errors.Is(err, full) {
			return taisandbox.FileError(full)
		}
	}
	return err
}

// Create makes an empty workspace.
func (v *Volume) Create(ctx context.Context, id string, o volume.Options) (volume.Info, error) {
	meta := o.Meta
	if len(meta) == 0 {
		meta = json.RawMessage("{}")
	}
	if err := validate(id, meta, o.Quota); err != nil {
		return volume.Info{}, fmt.Errorf("create workspace %.64q: %w", id, err)
	}
	info, err := v.create(ctx, &record{
		Version: recordVersion, ID: id, Phase: phaseCreating, CreatedAt: time.Now().UTC(), Quota: o.Quota, Meta: compact(meta),
	})
	return info, toldSpace("create", id, err)
}

func (v *Volume) create(ctx context.Context, rec *record) (_ volume.Info, err error) {
	if err := v.claim(ctx, rec.ID); err != nil {
		return volume.Info{}, err
	}
	defer func() {
		v.mu.Lock()
		delete(v.making, rec.ID)
		v.mu.Unlock()
	}()
	rec.Layout = quota.None
	if rec.Quota != (volume.Quota{}) {
		if rec.Layout = v.quota.Method(); rec.Layout == quota.None {
			return volume.Info{}, fmt.Errorf("%w: a quota: %s", volume.ErrUnsupported, v.quota.Missing())
		}
	}
	if rec.Layout == quota.Project {
		if rec.Project, err = v.quota.NewProject(v.hasProject); err != nil {
			return volume.Info{}, err
		}
	}
	s := newSpace(filepath.Join(v.dir, rec.ID), rec)
	if err := v.step("create.dir"); err != nil {
		return volume.Info{}, err
	}
	// A directory that is there already is somebody's, whatever it is.
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: on the node's disk there is a directory of this name without the record %s: restore that, or move the directory away", volume.ErrAlreadyExists, recordName)
		}
		return volume.Info{}, err
	}
	if err := v.build(ctx, s); err != nil {
		// What cannot be deleted now is when the volume is opened.
		return volume.Info{}, errors.Join(err, v.abandon(s.dir))
	}
	v.mu.Lock()
	v.spaces[rec.ID] = s
	v.mu.Unlock()
	return s.info(), nil
}

// claim takes an id for who makes a workspace.
func (v *Volume) claim(ctx context.Context, id string) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case v.ctx.Err() != nil:
		return errClosed
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.spaces[id] != nil || v.making[id] {
		return volume.ErrAlreadyExists
	}
	v.making[id] = true
	return nil
}

// hasProject reports whether a workspace has a project's id.
func (v *Volume) hasProject(id uint32) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.spaces {
		if s.record().Project == id {
			return true
		}
	}
	return false
}

// build makes what a workspace has in its directory, an intent first.
func (v *Volume) build(ctx context.Context, s *space) error {
	if err := v.step("create.intent"); err != nil {
		return err
	}
	if err := saveRecord(s.dir, &s.rec); err != nil {
		return err
	}
	if err := os.Mkdir(s.fsDir(), 0o700); err != nil {
		return err
	}
	if err := v.step("create.quota"); err != nil {
		return err
	}
	if err := v.limit(ctx, s); err != nil {
		return err
	}
	if err := v.step("create.tree"); err != nil {
		return err
	}
	for _, dir := range []string{s.dataDir(), s.tmpDir(), s.snapshotsDir()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	// What mounts it decides who enters.
	if err := os.Chmod(s.dataDir(), 0o755); err != nil {
		return err
	}
	if err := errors.Join(durable.SyncDir(s.fsDir()), durable.SyncDir(s.dir)); err != nil {
		return err
	}
	if err := v.step("create.ready"); err != nil {
		return err
	}
	s.rec.Phase = phaseReady
	if err := saveRecord(s.dir, &s.rec); err != nil {
		return err
	}
	if err := v.step("create.done"); err != nil {
		return err
	}
	return durable.SyncDir(v.dir)
}

// limit makes the file system enforce the quota of a new workspace.
func (v *Volume) limit(ctx context.Context, s *space) error {
	l := quota.Limits(s.rec.Quota)
	switch s.rec.Layout {
	case quota.Project:
		return errors.Join(v.quota.SetProject(s.fsDir(), s.rec.Project), v.quota.LimitProject(s.rec.Project, l))
	case quota.Image:
		return v.quota.MakeImage(ctx, s.imageFile(), s.fsDir(), l)
	case quota.None:
	}
	return nil
}

// enforced says why the file system does not enforce the quota that a workspace
// has; nil if it does, or there is none.
func (v *Volume) enforced(rec *record) error {
	if rec.Layout != quota.Project || rec.Quota == (volume.Quota{}) || v.quota.Method() == quota.Project {
		return nil
	}
	return fmt.Errorf("%w: the node's file system no longer enforces its quota: mount it with prjquota again", volume.ErrUnsupported)
}

// Get returns a workspace.
func (v *Volume) Get(ctx context.Context, id string) (volume.Info, error) {
	if ctx.Err() != nil {
		return volume.Info{}, context.Cause(ctx)
	}
	s, err := v.space(id)
	if err != nil {
		return volume.Info{}, toldSpace("get", id, err)
	}
	return s.info(), nil
}

// List returns all workspaces, ordered by id.
func (v *Volume) List(ctx context.Context) ([]volume.Info, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if v.ctx.Err() != nil {
		return nil, errClosed
	}
	v.mu.Lock()
	infos := make([]volume.Info, 0, len(v.spaces))
	for _, s := range v.spaces {
		infos = append(infos, s.info())
	}
	v.mu.Unlock()
	slices.SortFunc(infos, func(a, b volume.Info) int { return cmp.Compare(a.ID, b.ID) })
	return infos, nil
}

// Update changes a workspace.
func (v *Volume) Update(ctx context.Context, id string, u volume.Update) (volume.Info, error) {
	s, err := v.space(id)
	if err == nil {
		err = v.update(ctx, s, u)
	}
	if err != nil {
		return volume.Info{}, toldSpace("update", id, err)
	}
	return s.info(), nil
}

func (v *Volume) update(ctx context.Context, s *space, u volume.Update) error {
	if u.Meta != nil {
		if err := validMeta(u.Meta); err != nil {
			return err
		}
	}
	if u.Quota != nil {
		if err := validQuota(*u.Quota); err != nil {
			return err
		}
	}
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	rec := s.record()
	if u.Meta != nil {
		rec.Meta = compact(u.Meta)
	}
	if u.Quota != nil && *u.Quota != rec.Quota {
		if err := v.relimit(ctx, s, &rec, *u.Quota); err != nil {
			return err
		}
	}
	if err := v.step("update.save"); err != nil {
		return err
	}
	if err := saveRecord(s.dir, &rec); err != nil {
		return err
	}
	s.mu.Lock()
	s.rec = rec
	s.mu.Unlock()
	return nil
}

// relimit makes the file system enforce another quota.
func (v *Volume) relimit(ctx context.Context, s *space, rec *record, q volume.Quota) error {
	old := rec.Quota
	rec.Quota = q
	switch rec.Layout {
	case quota.Project:
		return v.quota.LimitProject(rec.Project, quota.Limits(q))
	case quota.Image:
		if less(q.Bytes, old.Bytes) || less(q.Files, old.Files) {
			return fmt.Errorf("%w: the quota of %d bytes and %d files can only grow here", volume.ErrUnsupported, old.Bytes, old.Files)
		}
		if q.Bytes == 0 && old.Bytes > 0 || q.Files == 0 && old.Files > 0 {
			return fmt.Errorf("%w: a quota cannot be taken away here, only grow", volume.ErrUnsupported)
		}
		err := v.quota.GrowImage(ctx, s.imageFile(), s.fsDir(), quota.Limits(q))
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%w: the quota: %w", volume.ErrUnsupported, err)
		}
		return err
	case quota.None:
	}
	if v.quota.Method() == quota.None {
		return fmt.Errorf("%w: a quota: %s", volume.ErrUnsupported, v.quota.Missing())
	}
	return fmt.Errorf("%w: a workspace that was made without a quota cannot get one here: make another and copy the files", volume.ErrUnsupported)
}

// less reports whether a limit is smaller than another; 0 is none.
func less(a, b int64) bool { return a != 0 && (b == 0 || a < b) }

// Delete deletes a workspace.
func (v *Volume) Delete(ctx context.Context, id string) error {
	s, err := v.space(id)
	if err == nil {
		err = v.remove(ctx, s)
	}
	return toldSpace("delete", id, err)
}

func (v *Volume) remove(ctx context.Context, s *space) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	if err := v.step("delete.rename"); err != nil {
		return err
	}
	to := filepath.Join(v.dir, newName(removingPrefix))
	if err := os.Rename(s.dir, to); err != nil {
		return err
	}
	s.mu.Lock() // what is being mounted again has this directory still
	close(s.gone)
	s.mu.Unlock()
	v.mu.Lock()
	delete(v.spaces, s.id)
	v.mu.Unlock()
	err := durable.SyncDir(v.dir)
	if err == nil {
		err = v.step("delete.files")
	}
	if err == nil {
		err = v.discard(to)
	}
	if err != nil { // it is gone all the same, and its space with the next start
		v.log.Warn("a deleted workspace is left", slog.String("workspace", s.id), slog.String("dir", to), slog.Any("err", err))
	}
	return nil
}

// Usage measures a workspace, its snapshots included.
func (v *Volume) Usage(ctx context.Context, id string) (volume.Usage, error) {
	var u volume.Usage
	s, err := v.space(id)
	if err == nil {
		u, err = s.usage(ctx)
	}
	return u, toldSpace("measure", id, err)
}

// MountPath returns the directory of the files.
func (v *Volume) MountPath(ctx context.Context, id string) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	t, err := v.tree(id)
	if err != nil {
		return "", toldSpace("mount", id, err)
	}
	defer t.release()
	rec := t.space.record()
	if err := v.enforced(&rec); err != nil {
		return "", toldSpace("mount", id, err)
	}
	return t.space.dataDir(), nil
}
