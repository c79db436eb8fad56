package bridge_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/taibox/taibox/bridge"
)

// TestOrphan leaves a box alone: it stays as long as somebody is connected,
// and ends itself with a note once nobody is.
func TestOrphan(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]bridge.Setup{
		bridge.EndOrphan:   {Box: "testbox", OrphanAfter: 300 * time.Millisecond},
		bridge.EndLifetime: {Box: "testbox", Lifetime: 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			end, err := os.OpenFile(filepath.Join(t.TempDir(), "end"), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer end.Close()
			watch, err := b.Watch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			setup.End = end
			if _, err := b.Setup(t.Context(), setup); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-b.exited:
				t.Fatalf("it ended while the node was connected: %v", err)
			case <-time.After(time.Second):
			}
			watch.Close()
			select {
			case err := <-b.exited:
				if err != nil {
					t.Errorf("it ended with %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("it did not end")
			}
			note := make([]byte, 64)
			if n, _ := end.ReadAt(note, 0); !bytes.Equal(note[:n], []byte(name)) {
				t.Errorf("its note is %q, want %q", note[:n], name)
			}
		})
	}
}

// TestOrphanStays reconnects again and again, each time before the time is over.
func TestOrphanStays(t *testing.T) {
	t.Parallel()
	b := start(t)
	if _, err := b.Setup(t.Context(), bridge.Setup{Box: "testbox", OrphanAfter: time.Minute}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := b.Stats(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-b.exited:
		t.Fatal(errors.Join(errors.New("it ended"), err))
	default:
	}
}
