package image

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	imagearchive "github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/platforms"

	"github.com/taibox/taibox/tai/sandbox"
)

// Save implements [sandbox.Image]. An image asked for by digest has no name in
// the archive.
func (s *Store) Save(ctx context.Context, refs []string, w io.Writer) error {
	ctx = s.context(ctx)
	opts := []imagearchive.ExportOpt{imagearchive.WithPlatform(platforms.All)}
	for _, ref := range refs {
		if named, err := parseName(ref); err == nil && isHostFS(named) {
			return fmt.Errorf("save image %s: %w: it is this machine's own", sandbox.HostFS, sandbox.ErrUnsupported)
		}
		img, err := s.Resolve(ctx, ref)
		if err != nil {
			return fmt.Errorf("save %w", err)
		}
		defer img.Release() // nothing of it goes while it is read
		rec, err := s.find(ctx, ref)
		if err != nil {
			return fmt.Errorf("save %w", err)
		}
		var names []string
		if _, byDigest := digestPrefix(ref); !byDigest && !strings.Contains(rec.Name, "@") {
			names = []string{rec.Name}
		}
		opts = append(opts, imagearchive.WithManifest(rec.Target, names...))
	}
	if len(refs) == 0 {
		return fmt.Errorf("save images: %w: none is named", sandbox.ErrImageRef)
	}
	if err := imagearchive.Export(ctx, s.content, w, opts...); err != nil {
		return fmt.Errorf("save images: %w", cause(ctx, err))
	}
	return nil
}

// Prune implements [sandbox.Image].
func (s *Store) Prune(ctx context.Context, all bool) ([]sandbox.ImageInfo, error) {
	ctx = s.context(ctx)
	removed, err := s.pruneRecords(ctx, all)
	if err == nil {
		err = s.dropAllKept(ctx)
	}
	if err == nil {
		err = s.collect(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("prune images: %w", local(err))
	}
	return removed, nil
}

func (s *Store) pruneRecords(ctx context.Context, all bool) ([]sandbox.ImageInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var removed []sandbox.ImageInfo
	_, err := s.change(ctx, func(ctx context.Context, names map[string]images.Image) error {
		for name, rec := range names {
			digest := rec.Target.Digest.String()
			used := s.holds[digest] > 0 || len(s.cfg.InUse(digest)) > 0
			if used || rec.Labels[labelOrphan] != "" || !all && name != digest {
				continue
			}
			info, err := s.describe(ctx, name, rec.Target)
			if err != nil {
				return err
			}
			removed = append(removed, info)
			delete(names, name)
		}
		return nil
	})
	slices.SortFunc(removed, func(a, b sandbox.ImageInfo) int { return strings.Compare(a.Name, b.Name) })
	return removed, err
}
