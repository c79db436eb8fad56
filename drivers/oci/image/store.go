package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	localcontent "github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	clog "github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"go.etcd.io/bbolt"

	"github.com/taibox/taibox/tai/sandbox"
)

const (
	namespace       = "taibox"
	snapshotterName = "overlayfs"
	// lockTimeout bounds the wait for another process that has the store open.
	lockTimeout = 2 * time.Second
)

// Config says where a store is.
type Config struct {
	// Dir is the store's directory; made if missing, for root only. Layers lie
	// in it as snapshots/N/fs.
	Dir string
	// Registries says how to reach registries, by host and port as image names
	// have them; "docker.io" for names without one. Default: HTTPS, and plain
	// HTTP for registries on a loopback address.
	Registries map[string]Registry
	// Stall is how long a registry may send nothing. Default 60 s.
	Stall time.Duration
	// InUse returns the boxes that are made of a manifest. It is called with
	// locks held: it must be quick and not call the store. Default: none.
	InUse func(digest string) []string
	// Logger is for what went wrong and was coped with. Default: discard.
	Logger *slog.Logger
}

// Store keeps images. What is not said here is said in [sandbox.Image].
type Store struct {
	cfg  Config
	log  *slog.Logger
	clog *clog.Entry // for containerd's libraries

	bolt    *bbolt.DB
	layers  snapshots.Snapshotter // the plain one, below snaps
	db      *metadata.DB
	content content.Store
	snaps   snapshots.Snapshotter
	names   images.Store
	leases  leases.Manager

	chains keyedMutex // by chain id: one load unpacks a layer
	blobs  keyedMutex // by digest: one pull fetches a blob

	pullMu sync.Mutex
	pulls  map[string]*pull // those that others may join
	stop   context.CancelCauseFunc
	ctx    context.Context //nolint:containedctx // the life of pulls, ended by Close

	// mu keeps names and what depends on them together: none is removed or
	// moved while an image is being looked up.
	mu    sync.Mutex
	holds map[string]int // by digest: resolved, and not yet known to InUse

	wg     sync.WaitGroup // pulls, and collections that Release began
	closed sync.Once
}

// Open opens a store, and clears what a process left half done that was
// killed.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	s := &Store{cfg: cfg, log: cfg.Logger, holds: map[string]int{}, pulls: map[string]*pull{}}
	s.ctx, s.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	if s.cfg.Stall == 0 {
		s.cfg.Stall = defaultStall
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	l := logrus.New()
	l.SetOutput(io.Discard)
	l.AddHook(logHook{s.log})
	s.clog = logrus.NewEntry(l)
	if s.cfg.InUse == nil {
		s.cfg.InUse = func(string) []string { return nil }
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open image store %s: %w", cfg.Dir, local(err)), s.Close())
		}
	}()
	if s.cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.emptyDir(), 0o755); err != nil {
		return nil, err
	}
	blobs, err := localcontent.NewStore(filepath.Join(s.cfg.Dir, "content"))
	if err != nil {
		return nil, err
	}
	layerDB, err := storage.NewMetaStore(filepath.Join(s.cfg.Dir, "layers.db"), func(o *bbolt.Options) error {
		o.Timeout = lockTimeout
		return nil
	})
	if err != nil {
		return nil, err
	}
	snaps, err := overlay.NewSnapshotter(s.cfg.Dir, overlay.WithMetaStore(layerDB), overlay.WithUpperdirLabel, overlay.AsynchronousRemove)
	if err != nil {
		return nil, errors.Join(err, layerDB.Close())
	}
	s.layers = snaps
	s.bolt, err = bbolt.Open(filepath.Join(s.cfg.Dir, "images.db"), 0o600, &bbolt.Options{Timeout: lockTimeout, NoStatistics: true})
	if err != nil {
		return nil, err
	}
	s.db = metadata.NewDB(s.bolt, blobs, map[string]snapshots.Snapshotter{snapshotterName: snaps})
	s.content, s.snaps = s.db.ContentStore(), s.db.Snapshotter(snapshotterName)
	s.names, s.leases = metadata.NewImageStore(s.db), metadata.NewLeaseManager(s.db)
	ctx = s.context(ctx)
	if err := s.db.Init(ctx); err != nil {
		return nil, err
	}
	if err := s.sweep(ctx); err != nil {
		// A full disk, most likely: what is there can be used all the same.
		s.log.Warn("image store could not be cleaned", slog.Any("err", err))
	}
	return s, nil
}

var errClosed = fmt.Errorf("image store is closed: %w", errdefs.ErrUnavailable)

// Close ends pulls, and closes the store once what it collects is collected.
func (s *Store) Close() error {
	var err error
	s.closed.Do(func() {
		s.stop(errClosed)
		s.wg.Wait()
		if s.layers != nil {
			err = s.layers.Close()
		}
		if s.bolt != nil {
			err = errors.Join(err, s.bolt.Close())
		}
	})
	return err
}

// context adds what containerd's libraries expect to find.
func (s *Store) context(ctx context.Context) context.Context {
	return clog.WithLogger(namespaces.WithNamespace(ctx, namespace), s.clog)
}

// logHook passes containerd's messages on.
type logHook struct{ log *slog.Logger }

func (logHook) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel, logrus.WarnLevel} }

func (h logHook) Fire(e *logrus.Entry) error {
	h.log.Warn("containerd library", slog.String("text", e.Message), slog.Any("err", e.Data[logrus.ErrorKey]))
	return nil
}

// emptyDir is the one layer of an image that has none.
func (s *Store) emptyDir() string { return filepath.Join(s.cfg.Dir, "empty") }

// sweep removes what a killed process left. The metadata know what is needed;
// but files may be there that they never heard of, and containerd looks for
// those only in stores that it removes something from. So that it does, there
// is something to remove.
func (s *Store) sweep(ctx context.Context) error {
	// Blobs that were being written, none of which is ever resumed, and
	// directories whose number will be given out again.
	if err := os.RemoveAll(filepath.Join(s.cfg.Dir, "content", "ingest")); err != nil {
		return err
	}
	if err := s.layers.(snapshots.Cleaner).Cleanup(ctx); err != nil && !errdefs.IsNotFound(err) {
		return err // a new store is not found
	}
	left, err := s.leases.List(ctx)
	if err != nil {
		return err
	}
	for _, l := range left {
		if err := s.leases.Delete(ctx, l); err != nil {
			return err
		}
	}
	id := sandbox.NewID("sweep-")
	if _, err := s.snaps.Prepare(ctx, id, ""); err != nil {
		return err
	}
	w, err := content.OpenWriter(ctx, s.content, content.WithRef(id))
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.Write([]byte(id)); err != nil {
		return err
	}
	if err := w.Commit(ctx, int64(len(id)), ""); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return s.collect(ctx)
}

// collect removes blobs and layers that neither a name nor a lease needs.
func (s *Store) collect(ctx context.Context) error {
	_, err := s.db.GarbageCollect(context.WithoutCancel(ctx))
	return local(err)
}

// keyedMutex is a mutex for each key.
type keyedMutex struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed on unlock
}

func (k *keyedMutex) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		held, taken := k.held[key]
		if !taken {
			mine := make(chan struct{})
			if k.held == nil {
				k.held = map[string]chan struct{}{}
			}
			k.held[key] = mine
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(mine)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
