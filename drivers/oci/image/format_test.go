package image_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var formatLayers = [][]entry{
	{dir("bin"), file("bin/a", "a"), hardlink("bin/b", "bin/a"), symlink("bin/c", "a"), dir("etc"), file("etc/gone", "g"), dir("opq"), file("opq/old", "o")},
	{white("etc/.wh.gone"), file("etc/made", "m"), dir("opq"), file("opq/new", "n"), white("opq/.wh..wh..opq")},
}

func formatTars(t *testing.T) (tars [][]byte, want model) {
	t.Helper()
	want = model{}
	for _, l := range formatLayers {
		tars = append(tars, tarOf(t, l...))
		want = want.apply(l)
	}
	return tars, want
}

// checkArchive loads an archive into a store of its own.
func checkArchive(t *testing.T, archive []byte, name string, want model) {
	t.Helper()
	s := open(t)
	load(t, s, archive, "")
	wantNames(t, s, name)
	if diff := cmp.Diff(want, readTree(t, mountImage(t, resolve(t, s, name)))); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func TestFormats(t *testing.T) {
	needRoot(t)
	tars, want := formatTars(t)
	for i, outer := range allZip {
		for j, inner := range allZip {
			t.Run(fmt.Sprintf("oci_%d_%d", i, j), func(t *testing.T) {
				checkArchive(t, outer.do(ociArchive(t, img{name: "f:1", layers: tars, zip: inner})), "f:1", want)
			})
		}
		t.Run(fmt.Sprintf("docker_%d", i), func(t *testing.T) {
			checkArchive(t, outer.do(dockerArchive(t, "f:1", tars...)), "f:1", want)
		})
	}
}

// TestSkopeoFormats loads what skopeo makes of an archive of ours.
func TestSkopeoFormats(t *testing.T) {
	needRoot(t)
	_, err := exec.LookPath("skopeo")
	need(t, "skopeo", err == nil, "needs skopeo")
	tars, want := formatTars(t)
	d := t.TempDir()
	if err := os.WriteFile(filepath.Join(d, "ours.tar"), ociArchive(t, img{name: "f:1", layers: tars}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ to, file, flags string }{
		"oci_archive":    {"oci-archive:%s:f:1", "oci.tar", ""},
		"oci_zstd":       {"oci-archive:%s:f:1", "zstd.tar", "--dest-compress-format=zstd"},
		"docker_archive": {"docker-archive:%s:f:1", "docker.tar", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(d, c.file)
			args := []string{"copy", "--insecure-policy", "oci-archive:" + filepath.Join(d, "ours.tar"), fmt.Sprintf(c.to, out)}
			if c.flags != "" {
				args = append(args, c.flags)
			}
			if text, err := exec.CommandContext(t.Context(), "skopeo", args...).CombinedOutput(); err != nil {
				t.Fatalf("skopeo %v: %v\n%s", args, err, text)
			}
			archive, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			checkArchive(t, archive, "f:1", want)
		})
	}
}

// TestDockerSave loads what Docker makes of an archive of ours, and compares
// the trees: Docker is the reference for layers.
func TestDockerSave(t *testing.T) {
	needRoot(t)
	docker := func(stdin []byte, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), "docker", args...)
		cmd.Stdin = bytes.NewReader(stdin)
		return cmd.Output()
	}
	_, err := docker(nil, "info")
	need(t, "docker", err == nil, "needs a running Docker")
	tars, want := formatTars(t)
	const name = "taibox-test/format:1"
	if _, err := docker(dockerArchive(t, name, tars...), "load"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exec.Command("docker", "image", "rm", name).Run() })
	archive, err := docker(nil, "save", name)
	if err != nil {
		t.Fatal(err)
	}
	checkArchive(t, archive, name, want)
	id, err := docker(nil, "create", name, "/bin/a")
	if err != nil {
		t.Fatal(err)
	}
	box := string(bytes.TrimSpace(id))
	defer docker(nil, "rm", box)
	exported, err := docker(nil, "export", box)
	if err != nil {
		t.Fatal(err)
	}
	theirs := t.TempDir()
	untar := exec.CommandContext(t.Context(), "tar", "-xC", theirs)
	untar.Stdin = bytes.NewReader(exported)
	if text, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	got := readTree(t, theirs)
	for _, of := range []string{".dockerenv", "dev", "dev/console", "dev/pts", "dev/shm", "proc", "sys", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf"} {
		delete(got, of) // Docker's own
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Docker's tree (-want +Docker's):\n%s", diff)
	}
}
