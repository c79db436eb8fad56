package hostfs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

// programDirs are the directories at the root of a machine that hold its
// programs. All but usr are mounted only where they are no links into it.
var programDirs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// installPlaces is where a change shows that programs came, went or changed:
// the records of package managers, and the directories that people and
// language package managers install into.
var installPlaces = []string{
	"var/lib/dpkg/status", "var/lib/rpm/rpmdb.sqlite", "var/lib/rpm/Packages", "usr/lib/sysimage/rpm/rpmdb.sqlite",
	"lib/apk/db/installed", "usr/lib/apk/db/installed", "var/lib/pacman/local",
	"usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/libexec", "usr/share", "usr/lib/*-linux-*",
	"usr/local", "usr/local/*", "usr/local/lib/*", "usr/local/lib/python*/*-packages", "usr/lib/python*/*-packages",
	"bin", "sbin", "lib", "lib64",
}

// mounts are the machine's directories as they were at one time.
type mounts struct {
	dir    string
	places []string // where a change would show
	sign   string   // of the places at that time
	list   []Mount
	users  int // views not yet released
}

// outdated reports whether the machine has other programs by now.
func (m *mounts) outdated() bool { return m.sign != sign(m.places) }

// sign returns what tells one state of files from another.
func sign(names []string) string {
	sum := sha256.New()
	for _, n := range names {
		writeStat(sum, n)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// expand returns the files below dir that a pattern with * stands for.
func expand(dir, pattern string) []string {
	first, rest, more := strings.Cut(pattern, "/")
	names := []string{first}
	if strings.ContainsRune(first, '*') {
		names = nil
		entries, _ := os.ReadDir(dir) // what cannot be read stands for nothing
		for _, e := range entries {
			if ok, _ := filepath.Match(first, e.Name()); ok { // only a bad pattern is an error
				names = append(names, e.Name())
			}
		}
	}
	var found []string
	for _, n := range names {
		n = filepath.Join(dir, n)
		if more {
			found = append(found, expand(n, rest)...)
		} else if _, err := os.Lstat(n); err == nil {
			found = append(found, n)
		}
	}
	return found
}

// writeStat writes what changes when a file does.
func writeStat(w io.Writer, name string) {
	var st unix.Stat_t
	if unix.Lstat(name, &st) != nil {
		return
	}
	fmt.Fprintln(w, name, st.Dev, st.Ino, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
}

// mountMachine mounts the machine's program directories below runDir.
func mountMachine(machine, runDir string) (_ *mounts, err error) {
	m := &mounts{dir: filepath.Join(runDir, sandbox.NewID(""))}
	for _, pattern := range installPlaces {
		m.places = append(m.places, expand(machine, pattern)...)
	}
	m.sign = sign(m.places) // first: what changes from here on has changed
	defer func() {
		if err != nil {
			err = errors.Join(err, UnmountAll(m.dir))
		}
	}()
	empty := filepath.Join(m.dir, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return nil, err
	}
	for _, name := range programDirs {
		from := filepath.Join(machine, name)
		fi, err := os.Lstat(from)
		if errors.Is(err, os.ErrNotExist) || err == nil && !fi.IsDir() {
			continue
		}
		if err != nil {
			return nil, err
		}
		to := filepath.Join(m.dir, name)
		if err := os.Mkdir(to, 0o755); err != nil {
			return nil, err
		}
		if err := mountReadOnly(to, from, empty); err != nil {
			return nil, fmt.Errorf("mount %s for boxes: %w", from, err)
		}
		m.list = append(m.list, Mount{Source: to, Target: "/" + name})
	}
	return m, nil
}

// mountReadOnly mounts an overlay of lowers, and of nothing that is mounted
// below them, on target.
func mountReadOnly(target string, lowers ...string) error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return unsupported("open overlay", err)
	}
	defer unix.Close(fs)
	if err := setLowers(fs, lowers); err != nil {
		return err
	}
	if err := unix.FsconfigSetString(fs, "source", "taibox"); err != nil {
		return fmt.Errorf("name overlay: %w", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return unsupported("make overlay", err)
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	defer unix.Close(mnt)
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach overlay to %s: %w", target, err)
	}
	return nil
}

// setLowers sets an overlay's layers one by one, or, before Linux 6.8, as one
// list in which colons and backslashes are escaped.
func setLowers(fs int, lowers []string) error {
	if unix.FsconfigSetString(fs, "lowerdir+", lowers[0]) == nil {
		for _, l := range lowers[1:] {
			if err := unix.FsconfigSetString(fs, "lowerdir+", l); err != nil {
				return fmt.Errorf("add %s to overlay: %w", l, err)
			}
		}
		return nil
	}
	escaped := make([]string, len(lowers))
	for i, l := range lowers {
		escaped[i] = strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(l)
	}
	if err := unix.FsconfigSetString(fs, "lowerdir", strings.Join(escaped, ":")); err != nil {
		return fmt.Errorf("give overlay its layers: %w", err)
	}
	return nil
}

// unsupported names what this kernel, or its file system, does not do.
func unsupported(what string, err error) error {
	for _, e := range []error{unix.ENOSYS, unix.ENODEV, unix.EINVAL, unix.ELOOP} {
		if errors.Is(err, e) {
			return fmt.Errorf("%s: %w: %w (the machine's root must be a file system that an overlay can be made of, on Linux 5.2 or newer; see taibox doctor)",
				what, sandbox.ErrUnsupported, err)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// UnmountAll detaches what is mounted at and below dir, and removes what is in
// it. An absent dir is fine.
func UnmountAll(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("list mounts below %s: %w", dir, err)
	}
	for _, m := range slices.Backward(mounts) {
		p := m.Mountpoint
		if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	return removeEmpty(dir)
}

// removeEmpty removes a tree of directories, and would never remove a file:
// what were still mounted there is the machine's.
func removeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := removeEmpty(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}
