package image_test

import (
	"bytes"
	goruntime "runtime"
	"testing"

	"github.com/taibox/taibox/tai/sandbox"
)

const otherArch = "s390x"

func TestOtherPlatform(t *testing.T) {
	needRoot(t)
	s := open(t)
	foreign := one(t, "example.test/bb:1", "x")
	foreign.arch = otherArch
	_, err := s.Load(t.Context(), bytes.NewReader(ociArchive(t, foreign)), "")
	wantErr(t, err, sandbox.ErrImagePlatform, "example.test/bb:1", "linux/"+otherArch, "linux/"+goruntime.GOARCH)
	_, err = s.Load(t.Context(), bytes.NewReader(ociArchive(t, one(t, "good:1", "x"), foreign)), "")
	wantErr(t, err, sandbox.ErrImagePlatform)
	wantNames(t, s)
}

// index makes an index of an image for two platforms, as buildx does, with an
// attestation.
func index(t *testing.T, b blobs, name string, leaveOut bool) map[string]any {
	t.Helper()
	platform := func(desc map[string]any, arch string) map[string]any {
		desc["platform"] = map[string]string{"os": "linux", "architecture": arch}
		return desc
	}
	foreign := img{layers: [][]byte{tarOf(t, file("f", "foreign"))}, arch: otherArch}
	other := b
	if leaveOut {
		other = blobs{}
	}
	attestation := platform(b.manifest(img{layers: [][]byte{[]byte("{}")}, arch: "unknown"}), "unknown")
	list := []any{platform(other.manifest(foreign), otherArch), attestation, platform(b.manifest(one(t, "", "ours")), goruntime.GOARCH)}
	return named(b.putJSON(ociType+"index.v1+json", map[string]any{"schemaVersion": 2, "mediaType": ociType + "index.v1+json", "manifests": list}), name)
}

func TestSeveralPlatforms(t *testing.T) {
	needRoot(t)
	for name, leaveOut := range map[string]bool{"complete": false, "ours_only": true} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			b := blobs{}
			load(t, s, b.archive(t, index(t, b, "multi:1", leaveOut)), "")
			got := readTree(t, mountImage(t, resolve(t, s, "multi:1")))
			if got["f"] != "file ours" {
				t.Errorf("image has %v", got)
			}
		})
	}
	t.Run("nested_too_deep", func(t *testing.T) {
		s := open(t)
		b := blobs{}
		desc := index(t, b, "", false)
		for range 6 {
			desc = b.putJSON(ociType+"index.v1+json", map[string]any{"schemaVersion": 2, "manifests": []any{desc}})
		}
		_, err := s.Load(t.Context(), bytes.NewReader(b.archive(t, named(desc, "deep:1"))), "")
		wantErr(t, err, sandbox.ErrImageCorrupt, "nested")
	})
}
