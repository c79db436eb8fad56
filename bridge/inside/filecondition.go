package inside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

// condition says over what a file may be written.
type condition struct {
	absent  bool   // over nothing
	version string // over this one; "" over any
}

// check reports whether the condition holds.
func (c *condition) check(path string) error {
	if !c.absent && c.version == "" {
		return nil
	}
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	switch {
	case c.absent && err == nil:
		return &os.PathError{Op: "write", Path: path, Err: unix.EEXIST}
	case c.version != "" && (err != nil || version(&st) != c.version):
		return fmt.Errorf("write %s: %w", path, sandbox.ErrFileChanged)
	}
	return nil
}

// publish gives a finished file its name.
func (c *condition) publish(tmp, path string) error {
	switch {
	case c.absent:
		return linkNew(tmp, path)
	case c.version != "":
		// Two such writes at once: the second sees what the first left.
		if dir, err := os.Open(filepath.Dir(path)); err == nil {
			defer dir.Close()
			if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
				return &os.PathError{Op: "lock", Path: dir.Name(), Err: err}
			}
		}
		if err := c.check(path); err != nil {
			return err
		}
	}
	return os.Rename(tmp, path)
}

// linkNew renames a file to a name that nothing has yet.
func linkNew(tmp, path string) error {
	err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // not on this file system
		if err := os.Link(tmp, path); err != nil {
			return err
		}
		return os.Remove(tmp)
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}
