package sandbox_test

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// slow gives one byte a step, for longer than a box may be idle.
type slow struct {
	r    io.Reader
	step time.Duration
}

func (s *slow) Read(p []byte) (int, error) {
	time.Sleep(s.step)
	return s.r.Read(p[:min(len(p), 1)])
}

// Files on their way in and out keep a box, however slowly they come.
func TestH01SlowTransfers(t *testing.T) {
	const steps = 30 // a minute each, of which a box may be idle for ten
	archive := func(t *testing.T) io.Reader {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		must(t, w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: 1}))
		_, err := w.Write([]byte("x"))
		must(t, err)
		must(t, w.Close())
		return &buf
	}
	for name, use := range map[string]func(*testing.T, *sandbox.Box){
		"upload": func(t *testing.T, b *sandbox.Box) {
			_, err := b.WriteFile(t.Context(), "/tmp/f", &slow{strings.NewReader(strings.Repeat("x", steps)), time.Minute}, sandbox.FileOptions{})
			must(t, err)
		},
		"download": func(t *testing.T, b *sandbox.Box) {
			_, err := b.WriteFile(t.Context(), "/tmp/f", strings.NewReader(strings.Repeat("x", steps)), sandbox.FileOptions{})
			must(t, err)
			r, _, err := b.OpenFile(t.Context(), "/tmp/f", sandbox.FileOptions{})
			must(t, err)
			_, err = io.Copy(io.Discard, &slow{r, time.Minute})
			must(t, err)
			must(t, r.Close())
		},
		"archive_in": func(t *testing.T, b *sandbox.Box) {
			must(t, b.CopyTo(t.Context(), "/tmp", &slow{archive(t), time.Second}, sandbox.FileOptions{})) // 512 bytes and more
		},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				r := newRig(t)
				b := r.create(sessionBox)
				done := make(chan struct{})
				go func() {
					defer close(done)
					use(t, b)
				}()
				for running := true; running; {
					select {
					case <-done:
						running = false
					case <-time.After(time.Minute):
						wantStatus(t, b, taisandbox.StateRunning, "")
					}
				}
				pass(idle - time.Second)
				r.want("x")
				pass(2 * time.Second)
				r.want()
			})
		})
	}
}
