package node

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/durable"
	"github.com/taibox/taibox/internal/reason"
)

// Failures callers test for with errors.Is.
var (
	// ErrInUse reports a data directory that another process owns. The text
	// has its pid.
	ErrInUse = &reason.Error{Reason: "DATA_DIR_IN_USE", Msg: "data directory is in use", Class: errdefs.ErrConflict}
	// ErrDataDir reports a data directory that cannot be used: not writable, of
	// another user, or open to others.
	ErrDataDir = &reason.Error{Reason: "DATA_DIR", Msg: "data directory cannot be used", Class: errdefs.ErrPermissionDenied}
	// ErrLayout reports a data directory that a newer version wrote, or nobody.
	ErrLayout = &reason.Error{Reason: "DATA_DIR_LAYOUT", Msg: "data directory is not understood", Class: errdefs.ErrFailedPrecondition}
)

// Reasons lists every sentinel of this package, for a [reason.Table].
func Reasons() []*reason.Error { return []*reason.Error{ErrInUse, ErrDataDir, ErrLayout} }

// Layout is the version of the data directory that this program writes. It
// reads that and older ones.
const Layout = 1

const dirMode = 0o700

// The files of a data directory that are the node's own.
const (
	lockFile     = "lock"
	layoutFile   = "layout"
	instanceFile = "instance"
	volumeDir    = "workspaces" // see tai/volume/local
)

// openDataDir makes a data directory, or checks that an existing one is a
// directory of this user and of nobody else. An empty one that is open to
// others is closed to them; one with something in it is refused, since others
// may have put it there.
func openDataDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return "", reason.WithHint(fmt.Errorf("%w: %w", ErrDataDir, err), "run as root, or set TAIBOX_DATA_DIR to a directory of your own")
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", fmt.Errorf("%w: stat %s: %w", ErrDataDir, dir, err)
	}
	if uid := os.Geteuid(); int(st.Uid) != uid {
		return "", fmt.Errorf("%w: %s belongs to uid %d, and this is uid %d", ErrDataDir, dir, st.Uid, uid)
	}
	if mode := st.Mode & 0o7777; mode != dirMode {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrDataDir, err)
		}
		if len(entries) > 0 {
			return "", reason.WithHint(fmt.Errorf("%w: %s has mode %04o instead of %04o", ErrDataDir, dir, mode, dirMode),
				fmt.Sprintf("if nobody else can have changed it: chmod %04o %s", dirMode, dir))
		}
		if err := os.Chmod(dir, dirMode); err != nil {
			return "", fmt.Errorf("%w: %w", ErrDataDir, err)
		}
	}
	return dir, nil
}

// lock makes this process the owner of a data directory.
func lock(dir string) (unlock func() error, err error) {
	name := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600) // close-on-exec, as all files of package os
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close() //nolint:errcheck // it was only read
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: lock %s: %w", ErrDataDir, name, err)
		}
		return nil, inUse(dir, f)
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	if _, err = f.WriteAt([]byte(pid), 0); err == nil {
		err = f.Truncate(int64(len(pid)))
	}
	if err != nil {
		f.Close() //nolint:errcheck // the first error counts
		return nil, fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	return func() error {
		// The file stays: a lock on a file that was removed protects nothing.
		return errors.Join(f.Truncate(0), f.Close())
	}, nil
}

func inUse(dir string, f *os.File) error {
	buf := make([]byte, 20)
	n, _ := f.ReadAt(buf, 0) // an unknown pid is said to be so
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil || pid <= 0 {
		return fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	return reason.WithHint(fmt.Errorf("%w: %s is owned by the process with pid %d", ErrInUse, dir, pid),
		"use the server that runs there, or another data directory")
}

// checkLayout refuses what this program does not understand, and marks a new
// data directory.
func checkLayout(dir string) error {
	name := filepath.Join(dir, layoutFile)
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return writeFile(name, strconv.Itoa(Layout)+"\n")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case err != nil || v < 1:
		return fmt.Errorf("%w: %s holds %.32q instead of a version", ErrLayout, name, b)
	case v > Layout:
		return reason.WithHint(fmt.Errorf("%w: %s has layout %d, and this program knows up to %d", ErrLayout, dir, v, Layout),
			"use the newer version of taibox that wrote it, or another data directory")
	}
	return nil
}

// loadInstance returns the identity of a data directory, made at its first use.
func loadInstance(dir string) (string, error) {
	name := filepath.Join(dir, instanceFile)
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		var id [4]byte
		rand.Read(id[:]) // never fails
		instance := hex.EncodeToString(id[:])
		return instance, writeFile(name, instance+"\n")
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	instance := strings.TrimSuffix(string(b), "\n")
	if id, err := hex.DecodeString(instance); err != nil || len(id) != 4 || instance != strings.ToLower(instance) {
		return "", fmt.Errorf("%w: %s holds %.32q instead of 8 hexadecimal characters", ErrLayout, name, b)
	}
	return instance, nil
}

// writeFile writes a small file so that after a crash it is there whole or not
// at all.
func writeFile(name, text string) error {
	if err := durable.Write(name, []byte(text)); err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	return nil
}
