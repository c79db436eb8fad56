package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/internal/reason"
)

// TestUnitThatDoesNotComeUp: one that systemd gave up, or starts in vain, is
// noticed, and the way to its log is told.
func TestUnitThatDoesNotComeUp(t *testing.T) {
	for _, c := range []struct{ name, show, want string }{
		{"given_up", `echo ActiveState=failed; echo Result=start-limit-hit; echo NRestarts=5`, "taibox.service has failed (start-limit-hit)"},
		{"crash_loop", `read n <count; echo $((n+1)) >count; echo ActiveState=activating; echo Result=exit-code; echo NRestarts=$n`, "taibox.service ends again and again (exit-code)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"systemctl": "#!/bin/sh\ncd " + dir + "\n" + c.show + "\n", "count": "7\n"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", dir)
			dead := make(chan error, 1)
			watchUnit(t.Context(), dead)
			nobody, err := client.New("unix://" + dir + "/none")
			if err != nil {
				t.Fatal(err)
			}
			env := &Env{Err: &bytes.Buffer{}}
			_, err = env.await(t.Context(), nobody, starting{dead, func() string { return "" }, journal})
			if !errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), c.want) || !strings.Contains(reason.Hint(err), "journalctl -u taibox") {
				t.Errorf("%v; hint %q", err, reason.Hint(err))
			}
		})
	}
	t.Run("given_time", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir()) // systemd does not answer
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(nil)
		dead := make(chan error, 1)
		if watchUnit(ctx, dead); len(dead) > 0 {
			t.Error(<-dead)
		}
	})
}
