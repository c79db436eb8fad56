package hostfs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

// Config says where things are.
type Config struct {
	// Dir is where layers are kept; made if missing, for root only.
	Dir string
	// RunDir is where the machine's directories are mounted; made if missing.
	// Boxes must be able to get there, so its parents must be 0711 at least.
	RunDir string
	// InUse reports whether a running box has the layer with this ID. Layers
	// that no box has are removed. It is called with locks held: it must be
	// quick and not call the HostFS. Default: all are kept.
	InUse func(id string) bool
	// Machine is the root of the file system to take from. Default /.
	Machine string
	// Logger is for what went wrong and was coped with. Default: discard.
	Logger *slog.Logger
}

// Mount is a directory to mount in a box, read-only and without set-user-ID
// programs or devices.
type Mount struct {
	Source string // of the machine: a mount of this package
	Target string // in the box
}

// View is the machine as a box sees it.
type View struct {
	ID     string  // of the layer
	Root   string  // directory of the layer
	Mounts []Mount // to be put over it, in order

	release func()
}

// Release tells that the box has mounts of its own by now, and that
// Config.InUse knows of its layer. Further calls do nothing.
func (v View) Release() {
	if v.release != nil {
		v.release()
	}
}

// HostFS keeps the layer and the mounts up to date with the machine.
type HostFS struct {
	cfg Config
	log *slog.Logger

	mu    sync.Mutex
	layer layer
	views map[string]int // by layer: not yet released
	mnt   *mounts        // the current ones; nil before the first use
	old   []*mounts
}

// Open removes what an earlier process left and prepares for the first use.
func Open(ctx context.Context, cfg Config) (*HostFS, error) {
	if cfg.Machine == "" {
		cfg.Machine = "/"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.InUse == nil {
		cfg.InUse = func(string) bool { return true }
	}
	h := &HostFS{cfg: cfg, log: cfg.Logger, views: map[string]int{}}
	if err := h.open(ctx); err != nil {
		return nil, fmt.Errorf("open hostfs: %w", local(err))
	}
	return h, nil
}

func (h *HostFS) open(ctx context.Context) (err error) {
	if h.cfg.Dir, err = filepath.Abs(h.cfg.Dir); err != nil {
		return err
	}
	if h.cfg.RunDir, err = filepath.Abs(h.cfg.RunDir); err != nil {
		return err
	}
	if err := os.MkdirAll(h.cfg.Dir, 0o700); err != nil {
		return err
	}
	if err := UnmountAll(h.cfg.RunDir); err != nil {
		return err
	}
	if err := os.MkdirAll(h.cfg.RunDir, 0o711); err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(h.cfg.Dir, tmpPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// Use returns the machine as it is now. The caller releases it.
func (h *HostFS) Use(ctx context.Context) (View, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.refresh(ctx); err != nil {
		return View{}, fmt.Errorf("prepare hostfs: %w", local(err))
	}
	m, id := h.mnt, h.layer.id
	m.users++
	h.views[id]++
	return View{ID: id, Root: h.layer.root, Mounts: m.list, release: sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		m.users--
		if h.views[id]--; h.views[id] == 0 {
			delete(h.views, id)
		}
		h.dropOld()
	})}, nil
}

// refresh brings layer and mounts up to date. The caller holds mu.
func (h *HostFS) refresh(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if h.layer.root == "" || h.layer.changed() {
		next, err := h.build(ctx)
		if err != nil {
			return err
		}
		h.layer = next
		h.prune()
	}
	if h.mnt == nil || h.mnt.outdated() {
		next, err := mountMachine(h.cfg.Machine, h.cfg.RunDir)
		if err != nil {
			return err
		}
		if h.mnt != nil {
			h.old = append(h.old, h.mnt)
		}
		h.mnt = next
		h.dropOld()
	}
	return nil
}

// dropOld unmounts what was replaced and is no longer used. The caller holds mu.
func (h *HostFS) dropOld() {
	var used []*mounts
	for _, m := range h.old {
		if m.users > 0 {
			used = append(used, m)
		} else if err := UnmountAll(m.dir); err != nil {
			h.log.Warn("outdated mounts of the machine stay", slog.String("path", m.dir), slog.Any("err", err))
		}
	}
	h.old = used
}

// prune removes layers that neither a box nor the next box has.
func (h *HostFS) prune() {
	entries, err := os.ReadDir(h.cfg.Dir)
	for _, e := range entries {
		id := e.Name()
		if id == h.layer.id || h.views[id] > 0 || strings.HasPrefix(id, tmpPrefix) || h.cfg.InUse(id) {
			continue
		}
		err = errors.Join(err, os.RemoveAll(filepath.Join(h.cfg.Dir, id)))
	}
	if err != nil {
		h.log.Warn("outdated layers of hostfs stay", slog.Any("err", err))
	}
}

// Close unmounts the machine's directories. Boxes that run are not disturbed.
func (h *HostFS) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mnt, h.old = nil, nil
	return UnmountAll(h.cfg.RunDir)
}

func local(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", sandbox.ErrNoSpace, err)
	}
	return err
}
