package image

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"
)

const opaqueXattr = "trusted.overlay.opaque"

// tree is a stack of layer directories, topmost first, seen as an overlay of
// them would show it. Layers are hostile: a name is looked up in a layer
// without following any link.
type tree []int // descriptors

func openTree(dirs ...string) (tree, error) {
	var t tree
	for _, dir := range dirs {
		fd, err := unix.Open(filepath.Clean(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.close()
			return nil, fmt.Errorf("open layer %s: %w", dir, err)
		}
		t = append(t, fd)
	}
	return t, nil
}

func (t tree) close() {
	for _, fd := range t {
		unix.Close(fd) //nolint:errcheck // nothing was written through it
	}
}

// node is a file of a layer.
type node struct {
	fd   int // O_PATH
	stat unix.Stat_t
}

func (n *node) close() {
	if n != nil {
		unix.Close(n.fd) //nolint:errcheck // nothing was written through it
	}
}

// path leads to the node itself, whatever its name is now.
func (n *node) path() string { return fdPath(n.fd) }

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func (n *node) modTime() time.Time { return time.Unix(n.stat.Mtim.Unix()) }

func (n *node) isDir() bool { return n.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

func (n *node) isWhiteout() bool { return n.stat.Mode&unix.S_IFMT == unix.S_IFCHR && n.stat.Rdev == 0 }

func (n *node) isOpaque() (bool, error) { return isOpaque(n.path()) }

func isOpaque(dir string) (bool, error) {
	v, err := sysx.Getxattr(dir, opaqueXattr)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return false, nil
	}
	return err == nil && string(v) == "y", err
}

// openNode opens what a layer itself has under a name; nil if it has nothing
// there, or no directory on the way.
func openNode(layer int, name string) (*node, error) {
	fd, err := unix.Openat2(layer, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, nil //nolint:nilnil // absence is an answer
	case err != nil:
		return nil, fmt.Errorf("open %.200q in layer: %w", name, err)
	}
	n := &node{fd: fd}
	if err := unix.Fstat(fd, &n.stat); err != nil {
		n.close()
		return nil, fmt.Errorf("stat %.200q in layer: %w", name, err)
	}
	return n, nil
}

// lookup finds a name in the stack; nil if nobody would see it there.
func (t tree) lookup(name string) (*node, error) {
	layers, err := merged(t, ".")
	if err != nil {
		return nil, err
	}
	for i := range len(name) {
		if name[i] != '/' {
			continue
		}
		if layers, err = merged(layers, name[:i]); err != nil || len(layers) == 0 {
			return nil, err
		}
	}
	return top(layers, name)
}

// top returns what the topmost of layers to have a name has there.
func top(layers []int, name string) (*node, error) {
	for _, layer := range layers {
		n, err := openNode(layer, name)
		if err != nil {
			return nil, err
		}
		if n != nil && n.isWhiteout() {
			n.close()
			return nil, nil //nolint:nilnil // absence is an answer
		}
		if n != nil {
			return n, nil
		}
	}
	return nil, nil //nolint:nilnil // absence is an answer
}

// merged returns those of layers whose directories under a name are merged.
func merged(layers []int, dir string) ([]int, error) {
	var dirs []int
	for _, layer := range layers {
		n, err := openNode(layer, dir)
		if err != nil {
			return nil, err
		}
		if n == nil {
			continue
		}
		isDir := n.isDir()
		opaque := false
		if isDir {
			opaque, err = n.isOpaque()
		}
		n.close()
		if err != nil {
			return nil, err
		}
		if !isDir {
			break
		}
		dirs = append(dirs, layer)
		if opaque {
			break
		}
	}
	return dirs, nil
}

// cleanName makes a name in a layer relative to its root; ok is false for one
// that leads out of it. The root itself is ".".
func cleanName(name string) (_ string, ok bool) {
	name = path.Clean(strings.TrimLeft(name, "/"))
	return name, name != ".." && !strings.HasPrefix(name, "../")
}
