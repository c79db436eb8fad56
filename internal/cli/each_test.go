package cli

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// TestForAll: what was not done is never passed over in silence.
func TestForAll(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		name  string
		cutAt string // interrupted while this one is under way
		fails string
		tried []string
		code  int
	}{
		{"all", "", "", []string{"a", "b", "c"}, 0},
		{"one_fails", "", "b", []string{"a", "b", "c"}, 1},
		{"cut_with_some_left", "a", "", []string{"a"}, 130},
		{"cut_after_a_failure", "b", "a", []string{"a", "b"}, 130},
		{"cut_fails_the_last", "c", "c", []string{"a", "b", "c"}, 130},
		{"cut_after_the_last", "c", "", []string{"a", "b", "c"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			cmd := &cobra.Command{Use: "rm"}
			cmd.SetContext(ctx)
			env := &Env{Err: &bytes.Buffer{}}
			var tried []string
			err := env.forAll(cmd, []string{"a", "b", "c"}, func(name string) error {
				tried = append(tried, name)
				if name == c.cutAt {
					cancel(&signalError{unix.SIGINT})
				}
				if name == c.fails {
					return failed
				}
				return nil // its answer came before the signal
			})
			if code := exitCode("rm", err); code != c.code || !slices.Equal(tried, c.tried) {
				t.Errorf("code %d (%v), tried %v; want %d and %v", code, err, tried, c.code, c.tried)
			}
		})
	}
}
