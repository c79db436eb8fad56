package treesync

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/tai/volume"
)

// The names of directories in each other are bounded together.
func TestNamesOnTheWay(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.MkdirAll(filepath.Join(dir, name, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for held, want := range map[int]error{0: nil, nofollow.MaxNames - 4: nil, nofollow.MaxNames - 3: volume.ErrTooLarge} {
		p, err := Dir(dir).Open(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		w := &walker{ctx: t.Context(), held: held, yield: func(volume.SyncEntry, error) bool { return true }}
		if err := w.dir(p.Root, "", nil); !errors.Is(err, want) || w.held != held {
			t.Errorf("with %d: %v, and %d are held", held, err, w.held)
		}
		p.close()
	}
}
