package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// trialMapping stands for the range of ids of a box.
var trialMapping = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1_000_000, Size: 65536}}

// IDMapped tries an id-mapped mount on the file system that dir lies on, or
// will lie on. The error is the kernel's.
func IDMapped(dir string) error {
	return inTempDir(dir, func(tmp string) error {
		tree, err := idMappedTree(tmp)
		if err != nil {
			return err
		}
		return unix.Close(tree) // never attached: it ends here
	})
}

// Overlay tries an overlay whose layers lie on the file system of dir, with
// all of them id-mapped as those of a box are, or plain.
func Overlay(dir string, idMapped bool) error {
	return inTempDir(dir, func(tmp string) error {
		return inMountNS(func() error { return tryOverlay(tmp, idMapped) })
	})
}

func tryOverlay(tmp string, idMapped bool) error {
	lower, writable, target := filepath.Join(tmp, "lower"), filepath.Join(tmp, "writable"), filepath.Join(tmp, "target")
	upper, work := filepath.Join(writable, "upper"), filepath.Join(writable, "work")
	for _, d := range []string{lower, upper, work, target} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	if idMapped {
		for _, d := range []string{lower, writable} {
			if err := attachIDMapped(d); err != nil {
				return err
			}
			defer unix.Unmount(d, unix.MNT_DETACH) //nolint:errcheck // the namespace ends anyway
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work)
	if err := unix.Mount("overlay", target, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	return unix.Unmount(target, unix.MNT_DETACH)
}

func attachIDMapped(dir string) error {
	tree, err := idMappedTree(dir)
	if err != nil {
		return err
	}
	defer unix.Close(tree) //nolint:errcheck // read-only use
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach id-mapped mount: %w", err)
	}
	return nil
}

// idMappedTree returns a detached, id-mapped mount of dir.
func idMappedTree(dir string) (int, error) {
	ns, err := userNS()
	if err != nil {
		return -1, fmt.Errorf("make user namespace: %w", err)
	}
	defer ns.Close() //nolint:errcheck // read-only use
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("clone mount: %w", err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return -1, errors.Join(fmt.Errorf("id-map mount: %w", err), unix.Close(tree))
	}
	return tree, nil
}

// userNS makes a user namespace in which nobody lives. It is there until the
// file is closed.
func userNS() (*os.File, error) {
	goruntime.LockOSThread() // the child dies with the thread that made it
	defer goruntime.UnlockOSThread()
	child, err := os.StartProcess("/proc/self/exe", []string{"taibox-probe"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: trialMapping,
		GidMappings: trialMapping,
		Ptrace:      true, // it stops before it runs anything
		Pdeathsig:   unix.SIGKILL,
	}})
	if err != nil {
		return nil, err
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", child.Pid))
	err = errors.Join(err, child.Kill())
	if _, waitErr := child.Wait(); waitErr != nil {
		err = errors.Join(err, waitErr)
	}
	if err != nil && ns != nil {
		err = errors.Join(err, ns.Close())
	}
	return ns, err
}

// inMountNS runs f on a thread with a mount namespace of its own.
func inMountNS(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and the
		// namespace with all its mounts ends with the thread.
		goruntime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("make mount namespace: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("make mounts private: %w", err)
			}
			return f()
		}()
	}()
	return <-done
}

// inTempDir gives f a directory in the nearest ancestor of dir that exists,
// and removes it afterwards.
func inTempDir(dir string, f func(tmp string) error) (err error) {
	parent, err := nearest(dir)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, ".taibox-probe-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	return f(tmp)
}

// nearest returns dir, or else its closest ancestor that exists.
func nearest(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		info, err := os.Stat(dir)
		if err == nil && info.IsDir() {
			return dir, nil
		}
		if err == nil {
			return "", fmt.Errorf("%s is not a directory", dir)
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return "", err
		}
		dir = filepath.Dir(dir)
	}
}

func checkIDMapped(dir string) Check {
	const name = "idmapped_mounts"
	err := IDMapped(dir)
	if c, ok := needsRoot(name, err); ok {
		return c
	}
	if err != nil {
		return Check{
			name, Fail, fmt.Sprintf("not possible on %s: %v", fileSystem(dir), err),
			"put the data directory (TAIBOX_DATA_DIR) on ext4, xfs or btrfs, with kernel 5.19 or newer",
		}
	}
	return Check{name, OK, fileSystem(dir) + " at " + dir, ""}
}

func checkOverlay(dir string) Check {
	const name = "overlayfs"
	err := Overlay(dir, false)
	if c, ok := needsRoot(name, err); ok {
		return c
	}
	if err != nil {
		return Check{
			name, Fail, fmt.Sprintf("not possible on %s: %v", fileSystem(dir), err),
			"load the module overlay, and put the data directory (TAIBOX_DATA_DIR) on a local file system",
		}
	}
	if err := Overlay(dir, true); err != nil {
		return Check{name, Fail, fmt.Sprintf("not possible with id-mapped layers on %s: %v", fileSystem(dir), err), "use kernel 5.19 or newer"}
	}
	return Check{name, OK, "works with id-mapped layers", ""}
}

// fileSystem names the file system that dir lies on, or will lie on.
func fileSystem(dir string) string {
	var st unix.Statfs_t
	parent, err := nearest(dir)
	if err == nil {
		err = unix.Statfs(parent, &st)
	}
	if err != nil {
		return "an unknown file system"
	}
	switch uint32(st.Type) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.F2FS_SUPER_MAGIC:
		return "f2fs"
	}
	return fmt.Sprintf("a file system of type %#x", st.Type)
}
