package testimage_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/taibox/taibox/internal/testimage"
)

// Other people's readers are the judges of what is written here.
func TestDockerIsReadByOthers(t *testing.T) {
	im := testimage.Image{Name: "example.test/a:1", Layers: []testimage.Layer{{testimage.File("f", []byte("x"), 0o600).Owned(7, 8)}}}
	data, err := testimage.Docker(im)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := got.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("layers: %v, %v", layers, err)
	}
	c, err := got.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	id, err := layers[0].DiffID()
	if err != nil || id != c.RootFS.DiffIDs[0] {
		t.Errorf("layer has diff id %v, %v; the config says %v", id, err, c.RootFS.DiffIDs[0])
	}
}

func TestOCIIsTheSameEachTime(t *testing.T) {
	for _, how := range []testimage.Compression{testimage.Gzip, testimage.Zstd, testimage.None} {
		im := testimage.Image{Layers: []testimage.Layer{{testimage.Dir("d", 0o755), testimage.Symlink("d/l", "x")}}, Compression: how}
		a, err := testimage.OCI(im, im)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := testimage.OCI(im, im); !bytes.Equal(a, b) {
			t.Errorf("%s: two builds differ", how)
		}
	}
	if _, err := testimage.OCI(testimage.Image{Compression: "rar", Layers: []testimage.Layer{{}}}); err == nil {
		t.Error("an unknown compression was accepted")
	}
}
