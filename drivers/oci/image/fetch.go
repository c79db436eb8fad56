package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/internal/tracing"
	"github.com/taibox/taibox/tai/sandbox"
)

// maxRestarts is how often a blob is fetched anew that was not what its digest
// says.
const maxRestarts = 2

// fetchMetadata fetches what says what an image is made of, as far as it can
// be for this machine: indexes, manifests, configurations.
func (s *Store) fetchMetadata(ctx context.Context, f remotes.Fetcher, a *archive, desc ocispec.Descriptor, depth int) error {
	if len(a.blobs) >= maxManifests || depth < 0 {
		return corrupt("more than %d manifests, or indexes nested more than %d deep", maxManifests, maxIndexDepth)
	}
	data, err := s.fetchSmall(ctx, f, a, desc)
	if err != nil {
		return err
	}
	switch {
	case images.IsIndexType(desc.MediaType):
		x, err := parseIndex(data, desc.MediaType)
		if err != nil {
			return err
		}
		here := platforms.Only(platforms.DefaultSpec())
		for _, child := range x.Manifests {
			if child.Platform != nil && !here.Match(*child.Platform) {
				continue
			}
			if err := s.fetchMetadata(ctx, f, a, child, depth-1); err != nil {
				return err
			}
		}
	case images.IsManifestType(desc.MediaType):
		m, err := parseManifest(data, desc.MediaType)
		if err != nil {
			return err
		}
		if !images.IsConfigType(m.Config.MediaType) {
			return nil
		}
		if _, err := s.fetchSmall(ctx, f, a, m.Config); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
	}
	return nil
}

// fetchSmall fetches a blob that is read as a whole.
func (s *Store) fetchSmall(ctx context.Context, f remotes.Fetcher, a *archive, desc ocispec.Descriptor) ([]byte, error) {
	if desc.Size > maxMetadataBytes {
		return nil, corrupt("%.200s: metadata of %d bytes", desc.Digest, desc.Size)
	}
	if err := s.fetchBlob(ctx, f, desc, func(int64) {}); err != nil {
		return nil, err
	}
	a.blobs[desc.Digest] = file{digest: desc.Digest, size: desc.Size}
	return a.blob(ctx, desc)
}

// fetchBlob sees to it that a blob is there, whole and verified, under the
// lease of ctx. What has come is kept over failures, and fetched no second
// time; but of a blob that turns out to be another one nothing is kept. It is
// given up when the registry sends nothing for too long, however long it takes.
func (s *Store) fetchBlob(ctx context.Context, f remotes.Fetcher, desc ocispec.Descriptor, at func(offset int64)) error {
	if err := desc.Digest.Validate(); err != nil || desc.Size < 0 {
		return corrupt("digest %.200q of %d bytes", desc.Digest, desc.Size)
	}
	desc.URLs = nil // the registry has it, and nobody else is asked
	unlock, err := s.blobs.lock(ctx, desc.Digest.String())
	if err != nil {
		return err
	}
	defer unlock()
	restarts := 0
	err = retry(ctx, blobTries, func() (bool, error) {
		for {
			progressed, err := s.fetchRest(ctx, f, desc, at)
			if !errors.Is(err, sandbox.ErrImageCorrupt) || restarts == maxRestarts {
				return progressed, err
			}
			restarts++
		}
	})
	if err != nil {
		return fmt.Errorf("%s: %w", desc.Digest, err)
	}
	at(desc.Size)
	return nil
}

// fetchRest fetches what is missing of a blob.
func (s *Store) fetchRest(ctx context.Context, f remotes.Fetcher, desc ocispec.Descriptor, at func(int64)) (progressed bool, err error) {
	ref := "pull-" + desc.Digest.String()
	w, err := content.OpenWriter(ctx, s.content, content.WithRef(ref), content.WithDescriptor(desc))
	if errdefs.IsAlreadyExists(err) {
		info, err := s.content.Info(ctx, desc.Digest)
		if err == nil && info.Size != desc.Size {
			err = fmt.Errorf("%w: it has %d bytes instead of %d", sandbox.ErrImageCorrupt, info.Size, desc.Size)
		}
		return false, err
	}
	if err != nil {
		return false, cause(ctx, err)
	}
	defer func() {
		w.Close() //nolint:errcheck // after Commit there is nothing to lose, before it nothing to keep
		if errors.Is(err, sandbox.ErrImageCorrupt) || errors.Is(err, sandbox.ErrNoSpace) {
			err = errors.Join(err, s.content.Abort(context.WithoutCancel(ctx), ref))
		}
	}()
	st, err := w.Status()
	if err != nil {
		return false, err
	}
	if st.Offset > desc.Size {
		return false, corrupt("more than %d bytes", desc.Size)
	}
	at(st.Offset)
	end := st.Offset
	if end < desc.Size {
		end, err = s.copyRest(ctx, f, desc, w, st.Offset, at)
		if err != nil {
			return end > st.Offset, err
		}
	}
	err = w.Commit(ctx, desc.Size, desc.Digest)
	switch {
	case err == nil, errdefs.IsAlreadyExists(err):
		return true, nil
	case errdefs.IsFailedPrecondition(err):
		return true, corrupt("what the registry sent has another digest or size")
	}
	return true, cause(ctx, err)
}

