package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/taibox/taibox/tai/sandbox"
)

// Commit says what an image is to be made of.
type Commit struct {
	Base   string // digest of the image below
	Upper  string // directory of an overlay, with what has changed
	Name   string // of the new image
	Change sandbox.ImageChange
	Skip   []string // paths, relative to the root, that are not the image's
}

// Commit makes an image of another one and an overlay's upper directory.
func (s *Store) Commit(ctx context.Context, c Commit) (_ sandbox.ImageInfo, err error) {
	defer func() {
		if err != nil {
			err = cause(ctx, err)
		}
	}()
	name, err := newName(c.Name)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	base, err := s.ResolveDigest(ctx, c.Base)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	defer base.Release()
	ctx = s.context(ctx)
	lease, err := s.leases.Create(ctx, leases.WithID(sandbox.NewID("commit-")))
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	garbage := true
	defer func() { s.endLease(ctx, lease, garbage) }()
	ctx = leases.WithLease(ctx, lease.ID)
	pk, err := s.committed(ctx, &c, lease.ID)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	pk.names = []string{name}
	if err := s.unpack(ctx, pk, lease.ID, func(context.Context, int) error { return nil }); err != nil {
		return sandbox.ImageInfo{}, err
	}
	if garbage, err = s.record(ctx, []pick{*pk}); err != nil {
		return sandbox.ImageInfo{}, err
	}
	return imageInfo(name, pk.desc, pk.manifest, pk.config), nil
}

// committed writes the blobs of the new image.
func (s *Store) committed(ctx context.Context, c *Commit, lease string) (*pick, error) {
	rec, err := s.find(ctx, c.Base)
	if err != nil {
		return nil, err
	}
	m, _, err := s.read(ctx, rec.Target)
	if err != nil {
		return nil, err
	}
	if len(m.Layers) >= maxLayers {
		return nil, fmt.Errorf("the image would have more than %d layers: %w", maxLayers, sandbox.ErrUnsupported)
	}
	layer, diffID, err := s.writeLayer(ctx, c, lease+"/layer")
	if err != nil {
		return nil, err
	}
	old, err := content.ReadBlob(ctx, s.content, m.Config)
	if err != nil {
		return nil, err
	}
	raw, err := changeConfig(old, &c.Change, diffID, time.Now().UTC())
	if err != nil {
		return nil, err
	}
	next := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{}}
	if next.Config, err = s.writeBlob(ctx, lease+"/config", ocispec.MediaTypeImageConfig, raw); err != nil {
		return nil, err
	}
	for _, l := range m.Layers {
		next.Layers = append(next.Layers, ocispec.Descriptor{MediaType: ociLayerType(l.MediaType), Digest: l.Digest, Size: l.Size})
	}
	next.Layers = append(next.Layers, layer)
	data, err := json.Marshal(next)
	if err != nil {
		return nil, err
	}
	desc, err := s.writeBlob(ctx, lease+"/manifest", next.MediaType, data)
	if err != nil {
		return nil, err
	}
	conf, err := parseConfig(raw)
	if err != nil {
		return nil, err
	}
	return &pick{candidate: candidate{desc: desc, manifest: &next, config: conf, platform: conf.platform(nil)}}, nil
}

func ociLayerType(mediaType string) string {
	switch mediaType {
	case images.MediaTypeDockerSchema2Layer:
		return ocispec.MediaTypeImageLayer
	case images.MediaTypeDockerSchema2LayerGzip:
		return ocispec.MediaTypeImageLayerGzip
	case images.MediaTypeDockerSchema2LayerZstd:
		return ocispec.MediaTypeImageLayerZstd
	}
	return mediaType
}

func (s *Store) writeBlob(ctx context.Context, ref, mediaType string, data []byte) (ocispec.Descriptor, error) {
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return desc, content.WriteBlob(ctx, s.content, ref, bytes.NewReader(data), desc)
}

// writeLayer writes what has changed as a compressed layer.
func (s *Store) writeLayer(ctx context.Context, c *Commit, ref string) (_ ocispec.Descriptor, diffID digest.Digest, err error) {
	w, err := content.OpenWriter(ctx, s.content, content.WithRef(ref))
	if err != nil {
		return ocispec.Descriptor{}, "", err
	}
	defer func() {
		w.Close() //nolint:errcheck // after Commit there is nothing to lose
		if err != nil {
			err = errors.Join(err, s.content.Abort(context.WithoutCancel(ctx), ref))
		}
	}()
	size := &counter{w: w}
	zip := newSqueezer(size)
	sum := digest.Canonical.Digester()
	if err := packUpper(ctx, c.Upper, c.Skip, io.MultiWriter(zip, sum.Hash())); err != nil {
		return ocispec.Descriptor{}, "", err
	}
	if err := zip.Close(); err != nil {
		return ocispec.Descriptor{}, "", err
	}
	got := w.Digest()
	if err := w.Commit(ctx, size.n, got); err != nil && !errdefs.IsAlreadyExists(err) {
		return ocispec.Descriptor{}, "", err
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: got, Size: size.n}, sum.Digest(), nil
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// changeConfig returns an image's configuration with another layer and other
// settings. What it does not know stays as it is.
func changeConfig(old []byte, change *sandbox.ImageChange, diffID digest.Digest, now time.Time) ([]byte, error) {
	var known ocispec.Image
	top := map[string]any{}
	if err := errors.Join(json.Unmarshal(old, &known), json.Unmarshal(old, &top)); err != nil {
		return nil, corrupt("image configuration: %w", err)
	}
	conf, _ := top["config"].(map[string]any)
	if conf == nil {
		conf = map[string]any{}
	}
	for key, value := range map[string]*string{"WorkingDir": change.WorkDir, "User": change.User} {
		if value != nil {
			conf[key] = *value
		}
	}
	for key, value := range map[string]*[]string{"Entrypoint": change.Entrypoint, "Cmd": change.Cmd} {
		if value != nil {
			conf[key] = *value
		}
	}
	if len(change.Env) > 0 {
		conf["Env"] = mergeEnv(known.Config.Env, change.Env)
	}
	if len(change.Labels) > 0 {
		labels := maps.Clone(known.Config.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, change.Labels)
		conf["Labels"] = labels
	}
	top["config"], top["created"] = conf, now
	top["rootfs"] = ocispec.RootFS{Type: "layers", DiffIDs: append(known.RootFS.DiffIDs, diffID)}
	top["history"] = append(known.History, ocispec.History{Created: &now, CreatedBy: "taibox commit"})
	return json.Marshal(top)
}

// mergeEnv sets variables, in the place of those of the same name.
func mergeEnv(env, set []string) []string {
	env = slices.Clone(env)
	for _, kv := range set {
		name, _, _ := strings.Cut(kv, "=")
		i := slices.IndexFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
		if i < 0 {
			env = append(env, kv)
		} else {
			env[i] = kv
		}
	}
	return env
}
