// Package quota bounds what a directory tree may hold, by the file system.
//
// # Model
//
// There are two methods. A project quota is the file system's own: XFS and
// ext4 can, when mounted with prjquota. Elsewhere a tree gets a file system of
// its own, in a sparse file on a loop device. Either way whoever writes too
// much is told that there is no space, box or API. [Open] finds out which of
// them works in a directory.
//
// # Errors
//
// [Enforcer.Missing] says what neither method finds. All else wraps the error
// number of the system call, or says what mkfs.ext4 said.
//
// # Concurrency
//
// All methods are safe for concurrent use on different trees.
package quota

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Method is how quotas are enforced.
type Method string

// The methods there are.
const (
	None    Method = "dir"
	Project Method = "project"
	Image   Method = "image"
)

// Limits bound a tree.
type Limits struct {
	Bytes int64 // 0 = no limit
	Files int64 // 0 = no limit
}

// Enforcer enforces quotas below a directory.
type Enforcer struct {
	dir     string
	method  Method
	missing string
	mkfs    string
}

// Open finds the method that works in a directory.
func Open(dir string) (*Enforcer, error) {
	e := &Enforcer{dir: dir, method: None}
	noProject, err := lacksProject(dir)
	if err != nil {
		return nil, fmt.Errorf("quotas in %s: %w", dir, err)
	}
	if noProject == "" {
		e.method = Project
		return e, nil
	}
	mkfs, noImage := lacksImage()
	if noImage == "" {
		e.method, e.mkfs = Image, mkfs
		return e, nil
	}
	e.missing = noProject + ", and " + noImage
	return e, nil
}

// Method returns how quotas are enforced; [None] if they are not.
func (e *Enforcer) Method() Method { return e.method }

// Missing says why no method works.
func (e *Enforcer) Missing() string { return e.missing }

// toolDirs are where programs are looked for, whatever the environment says.
var toolDirs = []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"}

// lacksImage says what is missing for images, or where mkfs.ext4 is.
func lacksImage() (mkfs, missing string) {
	if os.Geteuid() != 0 {
		return "", "loop devices need root"
	}
	ctl, err := os.OpenFile(loopControl, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Sprintf("there are no loop devices (%v)", err)
	}
	ctl.Close()
	if !hasExt4() {
		return "", "the kernel has no ext4"
	}
	for _, dir := range toolDirs {
		name := filepath.Join(dir, "mkfs.ext4")
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return name, ""
		}
	}
	return "", "mkfs.ext4 is not installed (package e2fsprogs)"
}

// hasExt4 reports whether ext4 can be mounted: it is in the kernel, or a module
// that the kernel loads by itself.
func hasExt4() bool {
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(known)) {
		if strings.TrimSpace(strings.TrimPrefix(line, "nodev")) == "ext4" {
			return true
		}
	}
	var uts unix.Utsname
	if unix.Uname(&uts) != nil {
		return false
	}
	_, err = os.Stat(filepath.Join("/lib/modules", unix.ByteSliceToString(uts.Release[:]), "kernel/fs/ext4"))
	return err == nil
}

// unsupported reports whether a system call says that there is no such thing.
func unsupported(err error) bool {
	for _, no := range []unix.Errno{unix.ENOTTY, unix.EOPNOTSUPP, unix.EINVAL, unix.ENOSYS, unix.ESRCH, unix.ENOTBLK, unix.ENODEV, unix.ENOENT, unix.EPERM, unix.EACCES} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}
