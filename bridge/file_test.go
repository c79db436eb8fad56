package bridge_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/tai/sandbox"
)

func (b *box) readFile(name string, o bridge.FileOptions) ([]byte, error) {
	r, _, err := b.ReadFile(b.t.Context(), name, o)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func TestFilesOfEverySize(t *testing.T) {
	b := start(t)
	dir := t.TempDir()
	for _, n := range []int{0, 1, 4095, 4097, 65535, 65536, 65537, 1<<20 + 1} {
		data := make([]byte, n)
		rng := rand.NewChaCha8([32]byte{byte(n), 1})
		rng.Read(data)
		name := filepath.Join(dir, "f")
		info, err := b.WriteFile(t.Context(), name, iotest.HalfReader(bytes.NewReader(data)), bridge.FileOptions{})
		if err != nil || info.Size != int64(n) || info.Name != "f" {
			t.Fatalf("%d bytes: %+v, %v", n, info, err)
		}
		if got, err := b.readFile(name, bridge.FileOptions{}); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes: %d came back, %v", n, len(got), err)
		}
		if n > 100 {
			got, err := b.readFile(name, bridge.FileOptions{Offset: 10, Limit: 50})
			if err != nil || !bytes.Equal(got, data[10:60]) {
				t.Errorf("a part of %d bytes: %d came back, %v", n, len(got), err)
			}
		}
	}
}

func TestFileCalls(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	odd := "a\nb \xff'\""
	if err := b.Mkdir(ctx, at("d/e"), bridge.FileOptions{All: true, Mode: 0o750}); err != nil {
		t.Fatal(err)
	}
	if err := b.Mkdir(ctx, at("d"), bridge.FileOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	if _, err := b.WriteFile(ctx, at("d/"+odd), strings.NewReader("odd"), bridge.FileOptions{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(odd, at("d/link")); err != nil {
		t.Fatal(err)
	}
	list, err := b.ListDir(ctx, at("d"), bridge.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bridge.FileInfo{}
	for _, i := range list {
		seen[i.Name] = i
	}
	if len(seen) != 3 || !seen["e"].Mode.IsDir() || seen["e"].Mode.Perm() != 0o750 || seen[odd].Size != 3 || seen[odd].Mode != 0o600 ||
		seen["link"].Mode.Type() != fs.ModeSymlink || seen["link"].Link != odd {
		t.Errorf("%+v", list)
	}
	// A write through a link keeps link and mode.
	if _, err := b.WriteFile(ctx, at("d/link"), strings.NewReader("more"), bridge.FileOptions{Mode: 0o777}); err != nil {
		t.Fatal(err)
	}
	if got, err := b.readFile(at("d/"+odd), bridge.FileOptions{}); err != nil || string(got) != "more" {
		t.Errorf("%q, %v", got, err)
	}
	if i, err := b.Stat(ctx, at("d/"+odd), bridge.FileOptions{}); err != nil || i.Mode != 0o600 {
		t.Errorf("%+v, %v", i, err)
	}
	if err := b.Rename(ctx, at("d/"+odd), at("plain"), bridge.FileOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Remove(ctx, at("d"), bridge.FileOptions{}); !errors.Is(err, unix.ENOTEMPTY) {
		t.Error(err)
	}
	if err := b.Remove(ctx, at("d"), bridge.FileOptions{All: true}); err != nil {
		t.Error(err)
	}
	if err := b.Remove(ctx, at("d"), bridge.FileOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	_, err = b.Stat(ctx, "relative", bridge.FileOptions{})
	wantErr(t, err, sandbox.ErrInvalidSpec)
	_, err = b.Stat(ctx, at("plain"), bridge.FileOptions{User: "nobody-here"})
	wantErr(t, err, sandbox.ErrUserNotFound)
}

// TestSpecialFiles gives endless, blocking and made-up files to readers.
func TestSpecialFiles(t *testing.T) {
	b := start(t)
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/dev/zero", "/dev/tty", fifo, dir, "/proc/1/environ", "/proc/kmsg", "/proc/self/mem", "/sys/kernel/uevent_seqnum"} {
		if got, err := b.readFile(name, bridge.FileOptions{}); err == nil {
			t.Errorf("%s gives %d bytes", name, len(got))
		}
	}
	for _, name := range []string{fifo, dir} {
		if _, err := b.WriteFile(t.Context(), name, strings.NewReader("x"), bridge.FileOptions{}); err == nil {
			t.Errorf("%s was written", name)
		}
	}
}

func TestFilesAsUser(t *testing.T) {
	needRoot(t)
	b := start(t)
	dir, err := os.MkdirTemp("/tmp", "user")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	user := bridge.FileOptions{User: "12345:678"}
	os.Chmod(dir, 0o755)
	if _, err := b.readFile(secret, user); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	if _, err := b.WriteFile(t.Context(), filepath.Join(dir, "new"), strings.NewReader("x"), user); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	info, err := b.WriteFile(t.Context(), filepath.Join(dir, "new"), strings.NewReader("x"), user)
	if err != nil || info.UID != 12345 || info.GID != 678 || info.Mode != 0o644 {
		t.Errorf("%+v, %v", info, err)
	}
}

// TestConcurrentWriters leaves one whole file, and nothing beside it.
func TestConcurrentWriters(t *testing.T) {
	b := start(t)
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				if _, err := b.WriteFile(t.Context(), name, bytes.NewReader(bytes.Repeat([]byte{byte('a' + i)}, 100_000)), bridge.FileOptions{}); err != nil {
					t.Error(err)
				}
				got, err := b.readFile(name, bridge.FileOptions{})
				if err != nil || len(got) != 100_000 || len(bytes.Trim(got, string(got[:1]))) > 0 {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
	// A writer that breaks off changes nothing.
	if _, err := b.WriteFile(t.Context(), name, iotest.ErrReader(io.ErrUnexpectedEOF), bridge.FileOptions{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	until(t, "only the file is left", func() bool {
		left, err := os.ReadDir(dir)
		return err == nil && len(left) == 1
	})
	if got, err := b.readFile(name, bridge.FileOptions{}); err != nil || len(got) != 100_000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
