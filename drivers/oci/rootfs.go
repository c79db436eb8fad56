package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/probe"
	"github.com/taibox/taibox/tai/sandbox"
)

// rootfs describes the root file system of a box as it is to be mounted.
type rootfs struct {
	dataDir string   // mounted once, id-mapped, while the overlay is made
	lowers  []string // layer directories below dataDir, topmost first
	fsDir   string   // below dataDir; has upper and work
	staging string   // empty directory for the id-mapped mount; unused afterwards
	target  string   // where the overlay goes
	userNS  *os.File // whose mapping the layers get
	hostID  uint32   // the id outside of root inside
	files   []rootFile
	dirs    []string // made if missing, as the box's root
}

// rootFile is a file of ours inside the box, written at each start.
type rootFile struct {
	path string // relative to the root
	data string
}

// mount makes the overlay. Files on disk keep the image's own numbers: the
// layers and the upper directory are seen through one id-mapped mount, and the
// overlay works with the credentials of the thread that mounts it, which are
// therefore those of the box's root. A write is tried before it is handed out,
// since an overlay without those credentials silently turns read-only.
func (r *rootfs) mount() error {
	return probe.OnOwnThread(func() error {
		if err := r.stage(); err != nil {
			return err
		}
		// The overlay keeps private clones: the staging mount is done with.
		defer unix.Unmount(r.staging, unix.MNT_DETACH) //nolint:errcheck // the recovery of the box unmounts it if this did not
		if err := r.becomeBoxRoot(); err != nil {
			return err
		}
		for try := 1; ; try++ {
			if err := r.overlay(); err != nil {
				return err
			}
			err := r.populate()
			if err == nil {
				return nil
			}
			err = errors.Join(err, unix.Unmount(r.target, unix.MNT_DETACH))
			if !errors.Is(err, unix.EROFS) || try == overlayTries {
				return err
			}
			// So it does where there is no room for its work directory. If there
			// is by now, it was for a moment.
			if err := r.tryWorkDir(); err != nil {
				return err
			}
		}
	})
}

const overlayTries = 3

// tryWorkDir makes a directory where an overlay makes one of its own. The
// thread is in the staging mount.
func (r *rootfs) tryWorkDir() error {
	fs, err := filepath.Rel(r.dataDir, r.fsDir)
	if err != nil {
		return err
	}
	probe := filepath.Join(fs, "work", ".taibox-"+sandbox.NewID(""))
	err = unix.Mkdir(probe, 0o700)
	if err == nil {
		err = unix.Rmdir(probe)
	}
	if err != nil {
		return fmt.Errorf("make a work directory: %w", err)
	}
	return nil
}

// stage mounts the data directory id-mapped on the staging directory.
func (r *rootfs) stage() error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, r.dataDir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone mount of %s: %w", r.dataDir, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(r.userNS.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("id-map the file system of %s: %w: %w (it must be ext4, xfs, btrfs or tmpfs, on Linux 5.19 or newer; see taibox doctor)",
			r.dataDir, sandbox.ErrUnsupported, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, r.staging, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", r.staging, err)
	}
	return nil
}

// becomeBoxRoot gives the thread the box's root as file system user, with the
// capabilities that leaving uid 0 took away.
func (r *rootfs) becomeBoxRoot() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if err := unix.Setfsgid(int(r.hostID)); err != nil {
		return fmt.Errorf("set file system group: %w", err)
	}
	if err := unix.Setfsuid(int(r.hostID)); err != nil {
		return fmt.Errorf("set file system user: %w", err)
	}
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return fmt.Errorf("raise capabilities: %w", err)
	}
	return nil
}

// overlay mounts the root. Paths are relative to the staging mount: short, and
// free of whatever characters the data directory's name has.
func (r *rootfs) overlay() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare working directory: %w", err)
	}
	unix.Umask(0o022) // of this thread: what is made in the box is for everybody there
	if err := unix.Chdir(r.staging); err != nil {
		return fmt.Errorf("enter %s: %w", r.staging, err)
	}
	rel := func(p string) (string, error) {
		q, err := filepath.Rel(r.dataDir, p)
		if err == nil && !filepath.IsLocal(q) {
			err = fmt.Errorf("%s is not below %s", p, r.dataDir)
		}
		return q, err
	}
	fs, err := rel(r.fsDir)
	if err != nil {
		return err
	}
	lowers := make([]string, len(r.lowers))
	for i, l := range r.lowers {
		if lowers[i], err = rel(l); err != nil {
			return err
		}
	}
	opts := "lowerdir=" + strings.Join(lowers, ":") + ",upperdir=" + fs + "/upper,workdir=" + fs + "/work"
	if len(opts) >= os.Getpagesize() {
		return fmt.Errorf("image has %d layers, more than one overlay takes: %w", len(lowers), sandbox.ErrUnsupported)
	}
	// On the machine, nothing in it is a set-user-ID program or a device.
	if err := unix.Mount("overlay", r.target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mount overlay on %s: %w", r.target, err)
	}
	return nil
}

// populate writes our files into the fresh root. The image, or what ran in the
// box before, is hostile: no link is followed out of the root.
func (r *rootfs) populate() error {
	root, err := unix.Open(r.target, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open root: %w", err)
	}
	defer unix.Close(root)
	// The write that is tried.
	probe := ".taibox-" + sandbox.NewID("")
	if err := unix.Mkdirat(root, probe, 0o700); err != nil {
		return fmt.Errorf("write to the box's root: %w", err)
	}
	if err := unix.Unlinkat(root, probe, unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("write to the box's root: %w", err)
	}
	for _, d := range r.dirs {
		fd, err := mkdirIn(root, d)
		if err == nil {
			unix.Close(fd)
		} else if !inTheWay(err) {
			return fmt.Errorf("make %s in the box: %w", d, err)
		}
	}
	for _, f := range r.files {
		if err := writeIn(root, f); err != nil && !inTheWay(err) {
			return fmt.Errorf("write /%s in the box: %w", f.path, err)
		}
	}
	return nil
}

// inTheWay reports that the image, or what ran in the box, has put something
// else at a path of ours. That is its own affair, and no reason not to start.
func inTheWay(err error) bool {
	for _, e := range []error{unix.ENOTDIR, unix.EISDIR, unix.EEXIST, unix.ELOOP, unix.ENOTEMPTY, unix.ENOENT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// mkdirIn makes a directory with its parents below root and opens it.
func mkdirIn(root int, dir string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	dir = strings.Trim(filepath.Clean("/"+dir), "/")
	if dir == "" {
		dir = "."
	}
	fd, err := unix.Openat2(root, dir, &how)
	if !errors.Is(err, unix.ENOENT) || dir == "." {
		return fd, err
	}
	parent, err := mkdirIn(root, filepath.Dir(dir))
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	base := filepath.Base(dir)
	if err := unix.Mkdirat(parent, base, 0o755); err != nil {
		return -1, err
	}
	return unix.Openat(parent, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
}

// writeIn replaces a file below root, whatever stood at its name.
func writeIn(root int, f rootFile) error {
	dir, err := mkdirIn(root, filepath.Dir(f.path))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	base := filepath.Base(f.path)
	if err := unix.Unlinkat(dir, base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), f.path)
	_, err = file.WriteString(f.data)
	return errors.Join(err, file.Close())
}

// unmountAll detaches what is mounted at path, as often as something is.
func unmountAll(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		default:
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}
