package image

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
)

// stopper ends something once a megabyte was written.
type stopper struct {
	n    int
	stop func()
}

func (s *stopper) Write(p []byte) (int, error) {
	if s.n += len(p); s.n > 1<<20 {
		s.stop()
	}
	return len(p), nil
}

// A commit that is given up ends in the middle of a file.
func TestPackCancelled(t *testing.T) {
	upper := t.TempDir()
	if err := errors.Join(os.WriteFile(upper+"/f", nil, 0o600), os.Truncate(upper+"/f", 4<<30)); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	w := &stopper{stop: func() { cancel(enough) }}
	if err := packUpper(ctx, upper, nil, w); !errors.Is(err, enough) {
		t.Errorf("it ends with %v", err)
	}
	if w.n > 2<<20 {
		t.Errorf("%d bytes were written", w.n)
	}
}

// What compresses best is compressed no further than readers take, and the
// rest as well as ever.
func TestSqueezer(t *testing.T) {
	for size, least := range map[int64]int64{
		1 << 20:                        0,
		expandFree - 2*pieceBytes:      0,
		expandFree:                     pieceBytes,
		expandFree + 1:                 pieceBytes,
		expandFree + 5*pieceBytes + 99: pieceBytes,
	} {
		out := &counter{w: io.Discard}
		s := newSqueezer(out)
		if _, err := io.CopyN(s, endlessZeros{}, size); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if out.n < least || out.n > least+2<<20 || size > expanded(out.n) {
			t.Errorf("%d bytes became %d, which may expand to %d", size, out.n, expanded(out.n))
		}
	}
}
