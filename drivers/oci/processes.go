package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

const (
	maxProcesses = 10_000   // listed of a box
	maxCommand   = 4 << 10  // bytes of a command line
	maxProcFile  = 16 << 10 // bytes of a file below /proc
	clockTicks   = 100      // a second, in /proc/<pid>/stat
	nobodyID     = 65534    // an id that the box does not have
)

// Processes implements [sandbox.ProcessLister]: it asks the kernel, not the
// box.
func (d *Driver) Processes(ctx context.Context, id string) ([]sandbox.ProcessInfo, error) {
	_, live, err := d.running("list processes of", id)
	if err != nil {
		return nil, err
	}
	pids, err := d.cgroups.processes(id)
	if err != nil {
		return nil, wrapBox("list processes of", id, err)
	}
	inside := make(map[int]int, len(pids)) // by the ID outside
	parents := make(map[int]int, len(pids))
	list := make([]sandbox.ProcessInfo, 0, len(pids))
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, wrapBox("list processes of", id, context.Cause(ctx))
		}
		p, parent, ok := readProcess(filepath.Join("/proc", strconv.Itoa(pid)), int(d.slot.hostID(live.run.Index)))
		if !ok {
			continue // it ended meanwhile
		}
		inside[pid], parents[p.PID] = p.PID, parent
		list = append(list, p)
	}
	for i := range list {
		list[i].PPID = inside[parents[list[i].PID]]
	}
	slices.SortFunc(list, func(a, b sandbox.ProcessInfo) int { return a.PID - b.PID })
	return list, nil
}

// processes returns the IDs outside of what is in a box's cgroup and in those
// below it.
func (t *cgroupTree) processes(id string) ([]int, error) {
	dir := filepath.Join(t.unified, t.boxPath(id))
	if t.mode != cgroups.Unified {
		dir = t.controller(id, "pids")
	}
	if dir == "" {
		return nil, fmt.Errorf("no cgroup counts its processes: %w", sandbox.ErrUnsupported)
	}
	var pids []int
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != dir:
			return nil // an exec that ended meanwhile
		case err != nil:
			return err
		case !e.IsDir() || len(pids) >= maxProcesses:
			return nil
		}
		data, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		for line := range strings.Lines(string(data)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 && len(pids) < maxProcesses {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids, err
}

// readProcess reads a directory of /proc. parent is an ID outside. It reports
// false if the process is gone, or is in no box.
func readProcess(dir string, hostID int) (p sandbox.ProcessInfo, parent int, ok bool) {
	status, err := readProc(dir, "status", maxProcFile)
	if err != nil {
		return p, 0, false
	}
	levels := 0
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		f := strings.Fields(value)
		if len(f) == 0 {
			continue
		}
		switch key {
		case "NSpid":
			levels = len(f)
			p.PID, err = strconv.Atoi(f[len(f)-1])
		case "PPid":
			parent, err = strconv.Atoi(f[0])
		case "Uid":
			p.UID, err = strconv.Atoi(f[0])
			if p.UID -= hostID; p.UID < 0 || p.UID >= idsPerBox {
				p.UID = nobodyID
			}
		case "VmRSS":
			var kib int64
			kib, err = strconv.ParseInt(f[0], 10, 64)
			p.RSSBytes = kib << 10
		}
		if err != nil {
			return p, 0, false
		}
	}
	stat, err := readProc(dir, "stat", maxProcFile)
	if err != nil || levels < 2 || !parseStat(stat, &p) {
		return p, 0, false
	}
	// A process can write into its own command line what it likes.
	cmd, err := readProc(dir, "cmdline", maxCommand)
	if cmd = bytes.TrimRight(cmd, "\x00 "); err == nil && len(cmd) > 0 {
		p.Command = strings.ToValidUTF8(string(bytes.ReplaceAll(cmd, []byte{0}, []byte{' '})), "\uFFFD")
	}
	return p, parent, true
}

// parseStat takes from /proc/<pid>/stat: pid (name) state … utime stime …
// starttime. The name may hold anything, so the last parenthesis counts.
func parseStat(stat []byte, p *sandbox.ProcessInfo) bool {
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return false
	}
	f := strings.Fields(string(stat[end+1:]))
	if len(f) < 20 {
		return false
	}
	p.Command = "[" + strings.ToValidUTF8(string(stat[open+1:end]), "\uFFFD") + "]"
	p.State = stateName(f[0])
	user, err := strconv.ParseInt(f[11], 10, 64)
	system, serr := strconv.ParseInt(f[12], 10, 64)
	start, terr := strconv.ParseInt(f[19], 10, 64)
	if errors.Join(err, serr, terr) != nil {
		return false
	}
	const tick = time.Second / clockTicks
	p.CPU = time.Duration(user+system) * tick
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) == nil {
		p.StartedAt = time.Now().Add(time.Duration(start)*tick - time.Duration(up.Nano())).Truncate(tick)
	}
	return true
}

func stateName(letter string) string {
	switch letter {
	case "R":
		return "running"
	case "S", "I":
		return "sleeping"
	case "D":
		return "waiting" // for a device
	case "T", "t":
		return "stopped"
	case "Z":
		return "zombie"
	}
	return "dead"
}

func readProc(dir, name string, limit int64) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// Holdings implements [sandbox.Holder].
func (d *Driver) Holdings(context.Context) (h sandbox.Holdings, err error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.runRoot))
	if err != nil {
		return h, fmt.Errorf("count mounts: %w", err)
	}
	for _, m := range mounts {
		if m.FSType == "nsfs" {
			h.Namespaces++
		} else {
			h.Mounts++
		}
	}
	for _, dir := range d.cgroups.dirs(d.cgroups.parent()) {
		err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				h.Cgroups++
			}
			return nil // what has gone is not held
		})
		if err != nil {
			return h, fmt.Errorf("count cgroups: %w", err)
		}
	}
	return h, nil
}
