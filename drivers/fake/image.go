package fake

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/taibox/taibox/tai/sandbox"
)

// maxArchive bounds an archive in memory.
const maxArchive = 256 << 20

// nameAnnotation is where containerd keeps the full name of an image.
const nameAnnotation = "io.containerd.image.name"

func hostFS() sandbox.ImageInfo {
	return sandbox.ImageInfo{
		Name: sandbox.HostFS, Platform: "linux/" + goruntime.GOARCH, BuiltIn: true,
		Config: sandbox.ImageConfig{WorkDir: "/workspace"},
	}
}

// image finds an image by name or digest.
func (m *machine) image(ref string) (sandbox.ImageInfo, error) {
	name, err := normalise(ref)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if im, ok := m.images[name]; ok {
		return im, nil
	}
	for _, im := range m.images {
		if im.Digest != "" && im.Digest == ref {
			return im, nil
		}
	}
	return sandbox.ImageInfo{}, fmt.Errorf("%w: %s", sandbox.ErrImageNotFound, ref)
}

// normalise returns a reference with its tag, in the short form that people
// know; a digest stays as it is.
func normalise(ref string) (string, error) {
	if ref == sandbox.HostFS {
		return ref, nil
	}
	if _, err := digest.Parse(ref); err == nil {
		return ref, nil
	}
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("%w: %.256q", sandbox.ErrImageRef, ref)
	}
	return reference.FamiliarString(named), nil
}

// Load reads an archive. Layers are verified and forgotten: the programs of
// every image are those of the driver.
func (d *Driver) Load(ctx context.Context, archive io.Reader, name string) ([]sandbox.ImageInfo, error) {
	infos, err := d.load(ctx, archive, name)
	if err != nil {
		return nil, fmt.Errorf("load image: %w", err)
	}
	return infos, nil
}

func (d *Driver) load(ctx context.Context, archive io.Reader, name string) ([]sandbox.ImageInfo, error) {
	if err := d.step(ctx, "image.load", name); err != nil {
		return nil, err
	}
	if err := d.need(sandbox.FeatureImageImport); err != nil {
		return nil, err
	}
	if name != "" {
		var err error
		if name, err = normalise(name); err != nil {
			return nil, err
		}
	}
	files, err := untar(archive)
	if err != nil {
		return nil, errors.Join(sandbox.ErrImageCorrupt, err)
	}
	infos, err := files.images()
	if err != nil {
		return nil, err
	}
	for i := range infos {
		im := &infos[i]
		if name != "" && (len(infos) == 1 || im.Name == "") {
			im.Name = name
		}
		if im.Name, err = normalise(cmp.Or(im.Name, im.Digest)); err != nil {
			return nil, err
		}
		if im.Name == sandbox.HostFS {
			return nil, fmt.Errorf("%w: %s is built in", sandbox.ErrImageRef, im.Name)
		}
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	for _, im := range infos {
		d.m.images[im.Name] = im
	}
	return infos, nil
}

// members are the files of an archive.
type members map[string][]byte

func untar(r io.Reader) (members, error) {
	buf := bufio.NewReader(io.LimitReader(r, maxArchive))
	if magic, err := buf.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buf)
		if err != nil {
			return nil, fmt.Errorf("decompress archive: %w", err)
		}
		defer z.Close() //nolint:errcheck // only read
		buf = bufio.NewReader(io.LimitReader(z, maxArchive))
	}
	files := members{}
	for t := tar.NewReader(buf); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read archive: %w", err)
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return nil, fmt.Errorf("read archive: %s: %w", h.Name, err)
		}
		files[path.Clean(h.Name)] = data
	}
}

// images reads what an archive in either layout names.
func (f members) images() ([]sandbox.ImageInfo, error) {
	switch {
	case f[v1.ImageIndexFile] != nil:
		var index v1.Index
		if err := json.Unmarshal(f[v1.ImageIndexFile], &index); err != nil {
			return nil, errors.Join(sandbox.ErrImageCorrupt, err)
		}
		var infos []sandbox.ImageInfo
		for _, desc := range index.Manifests {
			im, err := f.manifest(desc)
			if err != nil {
				return nil, err
			}
			im.Name = cmp.Or(desc.Annotations[nameAnnotation], desc.Annotations[v1.AnnotationRefName])
			infos = append(infos, im)
		}
		return infos, nil
	case f["manifest.json"] != nil:
		return f.docker()
	}
	return nil, fmt.Errorf("%w: neither an OCI nor a Docker archive", sandbox.ErrImageCorrupt)
}

