package treesync_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/tai/volume"
)

const benchFiles = 20_000

// benchTree makes a tree as that of a project with its packages.
func benchTree(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	data := random(64 << 10)
	for i := range benchFiles {
		sub := filepath.Join(dir, fmt.Sprint("p", i%200), fmt.Sprint("lib", i%7))
		if i < 1400 {
			if err := os.MkdirAll(sub, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprint("f", i)), data[:(i*7919)%8192], 0o644); err != nil {
			b.Fatal(err)
		}
	}
	syncAll(b)
	return dir
}

func syncAll(b *testing.B) {
	b.Helper()
	unix.Sync()
}

// BenchmarkSync compares the first and the second sync of a tree with rsync's.
// That does not wait for the disk; "rsync-durable" syncs the file system after it.
func BenchmarkSync(b *testing.B) {
	from := benchTree(b)
	rsync := func(b *testing.B, to string, durable bool) {
		if out, err := exec.Command("rsync", "-a", from+"/", to+"/").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		if durable {
			d, err := os.Open(to)
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			unix.Syncfs(int(d.Fd()))
		}
	}
	ways := map[string]func(b *testing.B, to string){
		"near": func(b *testing.B, to string) {
			sync(b, treesync.Dir(from), treesync.Dir(to), volume.SyncOptions{})
		},
		"push": func(b *testing.B, to string) {
			sync(b, treesync.Dir(from), far{treesync.Dir(to)}, volume.SyncOptions{})
		},
		"rsync":         func(b *testing.B, to string) { rsync(b, to, false) },
		"rsync-durable": func(b *testing.B, to string) { rsync(b, to, true) },
	}
	for _, name := range []string{"rsync", "rsync-durable", "near", "push"} {
		if _, err := exec.LookPath("rsync"); err != nil && name[0] == 'r' {
			continue
		}
		b.Run("first/"+name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				to := filepath.Join(b.TempDir(), fmt.Sprint(i))
				syncAll(b)
				b.StartTimer()
				ways[name](b, to)
			}
		})
		b.Run("second/"+name, func(b *testing.B) {
			to := filepath.Join(b.TempDir(), "to")
			ways[name](b, to)
			for b.Loop() {
				ways[name](b, to)
			}
		})
	}
}
