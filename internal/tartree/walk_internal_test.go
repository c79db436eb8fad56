package tartree

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/nofollow"
)

// The names of directories in each other are bounded together.
func TestNamesOnTheWay(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.MkdirAll(filepath.Join(dir, name, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for held, want := range map[int]error{0: nil, nofollow.MaxNames - 4: nil, nofollow.MaxNames - 3: unix.EFBIG} {
		w := &walk{ctx: t.Context(), root: root, rel: ".", as: "top", v: NewPacker(t.Context(), io.Discard), held: held}
		if err := w.dir(".", true); !errors.Is(err, want) || w.held != held {
			t.Errorf("with %d: %v, and %d are held", held, err, w.held)
		}
	}
}
