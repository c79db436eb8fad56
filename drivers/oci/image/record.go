package image

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"

	"github.com/taibox/taibox/tai/sandbox"
)

const (
	// labelOrphan marks the record of an image whose last name went to another
	// one while boxes were made of it. It goes with the last of these boxes.
	labelOrphan = "dev.taibox/orphan"

	// What the garbage collector follows.
	labelRef    = "containerd.io/gc.ref.content."
	labelLayers = "containerd.io/gc.ref.snapshot." + snapshotterName
)

// record writes the names of loaded images, all at once. It reports whether
// another image lost its last name to them.
func (s *Store) record(ctx context.Context, picks []pick) (lost bool, err error) {
	// Not within the transaction: the content store takes a lock of its own
	// before it begins one, and the garbage collector waits for that lock.
	for _, p := range picks {
		if err := s.link(ctx, &p.candidate); err != nil {
			return false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change(ctx, func(_ context.Context, names map[string]images.Image) error {
		for _, p := range picks {
			target := ocispec.Descriptor{MediaType: p.desc.MediaType, Digest: p.desc.Digest, Size: p.desc.Size, Platform: p.desc.Platform}
			for _, name := range p.names {
				names[name] = images.Image{Name: name, Target: target}
			}
		}
		return nil
	})
}

// change lets edit change the records, all at once, and settles them. It
// reports whether an image lost its last name. The caller holds mu. What edit
// does with content may only be to read it: see [Store.record].
func (s *Store) change(ctx context.Context, edit func(ctx context.Context, names map[string]images.Image) error) (lost bool, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		ctx := boltutil.WithTransaction(ctx, tx)
		before, err := s.names.List(ctx)
		if err != nil {
			return err
		}
		after := map[string]images.Image{}
		for _, rec := range before {
			after[rec.Name] = rec
		}
		if err := edit(ctx, after); err != nil {
			return err
		}
		lost = s.settle(before, after)
		return s.write(ctx, before, after)
	})
	return lost, err
}

// link labels an image's blobs, so that what it needs is kept with it.
func (s *Store) link(ctx context.Context, c *candidate) error {
	kept := map[string]string{labelRef + "config": c.manifest.Config.Digest.String()}
	for i, l := range c.manifest.Layers {
		kept[labelRef+"l."+strconv.Itoa(i)] = l.Digest.String()
		verified := map[string]string{labels.LabelUncompressed: c.config.RootFS.DiffIDs[i].String()}
		if err := s.label(ctx, l.Digest, verified); err != nil {
			return err
		}
	}
	if err := s.label(ctx, c.desc.Digest, kept); err != nil || len(c.manifest.Layers) == 0 {
		return err
	}
	return s.label(ctx, c.manifest.Config.Digest, map[string]string{labelLayers: identity.ChainID(c.config.RootFS.DiffIDs).String()})
}

func (s *Store) label(ctx context.Context, blob digest.Digest, labels map[string]string) error {
	var paths []string
	for k := range labels {
		paths = append(paths, "labels."+k)
	}
	_, err := s.content.Update(ctx, content.Info{Digest: blob, Labels: labels}, paths...)
	return err
}

// settle decides about images that lost their last name: they stay, as
// orphans, while a box needs them. So it goes with orphans of before.
func (s *Store) settle(before []images.Image, after map[string]images.Image) (lost bool) {
	named := map[string]bool{}
	for _, rec := range after {
		if rec.Labels[labelOrphan] == "" {
			named[rec.Target.Digest.String()] = true
		}
	}
	for _, rec := range before {
		digest := rec.Target.Digest.String()
		switch {
		case named[digest]:
			if after[digest].Labels[labelOrphan] != "" {
				delete(after, digest)
			}
		case s.holds[digest] == 0 && len(s.cfg.InUse(digest)) == 0:
			lost = true
			delete(after, digest)
		default:
			after[digest] = images.Image{Name: digest, Target: rec.Target, Labels: map[string]string{labelOrphan: "true"}}
		}
	}
	return lost
}

// write makes the records of after out of those of before.
func (s *Store) write(ctx context.Context, before []images.Image, after map[string]images.Image) error {
	for _, rec := range before {
		now, stays := after[rec.Name]
		delete(after, rec.Name)
		var err error
		if !stays {
			err = s.names.Delete(ctx, rec.Name)
		} else if now.Target.Digest != rec.Target.Digest || now.Labels[labelOrphan] != rec.Labels[labelOrphan] {
			_, err = s.names.Update(ctx, now)
		}
		if err != nil {
			return err
		}
	}
	for _, rec := range after {
		if _, err := s.names.Create(ctx, rec); err != nil {
			return err
		}
	}
	return nil
}

// RemoveImage implements [sandbox.Image]. A digest stands for the only name of
// its image.
func (s *Store) RemoveImage(ctx context.Context, ref string) error {
	ctx = s.context(ctx)
	if named, err := parseName(ref); err == nil && isHostFS(named) {
		return errHostFS("remove")
	}
	if err := s.removeRecord(ctx, ref); err != nil {
		return fmt.Errorf("remove %w", local(err))
	}
	if err := s.collect(ctx); err != nil {
		s.log.Warn("layers of a removed image are removed later", slog.String("image", ref), slog.Any("err", err))
	}
	return nil
}

func (s *Store) removeRecord(ctx context.Context, ref string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, err := s.find(ctx, ref)
	if err != nil {
		return err
	}
	_, err = s.change(ctx, func(_ context.Context, names map[string]images.Image) error {
		delete(names, rec.Name)
		return s.mayRemove(ref, rec, names)
	})
	return err
}

// mayRemove says why a record cannot be removed, given those that would be left.
func (s *Store) mayRemove(ref string, rec images.Image, left map[string]images.Image) error {
	digest := rec.Target.Digest.String()
	var siblings []string
	for _, r := range left {
		if r.Target.Digest == rec.Target.Digest {
			siblings = append(siblings, displayName(r.Name))
		}
	}
	if len(siblings) > 0 {
		if named, err := parseName(ref); err != nil || named.String() != rec.Name { // by digest, that is
			siblings = append(siblings, displayName(rec.Name))
			slices.Sort(siblings)
			return fmt.Errorf("image %s: %w: it has the names %s", ref, sandbox.ErrImageInUse, strings.Join(siblings, ", "))
		}
		return nil
	}
	if users := s.cfg.InUse(digest); len(users) > 0 {
		slices.Sort(users)
		return fmt.Errorf("image %s: %w by %s", ref, sandbox.ErrImageInUse, strings.Join(users, ", "))
	}
	if s.holds[digest] > 0 {
		return fmt.Errorf("image %s: %w by a box that is being made", ref, sandbox.ErrImageInUse)
	}
	return nil
}

// Release tells the store that a box made of digest is gone. An image that was
// kept for boxes only is removed, in the background.
func (s *Store) Release(digest string) {
	ctx := s.context(context.Background())
	rec, err := s.names.Get(ctx, digest)
	if err != nil || rec.Labels[labelOrphan] == "" {
		return
	}
	s.wg.Go(func() {
		if err := s.dropOrphans(ctx); err != nil {
			s.log.Warn("image that no box needs is removed later", slog.String("image", digest), slog.Any("err", err))
		}
	})
}

func (s *Store) dropOrphans(ctx context.Context) error {
	s.mu.Lock()
	lost, err := s.change(ctx, func(context.Context, map[string]images.Image) error { return nil })
	s.mu.Unlock()
	if err != nil || !lost {
		return err
	}
	return s.collect(ctx)
}
