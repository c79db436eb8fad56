package fake

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/taibox/taibox/tai/sandbox"
)

// checkSources refuses mounts of what is no directory, or is reached by a link.
func checkSources(mounts []sandbox.Mount) error {
	for i := range mounts {
		m := &mounts[i]
		name := orDefault(m.Workspace, m.Source)
		real, err := filepath.EvalSymlinks(m.Source)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("mount %s: %w: it is not there", name, sandbox.ErrMountSource)
		case err != nil:
			return fmt.Errorf("mount %s: %w: %w", name, sandbox.ErrMountSource, err)
		case real != m.Source:
			return fmt.Errorf("mount %s: %w: a link leads to it", name, sandbox.ErrMountSource)
		}
		if st, err := os.Stat(real); err != nil || !st.IsDir() {
			return fmt.Errorf("mount %s: %w: it is no directory", name, sandbox.ErrMountSource)
		}
	}
	return nil
}

// mountDirs makes the targets, and what a box begins in below one.
func (b *box) mountDirs() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.spec.Mounts {
		b.makeDirLocked(m.Target)
	}
	return b.inMount(b.info.WorkDir, func(m *mounted) error {
		if m.ReadOnly {
			return nil
		}
		return m.root.MkdirAll(m.name, 0o755)
	})
}

// mounted is a place in a directory of the machine that a box has mounted. It
// is real, and so is what is done there: no link leads out of it.
type mounted struct {
	*sandbox.Mount
	root *os.Root
	name string // relative to root
}

// inMount calls f if a path is in a mount.
func (b *box) inMount(name string, f func(*mounted) error) error {
	name = path.Clean(name)
	var in *sandbox.Mount
	for i := range b.spec.Mounts {
		m := &b.spec.Mounts[i]
		if (name == m.Target || strings.HasPrefix(name, m.Target+"/")) && (in == nil || len(m.Target) > len(in.Target)) {
			in = m
		}
	}
	if in == nil {
		return nil
	}
	root, err := os.OpenRoot(in.Source)
	if err != nil {
		return err
	}
	defer root.Close()
	return f(&mounted{in, root, orDefault(strings.TrimPrefix(strings.TrimPrefix(name, in.Target), "/"), ".")})
}

// onMount is inMount for what returns something. done says whether it did.
func onMount[T any](b *box, name string, f func(*mounted) (T, error)) (res T, done bool, err error) {
	err = b.inMount(name, func(m *mounted) error {
		var err error
		res, err = f(m)
		done = true
		return err
	})
	return res, done || err != nil, err
}

func (m *mounted) read() ([]byte, error) { return m.root.ReadFile(m.name) }

func (m *mounted) write(data []byte, flag int, mode fs.FileMode) error {
	if m.ReadOnly {
		return syscall.EROFS
	}
	f, err := m.root.OpenFile(m.name, os.O_WRONLY|os.O_CREATE|flag, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

func (m *mounted) stat(follow bool) (sandbox.FileInfo, error) {
	look := m.root.Lstat
	if follow {
		look = m.root.Stat
	}
	st, err := look(m.name)
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	info := sandbox.FileInfo{Name: path.Base(path.Join(m.Target, m.name)), Mode: st.Mode(), Size: st.Size(), ModTime: st.ModTime()}
	if st.Mode()&fs.ModeSymlink != 0 {
		info.Link, err = m.root.Readlink(m.name)
	}
	return info, err
}

func (m *mounted) list() ([]sandbox.FileInfo, error) {
	dir, err := m.root.Open(m.name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var list []sandbox.FileInfo
	for _, n := range names {
		info, err := (&mounted{m.Mount, m.root, path.Join(m.name, n)}).stat(false)
		if err == nil { // else it is gone by now
			list = append(list, info)
		}
	}
	return list, nil
}
