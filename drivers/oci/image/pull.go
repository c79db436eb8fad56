package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/taibox/taibox/internal/tracing"
	"github.com/taibox/taibox/tai/sandbox"
)

const (
	progressEvery = 100 * time.Millisecond
	// keepFor is how long what a failed pull has fetched waits for the next one.
	keepFor = time.Hour
	// keepPrefix begins the names of leases that hold it.
	keepPrefix = "keep-"
)

var newGroup = errgroup.WithContext

// errLeft is why a pull ends that nobody waits for any more.
var errLeft = errors.New("nobody waits for the image any more")

// pull is one image on its way here. Several callers may wait for it.
type pull struct {
	key   string
	named reference.Named
	auth  *sandbox.RegistryAuth
	end   context.CancelCauseFunc
	done  chan struct{} // closed once digest and err are set

	waiters int // guarded by Store.pullMu

	mu     sync.Mutex
	layers []sandbox.PullProgress // in the image's order
	digest string
	err    error
}

// Exists implements [sandbox.Image].
func (s *Store) Exists(ctx context.Context, ref string) (bool, error) {
	_, err := s.InspectImage(ctx, ref)
	if errors.Is(err, sandbox.ErrImageNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Pull implements [sandbox.Image].
func (s *Store) Pull(ctx context.Context, ref string, opts sandbox.PullOptions) (<-chan sandbox.PullProgress, error) {
	named, err := parseName(ref)
	if _, isDigest := digest.Parse(ref); isDigest == nil {
		err = fmt.Errorf("image %s: %w: a digest alone says no registry", ref, sandbox.ErrImageRef)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("pull %w", err)
	case isHostFS(named):
		return nil, errHostFS("pull")
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	p, err := s.join(ctx, named, opts.Auth)
	if err != nil {
		return nil, err
	}
	out := make(chan sandbox.PullProgress, 1)
	go s.follow(ctx, p, out)
	return out, nil
}

// join makes the caller wait for a pull, which is begun if there is none. Who
// has other credentials gets a pull of his own.
func (s *Store) join(caller context.Context, named reference.Named, auth *sandbox.RegistryAuth) (*pull, error) {
	key := named.String()
	if auth != nil {
		key += fmt.Sprintf(" %x", sha256.Sum256([]byte(auth.Server+"\x00"+auth.Username+"\x00"+auth.Password)))
	}
	s.pullMu.Lock()
	defer s.pullMu.Unlock()
	if s.ctx.Err() != nil {
		return nil, context.Cause(s.ctx)
	}
	p := s.pulls[key]
	if p == nil {
		p = &pull{key: key, named: named, auth: auth, done: make(chan struct{})}
		ctx, end := context.WithCancelCause(s.ctx)
		p.end = end
		s.pulls[key] = p
		ctx = tracing.Keep(ctx, caller)
		s.wg.Go(func() { s.runPull(ctx, p) })
	}
	p.waiters++
	return p, nil
}

// leave ends a pull that nobody waits for any more. Who comes later begins a
// new one, which goes on with what there is.
func (s *Store) leave(p *pull) {
	s.pullMu.Lock()
	defer s.pullMu.Unlock()
	if p.waiters--; p.waiters == 0 {
		s.forgetLocked(p)
		p.end(errLeft)
	}
}

func (s *Store) forgetLocked(p *pull) {
	if s.pulls[p.key] == p {
		delete(s.pulls, p.key)
	}
}

func (s *Store) runPull(ctx context.Context, p *pull) {
	ctx, span := tracing.Start(ctx, "image.pull")
	got, err := s.pullImage(s.context(ctx), p)
	span.Set(tracing.Image, reference.FamiliarString(p.named)).End(err)
	if err != nil {
		err = fmt.Errorf("pull image %s: %w", reference.FamiliarString(p.named), err)
	}
	s.pullMu.Lock()
	s.forgetLocked(p)
	s.pullMu.Unlock()
	p.mu.Lock()
	p.digest, p.err = got, err
	p.mu.Unlock()
	close(p.done)
	p.end(nil)
}

// pullImage fetches an image and records it, and returns its digest.
func (s *Store) pullImage(ctx context.Context, p *pull) (_ string, err error) {
	lease, err := s.leases.Create(ctx, leases.WithID(sandbox.NewID("pull-")))
	if err != nil {
		return "", local(err)
	}
	garbage := false
	defer func() {
		if err == nil {
			s.dropKept(ctx, p.keepID())
		} else if !errors.Is(err, sandbox.ErrNoSpace) {
			s.keep(ctx, p, lease)
		}
		s.endLease(ctx, lease, garbage || errors.Is(err, sandbox.ErrNoSpace))
	}()
	ctx = leases.WithLease(ctx, lease.ID)
	r, desc, err := s.reach(ctx, p)
	if err != nil {
		return "", err
	}
	defer r.close()
	f, err := r.fetcher(ctx)
	if err != nil {
		return "", registryError(ctx, err)
	}
	pk, err := s.choosePulled(ctx, f, p, desc, lease.ID)
	if err != nil {
		return "", cause(ctx, err)
	}
	if err := s.fetchLayers(ctx, f, p, pk, lease.ID); err != nil {
		return "", cause(ctx, err)
	}
	if garbage, err = s.record(ctx, []pick{*pk}); err != nil {
		return "", cause(ctx, err)
	}
	return pk.desc.Digest.String(), nil
}

// reach finds what an image's name means at its registry. Where that is
// configured, a registry that refuses our credentials is asked again as by
// anybody.
func (s *Store) reach(ctx context.Context, p *pull) (*remote, ocispec.Descriptor, error) {
	r, err := s.remote(p.named, p.auth)
	if err != nil {
		return nil, ocispec.Descriptor{}, err
	}
	desc, err := r.resolve(ctx)
	if domain := reference.Domain(p.named); p.auth != nil && errors.Is(err, sandbox.ErrRegistryAuth) && s.cfg.Registries[domain].AnonymousRetry {
		s.log.Info("registry refuses the credentials: trying without", slog.String("image", reference.FamiliarString(p.named)))
		r.close()
		if r, err = s.remote(p.named, nil); err != nil {
			return nil, ocispec.Descriptor{}, err
		}
		desc, err = r.resolve(ctx)
	}
	if err != nil {
		r.close()
		return nil, ocispec.Descriptor{}, err
	}
	return r, desc, nil
}

// choosePulled finds, beginning at what the name means, the manifest for this
// machine.
func (s *Store) choosePulled(ctx context.Context, f remotes.Fetcher, p *pull, desc ocispec.Descriptor, lease string) (*pick, error) {
	a := newArchive(s.content, lease)
	if err := s.fetchMetadata(ctx, f, a, desc, maxIndexDepth); err != nil {
		return nil, err
	}
	g := group{name: reference.FamiliarString(p.named)}
	left := maxManifests
	if err := a.collect(ctx, &g, desc, maxIndexDepth, &left); err != nil {
		return nil, err
	}
	best, err := g.best()
	if err != nil {
		return nil, err
	}
	pk := &pick{candidate: best[0], names: []string{p.named.String()}}
	if len(pk.config.RootFS.DiffIDs) != len(pk.manifest.Layers) {
		return nil, corrupt("%d layers, but %d diff ids", len(pk.manifest.Layers), len(pk.config.RootFS.DiffIDs))
	}
	return pk, nil
}

// keepID names the lease on what a pull has fetched that failed.
func (p *pull) keepID() string {
	return keepPrefix + digest.FromString(p.key).Encoded()
}

// keep lets what a failed pull has fetched wait for the next one.
func (s *Store) keep(ctx context.Context, p *pull, lease leases.Lease) {
	ctx = leases.WithLease(context.WithoutCancel(ctx), "")
	s.dropKept(ctx, p.keepID())
	kept, err := s.leases.Create(ctx, leases.WithID(p.keepID()), leases.WithExpiration(keepFor))
	if err == nil {
		var list []leases.Resource
		list, err = s.leases.ListResources(ctx, lease)
		for _, r := range list {
			err = errors.Join(err, s.leases.AddResource(ctx, kept, r))
		}
	}
	if err != nil {
		s.log.Warn("what a pull fetched is not kept", slog.Any("err", err))
	}
}

func (s *Store) dropKept(ctx context.Context, id string) {
	err := s.leases.Delete(context.WithoutCancel(ctx), leases.Lease{ID: id})
	if err != nil && !errdefs.IsNotFound(err) {
		s.log.Warn("what a pull fetched is removed later", slog.Any("err", err))
	}
}

// dropAllKept lets go of what failed pulls have fetched.
func (s *Store) dropAllKept(ctx context.Context) error {
	list, err := s.leases.List(ctx)
	if err != nil {
		return err
	}
	for _, l := range list {
		if strings.HasPrefix(l.ID, keepPrefix) {
			s.dropKept(ctx, l.ID)
		}
	}
	return nil
}
