package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/taibox/taibox/internal/quota"
	"github.com/taibox/taibox/tai/volume"
)

// Config says where a [Volume] keeps its workspaces.
type Config struct {
	// Dir is the directory of the workspaces. It is made if missing, for root alone.
	Dir string
	// Logger is told what goes wrong beside calls. Default nobody.
	Logger *slog.Logger
	// Step, if set, is called before each step of what changes a workspace as a
	// whole. Tests end the process there, or let the step fail.
	Step func(step string) error
}

// Volume keeps workspaces in a directory. Make one by [Open].
type Volume struct {
	*shared
	pin *space // the only workspace there is, for one of [Volume.Pin]
}

// shared is what a volume and those that are pinned have in common.
type shared struct {
	dir   string
	log   *slog.Logger
	step  func(step string) error
	quota *quota.Enforcer
	paths keyedLock[fileKey]
	// inotify bounds what all watches take together.
	inotify *inotifyShare

	features volume.Features

	// ctx ends with the volume: what still waits, as a watch, ends with it.
	ctx  context.Context //nolint:containedctx // it is the volume's whole life
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	spaces map[string]*space
	making map[string]bool // ids that are being made
}

var errClosed = errors.New("the volume is closed")

var _ volume.Volume = (*Volume)(nil)

// Open opens the volume that is in a directory, and finishes or undoes what an
// earlier process left half done there. The context bounds the opening alone.
func Open(ctx context.Context, cfg Config) (*Volume, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("open volume %q: %w: the directory must be absolute", cfg.Dir, volume.ErrInvalid)
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	step := cfg.Step
	if step == nil {
		step = func(string) error { return nil }
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open volume: %w", err)
	}
	enforcer, err := quota.Open(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open volume %s: %w", cfg.Dir, err)
	}
	v := &Volume{shared: &shared{
		dir: cfg.Dir, log: log, step: step, quota: enforcer, inotify: shareOfInotify(), spaces: map[string]*space{}, making: map[string]bool{},
	}}
	v.ctx, v.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := v.load(ctx); err != nil {
		v.stop(errClosed)
		return nil, fmt.Errorf("open volume %s: %w", cfg.Dir, err)
	}
	v.features = volume.Features{
		volume.FeatureMount:   true,
		volume.FeatureQuota:   enforcer.Method() != quota.None,
		volume.FeatureReflink: reflinks(cfg.Dir),
	}
	return v, nil
}

// Features says what the file system of the volume can do.
func (v *Volume) Features() volume.Features { return v.features }

// Close ends all watches. Workspaces and their mounts stay.
func (v *Volume) Close() error {
	if v.pin != nil {
		return nil
	}
	v.mu.Lock() // nothing begins any more after that
	v.stop(errClosed)
	v.mu.Unlock()
	v.wg.Wait()
	return nil
}

// goAll runs functions that Close waits for, or none if it was called already.
func (v *Volume) goAll(fs ...func()) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ctx.Err() != nil {
		return errClosed
	}
	for _, f := range fs {
		v.wg.Go(f)
	}
	return nil
}

// Pin returns the volume for one workspace alone.
func (v *Volume) Pin(ctx context.Context, id string, created time.Time) (volume.Volume, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s, err := v.space(id)
	if err == nil && !s.record().CreatedAt.Equal(created) {
		err = volume.ErrNotFound
	}
	if err != nil {
		return nil, toldSpace("use", id, err)
	}
	return &Volume{shared: v.shared, pin: s}, nil
}

// space returns a workspace.
func (v *Volume) space(id string) (*space, error) {
	switch {
	case v.ctx.Err() != nil:
		return nil, errClosed
	case v.pin != nil && (v.pin.id != id || v.pin.isGone()):
		return nil, volume.ErrNotFound
	case v.pin != nil:
		return v.pin, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.spaces[id]; s != nil {
		return s, nil
	}
	return nil, volume.ErrNotFound
}
