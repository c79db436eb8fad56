package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/tracing"
)

// unpack makes sure that all layers of an image are there, unpacked and
// verified, under the lease of ctx. Before it looks at the blob of a layer it
// calls ready.
func (s *Store) unpack(ctx context.Context, p *pick, lease string, ready func(ctx context.Context, i int) error) error {
	diffs := p.config.RootFS.DiffIDs
	if len(diffs) != len(p.manifest.Layers) {
		return corrupt("%d layers, but %d diff ids", len(p.manifest.Layers), len(diffs))
	}
	chains := identity.ChainIDs(append([]digest.Digest(nil), diffs...))
	parent := ""
	for i, desc := range p.manifest.Layers {
		if err := ready(ctx, i); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
		l := layer{desc: desc, diffID: diffs[i], chain: chains[i].String(), parent: parent, key: lease + "/layer-" + strconv.Itoa(i) + "-" + chains[i].String()}
		ctx, span := tracing.Start(ctx, "image.layer.unpack")
		err := s.unpackLayer(ctx, &l)
		if span.Set(tracing.Layer, desc.Digest.String()).End(err); err != nil {
			return fmt.Errorf("layer %d, %s: %w", i+1, desc.Digest, err)
		}
		parent = l.chain
	}
	return nil
}

// layer is one layer of an image on its way into the store.
type layer struct {
	desc   ocispec.Descriptor
	diffID digest.Digest
	chain  string // names the layer together with those below it
	parent string // the chain below it
	key    string // its name until it is whole
}

func (s *Store) unpackLayer(ctx context.Context, l *layer) error {
	unlock, err := s.chains.lock(ctx, l.chain)
	if err != nil {
		return err
	}
	defer unlock()
	ref := snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotRef: l.chain})
	_, err = s.snaps.Prepare(ctx, l.key, l.parent, ref)
	if errdefs.IsAlreadyExists(err) {
		return s.verifyLayer(ctx, l)
	}
	if err != nil {
		return err
	}
	if err := s.fillLayer(ctx, l); err != nil {
		return errors.Join(err, s.dropLayer(ctx, l.key))
	}
	if err := s.snaps.Commit(ctx, l.chain, l.key, ref); err != nil {
		return errors.Join(err, s.dropLayer(ctx, l.key))
	}
	return nil
}

// dropLayer removes a layer that did not become whole. Its files go first: a
// full disk needs room for the record of their end.
func (s *Store) dropLayer(ctx context.Context, key string) error {
	ctx = context.WithoutCancel(ctx)
	info, err := s.snaps.Stat(ctx, key)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(info.Labels[labelUpper]); err != nil {
		return err
	}
	return s.snaps.Remove(ctx, key)
}

// fillLayer unpacks a layer into its directory, down to the disk.
func (s *Store) fillLayer(ctx context.Context, l *layer) error {
	info, err := s.snaps.Stat(ctx, l.key)
	if err != nil {
		return err
	}
	lowers, err := s.lowers(ctx, l.parent)
	if err != nil {
		return err
	}
	dir := info.Labels[labelUpper]
	u, err := newUnpacker(dir, lowers, expanded(l.desc.Size))
	if err != nil {
		return err
	}
	defer u.close()
	if err := s.readLayer(ctx, l, func(r io.Reader) error { return u.apply(ctx, r) }); err != nil {
		return blame(ctx, err)
	}
	return syncFS(dir)
}

// readLayer hands a layer's tar to use, and compares all of it with the diff id.
func (s *Store) readLayer(ctx context.Context, l *layer, use func(io.Reader) error) error {
	blob, err := s.content.ReaderAt(ctx, l.desc)
	if err != nil {
		return err
	}
	defer blob.Close()
	plain, err := decompress(content.NewReader(blob))
	if err != nil {
		return err
	}
	defer plain.Close()
	sum := l.diffID.Algorithm().Digester()
	limited := &bounded{r: contextReader{ctx, plain}, limit: func() int64 { return expanded(l.desc.Size) }}
	r := io.TeeReader(limited, sum.Hash())
	if err := use(r); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	if got := sum.Digest(); got != l.diffID {
		return corrupt("contents have diff id %s instead of %s", got, l.diffID)
	}
	return nil
}

// verifyLayer checks the blob of a layer that is there already: it may be
// another compression of the same, or something else entirely. Blobs of images
// that were recorded have been checked.
func (s *Store) verifyLayer(ctx context.Context, l *layer) error {
	info, err := s.content.Info(ctx, l.desc.Digest)
	if err != nil {
		return err
	}
	if info.Labels[labels.LabelUncompressed] == l.diffID.String() {
		return nil
	}
	return blame(ctx, s.readLayer(ctx, l, func(io.Reader) error { return nil }))
}

// contextReader fails once its context has ended.
type contextReader struct {
	ctx context.Context //nolint:containedctx // lives for one read of a layer
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// syncFS writes what was written below dir to the disk: names must not outlive
// the files they stand for.
func syncFS(dir string) error {
	f, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
