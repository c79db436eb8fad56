package quota

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	loopControl = "/dev/loop-control"
	loopMajor   = 7
	// loopTries bounds how often somebody else is quicker to take a free device.
	loopTries = 64
)

// AttachImage mounts an image on a directory, if it is not mounted there yet.
// The loop device goes when nothing has it mounted any more.
func AttachImage(file, dir string) error {
	mounted, err := isMounted(dir)
	if err != nil {
		return err
	}
	if mounted {
		_, err := backing(file, dir)
		return err
	}
	loop, err := attachLoop(file)
	if err != nil {
		return fmt.Errorf("loop device for %s: %w", file, err)
	}
	defer loop.Close()
	// Blocks that are freed are given back to the disk below.
	if err := unix.Mount(loop.Name(), dir, "ext4", unix.MS_NOSUID|unix.MS_NODEV, "discard,noinit_itable,errors=remount-ro"); err != nil {
		return fmt.Errorf("mount %s: %w", file, err)
	}
	return nil
}

// DetachImage unmounts what is mounted on a directory, if anything is. What is
// in use stays so until it is let go.
func DetachImage(dir string) error {
	for {
		mounted, err := isMounted(dir)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !mounted {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: dir, Err: err}
		}
	}
}

// isMounted reports whether a directory is on another file system than the one
// that it is in.
func isMounted(dir string) (bool, error) {
	var in, up unix.Stat_t
	if err := unix.Lstat(dir, &in); err != nil {
		return false, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if err := unix.Lstat(filepath.Dir(dir), &up); err != nil {
		return false, &os.PathError{Op: "stat", Path: filepath.Dir(dir), Err: err}
	}
	return in.Dev != up.Dev, nil
}

// backing returns the loop device that is mounted on a directory, which must
// be that of the file.
func backing(file, dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if unix.Major(st.Dev) != loopMajor {
		return "", fmt.Errorf("%s is mounted, and not from %s", dir, file)
	}
	dev := fmt.Sprintf("loop%d", unix.Minor(st.Dev)>>partitionBits())
	name, err := os.ReadFile(filepath.Join("/sys/block", dev, "loop/backing_file"))
	if err != nil {
		return "", err
	}
	is, err := os.Stat(strings.TrimSuffix(string(name), "\n")) //nolint:gosec // the kernel says it, and it is only compared
	want, werr := os.Stat(file)
	if err != nil || werr != nil || !os.SameFile(is, want) {
		return "", fmt.Errorf("%s is mounted from %.200q, and not from %s", dir, name, file)
	}
	return "/dev/" + dev, nil
}

// partitionBits is how many bits of a loop device's minor number are the
// partition's.
func partitionBits() (bits int) {
	var n int
	data, err := os.ReadFile("/sys/module/loop/parameters/max_part")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(data), &n); err != nil {
		return 0
	}
	for ; n > 0; n >>= 1 {
		bits++
	}
	return bits
}

// attachLoop makes a loop device of a file. It goes when it is closed, or
// unmounted after that.
func attachLoop(file string) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ctl, err := os.OpenFile(loopControl, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	for range loopTries {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("LOOP_CTL_GET_FREE", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(f.Fd()), Size: blockSize, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], file)
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, os.NewSyscallError("LOOP_CONFIGURE", err)
		}
	}
	return nil, unix.EBUSY
}

// resize tells a mounted ext4 how many blocks it has from now on.
func resize(root *os.File, blocks uint64) error {
	if err := ioctl(root, ext4Resize, unsafe.Pointer(&blocks)); err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	return nil
}
