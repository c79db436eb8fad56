package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	goruntime "runtime"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// entry is a member of a tar; its Size is filled in.
type entry struct {
	tar.Header
	data string
}

func file(name, data string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, data}
}

func dir(name string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

func symlink(name, target string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, ""}
}

func hardlink(name, target string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target, Mode: 0o644}, ""}
}

func (e entry) with(change func(*tar.Header)) entry {
	change(&e.Header)
	return e
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size = int64(len(e.data))
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A compression of a layer or archive, with its media type's suffix.
type compression struct {
	suffix string
	do     func([]byte) []byte
}

var (
	plain  = compression{"", func(b []byte) []byte { return b }}
	gzip9  = compression{"+gzip", gzipped}
	zstd3  = compression{"+zstd", zstded}
	allZip = []compression{plain, gzip9, zstd3}
)

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write(b)
	w.Close()
	return out.Bytes()
}

func zstded(b []byte) []byte {
	w, _ := zstd.NewWriter(nil)
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// img is an image to be made.
type img struct {
	name   string
	layers [][]byte // tars
	zip    compression
	arch   string         // default: this machine's
	config map[string]any // the "config" of its configuration
}

// blobs is a set of blobs being made.
type blobs map[digest.Digest][]byte

func (b blobs) put(mediaType string, data []byte) map[string]any {
	d := digest.FromBytes(data)
	b[d] = data
	return map[string]any{"mediaType": mediaType, "digest": d.String(), "size": len(data)}
}

func (b blobs) putJSON(mediaType string, v any) map[string]any {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b.put(mediaType, data)
}

const ociType = "application/vnd.oci.image."

// manifest makes an image's blobs and returns the descriptor of its manifest.
func (b blobs) manifest(i img) map[string]any {
	if i.arch == "" {
		i.arch = goruntime.GOARCH
	}
	if i.zip.do == nil {
		i.zip = gzip9
	}
	layers, diffs := []any{}, []string{}
	for _, l := range i.layers {
		layers = append(layers, b.put(ociType+"layer.v1.tar"+i.zip.suffix, i.zip.do(l)))
		diffs = append(diffs, digest.FromBytes(l).String())
	}
	config := b.putJSON(ociType+"config.v1+json", map[string]any{
		"architecture": i.arch, "os": "linux", "created": "2024-05-06T07:08:09Z", "config": i.config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	return b.putJSON(ociType+"manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": ociType + "manifest.v1+json", "config": config, "layers": layers,
	})
}

// archive writes an OCI archive around an index.
func (b blobs) archive(t testing.TB, manifests ...any) []byte {
	t.Helper()
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": ociType + "index.v1+json", "manifests": manifests})
	if err != nil {
		t.Fatal(err)
	}
	entries := []entry{file("oci-layout", `{"imageLayoutVersion":"1.0.0"}`), file("index.json", string(index)), dir("blobs/"), dir("blobs/sha256/")}
	var digests []digest.Digest
	for d := range b {
		digests = append(digests, d)
	}
	slices.Sort(digests)
	for _, d := range digests {
		entries = append(entries, file("blobs/sha256/"+d.Encoded(), string(b[d])))
	}
	return tarOf(t, entries...)
}

func named(desc map[string]any, name string) map[string]any {
	if name != "" {
		desc["annotations"] = map[string]string{"io.containerd.image.name": name}
	}
	return desc
}

// ociArchive makes an OCI archive of images.
func ociArchive(t testing.TB, images ...img) []byte {
	t.Helper()
	b := blobs{}
	var manifests []any
	for _, i := range images {
		manifests = append(manifests, named(b.manifest(i), i.name))
	}
	return b.archive(t, manifests...)
}

// dockerArchive makes what docker save made before it knew of OCI layouts.
func dockerArchive(t testing.TB, name string, layers ...[]byte) []byte {
	t.Helper()
	diffs, names, entries := []string{}, []string{}, []entry{}
	for _, l := range layers {
		d := digest.FromBytes(l)
		diffs = append(diffs, d.String())
		id := d.Encoded()[:32]
		entries = append(entries, dir(id+"/"), file(id+"/VERSION", "1.0"), file(id+"/json", "{}"))
		if slices.Contains(names, id+"/layer.tar") {
			continue
		}
		entries = append(entries, file(id+"/real.tar", string(l)), symlink(id+"/layer.tar", "../"+id+"/real.tar"))
		names = append(names, id+"/layer.tar")
	}
	config, _ := json.Marshal(map[string]any{
		"architecture": goruntime.GOARCH, "os": "linux", "config": map[string]any{"Cmd": []string{"/bin/true"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	manifest, _ := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{name}, "Layers": names}})
	entries = append(entries, file("config.json", string(config)), file("manifest.json", string(manifest)), file("repositories", "{}"))
	return tarOf(t, entries...)
}
