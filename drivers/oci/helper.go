package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/reason"
)

// fileID tells whether a file is the one that was looked at, and unchanged
// since: whoever writes to it changes its ctime.
type fileID struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func idOf(st *unix.Stat_t) fileID {
	return fileID{dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
}

// keptBridge is the copy of the bridge that boxes run, in a directory that its
// hash names. What was installed may be replaced meanwhile; running boxes keep
// the one that they began with.
type keptBridge struct {
	source string // what was installed
	sum    string
	path   string // as boxes mount it
	log    *slog.Logger

	mu   sync.Mutex
	seen fileID // of the copy that had the hash
}

// installBridge keeps a copy of the bridge under its hash, and shows it where
// boxes can mount it from.
func (d *Driver) installBridge() (*keptBridge, error) {
	sum, err := pinned("bridge", d.cfg.BridgePath, d.cfg.BridgeSHA256)
	if err != nil {
		return nil, err
	}
	keep := filepath.Join(d.cfg.DataDir, "bridge")
	// DATA itself is closed to everybody, boxes too.
	shown := filepath.Join(d.runRoot, "bridge")
	if err := mkdirs(0o711, keep, filepath.Join(keep, sum), shown); err != nil {
		return nil, noSpace(err)
	}
	if mounts, err := mountsBelow(shown); err != nil || len(mounts) == 0 {
		if err := errors.Join(err, unix.Mount(keep, shown, "", unix.MS_BIND, "")); err != nil {
			return nil, fmt.Errorf("show bridge at %s: %w", shown, err)
		}
	}
	k := &keptBridge{source: d.cfg.BridgePath, sum: sum, path: filepath.Join(shown, sum, "taibox-bridge"), log: d.log}
	_, err = k.verified()
	return k, err
}

// pinned returns the SHA-256 of a program, which has to be the given one unless
// that is empty.
func pinned(name, path, want string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close()
	sum, err := sumOf(f)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	if want != "" && sum != want {
		err := fmt.Errorf("%s %s: its SHA-256 is %s, and the server was built for %s", name, path, sum, want)
		return "", reason.WithHint(err, "programs of one build belong together: make build and make install put them in place")
	}
	return sum, nil
}

func sumOf(r io.Reader) (string, error) {
	hash := sha256.New()
	_, err := io.Copy(hash, r)
	return hex.EncodeToString(hash.Sum(nil)), err
}

var errNotTheBridge = errors.New("its SHA-256 is another one")

// verified returns the path of the copy, which is known to have the hash. One
// that is damaged or gone is made again.
func (k *keptBridge) verified() (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Stat(k.path, &st); err == nil && idOf(&st) == k.seen {
		return k.path, nil
	}
	err := k.examineLocked()
	if errors.Is(err, errNotTheBridge) {
		k.log.Error("copy of the bridge is damaged, and is made again", slog.String("path", k.path))
	}
	if errors.Is(err, errNotTheBridge) || errors.Is(err, fs.ErrNotExist) {
		if err = k.copy(); err == nil {
			err = k.examineLocked()
		}
	}
	if err != nil {
		return "", fmt.Errorf("bridge %s: %w", k.path, noSpace(err))
	}
	return k.path, nil
}

// bridgeMode lets a box execute the bridge and not read it. The kernel makes a
// program that its user cannot read undumpable from the first instruction, and
// gives its /proc entries to nobody inside: would_dump in the kernel's fs/exec.c.
const bridgeMode = 0o711

// examineLocked reads the copy and remembers it if it has the hash.
func (k *keptBridge) examineLocked() error {
	f, err := os.Open(k.path)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := errors.Join(f.Chmod(bridgeMode), unix.Fstat(int(f.Fd()), &st)); err != nil {
		return err
	}
	sum, err := sumOf(f)
	if err != nil {
		return err
	}
	if sum != k.sum {
		return errNotTheBridge
	}
	k.seen = idOf(&st)
	return nil
}

// copy makes the copy from what was installed, if that is the same still.
func (k *keptBridge) copy() (err error) {
	src, err := os.Open(k.source)
	if err != nil {
		return err
	}
	defer src.Close()
	tmp, err := os.CreateTemp(filepath.Dir(k.path), ".taibox-bridge.*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	defer tmp.Close()
	sum, err := sumOf(io.TeeReader(src, tmp))
	if err != nil {
		return err
	}
	if sum != k.sum {
		err := fmt.Errorf("there is no good copy, and %s has been replaced since the server was started", k.source)
		return reason.WithHint(err, "start the server again")
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), k.path)
}
