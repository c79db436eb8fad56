package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/internal/durable"
	"github.com/taibox/taibox/tai/sandbox"
)

// recover finds the boxes of an earlier process again. Records are the truth
// about what should be, the machine about what is; what belongs to no record
// is removed. One box must not keep the others from being reached: what fails
// is logged, and a removal that cannot be finished goes on in the background.
func (d *Driver) recover(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(d.cfg.DataDir, "boxes"))
	if err != nil {
		return err
	}
	d.sweepTemporary(filepath.Join(d.runRoot, "aside"))
	for _, e := range entries {
		d.loadBox(e.Name())
	}
	d.claimFound()
	for id, b := range d.boxes {
		if err := b.resume(ctx); err != nil {
			d.log.Error("box could not be recovered", slog.String("box", id), slog.Any("err", err))
		}
	}
	// All of them together are waited for no longer than one.
	removals, cancel := context.WithTimeoutCause(ctx, killTimeout, errRemovalLate)
	defer cancel()
	d.removeLeft(removals)
	if err := d.sweepInterfaces(); err != nil {
		// Each goes at the latest when its index is used again.
		d.log.Warn("interfaces are left", slog.Any("err", err))
	}
	return nil
}

var errRemovalLate = errors.New("the removal goes on in the background")

// loadBox reads the record of one box.
func (d *Driver) loadBox(id string) {
	d.sweepTemporary(d.boxDir(id))
	rec, err := d.loadRecord(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Made before its intent was written, or its record is gone already.
		if err = d.deleteBoxDir(id); err == nil {
			return
		}
		rec = d.leftover(id)
	case err != nil:
		// What it was cannot be known: it is shown, left alone, and can be removed.
		rec = &record{
			Spec: d.strange(id), Phase: phaseReady, State: sandbox.StateFailed, Reason: "record", Error: err.Error(), CreatedAt: time.Now().UTC(),
		}
	default:
		rec = d.newest(rec)
		if rec.Phase != phaseReady { // what was half made is unmade
			rec.Phase, rec.State = phaseRemoving, sandbox.StateRemoving
		}
	}
	if err != nil {
		d.log.Error("box could not be recovered", slog.String("box", id), slog.Any("err", err))
	}
	d.boxes[id] = newBox(d, *rec)
}

// leftover is the record of what is left of a box that has none any more.
func (d *Driver) leftover(id string) *record {
	return &record{
		Version: recordVersion, Phase: phaseRemoving, Attempt: sandbox.NewID(""), Spec: d.strange(id),
		State: sandbox.StateRemoving, CreatedAt: time.Now().UTC(),
	}
}

// strange is the spec of a box of which nothing is known but whose it is: the
// server of this instance lists it, as nobody's, so that it can be removed.
func (d *Driver) strange(id string) sandbox.Spec {
	return sandbox.Spec{ID: id, Labels: map[string]string{sandbox.LabelManagedBy: sandbox.ManagedBy, sandbox.LabelInstance: d.cfg.Instance}}
}

// sweepTemporary removes half-written records from a directory.
func (d *Driver) sweepTemporary(dir string) {
	if err := durable.Sweep(dir); err != nil {
		d.log.Warn("half-written files are left", slog.String("dir", dir), slog.Any("err", err))
	}
}

// claimFound gives each box what the machine has of it, so that it is cleared
// up and its ids and address are not given to another one meanwhile. What
// belongs to no box is a box to be removed.
func (d *Driver) claimFound() {
	for id := range d.found() {
		b := d.boxes[id]
		if b == nil {
			b = newBox(d, *d.leftover(id))
			d.boxes[id] = b
		}
		if b.rec.Run == nil {
			b.rec.Run = &run{Index: d.indexOf(id)}
		}
	}
	for _, b := range d.boxes {
		if b.rec.Run != nil {
			d.pool.reserve(b.rec.Run.Index, d.runDir(b.id))
		}
	}
}

// found lists the IDs under which this instance has cgroups, containers and
// run directories. Namespaces made ahead are removed: nothing runs in them.
func (d *Driver) found() map[string]bool {
	ids := map[string]bool{}
	for _, dir := range d.cgroups.dirs(d.cgroups.parent()) {
		for _, name := range list(dir) {
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.IsDir() {
				ids[name] = true
			}
		}
	}
	for _, name := range list(d.runc.Root) {
		if id, ok := strings.CutPrefix(name, d.containerID("")); ok {
			ids[id] = true
		}
	}
	for _, name := range list(filepath.Join(d.runRoot, "b")) {
		if sandbox.ValidateID(name) == nil {
			ids[name] = true
		} else if err := removeRunDir(d.runDir(name)); err != nil {
			d.log.Warn("namespaces are left", slog.String("dir", d.runDir(name)), slog.Any("err", err))
		}
	}
	maps.DeleteFunc(ids, func(id string, _ bool) bool { return sandbox.ValidateID(id) != nil }) // not of our making
	return ids
}

// indexOf returns the index of the run that has a box's run directory, which
// belongs to the group of the box's root; -1 if there is none.
func (d *Driver) indexOf(id string) int {
	var st unix.Stat_t
	if err := unix.Stat(d.runDir(id), &st); err != nil {
		return -1
	}
	return d.slot.index(st.Gid)
}

// resume goes on with a box where the earlier process left it.
func (b *box) resume(ctx context.Context) error {
	rec := b.rec
	if rec.Phase == phaseRemoving || rec.unreadable() {
		return nil
	}
	b.loadExecs()
	if rec.Run == nil {
		b.loseExecs()
		return nil
	}
	if rec.State == sandbox.StateRunning || rec.State == sandbox.StateStopping {
		if b.reattach(rec) {
			return nil
		}
	}
	if err := b.settle(ctx, &rec); err != nil {
		b.rec.State, b.rec.Reason, b.rec.Error = sandbox.StateFailed, "lost", err.Error()
		return err
	}
	return nil
}

// removeLeft removes what is half removed.
func (d *Driver) removeLeft(ctx context.Context) {
	for _, b := range d.halfRemoved() {
		if err := b.remove(ctx); err != nil && !errors.Is(err, sandbox.ErrNotFound) && d.ctx.Err() == nil {
			d.log.Warn("box is half removed and is tried again", slog.String("box", b.id), slog.Any("err", err))
		}
	}
}

func (d *Driver) halfRemoved() []*box {
	d.mu.Lock()
	defer d.mu.Unlock()
	var left []*box
	for _, b := range d.boxes {
		b.mu.Lock()
		if b.rec.Phase == phaseRemoving {
			left = append(left, b)
		}
		b.mu.Unlock()
	}
	return left
}

// finishRemovals tries again to remove what recovery could not. A process that
// does not die may yet, when its disk or server answers.
func (d *Driver) finishRemovals(ctx context.Context) {
	for wait := removalLeast; len(d.halfRemoved()) > 0; wait = min(2*wait, removalMost) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		d.removeLeft(ctx)
	}
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
	return b.dropRun(func(r *record) {
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
		r.StoppedAt = time.Now().UTC()
	})
}

// sweepInterfaces removes interfaces of this instance that no box has.
func (d *Driver) sweepInterfaces() error {
	keep := map[string]bool{}
	for _, b := range d.boxes {
		b.mu.Lock() // the stop of one may be going on
		if b.rec.Run != nil {
			keep[d.network.interfaceName(b.rec.Run.Index)] = true
		}
		b.mu.Unlock()
	}
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
