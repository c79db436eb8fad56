package image

import (
	"context"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	whiteoutPrefix = ".wh."
	// metaPrefix begins names that aufs, where whiteouts come from, keeps for
	// itself. Only the mark of an opaque directory means anything today.
	metaPrefix = ".wh..wh."
	opaqueMark = ".wh..wh..opq"
)

// note takes down what an entry deletes, if that is what it is for.
func (u *unpacker) note(name string) (bool, error) {
	dir, base := path.Split(name)
	for part := range strings.SplitSeq(dir, "/") {
		if strings.HasPrefix(part, metaPrefix) {
			return true, nil
		}
		if strings.HasPrefix(part, whiteoutPrefix) {
			return false, corrupt("it lies below a whiteout")
		}
	}
	target, is := strings.CutPrefix(base, whiteoutPrefix)
	switch {
	case !is:
		return false, nil
	case base == opaqueMark:
		u.opaque[path.Clean(dir)] = true
	case strings.HasPrefix(base, metaPrefix):
	case target == "", target == ".", target == "..":
		return false, corrupt("a whiteout of nothing")
	default:
		u.deleted[path.Join(dir, target)] = true
	}
	return true, nil
}

// delete hides what was noted. It hides what the layers below show, and
// nothing else: what the layer itself has stays, wherever in it the whiteout
// stood, and where there is nothing to hide none is made, since a directory
// that an overlay does not merge would show it.
func (u *unpacker) delete(ctx context.Context) error {
	below := u.layers[1:]
	for dir := range u.opaque {
		if u.deleted[dir] || u.deletedAbove(dir) {
			continue // all of it goes, not its contents only
		}
		hidden, err := below.lookup(dir)
		if err != nil {
			return err
		}
		if hidden != nil && hidden.isDir() {
			err = u.setOpaque(dir)
		}
		hidden.close()
		if err != nil {
			return fmt.Errorf("opaque %.200q: %w", dir, err)
		}
	}
	for name := range u.deleted {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if u.deletedAbove(name) {
			continue
		}
		if err := u.whiteout(name); err != nil {
			return fmt.Errorf("whiteout %.200q: %w", name, err)
		}
	}
	return nil
}

// deletedAbove reports whether a directory that a name lies in is deleted too.
func (u *unpacker) deletedAbove(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if u.deleted[dir] {
			return true
		}
	}
	return false
}

func (u *unpacker) whiteout(name string) error {
	own, err := openNode(u.layers[0], name)
	if err != nil {
		return err
	}
	if own != nil {
		defer own.close()
		if own.isDir() {
			return u.setOpaque(name)
		}
		return nil
	}
	seen, err := u.layers.lookup(name)
	if seen == nil || err != nil {
		return err
	}
	seen.close()
	dir, err := u.makeDir(path.Dir(name))
	if dir == nil || err != nil {
		return err
	}
	defer dir.close()
	return unix.Mknodat(dir.fd, path.Base(name), unix.S_IFCHR, 0)
}

// setOpaque hides the contents that the layers below have in a directory.
func (u *unpacker) setOpaque(name string) error {
	dir, err := u.makeDir(name)
	if dir == nil || err != nil {
		return err
	}
	defer dir.close()
	return unix.Setxattr(dir.path(), opaqueXattr, []byte("y"), 0)
}
