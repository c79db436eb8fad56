package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/go-runc"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

// teardown removes all that a run has on the machine. Each step may be
// repeated, and one that failed does not keep the other from being tried.
func (d *Driver) teardown(ctx context.Context, id string, r *run) error {
	if err := d.step("teardown", "kill", id); err != nil {
		return err
	}
	if err := d.killRun(ctx, id, r); err != nil {
		return err // nothing may be taken from under a process
	}
	var g errgroup.Group
	g.Go(func() error {
		if err := d.step("teardown", "runtime", id); err != nil {
			return err
		}
		err := d.deleteContainer(ctx, id)
		if err := d.step("teardown", "cgroups", id); err != nil {
			return err
		}
		return errors.Join(err, d.cgroups.removeBox(id))
	})
	g.Go(func() error {
		// The interface goes with the last mount of its network namespace, when
		// the kernel gets round to it: that takes longer than all the rest, and
		// nothing waits for it.
		if err := d.step("teardown", "mounts", id); err != nil {
			return err
		}
		return removeRunDir(d.runDir(id))
	})
	err := g.Wait()
	if err == nil {
		d.pool.release(r.Index)
	}
	return err
}

// killRun kills PID 1, with which the kernel ends the box's whole pid
// namespace, and then whatever its cgroups still hold.
func (d *Driver) killRun(ctx context.Context, id string, r *run) error {
	if r.alive(d.bootID) {
		fd, err := unix.PidfdOpen(r.PID, 0)
		if err == nil {
			// Looked at again: the descriptor now names one process for good.
			if r.alive(d.bootID) {
				err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			}
			unix.Close(fd)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill PID 1 of the box: %w", err)
		}
		ctx, cancel := context.WithTimeoutCause(ctx, killTimeout, fmt.Errorf("PID 1 of box %s does not die", id))
		defer cancel()
		if err := waitProcess(ctx, r.PID); err != nil {
			return err
		}
	}
	return d.cgroups.killBox(ctx, id)
}

// deleteContainer makes the OCI runtime forget a container whose processes are dead.
func (d *Driver) deleteContainer(ctx context.Context, id string) error {
	name := d.containerID(id)
	if _, err := os.Stat(filepath.Join(d.runc.Root, name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := d.runc.Delete(ctx, name, &runc.DeleteOpts{})
	if err != nil {
		// A container that was never made whole cannot be deleted by name.
		if err := d.runc.Delete(ctx, name, &runc.DeleteOpts{Force: true}); err == nil {
			return nil
		}
		if rmErr := os.RemoveAll(filepath.Join(d.runc.Root, name)); rmErr != nil {
			return errors.Join(err, rmErr)
		}
	}
	return nil
}

// installBridge keeps a copy of the bridge under its hash, and shows it where
// boxes can mount it from. Running boxes keep the one that they began with.
func (d *Driver) installBridge() (string, error) {
	src, err := os.Open(d.cfg.BridgePath)
	if err != nil {
		return "", fmt.Errorf("bridge: %w", err)
	}
	defer src.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, src); err != nil {
		return "", fmt.Errorf("read bridge %s: %w", d.cfg.BridgePath, err)
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	keep := filepath.Join(d.cfg.DataDir, "bridge")
	dir := filepath.Join(keep, sum)
	if err := mkdirs(0o711, keep, dir); err != nil {
		return "", noSpace(err)
	}
	if err := copyVerified(src, filepath.Join(dir, "taibox-bridge"), sum); err != nil {
		return "", fmt.Errorf("keep bridge: %w", noSpace(err))
	}
	// DATA itself is closed to everybody, boxes too.
	shown := filepath.Join(d.runRoot, "bridge")
	if err := mkdirs(0o711, shown); err != nil {
		return "", err
	}
	if mounts, err := mountsBelow(shown); err != nil || len(mounts) == 0 {
		if err := errors.Join(err, unix.Mount(keep, shown, "", unix.MS_BIND, "")); err != nil {
			return "", fmt.Errorf("show bridge at %s: %w", shown, err)
		}
	}
	return filepath.Join(shown, sum, "taibox-bridge"), nil
}

// bridgeMode lets a box execute the bridge and not read it. The kernel makes a
// program that its user cannot read undumpable from the first instruction, and
// gives its /proc entries to nobody inside: would_dump in the kernel's fs/exec.c.
const bridgeMode = 0o711

// copyVerified copies src to path unless path already has that hash.
func copyVerified(src io.ReadSeeker, path, sum string) (err error) {
	if have, err := os.Open(path); err == nil {
		hash := sha256.New()
		_, err := io.Copy(hash, have)
		err = errors.Join(err, have.Chmod(bridgeMode), have.Close())
		if err == nil && hex.EncodeToString(hash.Sum(nil)) == sum {
			return nil
		}
	}
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".taibox-bridge.*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	if _, err := io.Copy(tmp, src); err != nil {
		return err
	}
	if err := errors.Join(tmp.Chmod(bridgeMode), tmp.Sync()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return tmp.Close()
}

// Dismantle removes what the instance itself has on the machine: its firewall
// table, its run directory and its claim on ids and addresses. It refuses while
// there are boxes. The driver is closed by it, and the data directory is kept.
func (d *Driver) Dismantle(ctx context.Context) error {
	if infos, err := d.List(ctx, sandbox.Filter{}); err != nil || len(infos) > 0 {
		return errors.Join(err, fmt.Errorf("dismantle instance %s: %w: it has %d boxes", d.cfg.Instance, sandbox.ErrInvalidSpec, len(infos)))
	}
	claim := slotFile(filepath.Join(d.cfg.RunRoot, "slots"), d.slot.number)
	errs := []error{d.Close(), d.firewall.remove()}
	for _, dir := range d.cgroups.dirs(d.cgroups.parent()) {
		errs = append(errs, removeCgroup(dir))
	}
	errs = append(errs, removeRunDir(d.runRoot), os.Remove(claim))
	return errors.Join(errs...)
}
