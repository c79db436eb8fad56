package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/taibox/taibox/tai/sandbox"
)

// config is an image's configuration, as far as it concerns us.
type config struct {
	Architecture string  `json:"architecture"`
	OS           string  `json:"os"`
	Variant      string  `json:"variant"`
	Created      *string `json:"created"`
	Config       struct {
		User         string              `json:"User"`
		ExposedPorts map[string]struct{} `json:"ExposedPorts"`
		Env          []string            `json:"Env"`
		Entrypoint   []string            `json:"Entrypoint"`
		Cmd          []string            `json:"Cmd"`
		WorkingDir   string              `json:"WorkingDir"`
		Labels       map[string]string   `json:"Labels"`
		StopSignal   string              `json:"StopSignal"`
	} `json:"config"`
	RootFS struct {
		Type    string          `json:"type"`
		DiffIDs []digest.Digest `json:"diff_ids"`
	} `json:"rootfs"`
}

func parseConfig(data []byte) (*config, error) {
	var c config
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, corrupt("image configuration: %w", err)
	}
	if c.RootFS.Type != "" && c.RootFS.Type != "layers" {
		return nil, corrupt("image configuration: root file system of type %.50q", c.RootFS.Type)
	}
	for _, d := range c.RootFS.DiffIDs {
		if err := d.Validate(); err != nil {
			return nil, corrupt("image configuration: diff id %.200q: %w", d, err)
		}
	}
	for _, s := range slices.Concat(c.Config.Env, c.Config.Entrypoint, c.Config.Cmd, []string{c.Config.User, c.Config.WorkingDir}) {
		if strings.ContainsRune(s, 0) {
			return nil, corrupt("image configuration: %.50q has a NUL byte", s)
		}
	}
	return &c, nil
}

// platform returns what the image runs on. What it does not say it is taken
// to share with this machine.
func (c *config) platform(desc *ocispec.Platform) ocispec.Platform {
	p := ocispec.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}
	if desc != nil && p.Architecture == "" {
		p = *desc
	}
	if here := platforms.DefaultSpec(); p.Architecture == "" {
		p.Architecture, p.Variant = here.Architecture, here.Variant
	}
	if p.OS == "" {
		p.OS = platforms.DefaultSpec().OS
	}
	return platforms.Normalize(p)
}