var errStalled = errors.New("it sends nothing any more")

// copyRest appends to w what a registry has from offset on, and returns where
// that ended.
func (s *Store) copyRest(ctx context.Context, f remotes.Fetcher, desc ocispec.Descriptor, w io.Writer, offset int64, at func(int64)) (int64, error) {
	link, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(s.cfg.Stall, func() {
		cancel(fmt.Errorf("%w: %w for %v", sandbox.ErrRegistryUnavailable, errStalled, s.cfg.Stall))
	})
	defer watchdog.Stop()
	rc, err := f.Fetch(link, desc)
	if err != nil {
		return offset, registryError(link, err)
	}
	defer rc.Close()
	if offset > 0 {
		if _, err := rc.(io.Seeker).Seek(offset, io.SeekStart); err != nil {
			return offset, registryError(link, err)
		}
	}
	begin := offset
	buf := make([]byte, 256<<10)
	for {
		n, err := rc.Read(buf)
		if n > 0 {
			if offset+int64(n) > desc.Size {
				return offset, corrupt("the registry sends more than %d bytes", desc.Size)
			}
			if _, err := w.Write(buf[:n]); err != nil {
				return offset, cause(ctx, err)
			}
			offset += int64(n)
			at(offset)
			watchdog.Reset(s.cfg.Stall)
		}
		switch {
		case errors.Is(err, io.EOF) && offset == desc.Size:
			return offset, nil
		case errors.Is(err, io.EOF):
			return offset, fmt.Errorf("%w: it ended at byte %d of %d", sandbox.ErrRegistryUnavailable, offset, desc.Size)
		case errdefs.IsFailedPrecondition(err) && reason.Of(err) == "":
			return offset, corrupt("the registry sends more than %d bytes", desc.Size)
		case offset == begin && offset > 0 && refusesRange(err):
			return offset, corrupt("the registry does not go on at byte %d", offset)
		case err != nil:
			return offset, registryError(link, err)
		}
	}
}

// refusesRange reports whether a registry cannot go on where a fetch ended.
func refusesRange(err error) bool {
	status, ok := errors.AsType[remoteerrors.ErrUnexpectedStatus](err)
	return ok && status.StatusCode == http.StatusRequestedRangeNotSatisfiable
}

// fetchLayers fetches an image's layers, a few at a time, and unpacks each as
// soon as it and those below are there.
func (s *Store) fetchLayers(ctx context.Context, f remotes.Fetcher, p *pull, pk *pick, lease string) error {
	layers := pk.manifest.Layers
	p.expect(layers)
	fetched := make([]chan struct{}, len(layers))
	for i := range fetched {
		fetched[i] = make(chan struct{})
	}
	g, ctx := newGroup(ctx)
	g.Go(func() error {
		g, ctx := newGroup(ctx)
		g.SetLimit(requestsAtOnce)
		for i, desc := range layers {
			g.Go(func() error {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				ctx, span := tracing.Start(ctx, "image.layer.fetch")
				err := s.fetchBlob(ctx, f, desc, func(offset int64) { p.note(desc, sandbox.PullDownloading, offset) })
				span.Set(tracing.Layer, desc.Digest.String()).SetInt(tracing.Bytes, desc.Size).End(err)
				if err != nil {
					return fmt.Errorf("layer %d, %w", i+1, err)
				}
				p.note(desc, sandbox.PullDownloaded, desc.Size)
				close(fetched[i])
				return nil
			})
		}
		return g.Wait()
	})
	g.Go(func() error {
		err := s.unpack(ctx, pk, lease, func(ctx context.Context, i int) error {
			if i > 0 {
				p.note(layers[i-1], sandbox.PullDone, layers[i-1].Size)
			}
			select {
			case <-fetched[i]:
				p.note(layers[i], sandbox.PullExtracting, layers[i].Size)
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil {
			return err
		}
		for _, desc := range slices.Backward(layers) {
			p.note(desc, sandbox.PullDone, desc.Size)
		}
		return nil
	})
	return g.Wait()
}
