package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupTree knows where the machine's cgroup hierarchies are. Limits live in
// the v2 hierarchy, or on v1 and hybrid machines in the v1 ones; execs get
// cgroups of their own in the v2 hierarchy, wherever there is one.
type cgroupTree struct {
	mode     cgroups.CGMode
	instance string
	unified  string            // mount point of the v2 hierarchy; empty on pure v1
	v1       map[string]string // mount point by controller; empty on v2
}

func newCgroupTree(root, instance string, mode cgroups.CGMode) (*cgroupTree, error) {
	t := &cgroupTree{mode: mode, instance: instance, v1: map[string]string{}}
	switch mode {
	case cgroups.Unified:
		t.unified = root
		return t, nil
	case cgroups.Hybrid:
		t.unified = filepath.Join(root, "unified")
	case cgroups.Legacy:
	default:
		return nil, fmt.Errorf("no cgroups are mounted at %s: %w", root, sandbox.ErrUnsupported)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if _, err := os.Stat(filepath.Join(dir, "tasks")); err == nil {
			t.v1[e.Name()] = dir // a link such as cpu → cpu,cpuacct is one more name
		}
	}
	return t, nil
}

// parent is the cgroup below which all boxes of the instance live.
func (t *cgroupTree) parent() string { return "/taibox-" + t.instance }

// boxPath is a box's cgroup relative to each hierarchy.
func (t *cgroupTree) boxPath(id string) string { return t.parent() + "/" + id }

// dirs returns the directories of a cgroup in all hierarchies.
func (t *cgroupTree) dirs(path string) []string {
	var dirs []string
	for _, root := range t.v1 {
		dirs = append(dirs, filepath.Join(root, path))
	}
	if t.unified != "" {
		dirs = append(dirs, filepath.Join(t.unified, path))
	}
	return dirs
}

// controller returns the directory of a box where a controller's files are,
// or "" if the machine does not offer it.
func (t *cgroupTree) controller(id, name string) string {
	if t.mode == cgroups.Unified {
		dir := filepath.Join(t.unified, t.boxPath(id))
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err == nil && strings.Contains(" "+strings.TrimSpace(string(data))+" ", " "+name+" ") {
			return dir
		}
		return ""
	}
	if root, ok := t.v1[name]; ok {
		return filepath.Join(root, t.boxPath(id))
	}
	return ""
}

// available reports whether the machine offers a controller.
func (t *cgroupTree) available(name string) bool {
	if t.mode != cgroups.Unified {
		_, ok := t.v1[name]
		return ok
	}
	data, err := os.ReadFile(filepath.Join(t.unified, "cgroup.controllers"))
	return err == nil && strings.Contains(" "+strings.TrimSpace(string(data))+" ", " "+name+" ")
}

// swapLimited reports whether swap can be limited with memory. Without swap
// accounting in the kernel, asking for it would fail the box.
func (t *cgroupTree) swapLimited() bool {
	if t.mode == cgroups.Unified {
		return true // the runtime leaves it out where the file is missing
	}
	_, err := os.Stat(filepath.Join(t.v1["memory"], "memory.memsw.limit_in_bytes"))
	return err == nil
}

// oomCounter opens the file that counts a box's OOM kills. It is nil where
// there is no memory controller.
func (t *cgroupTree) oomCounter(id string) (*os.File, error) {
	dir := t.controller(id, "memory")
	if dir == "" {
		return nil, nil
	}
	name := "memory.oom_control"
	if t.mode == cgroups.Unified {
		name = "memory.events"
	}
	return os.Open(filepath.Join(dir, name))
}

// oomKills reads a box's OOM counter; 0 where there is none.
func (t *cgroupTree) oomKills(id string) int64 {
	f, err := t.oomCounter(id)
	if err != nil || f == nil {
		return 0
	}
	defer f.Close()
	data := make([]byte, 4096)
	n, err := f.Read(data)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data[:n])) {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return kills
		}
	}
	return 0
}

// execCgroup is the cgroup of one exec, with what the bridge needs to use it.
type execCgroup struct {
	dir                string
	self, kill, events *os.File
}

