package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/reason"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Exit codes of failures.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitDenied      = 5
	exitUnavailable = 6

	exitTimeout     = 124 // the command ran past --timeout
	exitOurs        = 125 // a failure of ours where the code is else the command's
	exitSignalBase  = 128
	exitInterrupted = exitSignalBase + int(unix.SIGINT)
	exitPipe        = exitSignalBase + int(unix.SIGPIPE)
)

// passesCode says of which verbs the exit code is that of a command in a box.
var passesCode = map[string]bool{"run": true, "exec": true, "attach": true, "wait": true}

// exitCode is the one table from errors to exit codes.
func exitCode(verb string, err error) int {
	var done *exitError
	var sig *signalError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &done):
		return done.code
	case errors.As(err, &sig):
		return exitSignalBase + int(sig.sig)
	case passesCode[verb]:
		return exitOurs
	}
	if errors.Is(err, taisandbox.ErrRegistryNotFound) {
		return exitFailed // 3 is for what this machine does not have
	}
	switch errdefs.Resolve(err) {
	case errdefs.ErrInvalidArgument, errdefs.ErrOutOfRange:
		return exitUsage
	case errdefs.ErrNotFound:
		return exitNotFound
	case errdefs.ErrAlreadyExists, errdefs.ErrConflict, errdefs.ErrFailedPrecondition, errdefs.ErrAborted:
		return exitConflict
	case errdefs.ErrPermissionDenied, errdefs.ErrUnauthenticated:
		return exitDenied
	case errdefs.ErrUnavailable, context.DeadlineExceeded:
		return exitUnavailable
	}
	return exitFailed
}

// exitError ends the program with a code. err, if any, is still to be told.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// report tells err and returns the exit code.
func report(env *Env, verb string, err error) int {
	var done *exitError
	var sig *signalError
	if silent := errors.As(err, &done) && done.err == nil || errors.As(err, &sig); err != nil && !silent {
		tell(env, err)
	}
	return exitCode(verb, err)
}

// tell prints an error and what to do about it.
func tell(env *Env, err error) {
	env.note("%v", err)
	if hint := reason.Hint(err); hint != "" {
		env.hint(hint)
	}
}

// usage makes an error of wrong usage: the caller's words were not understood.
func usage(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }
func (e *usageError) Unwrap() error { return errdefs.ErrInvalidArgument }

// oneLine makes s fit for one line of a terminal: joined errors, which stand
// one a line, are separated by semicolons, and what could steer the terminal
// is spelt out.
func oneLine(s string) string {
	s = strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "; ")
	if !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			fmt.Fprintf(&b, "\\x%02x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