func (c *config) created() time.Time {
	if c.Created == nil {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, *c.Created)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// runConfig is the part of a configuration that the contract shows.
func (c *config) runConfig() sandbox.ImageConfig {
	return sandbox.ImageConfig{
		Env: c.Config.Env, Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, WorkDir: c.Config.WorkingDir, User: c.Config.User,
		Labels: c.Config.Labels, StopSignal: c.Config.StopSignal, Ports: slices.Sorted(maps.Keys(c.Config.ExposedPorts)),
	}
}

// parseManifest checks a manifest against the descriptor that led to it. What
// could be read as an index as well is refused: other tools might.
func parseManifest(data []byte, mediaType string) (*ocispec.Manifest, error) {
	var m struct {
		ocispec.Manifest
		Manifests json.RawMessage `json:"manifests"`
		FSLayers  json.RawMessage `json:"fsLayers"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, corrupt("manifest: %w", err)
	}
	if m.Manifests != nil || m.FSLayers != nil || m.MediaType != "" && m.MediaType != mediaType {
		return nil, corrupt("manifest is not of type %.100q", mediaType)
	}
	if len(m.Layers) > maxLayers {
		return nil, fmt.Errorf("image has %d layers, at most %d are possible: %w", len(m.Layers), maxLayers, sandbox.ErrUnsupported)
	}
	return &m.Manifest, nil
}

func parseIndex(data []byte, mediaType string) (*ocispec.Index, error) {
	var x struct {
		ocispec.Index
		Config json.RawMessage `json:"config"`
		Layers json.RawMessage `json:"layers"`
	}
	if err := json.Unmarshal(data, &x); err != nil {
		return nil, corrupt("index: %w", err)
	}
	if x.Config != nil || x.Layers != nil || x.MediaType != "" && x.MediaType != mediaType {
		return nil, corrupt("index is not of type %.100q", mediaType)
	}
	return &x.Index, nil
}

// candidate is a manifest of an archive that could become an image.
type candidate struct {
	desc     ocispec.Descriptor
	manifest *ocispec.Manifest
	config   *config
	platform ocispec.Platform
}

// group is what an archive has under one name, or without any.
type group struct {
	name       string
	candidates []candidate
	missing    []ocispec.Descriptor // of manifests that the archive does not have
}

// contents finds the images of an archive, by name.
func (a *archive) contents(ctx context.Context) ([]group, error) {
	layout, isOCI := a.meta[ocispec.ImageLayoutFile]
	index, hasIndex := a.meta[ocispec.ImageIndexFile]
	docker, isDocker := a.meta[dockerManifestFile]
	switch {
	case isOCI && hasIndex:
		return a.ociContents(ctx, layout, index)
	case isDocker:
		return a.dockerContents(ctx, docker)
	case isOCI:
		return nil, corrupt("OCI layout without %s", ocispec.ImageIndexFile)
	}
	return nil, corrupt("neither an OCI archive nor one of docker save")
}

func (a *archive) ociContents(ctx context.Context, layout, index []byte) ([]group, error) {
	var l ocispec.ImageLayout
	if err := json.Unmarshal(layout, &l); err != nil || l.Version != ocispec.ImageLayoutVersion {
		return nil, corrupt("OCI layout of an unknown version")
	}
	x, err := parseIndex(index, ocispec.MediaTypeImageIndex)
	if err != nil {
		return nil, err
	}
	groups := map[string]*group{}
	left := maxManifests
	for _, desc := range x.Manifests {
		name := desc.Annotations[images.AnnotationImageName]
		if name == "" {
			name = desc.Annotations[ocispec.AnnotationRefName]
		}
		g := groups[name]
		if g == nil {
			g = &group{name: name}
			groups[name] = g
		}
		if err := a.collect(ctx, g, desc, maxIndexDepth, &left); err != nil {
			return nil, err
		}
	}
	return sortedGroups(groups), nil
}

func sortedGroups(groups map[string]*group) []group {
	var list []group
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		list = append(list, *groups[name])
	}
	return list
}

// collect adds the manifests that desc leads to. What is no image for
// containers (signatures, attestations, charts) is passed over.
func (a *archive) collect(ctx context.Context, g *group, desc ocispec.Descriptor, depth int, left *int) error {
	if *left--; *left < 0 {
		return corrupt("more than %d manifests", maxManifests)
	}
	if _, here := a.blobs[desc.Digest]; !here && depth < maxIndexDepth {
		g.missing = append(g.missing, desc) // an index may list what was left out
		return nil
	}
	switch {
	case images.IsIndexType(desc.MediaType):
		if depth == 0 {
			return corrupt("indexes nested more than %d deep", maxIndexDepth)
		}
		data, err := a.blob(ctx, desc)
		if err != nil {
			return err
		}
		x, err := parseIndex(data, desc.MediaType)
		if err != nil {
			return fmt.Errorf("%s: %w", desc.Digest, err)
		}
		for _, child := range x.Manifests {
			if err := a.collect(ctx, g, child, depth-1, left); err != nil {
				return err
			}
		}
		return nil
	case images.IsManifestType(desc.MediaType):
		return a.collectManifest(ctx, g, desc)
	}
	return nil
}

func (a *archive) collectManifest(ctx context.Context, g *group, desc ocispec.Descriptor) error {
	data, err := a.blob(ctx, desc)
	if err != nil {
		return err
	}
	m, err := parseManifest(data, desc.MediaType)
	if err != nil {
		return fmt.Errorf("%s: %w", desc.Digest, err)
	}
	if !images.IsConfigType(m.Config.MediaType) {
		return nil
	}
	data, err = a.blob(ctx, m.Config)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	c, err := parseConfig(data)
	if err != nil {
		return fmt.Errorf("%s: %w", desc.Digest, err)
	}
	if p := desc.Platform; p != nil && p.Architecture == "unknown" {
		return nil // an attestation
	}
	g.candidates = append(g.candidates, candidate{desc: desc, manifest: m, config: c, platform: c.platform(desc.Platform)})
	return nil
}

// dockerContents reads the list of docker save and makes a manifest of each of
// its images: the same one for the same image, every time.
func (a *archive) dockerContents(ctx context.Context, list []byte) ([]group, error) {
	var entries []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(list, &entries); err != nil {
		return nil, corrupt("%s: %w", dockerManifestFile, err)
	}
	if len(entries) > maxManifests {
		return nil, corrupt("more than %d manifests", maxManifests)
	}
	groups := map[string]*group{}
	for n, e := range entries {
		c, err := a.dockerCandidate(ctx, n, e.Config, e.Layers)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dockerManifestFile, err)
		}
		if len(e.RepoTags) == 0 {
			e.RepoTags = []string{""}
		}
		for _, name := range e.RepoTags {
			if groups[name] == nil {
				groups[name] = &group{name: name}
			}
			groups[name].candidates = append(groups[name].candidates, *c)
		}
	}
	return sortedGroups(groups), nil
}

func (a *archive) dockerCandidate(ctx context.Context, n int, configName string, layers []string) (*candidate, error) {
	if len(layers) > maxLayers {
		return nil, fmt.Errorf("image has %d layers, at most %d are possible: %w", len(layers), maxLayers, sandbox.ErrUnsupported)
	}
	f, ok := a.resolve(configName)
	if !ok {
		return nil, corrupt("configuration %.200q is not in the archive", configName)
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: f.digest, Size: f.size},
		Layers:    []ocispec.Descriptor{},
	}
	data, err := a.blob(ctx, m.Config)
	if err != nil {
		return nil, err
	}
	c, err := parseConfig(data)
	if err != nil {
		return nil, err
	}
	for _, name := range layers {
		l, ok := a.resolve(name)
		if !ok {
			return nil, corrupt("layer %.200q is not in the archive", name)
		}
		mediaType := ocispec.MediaTypeImageLayer
		switch {
		case bytes.HasPrefix(l.head, gzipMagic):
			mediaType = ocispec.MediaTypeImageLayerGzip
		case bytes.HasPrefix(l.head, zstdMagic):
			mediaType = ocispec.MediaTypeImageLayerZstd
		}
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: mediaType, Digest: l.digest, Size: l.size})
	}
	if data, err = json.Marshal(m); err != nil {
		return nil, err
	}
	desc := ocispec.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if err := content.WriteBlob(ctx, a.cs, fmt.Sprintf("%s/manifest-%d", a.lease, n), bytes.NewReader(data), desc); err != nil {
		return nil, local(err)
	}
	a.blobs[desc.Digest] = file{digest: desc.Digest, size: desc.Size}
	return &candidate{desc: desc, manifest: &m, config: c, platform: c.platform(nil)}, nil
}
