// Package testimage builds small image archives for tests: from given layers
// and settings, or a whole one around the machine's static busybox.
package testimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	goruntime "runtime"
	"slices"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// nameAnnotation is where containerd keeps the full name of an image.
const nameAnnotation = "io.containerd.image.name"

// Compression is how the layers of an image are stored.
type Compression string

// The ways to store a layer. The empty value means gzip.
const (
	Gzip Compression = "gzip"
	Zstd Compression = "zstd"
	None Compression = "none"
)

// Layer is the members of one layer, in order.
type Layer []Entry

// Image is what an archive is made of. Its zero value is a valid image with
// no name and no layer.
type Image struct {
	Name         string // reference; empty leaves the image without a name
	Layers       []Layer
	Config       v1.ImageConfig
	OS           string // default linux
	Architecture string // default this machine's
	Compression  Compression
}

// OCI returns an archive in the layout of the OCI image specification.
func OCI(images ...Image) ([]byte, error) {
	blobs := map[string][]byte{}
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, im := range images {
		desc, err := im.manifest(blobs)
		if err != nil {
			return nil, fmt.Errorf("build image %s: %w", im.Name, err)
		}
		index.Manifests = append(index.Manifests, desc)
	}
	layout, err := json.Marshal(v1.ImageLayout{Version: v1.ImageLayoutVersion})
	if err != nil {
		return nil, fmt.Errorf("encode layout: %w", err)
	}
	top, err := json.Marshal(index)
	if err != nil {
		return nil, fmt.Errorf("encode index: %w", err)
	}
	members := Layer{File(v1.ImageLayoutFile, layout, 0o644), File(v1.ImageIndexFile, top, 0o644)}
	for _, hash := range slices.Sorted(maps.Keys(blobs)) {
		members = append(members, File("blobs/sha256/"+hash, blobs[hash], 0o644))
	}
	return members.tar()
}

// Docker returns an archive in the layout of "docker save".
func Docker(images ...Image) ([]byte, error) {
	type item struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var items []item
	var members Layer
	for _, im := range images {
		raws, _, config, err := im.encode()
		if err != nil {
			return nil, fmt.Errorf("build image %s: %w", im.Name, err)
		}
		it := item{Config: hexSum(config) + ".json"}
		if im.Name != "" {
			it.RepoTags = []string{im.Name}
		}
		members = append(members, File(it.Config, config, 0o644))
		for _, raw := range raws {
			name := hexSum(raw) + "/layer.tar"
			it.Layers = append(it.Layers, name)
			members = append(members, File(name, raw, 0o644))
		}
		items = append(items, it)
	}
	manifest, err := json.Marshal(items)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	return append(members, File("manifest.json", manifest, 0o644)).tar()
}

// manifest puts the image's blobs into the set and describes its manifest.
func (im Image) manifest(blobs map[string][]byte) (v1.Descriptor, error) {
	put := func(mediaType string, data []byte) v1.Descriptor {
		blobs[hexSum(data)] = data
		return v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	}
	_, stored, config, err := im.encode()
	if err != nil {
		return v1.Descriptor{}, err
	}
	layerType := map[Compression]string{
		"": v1.MediaTypeImageLayerGzip, Gzip: v1.MediaTypeImageLayerGzip,
		Zstd: v1.MediaTypeImageLayerZstd, None: v1.MediaTypeImageLayer,
	}[im.Compression]
	m := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: put(v1.MediaTypeImageConfig, config), Layers: []v1.Descriptor{},
	}
	for _, data := range stored {
		m.Layers = append(m.Layers, put(layerType, data))
	}
	data, err := json.Marshal(m)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("encode manifest: %w", err)
	}
	desc := put(v1.MediaTypeImageManifest, data)
	desc.Platform = &v1.Platform{OS: im.os(), Architecture: im.arch()}
	if im.Name != "" {
		desc.Annotations = map[string]string{nameAnnotation: im.Name, v1.AnnotationRefName: im.Name}
	}
	return desc, nil
}

// encode returns each layer plain and as stored, and the configuration.
func (im Image) encode() (raws, stored [][]byte, config []byte, err error) {
	c := v1.Image{
		Platform: v1.Platform{OS: im.os(), Architecture: im.arch()},
		Config:   im.Config,
		RootFS:   v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{}},
	}
	for _, l := range im.Layers {
		raw, err := l.tar()
		if err != nil {
			return nil, nil, nil, err
		}
		data, err := im.compress(raw)
		if err != nil {
			return nil, nil, nil, err
		}
		raws, stored = append(raws, raw), append(stored, data)
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, digest.FromBytes(raw))
		c.History = append(c.History, v1.History{CreatedBy: "testimage"})
	}
	config, err = json.Marshal(c)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("encode config: %w", err)
	}
	return raws, stored, config, nil
}

func (im Image) compress(raw []byte) ([]byte, error) {
	switch im.Compression {
	case "", Gzip:
		var buf bytes.Buffer
		z := gzip.NewWriter(&buf)
		if _, err := z.Write(raw); err != nil {
			return nil, fmt.Errorf("compress layer: %w", err)
		}
		if err := z.Close(); err != nil {
			return nil, fmt.Errorf("compress layer: %w", err)
		}
		return buf.Bytes(), nil
	case Zstd:
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("compress layer: %w", err)
		}
		defer z.Close() //nolint:errcheck // EncodeAll leaves nothing to flush
		return z.EncodeAll(raw, nil), nil
	case None:
		return raw, nil
	}
	return nil, fmt.Errorf("unknown compression %q", im.Compression)
}

func (im Image) os() string {
	if im.OS == "" {
		return "linux"
	}
	return im.OS
}

func (im Image) arch() string {
	if im.Architecture == "" {
		return goruntime.GOARCH
	}
	return im.Architecture
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Entry is one member of a layer.
type Entry struct {
	tar.Header
	Data []byte
}

// Dir is a directory.
func Dir(name string, mode int64) Entry {
	return Entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}}
}

// File is a regular file.
func File(name string, data []byte, mode int64) Entry {
	return Entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}, Data: data}
}

// Symlink is a symbolic link.
func Symlink(name, target string) Entry {
	return Entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}}
}

// Hardlink is another name of an earlier member.
func Hardlink(name, target string) Entry {
	return Entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}}
}

// Whiteout deletes what lower layers have under a name.
func Whiteout(name string) Entry {
	return File(path.Join(path.Dir(name), ".wh."+path.Base(name)), nil, 0o644)
}

// Opaque deletes all that lower layers have below a directory.
func Opaque(dir string) Entry { return File(path.Join(dir, ".wh..wh..opq"), nil, 0o644) }

// Owned returns the entry with an owner.
func (e Entry) Owned(uid, gid int) Entry {
	e.Uid, e.Gid = uid, gid
	return e
}

func (l Layer) tar() ([]byte, error) {
	var buf bytes.Buffer
	t := tar.NewWriter(&buf)
	for _, e := range l {
		if err := t.WriteHeader(&e.Header); err != nil {
			return nil, fmt.Errorf("write member %s: %w", e.Name, err)
		}
		if _, err := t.Write(e.Data); err != nil {
			return nil, fmt.Errorf("write member %s: %w", e.Name, err)
		}
	}
	if err := t.Close(); err != nil {
		return nil, fmt.Errorf("write archive: %w", err)
	}
	return buf.Bytes(), nil
}
