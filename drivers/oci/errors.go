package oci

import (
	"errors"
	"fmt"
	"strings"

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

// runtimeError is a failure of the OCI runtime, of which there is text only. A
// hierarchy of cgroups that takes no more says the same as a full disk.
func runtimeError(program string, err error, words string) error {
	if strings.Contains(words, unix.ENOSPC.Error()) && !strings.Contains(words, "cgroup") {
		err = fmt.Errorf("%w: %w", sandbox.ErrNoSpace, err)
	}
	return fmt.Errorf("start with %s: %w: %s", program, err, words)
}
