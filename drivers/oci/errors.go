package oci

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

// noSpace gives a full disk its name.
func noSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", sandbox.ErrNoSpace, err)
	}
	return err
}
