package sandbox

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"strings"
)

// MaxMounts bounds the mounts of a box.
const MaxMounts = 64

// Mount is a directory of the node's machine that a box sees as its own. Set-
// user-ID programs and devices in it mean nothing inside, and what is mounted
// below it on the machine is not seen.
type Mount struct {
	// Source is the directory: an absolute path, clean, with no link in it. It
	// must be there when the box is made, and at each start ([ErrMountSource]).
	Source string
	// Target is where the box sees it: an absolute path, clean. It is made if
	// missing. What the box has there is hidden.
	Target   string
	ReadOnly bool
	// Workspace is the ID of the workspace whose directory it is. What belongs
	// to uid 0 there belongs, inside, to the box's user, whichever it is, and
	// what belongs to that user's number to root; groups alike. All other
	// numbers are the same on both sides. Empty: a directory of the machine,
	// where all numbers are the same.
	Workspace string
}

// kernelDirs are the directories of a box that are not its own to arrange.
var kernelDirs = []string{"/proc", "/sys", "/dev"}

// Validate checks what can be checked without a node. The error wraps
// [ErrInvalidSpec].
func (m *Mount) Validate() error {
	if m.Workspace != "" {
		if err := ValidateID(m.Workspace); err != nil {
			return err
		}
	}
	for what, p := range map[string]string{"source": m.Source, "target": m.Target} {
		if p == "" || validDir(p) != nil || path.Clean(p) != p {
			return invalid("%s of mount %.64q: a clean absolute path is expected", what, p)
		}
	}
	if m.Target == "/" {
		return invalid("mount on /: it is the box's own")
	}
	for _, dir := range kernelDirs {
		if m.Target == dir || strings.HasPrefix(m.Target, dir+"/") {
			return invalid("mount on %.64q: %s is the kernel's", m.Target, dir)
		}
	}
	return nil
}

func (s *Spec) validMounts() error {
	if len(s.Mounts) > MaxMounts {
		return invalid("%d mounts: up to %d are possible", len(s.Mounts), MaxMounts)
	}
	taken := map[string]bool{}
	for _, t := range s.Tmpfs {
		dir, _, _ := strings.Cut(t, ":")
		taken[dir] = true
	}
	var errs []error
	for i := range s.Mounts {
		m := &s.Mounts[i]
		if err := m.Validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		if taken[m.Target] {
			errs = append(errs, invalid("mount on %.64q: something else is to be mounted there", m.Target))
		}
		taken[m.Target] = true
	}
	return errors.Join(errs...)
}

// ByDepth orders paths so that parents come before what is in them, and is
// stable otherwise: the order in which to mount.
func ByDepth[T any](list []T, target func(T) string) []T {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b T) int {
		return cmp.Compare(strings.Count(target(a), "/"), strings.Count(target(b), "/"))
	})
	return list
}
