package tartree_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/internal/tartree"
)

// What an unpacking that was killed left half written goes with a later one.
func TestLeftFilesGo(t *testing.T) {
	dest, _ := place(t)
	left := nofollow.TempName(".taibox-unpack-")
	for _, dir := range []string{"d", "other"} {
		if err := errors.Join(os.Mkdir(filepath.Join(dest, dir), 0o755), os.WriteFile(filepath.Join(dest, dir, left), []byte("half"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	data := archive(t, tar.Header{Name: "d/f"}, tar.Header{Name: "d/new/f"})
	for _, after := range []time.Duration{0, 100 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(after) // files have the time of the machine
			if err := unpack(t, dest, data, tartree.Options{Outside: true}); err != nil {
				t.Fatal(err)
			}
		})
		_, err := os.Stat(filepath.Join(dest, "d", left))
		if gone := after > 0; gone != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after %v: %v", after, err)
		}
		if _, err := os.Stat(filepath.Join(dest, "other", left)); err != nil {
			t.Errorf("where nothing was unpacked: %v", err)
		}
	}
}

// However slow an unpacking is, another one does not take it for dead.
func TestHalfFilesInUseStay(t *testing.T) {
	dest, _ := place(t)
	root, err := os.OpenRoot(dest)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	other := archive(t, tar.Header{Name: "g"})
	source := bytes.NewReader(archive(t, tar.Header{Name: "f"}))
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(100 * 365 * 24 * time.Hour) // files have the time of the machine
		within := readFunc(func(p []byte) (int, error) {
			if entries, err := os.ReadDir(dest); err != nil || len(entries) == 1 && entries[0].Name() != "f" {
				if err := unpack(t, dest, other, tartree.Options{}); err != nil {
					t.Error(err)
				}
			}
			return source.Read(p)
		})
		if err := tartree.Unpack(t.Context(), within, root, tartree.Options{}); err != nil {
			t.Error(err)
		}
	})
	if got := snapshot(t, dest); !strings.Contains(got, `"f" `) || !strings.Contains(got, `"g" `) {
		t.Errorf("there is\n%s", got)
	}
}
