package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/tai/sandbox"
)

// recover finds the boxes of an earlier process again. Records are the truth
// about what should be, the machine about what is; what belongs to no record
// is removed.
func (d *Driver) recover(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(d.cfg.DataDir, "boxes"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := d.recoverBox(ctx, e.Name()); err != nil {
			// One box must not keep the others from being reached.
			d.log.Error("box could not be recovered", slog.String("box", e.Name()), slog.Any("err", err))
		}
	}
	return d.sweep(ctx)
}

// recoverBox settles one box.
func (d *Driver) recoverBox(ctx context.Context, id string) error {
	rec, err := d.loadRecord(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Made before its intent was written, or its record is gone already.
		return os.RemoveAll(d.boxDir(id))
	case err != nil:
		// What it was cannot be known: it is shown, left alone, and can be removed.
		d.boxes[id] = newBox(d, record{
			Spec: sandbox.Spec{ID: id}, Phase: phaseReady, State: sandbox.StateFailed, Reason: "record", Error: err.Error(), CreatedAt: time.Now().UTC(),
		})
		return err
	}
	rec = d.newest(rec)
	if rec.Phase != phaseReady {
		r := rec.Run
		if r == nil {
			return d.deleteBoxDir(id)
		}
		d.pool.reserve(r.Index)
		if err := d.teardown(ctx, id, r); err != nil {
			return err
		}
		return d.deleteBoxDir(id)
	}
	b := newBox(d, *rec)
	d.boxes[id] = b
	if rec.Run != nil {
		d.pool.reserve(rec.Run.Index)
	}
	if err := b.loadExecs(); err != nil {
		return err
	}
	if rec.Run == nil {
		b.loseExecs()
		return nil
	}
	if rec.State == sandbox.StateRunning || rec.State == sandbox.StateStopping {
		if b.reattach(*rec) {
			return nil
		}
	}
	if err := b.settle(ctx, rec); err != nil {
		b.rec.State, b.rec.Reason, b.rec.Error = sandbox.StateFailed, "lost", err.Error()
		return err
	}
	return nil
}

// reattach goes on with a box that runs. Its bridge was set up when it started;
// one that does not answer just now is no reason to end the box, or to keep
// others waiting.
func (b *box) reattach(rec record) bool {
	d := b.d
	if !rec.Run.alive(d.bootID) {
		return false
	}
	live := newLiveBox(*rec.Run, bridge.New(d.dialBridge(b.id)))
	b.follow(live, b.renewSetup)
	if rec.State == sandbox.StateStopping {
		d.wg.Go(func() {
			if b.acquire(d.ctx) != nil {
				return
			}
			defer b.release()
			if err := b.end(d.ctx, 0, rec.Reason); err != nil {
				d.log.Error("box could not be stopped", slog.String("box", b.id), slog.Any("err", err))
			}
		})
	}
	return true
}

// settle records the end of a run that nobody saw, or of a start that was cut.
func (b *box) settle(ctx context.Context, rec *record) error {
	own := b.d.ownEnd(b.id)
	kills, execKills := b.d.cgroups.oomKills(b.id), b.execKills(rec.StartedAt)
	if err := b.d.teardown(ctx, b.id, rec.Run); err != nil {
		return err
	}
	b.loseExecs()
	return b.note(func(r *record) {
		switch {
		case r.State == sandbox.StateStopping:
			r.State = sandbox.StateStopped
		case r.State != sandbox.StateRunning: // the start was cut: as if it had not begun
		case own != "":
			r.State, r.Reason = sandbox.StateStopped, own
		case r.Run.BootID != b.d.bootID:
			r.State, r.Reason = sandbox.StateStopped, "machine-restarted"
		case kills > execKills:
			r.State, r.Reason, r.Error = sandbox.StateFailed, "oom", "the box ran out of memory and its PID 1 was killed"
		default:
			r.State, r.Reason, r.Error = sandbox.StateFailed, "lost", "the box ended while no server was running"
		}
		r.OOMKills += kills
		r.Run, r.StoppedAt = nil, time.Now().UTC()
	})
}

// sweep removes what is on the machine under this instance's name and belongs
// to no box: containers and processes first, then what they stood on.
func (d *Driver) sweep(ctx context.Context) error {
	keep := map[string]bool{}
	indices := map[string]bool{}
	for id, b := range d.boxes {
		b.mu.Lock() // the stop of one may be going on
		if b.rec.Reason == "record" {
			keep[id] = true // of which nothing is known
		}
		if b.rec.Run != nil {
			keep[id] = true
			indices[d.network.interfaceName(b.rec.Run.Index)] = true
		}
		b.mu.Unlock()
	}
	var errs []error
	stray := map[string]bool{}
	for _, dir := range d.cgroups.dirs(d.cgroups.parent()) {
		for _, name := range list(dir) {
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.IsDir() && !keep[name] {
				stray[name] = true
			}
		}
	}
	for _, name := range list(d.runc.Root) {
		if id, ok := strings.CutPrefix(name, d.containerID("")); ok && !keep[id] {
			stray[id] = true
		}
	}
	for id := range stray {
		errs = append(errs, d.cgroups.killBox(ctx, id), d.deleteContainer(ctx, id), d.cgroups.removeBox(id))
	}
	errs = append(errs, d.sweepInterfaces(indices))
	for _, name := range list(filepath.Join(d.runRoot, "b")) {
		if !keep[name] {
			errs = append(errs, removeRunDir(d.runDir(name)))
		}
	}
	return errors.Join(errs...)
}

func (d *Driver) sweepInterfaces(keep map[string]bool) error {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		name := l.Attrs().Name
		if strings.HasPrefix(name, d.network.interfacePrefix()) && !keep[name] {
			// The kernel may be removing it at this moment, with its namespace.
			if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("remove interface %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// list returns the names in a directory, none if it is absent.
func list(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}