func (f members) docker() ([]sandbox.ImageInfo, error) {
	var items []struct {
		Config   string
		RepoTags []string
	}
	if err := json.Unmarshal(f["manifest.json"], &items); err != nil {
		return nil, errors.Join(sandbox.ErrImageCorrupt, err)
	}
	var infos []sandbox.ImageInfo
	for _, it := range items {
		config := f[path.Clean(it.Config)]
		im, err := imageInfo(config, digest.FromBytes(config).String(), int64(len(config)))
		if err != nil {
			return nil, err
		}
		if len(it.RepoTags) == 0 {
			infos = append(infos, im)
		}
		for _, tag := range it.RepoTags {
			im.Name = tag
			infos = append(infos, im)
		}
	}
	return infos, nil
}

// blob returns a blob that is what its descriptor says.
func (f members) blob(desc v1.Descriptor) ([]byte, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, errors.Join(sandbox.ErrImageCorrupt, err)
	}
	data, ok := f[path.Join("blobs", string(desc.Digest.Algorithm()), desc.Digest.Encoded())]
	if !ok || int64(len(data)) != desc.Size || desc.Digest.Algorithm().FromBytes(data) != desc.Digest {
		return nil, fmt.Errorf("%w: blob %s is missing or not what it should be", sandbox.ErrImageCorrupt, desc.Digest)
	}
	return data, nil
}

func (f members) manifest(desc v1.Descriptor) (sandbox.ImageInfo, error) {
	data, err := f.blob(desc)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return sandbox.ImageInfo{}, errors.Join(sandbox.ErrImageCorrupt, err)
	}
	size := desc.Size
	for _, l := range m.Layers {
		if _, err := f.blob(l); err != nil {
			return sandbox.ImageInfo{}, err
		}
		size += l.Size
	}
	config, err := f.blob(m.Config)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	return imageInfo(config, desc.Digest.String(), size+m.Config.Size)
}

func imageInfo(config []byte, dgst string, size int64) (sandbox.ImageInfo, error) {
	var c v1.Image
	if err := json.Unmarshal(config, &c); err != nil {
		return sandbox.ImageInfo{}, errors.Join(sandbox.ErrImageCorrupt, err)
	}
	if c.OS != "linux" || c.Architecture != goruntime.GOARCH {
		return sandbox.ImageInfo{}, fmt.Errorf("%w: %s/%s", sandbox.ErrImagePlatform, c.OS, c.Architecture)
	}
	im := sandbox.ImageInfo{
		Digest: dgst, Platform: c.OS + "/" + c.Architecture, SizeBytes: size, CreatedAt: time.Now(),
		Config: sandbox.ImageConfig{
			Env: c.Config.Env, Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, WorkDir: c.Config.WorkingDir,
			User: c.Config.User, Labels: c.Config.Labels, StopSignal: c.Config.StopSignal,
			Ports: slices.Sorted(maps.Keys(c.Config.ExposedPorts)),
		},
	}
	if c.Created != nil {
		im.CreatedAt = *c.Created
	}
	return im, nil
}

// InspectImage returns an image by name or digest.
func (d *Driver) InspectImage(ctx context.Context, ref string) (sandbox.ImageInfo, error) {
	err := d.step(ctx, "image.inspect", ref)
	var im sandbox.ImageInfo
	if err == nil {
		im, err = d.m.image(ref)
	}
	if err != nil {
		return sandbox.ImageInfo{}, fmt.Errorf("inspect image: %w", err)
	}
	return im, nil
}

// ListImages returns all images, the built-in one first.
func (d *Driver) ListImages(ctx context.Context) ([]sandbox.ImageInfo, error) {
	if err := d.step(ctx, "image.list", ""); err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return slices.SortedFunc(maps.Values(d.m.images), func(a, b sandbox.ImageInfo) int {
		if a.BuiltIn != b.BuiltIn {
			return map[bool]int{true: -1, false: 1}[a.BuiltIn]
		}
		return cmp.Compare(a.Name, b.Name)
	}), nil
}

// RemoveImage removes a name.
func (d *Driver) RemoveImage(ctx context.Context, ref string) error {
	if err := d.removeImage(ctx, ref); err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	return nil
}

func (d *Driver) removeImage(ctx context.Context, ref string) error {
	if err := d.step(ctx, "image.remove", ref); err != nil {
		return err
	}
	im, err := d.m.image(ref)
	if err != nil {
		return err
	}
	if im.BuiltIn {
		return fmt.Errorf("%w: %s is built in", sandbox.ErrImageInUse, im.Name)
	}
	var users []string
	for _, b := range d.m.all() {
		if b.snapshot().ImageDigest == im.Digest {
			users = append(users, b.id)
		}
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	names := 0
	for _, other := range d.m.images {
		if other.Digest == im.Digest {
			names++
		}
	}
	if names == 1 && len(users) > 0 {
		return fmt.Errorf("%w: %s by box %s", sandbox.ErrImageInUse, im.Name, strings.Join(users, ", "))
	}
	delete(d.m.images, im.Name)
	return nil
}
