package image

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", sandbox.ErrImageCorrupt, fmt.Errorf(format, args...))
}

func notFound(ref string) error {
	return reason.WithHint(fmt.Errorf("image %s: %w", ref, sandbox.ErrImageNotFound),
		"fetch it with taibox image pull, or load it with taibox image load -i FILE; taibox image ls shows what is there")
}

// local names what is wrong with this machine rather than with an archive, and
// passes everything else on unchanged.
func local(err error) error {
	if (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) && !errors.Is(err, sandbox.ErrNoSpace) {
		return fmt.Errorf("%w: %w", sandbox.ErrNoSpace, err)
	}
	return err
}

// blame names who is at fault for a failure to read or unpack an archive: this
// machine, the caller who gave up, or else the archive.
func blame(ctx context.Context, err error) error {
	if err == nil || reason.Of(err) != "" {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var src *sourceError
	if errors.As(err, &src) && !errors.Is(src.err, io.ErrUnexpectedEOF) {
		return err
	}
	for _, ours := range []error{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EACCES, errdefs.ErrUnavailable} {
		if errors.Is(err, ours) {
			return local(err)
		}
	}
	return fmt.Errorf("%w: %w", sandbox.ErrImageCorrupt, err)
}

// sourceError is a failure of the reader that an archive comes from.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read archive: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }
