package oci

import (
	"context"
	"errors"
	"fmt"
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
	return g.Wait()
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
