package image_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

func twoLayers(t testing.TB, name string, zip compression) []byte {
	t.Helper()
	noise := make([]byte, 3000)
	rand.Read(noise)
	return ociArchive(t, img{name: name, zip: zip, layers: [][]byte{
		tarOf(t, dir("etc"), file("etc/gone", "a lower layer's file\n"), file("noise", string(noise))),
		tarOf(t, white("etc/.wh.gone"), file("etc/made", "by the upper layer\n")),
	}})
}

// good is a store with an image that bad archives must not touch.
type good struct {
	*testing.T
	root   string
	digest string
	tree   model
}

func (g *good) check(s interface {
	InspectImage(context.Context, string) (sandbox.ImageInfo, error)
}, tree func() model,
) {
	g.Helper()
	info, err := s.InspectImage(g.Context(), "good:1")
	if err != nil || info.Digest != g.digest {
		g.Fatalf("the good image is %s, %v", info.Digest, err)
	}
	if diff := cmp.Diff(g.tree, tree()); diff != "" {
		g.Fatalf("the good image changed:\n%s", diff)
	}
}

func TestCutArchive(t *testing.T) {
	needRoot(t)
	for i, zip := range allZip {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			s := open(t)
			archive := twoLayers(t, "good:1", gzip9)
			whole := zip.do(archive)
			end := len(whole)
			if i == 0 {
				end -= 1024 // the end marker: one block of it is enough
			}
			for n := 0; n < end; n += 1 + end/71 {
				_, err := s.Load(t.Context(), bytes.NewReader(whole[:n]), "")
				if !errors.Is(err, sandbox.ErrImageCorrupt) {
					t.Fatalf("cut after %d of %d bytes: %v", n, end, err)
				}
			}
			wantNames(t, s)
			load(t, s, whole, "")
		})
	}
}

func TestFlippedBytes(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "images")
	s := openAt(t, root, nil)
	archive := twoLayers(t, "good:1", gzip9)
	g := good{T: t, root: root, digest: load(t, s, archive, "")[0].Digest}
	r := resolve(t, s, "good:1")
	at := mountImage(t, r)
	g.tree = readTree(t, at)
	refused := 0
	for i := 0; i < len(archive); i += 83 {
		bad := bytes.Clone(archive)
		bad[i] ^= 0x11
		infos, err := s.Load(t.Context(), bytes.NewReader(bad), "bad:1")
		switch {
		case err == nil && infos[0].Digest != g.digest:
			t.Fatalf("byte %d: another image is taken for good", i)
		case err != nil && reason.Of(err) == "":
			t.Fatalf("byte %d: %v", i, err)
		case err != nil:
			refused++
		}
	}
	if refused < 25 {
		t.Errorf("only %d bad archives were refused", refused)
	}
	g.check(s, func() model { return readTree(t, at) })
	// A blob that the store has already is checked all the same.
	bad := bytes.Clone(archive)
	bad[bytes.Index(bad, []byte("\x1f\x8b"))+40] ^= 0xff
	_, err := s.Load(t.Context(), bytes.NewReader(bad), "")
	wantErr(t, err, sandbox.ErrImageCorrupt)
	g.check(s, func() model { return readTree(t, at) })
}

