package local_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
)

// BenchmarkUntar compares the unpacking of a 200 MB archive with tar(1). That
// does not wait for the disk; "tar-durable" syncs the file system after it.
func BenchmarkUntar(b *testing.B) {
	v := open(b, local.Config{Dir: filepath.Join(b.TempDir(), "workspaces")})
	box := create(b, v, "ws", volume.Options{})
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	data := make([]byte, 100<<10)
	rand.NewChaCha8([32]byte{}).Read(data)
	const files = 4000
	for i := range files {
		n := (i * 7919) % len(data)
		if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/e%d/f%d", i%20, i%7, i), Mode: 0o644, Size: int64(n)}); err != nil {
			b.Fatal(err)
		}
		tw.Write(data[:n])
	}
	tw.Close()
	if err := os.WriteFile(filepath.Join(box, "a.tar"), buf.Bytes(), 0o644); err != nil {
		b.Fatal(err)
	}
	ways := map[string]func(b *testing.B, i int){
		"ours": func(b *testing.B, i int) {
			if _, err := v.Untar(context.Background(), "ws", "a.tar", fmt.Sprint("out", i), volume.ArchiveOptions{}); err != nil {
				b.Fatal(err)
			}
		},
		"tar": func(b *testing.B, i int) {
			out := filepath.Join(box, fmt.Sprint("out", i))
			os.Mkdir(out, 0o755)
			if msg, err := exec.Command("tar", "-xf", filepath.Join(box, "a.tar"), "-C", out).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, msg)
			}
		},
	}
	ways["tar-durable"] = func(b *testing.B, i int) {
		ways["tar"](b, i)
		d, err := os.Open(box)
		if err != nil {
			b.Fatal(err)
		}
		defer d.Close()
		unix.Syncfs(int(d.Fd()))
	}
	for _, name := range []string{"tar", "tar-durable", "ours"} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(buf.Len()))
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				os.RemoveAll(filepath.Join(box, fmt.Sprint("out", i-1)))
				unix.Sync()
				b.StartTimer()
				ways[name](b, i)
			}
			os.RemoveAll(box + "/out0")
		})
	}
}
