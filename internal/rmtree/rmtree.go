// Package rmtree deletes trees that others made: of any depth, with few open
// directories, without following a link or going into a mount.
package rmtree

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// maxLevels is how many directories, one in the other, are open at once to
	// delete them. What is deeper is moved up first.
	maxLevels = 64
	// maxRounds bounds how often a directory is emptied that somebody fills.
	maxRounds = 1000
	nameBatch = 1024
	// maxShown bounds the name of a file in an error.
	maxShown = 256
)

// within opens a directory that is neither a link nor the root of a mount.
var within = unix.OpenHow{
	Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_DIRECTORY | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_XDEV,
}

// Remove deletes a file or tree. Nothing there is no error. What is very deep
// is moved beside it on the way, and stays there if the removal is cut.
func Remove(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	fd := int(parent.Fd())
	err = At(fd, filepath.Base(path), fd, func() string { return ".removing-" + rand.Text() })
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		pe.Path = filepath.Join(parent.Name(), pe.Path)
	}
	return err
}

// At is [Remove] for a name in an open directory. What is very deep is moved to
// the directory spare of the same file system, under a new name.
func At(dir int, base string, spare int, newName func() string) error {
	r := &remover{spare: spare, newName: newName}
	err := r.entry(dir, base, 0)
	for err == nil && len(r.deep) > 0 {
		last := r.deep[len(r.deep)-1]
		r.deep = r.deep[:len(r.deep)-1]
		err = r.entry(spare, last, 0)
	}
	if pe, ok := errors.AsType[*os.PathError](err); ok && len(pe.Path) > maxShown {
		pe.Path = pe.Path[:maxShown] + "..."
	}
	return err
}

// remover deletes a tree, name by name below descriptors.
type remover struct {
	spare   int // a directory on the same file system for what is too deep
	newName func() string
	deep    []string // what is there
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
		fd, oerr := unix.Openat2(dir, base, &within)
		switch {
		case errors.Is(oerr, unix.ENOENT):
			return nil
		case errors.Is(oerr, unix.ENOTDIR) || errors.Is(oerr, unix.ELOOP):
			if errors.Is(err, unix.EPERM) { // a file that cannot be deleted
				return &os.PathError{Op: "unlink", Path: base, Err: err}
			}
			continue // it was a directory a moment ago
		case errors.Is(oerr, unix.EXDEV):
			return &os.PathError{Op: "remove", Path: base, Err: fmt.Errorf("something is mounted there: %w", unix.EBUSY)}
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
		to := r.newName()
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
				if pe, ok := errors.AsType[*os.PathError](err); ok {
					pe.Path = base + "/" + pe.Path
				}
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