func TestCorruptArchives(t *testing.T) {
	needRoot(t)
	layer := tarOf(t, file("f", "x"))
	sum := digest.FromBytes(layer).String()
	// image makes an archive whose configuration and manifest were tampered with.
	made := func(config, manifest func(map[string]any)) []byte {
		b := blobs{}
		c := map[string]any{"architecture": "", "os": "linux", "config": map[string]any{}, "rootfs": map[string]any{"type": "layers", "diff_ids": []string{sum}}}
		if config != nil {
			config(c)
		}
		m := map[string]any{
			"schemaVersion": 2, "mediaType": ociType + "manifest.v1+json", "config": b.putJSON(ociType+"config.v1+json", c),
			"layers": []any{b.put(ociType+"layer.v1.tar", layer)},
		}
		if manifest != nil {
			manifest(m)
		}
		return b.archive(t, named(b.putJSON(ociType+"manifest.v1+json", m), "bad:1"))
	}
	setting := func(key string, value any) []byte {
		return made(func(c map[string]any) { c["config"] = map[string]any{key: value} }, nil)
	}
	load(t, open(t), made(nil, nil), "") // what is not tampered with is good
	for name, archive := range map[string][]byte{
		"empty":            {},
		"noise":            []byte(strings.Repeat("no archive at all ", 100)),
		"empty_tar":        tarOf(t),
		"root_tar":         tarOf(t, dir("etc"), file("etc/passwd", "root")),
		"xz":               []byte("\xfd7zXZ\x00 and so on and so on"),
		"layout_only":      tarOf(t, file("oci-layout", `{"imageLayoutVersion":"1.0.0"}`)),
		"layout_version":   tarOf(t, file("oci-layout", `{"imageLayoutVersion":"9"}`), file("index.json", "{}")),
		"index_not_json":   tarOf(t, file("oci-layout", `{"imageLayoutVersion":"1.0.0"}`), file("index.json", "{")),
		"index_empty":      tarOf(t, file("oci-layout", `{"imageLayoutVersion":"1.0.0"}`), file("index.json", "{}")),
		"docker_not_json":  tarOf(t, file("manifest.json", "{}")),
		"docker_no_config": tarOf(t, file("manifest.json", `[{"Config":"c.json","Layers":[]}]`)),
		"docker_no_layer":  tarOf(t, file("manifest.json", `[{"Config":"c.json","Layers":["../../etc/passwd"]}]`), file("c.json", "{}")),
		"link_loop":        tarOf(t, file("manifest.json", `[{"Config":"a","Layers":[]}]`), symlink("a", "b"), symlink("b", "a")),
		"wrong_diff_id": made(func(c map[string]any) {
			c["rootfs"] = map[string]any{"diff_ids": []string{digest.FromString("x").String()}}
		}, nil),
		"too_few_diff_ids": made(func(c map[string]any) { c["rootfs"] = map[string]any{"diff_ids": []string{}} }, nil),
		"odd_diff_id":      made(func(c map[string]any) { c["rootfs"] = map[string]any{"diff_ids": []string{"../../x"}} }, nil),
		"odd_rootfs":       made(func(c map[string]any) { c["rootfs"] = map[string]any{"type": "vm", "diff_ids": []string{sum}} }, nil),
		"rootfs_a_string":  made(func(c map[string]any) { c["rootfs"] = "x" }, nil),
		"env_a_number":     setting("Env", 1),
		"env_of_objects":   setting("Env", []any{map[string]any{}}),
		"env_nul":          setting("Env", []string{"A=\x00"}),
		"entrypoint":       setting("Entrypoint", map[string]any{}),
		"cmd_a_string":     setting("Cmd", "ls"),
		"workdir_a_list":   setting("WorkingDir", []string{}),
		"user_a_number":    setting("User", 0),
		"labels_a_list":    setting("Labels", []string{}),
		"also_an_index":    made(nil, func(m map[string]any) { m["manifests"] = []any{} }),
		"other_type":       made(nil, func(m map[string]any) { m["mediaType"] = ociType + "index.v1+json" }),
		"layer_missing": made(nil, func(m map[string]any) {
			m["layers"] = []any{map[string]any{"mediaType": ociType + "layer.v1.tar", "digest": digest.FromString("y").String(), "size": 1}}
		}),
		"layer_size": made(nil, func(m map[string]any) { m["layers"].([]any)[0].(map[string]any)["size"] = 5 }),
		"layer_digest": made(nil, func(m map[string]any) {
			m["layers"].([]any)[0].(map[string]any)["digest"] = "sha256:../../../etc/passwd"
		}),
		"huge_metadata": tarOf(t, file("oci-layout", `{"imageLayoutVersion":"1.0.0"}`), file("index.json", strings.Repeat(" ", 9<<20)+"{}")),
		"blob_name":     tarOf(t, file("blobs/sha256/"+strings.Repeat("0", 64), "x")),
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "images")
			s := openAt(t, root, nil)
			_, err := s.Load(t.Context(), bytes.NewReader(archive), "")
			wantErr(t, err, sandbox.ErrImageCorrupt)
			wantNames(t, s)
			wantEmpty(t, root)
		})
	}
}

func TestTooManyLayers(t *testing.T) {
	needRoot(t)
	s := open(t)
	var layers [][]byte
	for i := range 128 {
		layers = append(layers, tarOf(t, file("f", fmt.Sprint(i))))
	}
	_, err := s.Load(t.Context(), bytes.NewReader(ociArchive(t, img{name: "deep:1", layers: layers})), "")
	wantErr(t, err, sandbox.ErrUnsupported, "128 layers")
	load(t, s, ociArchive(t, img{name: "deep:1", layers: layers[:127]}), "")
	if got := readTree(t, mountImage(t, resolve(t, s, "deep:1"))); !maps.Equal(got, model{"f": "file 126"}) {
		t.Errorf("image has %v", got)
	}
}

type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = f.err
	}
	return n, err
}

func TestReaderFails(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "images")
	s := openAt(t, root, nil)
	half := twoLayers(t, "a:1", gzip9)[:6000]
	broken := errors.New("the wire broke")
	_, err := s.Load(t.Context(), &failing{bytes.NewReader(half), broken}, "")
	if !errors.Is(err, broken) || errors.Is(err, sandbox.ErrImageCorrupt) {
		t.Errorf("a broken wire is %v", err)
	}
	_, err = s.Load(t.Context(), &failing{bytes.NewReader(half), io.ErrUnexpectedEOF}, "")
	wantErr(t, err, sandbox.ErrImageCorrupt)
	wantEmpty(t, root)
}

func TestLoadCancelled(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "images")
	s := openAt(t, root, nil)
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	pr, pw := io.Pipe()
	go func() {
		pw.Write(twoLayers(t, "a:1", gzip9)[:6000])
		cancel(stop) // and the reader goes on blocking
	}()
	if _, err := s.Load(ctx, pr, ""); !errors.Is(err, stop) {
		t.Errorf("Load: %v", err)
	}
	pw.Close()
	if _, err := s.Load(ctx, bytes.NewReader(twoLayers(t, "a:1", gzip9)), ""); !errors.Is(err, stop) {
		t.Errorf("Load: %v", err)
	}
	wantNames(t, s)
	wantEmpty(t, root)
}
