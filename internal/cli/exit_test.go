package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// TestExitCodes walks the table of CONVENTIONS.md.
func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		name         string
		err          error
		other, passe int
	}{
		{"ok", nil, 0, 0},
		{"unknown", errors.New("x"), 1, 125},
		{"internal", errdefs.ErrInternal, 1, 125},
		{"corrupt", taisandbox.ErrImageCorrupt, 1, 125},
		{"no_space", taisandbox.ErrNoSpace, 1, 125},
		{"unsupported", taisandbox.ErrUnsupported, 1, 125},
		{"usage", usage("x"), 2, 125},
		{"invalid", taisandbox.ErrInvalidSpec, 2, 125},
		{"not_found", taisandbox.ErrNotFound, 3, 125},
		{"image_not_found", taisandbox.ErrImageNotFound, 3, 125},
		{"exists", taisandbox.ErrAlreadyExists, 4, 125},
		{"not_running", taisandbox.ErrNotRunning, 4, 125},
		{"in_use", taisandbox.ErrImageInUse, 4, 125},
		{"denied", errdefs.ErrPermissionDenied, 5, 125},
		{"unauthenticated", errdefs.ErrUnauthenticated, 5, 125},
		{"unavailable", taisandbox.ErrBridgeLost, 6, 125},
		{"deadline", context.DeadlineExceeded, 6, 125},
		{"interrupted", &signalError{unix.SIGINT}, 130, 130},
		{"terminated", &signalError{unix.SIGTERM}, 143, 143},
		{"command", &exitError{code: 7}, 7, 7},
		{"timeout", &exitError{exitTimeout, errors.New("x")}, 124, 124},
	} {
		t.Run(c.name, func(t *testing.T) {
			wrapped := c.err
			if wrapped != nil {
				wrapped = fmt.Errorf("do thing: %w", c.err)
			}
			for _, verb := range []string{"rm", "create", "image load", "logs", "ps", "kill"} {
				if got := exitCode(verb, wrapped); got != c.other {
					t.Errorf("%s: code %d, want %d", verb, got, c.other)
				}
			}
			for _, verb := range []string{"run", "exec", "attach", "wait"} {
				if got := exitCode(verb, wrapped); got != c.passe {
					t.Errorf("%s: code %d, want %d", verb, got, c.passe)
				}
			}
		})
	}
}

func TestReport(t *testing.T) {
	var errs bytes.Buffer
	env := &Env{Err: &errs}
	err := withHint(errors.Join(errors.New("first"), errors.New("second \x1b[31mred")), "do\nthis")
	if code := report(env, "rm", err); code != exitFailed {
		t.Errorf("code %d", code)
	}
	if want := "taibox: first; second \\x1b[31mred\nhint: do; this\n"; errs.String() != want {
		t.Errorf("got %q, want %q", errs.String(), want)
	}
	errs.Reset()
	if code := report(env, "exec", &exitError{code: 3}); code != 3 || errs.Len() > 0 {
		t.Errorf("the command's own code: %d, stderr %q", code, errs.String())
	}
}

func TestOutcome(t *testing.T) {
	code := func(n int) *int { return &n }
	for _, c := range []struct {
		name string
		o    outcome
		want int
		tell string
	}{
		{"zero", outcome{code: code(0), reason: taisandbox.ReasonExit}, 0, ""},
		{"own", outcome{code: code(7), reason: taisandbox.ReasonExit}, 7, ""},
		{"not_found", outcome{code: code(127), reason: taisandbox.ReasonExit}, 127, ""},
		{"signal", outcome{code: code(139), reason: taisandbox.ReasonSignal}, 139, ""},
		{"killed", outcome{code: code(143), reason: taisandbox.ReasonKilled}, 143, ""},
		{"C05_timeout_never_0", outcome{code: code(0), reason: taisandbox.ReasonTimeout}, 124, "timeout"},
		{"timeout", outcome{code: code(143), reason: taisandbox.ReasonTimeout}, 124, "timeout"},
		{"A07_oom", outcome{code: code(137), reason: taisandbox.ReasonOOM}, 137, "out of memory"},
		{"lost", outcome{reason: taisandbox.ReasonLost}, 125, "not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var errs bytes.Buffer
			env := &Env{Err: &errs}
			c.o.exec, c.o.box = "x1", "b1"
			if got := report(env, "exec", c.o.err(env)); got != c.want {
				t.Errorf("code %d, want %d", got, c.want)
			}
			if !strings.Contains(errs.String(), c.tell) || c.tell == "" && errs.Len() > 0 {
				t.Errorf("stderr %q, want %q", errs.String(), c.tell)
			}
			if c.tell != "" && (!strings.Contains(errs.String(), "x1") || !strings.Contains(errs.String(), "b1")) {
				t.Errorf("stderr %q does not name the exec and its box", errs.String())
			}
		})
	}
}
