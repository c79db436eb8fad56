package oci

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/taibox/taibox/internal/durable"
	"github.com/taibox/taibox/internal/rmtree"
	"github.com/taibox/taibox/tai/sandbox"
)

// recordVersion is the layout of a box's record on disk.
const recordVersion = 1

// phase says how far the making or unmaking of a box has come.
type phase string

const (
	phaseCreating phase = "creating" // an intent: all that there is may be thrown away
	phaseReady    phase = "ready"
	phaseRemoving phase = "removing" // an intent: to be finished
)

// record is a box on disk, boxes/<id>/box.json. It is written before the first
// side effect and deleted after the last. All names of what a box has on the
// machine follow from the instance, the ID and Run.Index.
type record struct {
	Version   int          `json:"version"`
	Phase     phase        `json:"phase"`
	Attempt   string       `json:"attempt"` // tells this box from an earlier one of the same id
	Changes   uint64       `json:"changes"` // how often it was changed
	Spec      sandbox.Spec `json:"spec"`
	CreatedAt time.Time    `json:"created_at"`

	ImageDigest string              `json:"image_digest,omitempty"`
	Config      sandbox.ImageConfig `json:"config"`

	State     sandbox.State   `json:"state"`
	Reason    string          `json:"reason,omitempty"`
	Error     string          `json:"error,omitempty"`
	StartedAt time.Time       `json:"started_at,omitzero"`
	StoppedAt time.Time       `json:"stopped_at,omitzero"`
	OOMKills  int64           `json:"oom_kills,omitempty"` // of earlier runs
	LastExec  time.Time       `json:"last_exec,omitzero"`
	Phases    []sandbox.Phase `json:"phases,omitempty"`

	// Run is what the box has on the machine from its start to its end.
	Run *run `json:"run,omitempty"`
}

// unreadable reports a record that stands for one which says nothing.
func (r *record) unreadable() bool { return r.Version != recordVersion }

// run describes one run of a box. Nothing outside is signalled on the strength
// of a pid alone: boot and start time must agree.
type run struct {
	BootID   string `json:"boot_id"`
	Index    int    `json:"index"` // of its ids, address and interface
	PID      int    `json:"pid,omitempty"`
	PIDStart uint64 `json:"pid_start,omitempty"` // clock ticks after boot
	HostFS   string `json:"hostfs,omitempty"`    // layer of the built-in image
	// Env is what the box's devices add to the environment of its commands.
	Env []string `json:"env,omitempty"`
}

func (r *run) alive(bootID string) bool {
	if r.BootID != bootID || r.PID == 0 {
		return false
	}
	start, err := pidStart(r.PID)
	return err == nil && start == r.PIDStart
}

// pidStart returns when a process began, which together with its pid names it
// for good.
func pidStart(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The command's name may hold anything; fields count from the last ')'.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("stat of process %d is short", pid)
	}
	if fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

// boxDir returns where a box is kept; runDir where it is while it runs.
func (d *Driver) boxDir(id string) string { return filepath.Join(d.cfg.DataDir, "boxes", id) }
func (d *Driver) runDir(id string) string { return filepath.Join(d.runRoot, "b", id) }

func (d *Driver) recordFile(id string) string { return filepath.Join(d.boxDir(id), "box.json") }

func (d *Driver) saveRecord(rec *record) error {
	if err := durable.WriteJSON(d.recordFile(rec.Spec.ID), rec); err != nil {
		return fmt.Errorf("record of box %s: %w", rec.Spec.ID, noSpace(err))
	}
	return nil
}

func (d *Driver) loadRecord(id string) (*record, error) {
	var rec record
	if err := durable.ReadJSON(d.recordFile(id), &rec); err != nil {
		return nil, err
	}
	if rec.Version != recordVersion || rec.Spec.ID != id {
		return nil, fmt.Errorf("%s: version %d of box %q is not for this version of taibox", d.recordFile(id), rec.Version, rec.Spec.ID)
	}
	return &rec, nil
}

// asideFile is where a record is that the disk had no room for: in memory, like
// all that is below the run directory.
func (d *Driver) asideFile(id string) string { return filepath.Join(d.runRoot, "aside", id+".json") }

// setAside keeps a record over the end of this process. One that the disk took
// later counts more.
func (d *Driver) setAside(rec *record) error {
	file := d.asideFile(rec.Spec.ID)
	if err := mkdirs(0o700, filepath.Dir(file)); err != nil {
		return err
	}
	return durable.NoteJSON(file, rec)
}

// newest returns the record of a box that was set aside, if it is newer than
// the one on disk.
func (d *Driver) newest(rec *record) *record {
	var aside record
	if err := durable.ReadJSON(d.asideFile(rec.Spec.ID), &aside); err != nil {
		return rec
	}
	if aside.Version != rec.Version || aside.Spec.ID != rec.Spec.ID || aside.Attempt != rec.Attempt || aside.Changes <= rec.Changes {
		return rec
	}
	return &aside
}

// deleteBoxDir removes all that a box kept, its record last.
func (d *Driver) deleteBoxDir(id string) error {
	dir := d.boxDir(id)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return d.forgetAside(id)
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == "box.json" {
			continue
		}
		if err := rmtree.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := rmtree.Remove(dir); err != nil {
		return err
	}
	return errors.Join(durable.SyncDir(filepath.Dir(dir)), d.forgetAside(id))
}

func (d *Driver) forgetAside(id string) error {
	err := os.Remove(d.asideFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
