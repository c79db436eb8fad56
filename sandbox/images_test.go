package sandbox_test

import (
	"errors"
	"testing"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// TestR01_PullFailureIsSeen: how a pull ended is read from its progress, and
// the image is there only if it went well.
func TestR01_PullFailureIsSeen(t *testing.T) {
	r := newRig(t, fake.WithRegistry(map[string]taisandbox.ImageConfig{"example.test/a:1": {}}))
	for ref, want := range map[string]error{"example.test/a:1": nil, "example.test/none:1": sandbox.ErrRegistryNotFound} {
		if err := r.m.EnsureImage(t.Context(), "local", ref, sandbox.ImagePullOptions{}); !errors.Is(err, want) {
			t.Errorf("ensure %s: %v", ref, err)
		}
		if there, err := r.m.ImageExists(t.Context(), "local", ref); err != nil || there != (want == nil) {
			t.Errorf("%s is there: %v, %v", ref, there, err)
		}
		progress, err := r.m.PullImage(t.Context(), "local", ref, sandbox.ImagePullOptions{Auth: &sandbox.RegistryAuth{Username: "u", Password: "p"}})
		if err != nil {
			t.Fatal(err)
		}
		var last taisandbox.PullProgress
		for p := range progress {
			last = p
		}
		if !errors.Is(last.Err, want) || (last.Error == "") != (want == nil) || (last.Status == taisandbox.PullComplete) != (want == nil) {
			t.Errorf("%s ends with %+v", ref, last)
		}
	}
	if _, err := r.m.PullImage(t.Context(), "nowhere", "a", sandbox.ImagePullOptions{}); !errors.Is(err, sandbox.ErrNodeNotFound) {
		t.Errorf("on a node that is not there: %v", err)
	}
}
