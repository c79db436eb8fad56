package local_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
)

// The benchmarks come in pairs: the volume, and the file system below it by the
// same steps. To write is a temporary file, fsync, rename and fsync of the
// directory for both.

var benchSizes = []struct {
	name string
	size int64
}{{"1KiB", 1 << 10}, {"1MiB", 1 << 20}, {"1GiB", 1 << 30}}

func benchVolume(b *testing.B) (*local.Volume, string) {
	b.Helper()
	v := open(b, local.Config{Dir: filepath.Join(b.TempDir(), "w")})
	return v, create(b, v, "ws", volume.Options{})
}

// pattern is an endless source.
type pattern struct{ block [64 << 10]byte }

func newPattern() *pattern {
	p := &pattern{}
	for i := range p.block {
		p.block[i] = byte(i * 7)
	}
	return p
}

func (p *pattern) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		n += copy(b[n:], p.block[:])
	}
	return n, nil
}

func BenchmarkWrite(b *testing.B) {
	for _, s := range benchSizes {
		if s.size > 1<<20 && testing.Short() {
			continue
		}
		v, dir := benchVolume(b)
		src := newPattern()
		ctx := context.Background()
		b.Run(s.name+"/volume", func(b *testing.B) {
			b.SetBytes(s.size)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.WriteFile(ctx, "ws", "f", io.LimitReader(src, s.size), volume.WriteOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(s.name+"/bare", func(b *testing.B) {
			b.SetBytes(s.size)
			b.ReportAllocs()
			for b.Loop() {
				if err := bareWrite(dir, "g", io.LimitReader(src, s.size)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func bareWrite(dir, name string, r io.Reader) error {
	f, err := os.CreateTemp(dir, "tmp-*")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.CopyBuffer(struct{ io.Writer }{f}, r, make([]byte, 256<<10)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func BenchmarkRead(b *testing.B) {
	for _, s := range benchSizes {
		if s.size > 1<<20 && testing.Short() {
			continue
		}
		v, dir := benchVolume(b)
		ctx := context.Background()
		if _, err := v.WriteFile(ctx, "ws", "f", io.LimitReader(newPattern(), s.size), volume.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, 256<<10)
		drain := func(b *testing.B, r io.Reader) {
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, buf)
			if err != nil || n != s.size {
				b.Fatal(n, err)
			}
		}
		b.Run(s.name+"/volume", func(b *testing.B) {
			b.SetBytes(s.size)
			b.ReportAllocs()
			for b.Loop() {
				r, _, err := v.Open(ctx, "ws", "f", volume.OpenOptions{})
				if err != nil {
					b.Fatal(err)
				}
				drain(b, r)
				r.Close()
			}
		})
		b.Run(s.name+"/bare", func(b *testing.B) {
			b.SetBytes(s.size)
			b.ReportAllocs()
			for b.Loop() {
				f, err := os.Open(filepath.Join(dir, "f"))
				if err != nil {
					b.Fatal(err)
				}
				drain(b, f)
				f.Close()
			}
		})
	}
}

func BenchmarkList10000(b *testing.B) {
	v, dir := benchVolume(b)
	fillBench(b, dir, 1, 10_000)
	b.Run("volume", func(b *testing.B) {
		for b.Loop() {
			infos, err := v.ListDir(context.Background(), "ws", "0")
			if err != nil || len(infos) != 10_000 {
				b.Fatal(len(infos), err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			entries, err := os.ReadDir(filepath.Join(dir, "0"))
			if err != nil || len(entries) != 10_000 {
				b.Fatal(len(entries), err)
			}
			for _, e := range entries {
				if _, err := e.Info(); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

func BenchmarkWalk100000(b *testing.B) {
	v, dir := benchVolume(b)
	fillBench(b, dir, 100, 1000)
	b.Run("volume", func(b *testing.B) {
		for b.Loop() {
			n := 0
			for _, err := range v.Walk(context.Background(), "ws", ".") {
				if err != nil {
					b.Fatal(err)
				}
				n++
			}
			if n != 100_101 {
				b.Fatal(n)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			n := 0
			err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
				if err == nil {
					_, err = d.Info()
				}
				n++
				return err
			})
			if err != nil || n != 100_101 {
				b.Fatal(n, err)
			}
		}
	})
}

// fillBench makes directories with files.
func fillBench(b *testing.B, dir string, dirs, files int) {
	b.Helper()
	data := bytes.Repeat([]byte("x"), 100)
	for i := range dirs {
		sub := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range files {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file-%05d", j)), data, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkGetAmong1000(b *testing.B) {
	v, _ := benchVolume(b)
	for i := range 1000 {
		create(b, v, fmt.Sprintf("w%d", i), volume.Options{})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Get(context.Background(), "w500"); err != nil {
			b.Fatal(err)
		}
	}
}
