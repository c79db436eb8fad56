package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/taibox/taibox/tai/sandbox"
)

// FuzzReference: a name is refused as such, or it is shown in a way that means
// the same when it is typed again.
func FuzzReference(f *testing.F) {
	for _, s := range []string{"bb", "bb:1", "example.test/bb:1", "localhost:5000/a/b", "docker.io/library/x", "hostfs", "../x", "a@sha256:" + strings.Repeat("0", 64), strings.Repeat("a", 64), "A", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		full, err := newName(s)
		if err != nil {
			if !errors.Is(err, sandbox.ErrImageRef) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		again, err := newName(displayName(full))
		if err != nil || again != full {
			t.Errorf("%q is %q, shown as %q, which is %q, %v", s, full, displayName(full), again, err)
		}
		if prefix, ok := digestPrefix(s); ok && !strings.HasPrefix(prefix, "sha256:") {
			t.Errorf("%q begins a digest %q", s, prefix)
		}
	})
}
