package holes_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/taibox/taibox/internal/holes"
)

func TestNext(t *testing.T) {
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const mib = 1 << 20
	if err := f.Truncate(4 * mib); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, mib), mib); err != nil { // zeros, and data
		t.Fatal(err)
	}
	for _, c := range []struct{ at, size, start, stop int64 }{
		{0, 4 * mib, mib, 2 * mib},
		{mib + 5, 4 * mib, mib + 5, 2 * mib},
		{2 * mib, 4 * mib, 4 * mib, 4 * mib}, // a hole to the end
		{0, mib / 2, mib / 2, mib / 2},       // the data begin behind size
		{0, mib + mib/2, mib, mib + mib/2},   // and end behind it
		{5 * mib, 4 * mib, 4 * mib, 4 * mib},
	} {
		if start, stop := holes.Next(f, c.at, c.size); start != c.start || stop != c.stop {
			t.Errorf("from %d of %d: %d to %d, want %d to %d", c.at, c.size, start, stop, c.start, c.stop)
		}
	}

	// A pipe has no offsets at all.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if start, stop := holes.Next(r, 3, 10); start != 3 || stop != 10 {
		t.Errorf("without holes: %d to %d", start, stop)
	}
}
