package fake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// attr is what the fake knows of a file beside its contents.
type attr struct {
	mode     fs.FileMode
	uid, gid uint32
	mod      time.Time
	version  uint64 // of the contents
}

// versions counts the contents that there ever were.
var versions atomic.Uint64

// tree is the files of a box. Paths in its maps are clean.
type tree struct{ *box }

// maxLinks bounds the links on one path.
const maxLinks = 40

// resolveLocked follows the links of a path, the last one only if asked to.
func (t tree) resolveLocked(name string, last bool) (string, error) {
	if !path.IsAbs(name) {
		return "", fmt.Errorf("%w: %.64q: an absolute path is expected", sandbox.ErrInvalidSpec, name)
	}
	rest := strings.Split(strings.Trim(name, "/"), "/")
	at, links := "/", 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		next := path.Join(at, part)
		target, isLink := t.links[next]
		switch {
		case isLink && (last || len(rest) > 0):
			if links++; links > maxLinks {
				return "", syscall.ELOOP
			}
			if path.IsAbs(target) {
				at = "/"
			}
			rest = append(strings.Split(strings.Trim(target, "/"), "/"), rest...)
			continue
		case len(rest) > 0 && t.files[next] != nil:
			return "", syscall.ENOTDIR
		}
		at = next
	}
	return at, nil
}

func (t tree) infoLocked(name string) (sandbox.FileInfo, error) {
	a := t.attrs[name]
	info := sandbox.FileInfo{Name: path.Base(name), Mode: a.mode, UID: a.uid, GID: a.gid, ModTime: a.mod}
	data, isFile := t.files[name]
	target, isLink := t.links[name]
	switch {
	case t.dirs[name]:
		info.Mode = fs.ModeDir | orDefault(a.mode, 0o755)
	case isLink:
		info.Mode, info.Link, info.Size = fs.ModeSymlink|0o777, target, int64(len(target))
	case isFile:
		info.Mode, info.Size, info.Version = orDefault(a.mode, 0o644), int64(len(data)), strconv.FormatUint(a.version, 10)
	default:
		return info, syscall.ENOENT
	}
	return info, nil
}

// parentLocked says why nothing can be made at a path, if so.
func (t tree) parentLocked(name string) error {
	switch dir := path.Dir(name); {
	case t.spec.ReadOnly && !strings.HasPrefix(name, "/tmp/") && !strings.HasPrefix(name, "/run/"):
		return syscall.EROFS
	case t.files[dir] != nil:
		return syscall.ENOTDIR
	case !t.dirs[dir]:
		return syscall.ENOENT
	}
	return nil
}

// putLocked makes a file.
func (t tree) putLocked(name string, data []byte, a attr) error {
	if t.dirs[name] {
		return syscall.EISDIR
	}
	if err := t.parentLocked(name); err != nil {
		return err
	}
	delete(t.links, name)
	t.files[name] = append([]byte{}, data...)
	a.version = versions.Add(1)
	t.attrs[name] = a
	return nil
}

func (t tree) mkdirLocked(name string, a attr) error {
	if _, err := t.infoLocked(name); err == nil {
		return syscall.EEXIST
	}
	if err := t.parentLocked(name); err != nil {
		return err
	}
	t.dirs[name], t.attrs[name] = true, a
	return nil
}

// belowLocked lists what is in a directory, at any depth, in order.
func (t tree) belowLocked(dir string) []string {
	var names []string
	prefix := strings.TrimSuffix(dir, "/") + "/"
	add := func(name string) {
		if strings.HasPrefix(name, prefix) && name != "/" {
			names = append(names, name)
		}
	}
	for name := range t.dirs {
		add(name)
	}
	for name := range t.files {
		add(name)
	}
	for name := range t.links {
		add(name)
	}
	slices.Sort(names)
	return names
}

func (t tree) dropLocked(name string) {
	delete(t.files, name)
	delete(t.dirs, name)
	delete(t.links, name)
	delete(t.attrs, name)
}

// onTree makes a call for the files of a box, whatever its state.
func onTree[T any](ctx context.Context, d *Driver, verb, id string, call func(tree) (T, error)) (T, error) {
	var res T
	err := d.need(sandbox.FeatureFiles)
	if err == nil {
		err = d.begin(ctx)
	}
	var b *box
	if err == nil {
		b, err = d.box(id)
	}
	if err == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.removing {
			err = sandbox.ErrRemoving
		}
	}
	if err == nil {
		res, err = call(tree{b})
	}
	if err != nil {
		return res, fmt.Errorf("%s box %.64q: %w", verb, id, sandbox.FileError(err))
	}
	return res, nil
}

// ownerLocked is the user of a call; the fake knows root and numbers.
func (t tree) ownerLocked(o sandbox.FileOptions) (attr, error) {
	user, _, _ := strings.Cut(orDefault(o.User, t.info.User), ":")
	a := attr{mod: time.Now()}
	if user == "root" || user == "" {
		return a, nil
	}
	n, err := strconv.ParseUint(user, 10, 31)
	if err != nil {
		return a, fmt.Errorf("%w: %.64q", sandbox.ErrUserNotFound, user)
	}
	a.uid, a.gid = uint32(n), uint32(n)
	return a, nil
}

// ReadFile implements [sandbox.Files].
func (d *Driver) ReadFile(ctx context.Context, id, name string, o sandbox.FileOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	var info sandbox.FileInfo
	data, err := onTree(ctx, d, "read a file of", id, func(t tree) ([]byte, error) {
		at, err := t.resolveLocked(name, true)
		if err != nil {
			return nil, err
		}
		data, done, err := onMount(t.box, at, func(m *mounted) (data []byte, err error) {
			if info, err = m.stat(true); err == nil {
				data, err = m.read()
			}
			return data, err
		})
		if done {
			return data, err
		}
		info, err = t.infoLocked(at)
		if err == nil && info.Mode.IsDir() {
			err = syscall.EISDIR
		}
		return slices.Clone(t.files[at]), err
	})
	if err != nil {
		return nil, info, err
	}
	data = data[min(max(o.Offset, 0), int64(len(data))):]
	if o.Limit > 0 {
		data = data[:min(o.Limit, int64(len(data)))]
	}
	return io.NopCloser(bytes.NewReader(data)), info, nil
}

// WriteFile implements [sandbox.Files].
func (d *Driver) WriteFile(ctx context.Context, id, name string, r io.Reader, o sandbox.FileOptions) (sandbox.FileInfo, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	return onTree(ctx, d, "write a file of", id, func(t tree) (sandbox.FileInfo, error) {
		at, err := t.resolveLocked(name, true)
		if err != nil {
			return sandbox.FileInfo{}, err
		}
		res, done, err := onMount(t.box, at, func(m *mounted) (sandbox.FileInfo, error) {
			if o.All && !m.ReadOnly {
				if err := m.root.MkdirAll(path.Dir(m.name), 0o755); err != nil {
					return sandbox.FileInfo{}, err
				}
			}
			if err := m.write(data, os.O_TRUNC, orDefault(o.Mode.Perm(), 0o644)); err != nil {
				return sandbox.FileInfo{}, err
			}
			return m.stat(true)
		})
		if done {
			return res, err
		}
		a, err := t.ownerLocked(o)
		if err != nil {
			return sandbox.FileInfo{}, err
		}
		if o.All && !t.dirs[path.Dir(at)] && !t.spec.ReadOnly {
			t.makeDirLocked(path.Dir(at))
		}
		switch now, err := t.infoLocked(at); {
		case o.IfAbsent && err == nil:
			return sandbox.FileInfo{}, syscall.EEXIST
		case o.IfVersion != "" && (err != nil || now.Version != o.IfVersion):
			return sandbox.FileInfo{}, sandbox.ErrFileChanged
		}
		a.mode = orDefault(o.Mode.Perm(), 0o644)
		if old, ok := t.attrs[at]; ok && old.mode != 0 {
			a.mode = old.mode
		}
		if err := t.putLocked(at, data, a); err != nil {
			return sandbox.FileInfo{}, err
		}
		return t.infoLocked(at)
	})
}

// Stat implements [sandbox.Files].
func (d *Driver) Stat(ctx context.Context, id, name string, o sandbox.FileOptions) (sandbox.FileInfo, error) {
	return onTree(ctx, d, "look at a file of", id, func(t tree) (sandbox.FileInfo, error) {
		at, err := t.resolveLocked(name, o.Follow)
		if err != nil {
			return sandbox.FileInfo{}, err
		}
		if info, done, err := onMount(t.box, at, func(m *mounted) (sandbox.FileInfo, error) { return m.stat(o.Follow) }); done {
			return info, err
		}
		return t.infoLocked(at)
	})
}

// ListDir implements [sandbox.Files].
func (d *Driver) ListDir(ctx context.Context, id, name string, _ sandbox.FileOptions) ([]sandbox.FileInfo, error) {
	return onTree(ctx, d, "list a directory of", id, func(t tree) ([]sandbox.FileInfo, error) {
		at, err := t.resolveLocked(name, true)
		if err == nil {
			if list, done, err := onMount(t.box, at, (*mounted).list); done {
				return list, err
			}
		}
		if err == nil && !t.dirs[at] {
			if _, err = t.infoLocked(at); err == nil {
				err = syscall.ENOTDIR
			}
		}
		if err != nil {
			return nil, err
		}
		var list []sandbox.FileInfo
		for _, n := range t.belowLocked(at) {
			if path.Dir(n) == at {
				info, err := t.infoLocked(n)
				if err != nil {
					return nil, err
				}
				list = append(list, info)
			}
		}
		return list, nil
	})
}

func (d *Driver) change(ctx context.Context, verb, id string, call func(tree) error) error {
	_, err := onTree(ctx, d, verb, id, func(t tree) (struct{}, error) { return struct{}{}, call(t) })
	return err
}

// MkDir implements [sandbox.Files].
func (d *Driver) MkDir(ctx context.Context, id, name string, o sandbox.FileOptions) error {
	return d.change(ctx, "make a directory in", id, func(t tree) error {
		at, err := t.resolveLocked(name, false)
		if err != nil {
			return err
		}
		a, err := t.ownerLocked(o)
		if err != nil {
			return err
		}
		a.mode = orDefault(o.Mode.Perm(), 0o755)
		if !o.All {
			return t.mkdirLocked(at, a)
		}
		for i, c := range at {
			if c != '/' || i == 0 {
				continue
			}
			if !t.dirs[at[:i]] {
				if err := t.mkdirLocked(at[:i], a); err != nil {
					return err
				}
			}
		}
		if t.dirs[at] {
			return nil
		}
		return t.mkdirLocked(at, a)
	})
}

// RemoveFile implements [sandbox.Files].
func (d *Driver) RemoveFile(ctx context.Context, id, name string, o sandbox.FileOptions) error {
	return d.change(ctx, "remove a file of", id, func(t tree) error {
		at, err := t.resolveLocked(name, false)
		if err == nil {
			_, err = t.infoLocked(at)
		}
		if errors.Is(err, syscall.ENOENT) && o.All {
			return nil
		}
		if err != nil {
			return err
		}
		below := t.belowLocked(at)
		switch {
		case at == "/":
			return syscall.EBUSY
		case len(below) > 0 && !o.All:
			return syscall.ENOTEMPTY
		}
		for _, n := range append(below, at) {
			t.dropLocked(n)
		}
		return nil
	})
}

// Rename implements [sandbox.Files].
func (d *Driver) Rename(ctx context.Context, id, from, to string, _ sandbox.FileOptions) error {
	return d.change(ctx, "rename a file of", id, func(t tree) error {
		src, err := t.resolveLocked(from, false)
		if err != nil {
			return err
		}
		dst, err := t.resolveLocked(to, false)
		if err != nil {
			return err
		}
		if _, err := t.infoLocked(src); err != nil {
			return err
		}
		switch {
		case src == dst:
			return nil
		case strings.HasPrefix(dst, src+"/"):
			return syscall.EINVAL
		case t.dirs[dst] && len(t.belowLocked(dst)) > 0:
			return syscall.ENOTEMPTY
		}
		if err := t.parentLocked(dst); err != nil {
			return err
		}
		t.dropLocked(dst)
		for _, n := range append(t.belowLocked(src), src) {
			t.moveLocked(n, dst+strings.TrimPrefix(n, src))
		}
		return nil
	})
}

func (t tree) moveLocked(from, to string) {
	a, isDir := t.attrs[from], t.dirs[from]
	target, isLink := t.links[from]
	data, isFile := t.files[from]
	t.dropLocked(from)
	switch {
	case isDir:
		t.dirs[to] = true
	case isLink:
		t.links[to] = target
	case isFile:
		t.files[to] = data
	}
	t.attrs[to] = a
}
