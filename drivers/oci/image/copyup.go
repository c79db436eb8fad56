package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"
)

// copyPrefix begins the names of copies that have no place yet. No file of a
// layer can have such a name.
const copyPrefix = metaPrefix + "copy-"

// linkCopy links to a copy of a file that only the layers below have.
func (u *unpacker) linkCopy(ctx context.Context, dir int, base, name string) error {
	tmp, ok := u.copied[name]
	if !ok {
		from, err := u.layers.lookup(name)
		if err != nil {
			return err
		}
		if from == nil {
			return unix.ENOENT
		}
		defer from.close()
		tmp = copyPrefix + strconv.Itoa(len(u.copied))
		switch from.stat.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			err = u.copyFile(ctx, u.layers[0], tmp, from)
		case unix.S_IFLNK:
			err = copySymlink(u.layers[0], tmp, from)
		default:
			err = unix.EPERM
		}
		if err != nil {
			return err
		}
		u.copied[name] = tmp
	}
	return unix.Linkat(u.layers[0], tmp, dir, base, 0)
}

// placeCopies puts copies where what they were copied from is, so that both
// are the same file; but not where the layer has something itself, or deletes
// what was there.
func (u *unpacker) placeCopies() error {
	for name, tmp := range u.copied {
		placed, err := u.place(name, tmp)
		if err == nil && !placed {
			err = unix.Unlinkat(u.layers[0], tmp, 0)
		}
		if err != nil {
			return fmt.Errorf("place copy of %.200q: %w", name, err)
		}
	}
	return nil
}

func (u *unpacker) place(name, tmp string) (bool, error) {
	if u.deleted[name] || u.deletedAbove(name) || u.opaque["."] {
		return false, nil
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if u.opaque[dir] {
			return false, nil
		}
	}
	seen, err := u.layers.lookup(name)
	if seen == nil || err != nil {
		return false, err
	}
	seen.close()
	own, err := openNode(u.layers[0], name)
	if own != nil || err != nil {
		own.close()
		return false, err
	}
	dir, err := u.makeDir(path.Dir(name))
	if dir == nil || err != nil {
		return false, err
	}
	defer dir.close()
	return true, unix.Renameat(u.layers[0], tmp, dir.fd, path.Base(name))
}

func (u *unpacker) copyFile(ctx context.Context, dir int, base string, from *node) error {
	if err := u.grow(from.stat.Size); err != nil {
		return err
	}
	src, err := os.Open(from.path())
	if err != nil {
		return err
	}
	defer src.Close()
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	dst := os.NewFile(uintptr(fd), base)
	err = copySparse(dst, contextReader{ctx, src})
	if err == nil {
		err = copyAttributes(fdPath(fd), from)
	}
	return errors.Join(err, dst.Close(), unix.UtimesNanoAt(dir, base, timespecs(from.modTime()), unix.AT_SYMLINK_NOFOLLOW))
}

func copySymlink(dir int, base string, from *node) error {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(from.fd, "", target)
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(string(target[:n]), dir, base); err != nil {
		return err
	}
	return unix.Fchownat(dir, base, int(from.stat.Uid), int(from.stat.Gid), unix.AT_SYMLINK_NOFOLLOW)
}

// copyAttributes gives a file the owner, attributes and mode of another.
func copyAttributes(to string, from *node) error {
	if err := os.Chown(to, int(from.stat.Uid), int(from.stat.Gid)); err != nil {
		return err
	}
	keys, err := sysx.Listxattr(from.path())
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	for _, key := range slices.DeleteFunc(keys, func(k string) bool { return !keptXattr(k) }) {
		value, err := sysx.Getxattr(from.path(), key)
		if err != nil {
			return err
		}
		if err := unix.Setxattr(to, key, value, 0); err != nil {
			return err
		}
	}
	return unix.Chmod(to, from.stat.Mode&0o7777)
}