// execDir is the cgroup of an exec; "" where there is no v2 hierarchy.
func (t *cgroupTree) execDir(boxID, execID string) string {
	if t.unified == "" {
		return ""
	}
	return filepath.Join(t.unified, t.boxPath(boxID), "exec-"+execID)
}

// newExecCgroup makes a cgroup for an exec; nil where there is no v2 hierarchy.
// Its control files belong to the box's root, so that the bridge may move
// children in and end them; no path to them leads from inside the box.
func (t *cgroupTree) newExecCgroup(boxID, execID string, hostID uint32) (_ *execCgroup, err error) {
	if t.unified == "" {
		return nil, nil
	}
	c := &execCgroup{dir: t.execDir(boxID, execID)}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, fmt.Errorf("cgroup of exec %s: %w", execID, err)
	}
	defer func() {
		if err != nil {
			c.closeFiles()
			err = errors.Join(fmt.Errorf("cgroup of exec %s: %w", execID, err), os.Remove(c.dir))
		}
	}()
	if c.self, err = os.Open(c.dir); err != nil {
		return nil, err
	}
	if err = os.Chmod(c.dir, 0o755); err != nil { // whatever the umask
		return nil, err
	}
	if err = os.Chown(filepath.Join(c.dir, "cgroup.procs"), int(hostID), int(hostID)); err != nil {
		return nil, err
	}
	if c.kill, err = os.OpenFile(filepath.Join(c.dir, "cgroup.kill"), os.O_WRONLY, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err // before Linux 5.14 there is none; the bridge then kills one by one
	}
	if c.events, err = os.Open(filepath.Join(c.dir, "cgroup.events")); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *execCgroup) closeFiles() {
	for _, f := range []*os.File{c.self, c.kill, c.events} {
		if f != nil {
			f.Close() //nolint:errcheck // nothing was written through it
		}
	}
}

// allowExecs lets the bridge move children from its own cgroup into those of
// execs: for that the kernel wants it to be able to write to their parent.
func (t *cgroupTree) allowExecs(boxID string, hostID uint32) error {
	if t.unified == "" {
		return nil
	}
	return os.Chown(filepath.Join(t.unified, t.boxPath(boxID), "cgroup.procs"), int(hostID), int(hostID))
}

// killBox kills every process of a box, again until none is left.
func (t *cgroupTree) killBox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, killTimeout, fmt.Errorf("processes of box %s do not die", id))
	defer cancel()
	for {
		left := false
		for _, dir := range t.dirs(t.boxPath(id)) {
			n, err := killCgroup(dir)
			if err != nil {
				return err
			}
			left = left || n > 0
		}
		if !left {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(removeRetry):
		}
	}
}

// killCgroup kills what is in a cgroup and below, and returns how many there were.
func killCgroup(dir string) (int, error) {
	pids, err := cgroupPids(dir)
	if err != nil || len(pids) == 0 {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err == nil {
		return len(pids), nil
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return 0, fmt.Errorf("kill %d of %s: %w", pid, dir, err)
		}
	}
	return len(pids), nil
}

// cgroupPids lists the processes in a cgroup and below.
func cgroupPids(dir string) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return ignoreGone(err)
		}
		data, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		for f := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids, err
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// removeBox removes a box's cgroups, whose processes are dead or dying.
func (t *cgroupTree) removeBox(id string) error {
	var errs []error
	for _, dir := range t.dirs(t.boxPath(id)) {
		errs = append(errs, removeCgroup(dir))
	}
	return errors.Join(errs...)
}

// removeCgroup removes a cgroup with all below it. The kernel says busy until
// the last process has been reaped.
func removeCgroup(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return ignoreGone(err)
	})
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(dirs) {
		if err := rmdirRetry(d); err != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
	return nil
}

func rmdirRetry(dir string) error {
	var err error
	for range removeTries {
		if err = unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(removeRetry) //nolint:forbidigo // the kernel offers no event for this on v1
	}
	return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
}
