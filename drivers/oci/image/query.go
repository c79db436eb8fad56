package image

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/taibox/taibox/tai/sandbox"
)

// labelUpper is where the snapshotter says a layer's directory is.
const labelUpper = "containerd.io/snapshot/overlay.upperdir"

// Resolved is an image that a box is about to be made of.
type Resolved struct {
	Info sandbox.ImageInfo
	// Lowers are the image's layers as absolute directories, topmost first, as
	// an overlay's lowerdir wants them. Empty for hostfs.
	Lowers []string

	release func()
}

// Release ends the hold that keeps the image from being removed before
// Config.InUse knows of the box. Further calls do nothing.
func (r Resolved) Release() {
	if r.release != nil {
		r.release()
	}
}

// Resolve finds an image by name or digest and holds it until
// [Resolved.Release].
func (s *Store) Resolve(ctx context.Context, ref string) (Resolved, error) {
	if ref == sandbox.HostFS {
		return Resolved{Info: HostFS()}, nil
	}
	ctx = s.context(ctx)
	s.mu.Lock()
	rec, err := s.find(ctx, ref)
	if err == nil {
		s.holds[rec.Target.Digest.String()]++
	}
	s.mu.Unlock()
	if err != nil {
		return Resolved{}, err
	}
	return s.resolved(ctx, rec)
}

// ResolveDigest is [Store.Resolve] for a box that exists: whatever became of
// the image's names, it is the one that the box was made of.
func (s *Store) ResolveDigest(ctx context.Context, digest string) (Resolved, error) {
	return s.Resolve(ctx, digest)
}

func (s *Store) resolved(ctx context.Context, rec images.Image) (Resolved, error) {
	digest := rec.Target.Digest.String()
	r := Resolved{release: sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.holds[digest]--; s.holds[digest] == 0 {
			delete(s.holds, digest)
		}
	})}
	info, err := s.describe(ctx, rec.Name, rec.Target)
	if err == nil {
		r.Info = info
		r.Lowers, err = s.imageLowers(ctx, rec.Target)
	}
	if err != nil {
		r.Release()
		return Resolved{}, fmt.Errorf("image %s: %w", displayName(rec.Name), err)
	}
	return r, nil
}

// find looks up the record of a name or digest. A digest may have several; the
// first by name is as good as any.
func (s *Store) find(ctx context.Context, ref string) (images.Image, error) {
	prefix, isDigest := digestPrefix(ref)
	named, err := parseName(ref)
	if err != nil && !isDigest {
		return images.Image{}, err
	}
	if err == nil {
		rec, err := s.names.Get(ctx, named.String())
		if err == nil || !errdefs.IsNotFound(err) {
			return rec, err
		}
	}
	all, err := s.names.List(ctx)
	if err != nil {
		return images.Image{}, err
	}
	var found []images.Image
	for _, rec := range all {
		if isDigest && strings.HasPrefix(rec.Target.Digest.String(), prefix) || sameDigest(named, rec) {
			found = append(found, rec)
		}
	}
	if len(found) == 0 {
		return images.Image{}, notFound(ref)
	}
	for _, rec := range found {
		if rec.Target.Digest != found[0].Target.Digest {
			return images.Image{}, fmt.Errorf("image %s: %w: several images begin so", ref, sandbox.ErrImageRef)
		}
	}
	return found[0], nil
}

// sameDigest reports whether name@digest means rec.
func sameDigest(named reference.Named, rec images.Image) bool {
	d, ok := named.(reference.Digested)
	if !ok || d.Digest() != rec.Target.Digest {
		return false
	}
	other, err := reference.ParseNormalizedNamed(rec.Name)
	return err == nil && other.Name() == named.Name()
}

