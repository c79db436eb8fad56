package image_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/tai/sandbox"
)

// loadAndDieDir names the variable that makes the test binary a process that
// loads and removes images until it is killed.
const loadAndDieDir = "TAIBOX_TEST_LOAD_AND_DIE"

func loadForever(dir string) {
	archive, err := os.ReadFile(filepath.Join(dir, "big.tar"))
	if err != nil {
		panic(err)
	}
	s, err := image.Open(context.Background(), image.Config{Dir: filepath.Join(dir, "images")})
	if err != nil {
		panic(err)
	}
	fmt.Println("open")
	for {
		if _, err := s.Load(context.Background(), bytes.NewReader(archive), ""); err != nil {
			panic(err)
		}
		if err := s.RemoveImage(context.Background(), "big:1"); err != nil {
			panic(err)
		}
	}
}

// bigLayers are layers that take a while.
func bigLayers(t *testing.T) ([][]byte, model) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	want := model{}
	var tars [][]byte
	for l := range 3 {
		var entries []entry
		for i := range 150 {
			data := make([]byte, r.IntN(3000))
			for j := range data {
				data[j] = byte(r.Uint32())
			}
			entries = append(entries, file(fmt.Sprintf("d%d/f%d", i%7, i+l), string(data)))
		}
		entries = append(entries, white(fmt.Sprintf("d0/.wh.f%d", 7*l)))
		tars = append(tars, tarOf(t, entries...))
		want = want.apply(entries)
	}
	return tars, want
}

// TestKilledLoads kills a process that loads and removes at any instruction.
// Whatever the store then says it has is whole, and nothing else stays.
func TestKilledLoads(t *testing.T) {
	needRoot(t)
	d := t.TempDir()
	root := filepath.Join(d, "images")
	tars, want := bigLayers(t)
	if err := os.WriteFile(filepath.Join(d, "big.tar"), ociArchive(t, img{name: "big:1", layers: tars}), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, root, nil)
	load(t, s, ociArchive(t, one(t, "kept:1", "kept")), "")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		killLoader(t, d, time.Duration(rand.IntN(150))*time.Millisecond)
		s := openAt(t, root, nil)
		if got := readTree(t, resolve(t, s, "kept:1").Lowers[0]); got["f"] != "file kept" {
			t.Fatalf("round %d: the image that was there has %v", round, got)
		}
		if r, err := s.Resolve(t.Context(), "big:1"); err == nil {
			if diff := cmp.Diff(want, readTree(t, mountImage(t, r))); diff != "" {
				t.Fatalf("round %d: half an image is taken for whole:\n%s", round, diff)
			}
			r.Release()
			if err := s.RemoveImage(t.Context(), "big:1"); err != nil {
				t.Fatal(err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(root, "snapshots/*")); len(left) != 1 {
			t.Fatalf("round %d: layers left behind: %v", round, left)
		}
		if left, _ := filepath.Glob(filepath.Join(root, "content/*/*")); len(left) != 1 {
			t.Fatalf("round %d: blobs left behind: %v", round, left)
		}
		if blobs, _ := filepath.Glob(filepath.Join(root, "content/blobs/sha256/*")); len(blobs) != 3 {
			t.Fatalf("round %d: blobs left behind: %v", round, blobs)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func killLoader(t *testing.T, dir string, after time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), loadAndDieDir+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Errorf("the loader did not open the store: %v\n%s", err, stderr.String())
	}
	time.Sleep(after)
	cmd.Process.Kill()
	cmd.Wait()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() {
		t.Errorf("the loader failed by itself:\n%s", stderr.String())
	}
}

// TestConcurrentLoads has loads of the same and of related images, removals
// and lookups at once.
func TestConcurrentLoads(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "images")
	s := openAt(t, root, nil)
	tars, want := bigLayers(t)
	same := ociArchive(t, img{name: "same:1", layers: tars})
	shorter := ociArchive(t, img{name: "shorter:1", layers: tars[:2]})
	zstd := ociArchive(t, img{name: "zstd:1", layers: tars, zip: zstd3})
	broken := bytes.Clone(same)
	broken[len(broken)/2] ^= 1
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			archive := [][]byte{same, shorter, zstd, broken}[i%4]
			for range 4 {
				_, err := s.Load(t.Context(), bytes.NewReader(archive), "")
				if i%4 == 3 {
					if err == nil {
						t.Error("a broken archive was loaded")
					}
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			s.RemoveImage(t.Context(), "shorter:1")
			if _, err := s.ListImages(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	for _, name := range []string{"same:1", "zstd:1"} {
		if diff := cmp.Diff(want, readTree(t, mountImage(t, resolve(t, s, name)))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if layers, _ := filepath.Glob(filepath.Join(root, "snapshots/*")); len(layers) != 3 {
		t.Errorf("layers are there more than once: %v", layers)
	}
}

// TestLoadsAndRemovals has the garbage collector run while blobs are written
// and records change: none of them waits for the other for ever.
func TestLoadsAndRemovals(t *testing.T) {
	needRoot(t)
	s := open(t)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			name := fmt.Sprintf("own:%d", i)
			for n := range 25 {
				archive := dockerArchive(t, name, tarOf(t, file("f", fmt.Sprint(i, n))))
				if _, err := s.Load(t.Context(), bytes.NewReader(archive), ""); err != nil {
					t.Error(err)
				}
				if err := s.RemoveImage(t.Context(), name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(3 * time.Minute):
		t.Fatal("the store is stuck")
	}
}

// TestFullDisk loads what does not fit.
func TestFullDisk(t *testing.T) {
	needRoot(t)
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	root := filepath.Join(disk, "images")
	s := openAt(t, root, nil)
	load(t, s, ociArchive(t, one(t, "small:1", "small")), "")
	used := diskUse(t, disk)
	noise := make([]byte, 2<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for name, archive := range map[string][]byte{
		"blob":  ociArchive(t, img{name: "big:1", layers: [][]byte{tarOf(t, file("a", string(noise)), file("b", string(noise)))}, zip: plain}),
		"layer": ociArchive(t, img{name: "big:1", layers: [][]byte{tarOf(t, file("a", string(noise)), file("b", string(bytes.Repeat(noise[:1], 3<<20))))}}),
	} {
		for range 3 {
			_, err := s.Load(t.Context(), bytes.NewReader(archive), "")
			wantErr(t, err, sandbox.ErrNoSpace)
			wantNames(t, s, "small:1")
			if now := diskUse(t, disk); now > used+256<<10 {
				t.Fatalf("%s: %d bytes are taken, %d before", name, now, used)
			}
		}
	}
	resolve(t, s, "small:1").Release()
	if err := s.RemoveImage(t.Context(), "small:1"); err != nil {
		t.Error(err)
	}
	load(t, s, ociArchive(t, one(t, "small:1", "small")), "")
}

func diskUse(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}
