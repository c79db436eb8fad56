package local

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// maxLevels is how many directories, one in the other, are open at once to
	// delete them. What is deeper is moved up first.
	maxLevels = 64
	// maxRounds bounds how often a directory is emptied that somebody fills.
	maxRounds = 1000
	nameBatch = 1024
)

// remover deletes a tree, name by name below descriptors.
type remover struct {
	spare  int    // a directory on the same file system for what is too deep
	prefix string // of the names there
	deep   []string
}

// removeTree deletes a file or tree without following a link. Nothing there is
// no error.
func removeTree(dir int, base string, spare int, prefix string) error {
	r := &remover{spare: spare, prefix: prefix}
	err := r.entry(dir, base, 0)
	for err == nil && len(r.deep) > 0 {
		last := r.deep[len(r.deep)-1]
		r.deep = r.deep[:len(r.deep)-1]
		err = r.entry(spare, last, 0)
	}
	return err
}

// entry deletes what a name of a directory stands for.
func (r *remover) entry(dir int, base string, depth int) error {
	for range maxRounds {
		err := unix.Unlinkat(dir, base, 0)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
			return &os.PathError{Op: "unlink", Path: base, Err: err}
		}
		fd, oerr := unix.Openat(dir, base, dirFlags, 0)
		switch {
		case errors.Is(oerr, unix.ENOENT):
			return nil
		case errors.Is(oerr, unix.ENOTDIR) || errors.Is(oerr, unix.ELOOP):
			if errors.Is(err, unix.EPERM) { // a file that cannot be deleted
				return &os.PathError{Op: "unlink", Path: base, Err: err}
			}
			continue // it was a directory a moment ago
		case oerr != nil:
			return &os.PathError{Op: "open", Path: base, Err: oerr}
		}
		moved, err := r.empty(dir, base, os.NewFile(uintptr(fd), base), depth)
		if err != nil || moved {
			return err
		}
		err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOTDIR):
			return &os.PathError{Op: "rmdir", Path: base, Err: err}
		}
	}
	return &os.PathError{Op: "rmdir", Path: base, Err: fmt.Errorf("somebody goes on filling it: %w", unix.ENOTEMPTY)}
}

// empty deletes all that is in a directory, or moves it away.
func (r *remover) empty(dir int, base string, f *os.File, depth int) (moved bool, err error) {
	defer f.Close()
	if depth >= maxLevels {
		to := newName(r.prefix)
		if err := unix.Renameat(dir, base, r.spare, to); err != nil {
			return false, &os.PathError{Op: "rename", Path: base, Err: err}
		}
		r.deep = append(r.deep, to)
		return true, nil
	}
	for {
		names, err := f.Readdirnames(nameBatch)
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		for _, name := range names {
			if err := r.entry(int(f.Fd()), name, depth+1); err != nil {
				return false, err
			}
		}
		// A directory that shrinks may skip names. The caller sees what is left.
		if len(names) == nameBatch {
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return false, err
			}
		}
	}
}