// HostFS describes the built-in image.
func HostFS() sandbox.ImageInfo {
	return sandbox.ImageInfo{
		Name: sandbox.HostFS, BuiltIn: true, Platform: platforms.Format(platforms.Normalize(platforms.DefaultSpec())),
		Config: sandbox.ImageConfig{
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Cmd: []string{"/bin/sh"},
		},
	}
}

// InspectImage implements [sandbox.Image].
func (s *Store) InspectImage(ctx context.Context, ref string) (sandbox.ImageInfo, error) {
	if ref == sandbox.HostFS {
		return HostFS(), nil
	}
	ctx = s.context(ctx)
	rec, err := s.find(ctx, ref)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	info, err := s.describe(ctx, rec.Name, rec.Target)
	if errdefs.IsNotFound(err) {
		return sandbox.ImageInfo{}, notFound(ref) // removed just now
	}
	return info, err
}

// ListImages implements [sandbox.Image].
func (s *Store) ListImages(ctx context.Context) ([]sandbox.ImageInfo, error) {
	ctx = s.context(ctx)
	recs, err := s.names.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var infos []sandbox.ImageInfo
	for _, rec := range recs {
		info, err := s.describe(ctx, rec.Name, rec.Target)
		if err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			s.log.Warn("image cannot be read", slog.String("image", rec.Name), slog.Any("err", err))
			continue
		}
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b sandbox.ImageInfo) int { return strings.Compare(a.Name, b.Name) })
	return slices.Insert(infos, 0, HostFS()), nil
}

// read returns the manifest and the configuration of an image in the store.
func (s *Store) read(ctx context.Context, target ocispec.Descriptor) (*ocispec.Manifest, *config, error) {
	data, err := content.ReadBlob(ctx, s.content, target)
	if err != nil {
		return nil, nil, err
	}
	m, err := parseManifest(data, target.MediaType)
	if err != nil {
		return nil, nil, err
	}
	if data, err = content.ReadBlob(ctx, s.content, m.Config); err != nil {
		return nil, nil, err
	}
	c, err := parseConfig(data)
	return m, c, err
}

func (s *Store) describe(ctx context.Context, name string, target ocispec.Descriptor) (sandbox.ImageInfo, error) {
	m, c, err := s.read(ctx, target)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	return imageInfo(name, target, m, c), nil
}

func imageInfo(name string, target ocispec.Descriptor, m *ocispec.Manifest, c *config) sandbox.ImageInfo {
	size := target.Size + m.Config.Size
	for _, l := range m.Layers {
		size += l.Size
	}
	return sandbox.ImageInfo{
		Name: displayName(name), Digest: target.Digest.String(), Platform: platforms.Format(c.platform(target.Platform)),
		SizeBytes: size, CreatedAt: c.created(), Config: c.runConfig(),
	}
}

// imageLowers returns an image's layer directories, topmost first.
func (s *Store) imageLowers(ctx context.Context, target ocispec.Descriptor) ([]string, error) {
	_, c, err := s.read(ctx, target)
	if err != nil {
		return nil, err
	}
	if len(c.RootFS.DiffIDs) == 0 {
		return []string{s.emptyDir()}, nil
	}
	return s.lowers(ctx, identity.ChainID(c.RootFS.DiffIDs).String())
}

// lowers returns the directories of a chain of layers, topmost first. A layer
// whose root is opaque hides all below it, which an overlay does not see to.
func (s *Store) lowers(ctx context.Context, chain string) ([]string, error) {
	var dirs []string
	for chain != "" {
		info, err := s.snaps.Stat(ctx, chain)
		if err != nil {
			return nil, err
		}
		if info.Kind != snapshots.KindCommitted {
			return nil, fmt.Errorf("layer %s is not whole: %w", chain, errdefs.ErrInternal)
		}
		dir := info.Labels[labelUpper]
		dirs = append(dirs, dir)
		opaque, err := isOpaque(dir)
		if err != nil {
			return nil, err
		}
		if opaque {
			break
		}
		chain = info.Parent
	}
	return dirs, nil
}
