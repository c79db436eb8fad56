package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Mode is how the machine's cgroups are set up.
type Mode string

// The ways to set up cgroups.
const (
	ModeNone   Mode = "none"
	ModeV1     Mode = "v1"
	ModeHybrid Mode = "hybrid" // v1 controllers, with a cgroup2 hierarchy beside them
	ModeV2     Mode = "v2"
)

// Cgroups says where the cgroups of this machine are.
type Cgroups struct {
	Mode    Mode
	Unified string            // mount point of the cgroup2 hierarchy; empty with v1
	V1      map[string]string // mount point of each v1 controller
	V2      []string          // controllers of the cgroup2 hierarchy
}

// notControllers are the options of a v1 mount beside its controllers.
var notControllers = []string{"rw", "ro", "none", "xattr", "noprefix", "clone_children", "cpuset_v2_mode"}

// Has reports whether a controller can be used in either version.
func (c Cgroups) Has(controller string) bool {
	return c.V1[controller] != "" || slices.Contains(c.V2, controller)
}

// CgroupMode returns how the cgroups of this machine are set up.
func CgroupMode() Mode {
	c, err := ReadCgroups()
	if err != nil {
		return ModeNone
	}
	return c.Mode
}

// ReadCgroups finds the cgroups of this machine by what is mounted.
func ReadCgroups() (Cgroups, error) { return readCgroups(os.DirFS("/")) }

func readCgroups(machine fs.FS) (Cgroups, error) {
	c := Cgroups{Mode: ModeNone, V1: map[string]string{}}
	data, err := fs.ReadFile(machine, "proc/self/mountinfo")
	if err != nil {
		return c, fmt.Errorf("find cgroups: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		// 31 23 0:28 ROOT MOUNTPOINT OPTIONS [TAGS…] - TYPE SOURCE SUPEROPTIONS
		before, after, ok := strings.Cut(line, " - ")
		mount, super := strings.Fields(before), strings.Fields(after)
		if !ok || len(mount) < 6 || len(super) < 3 {
			continue
		}
		switch super[0] {
		case "cgroup2":
			if c.Unified == "" {
				c.Unified = mount[4]
			}
		case "cgroup":
			for option := range strings.SplitSeq(super[2], ",") {
				if !slices.Contains(notControllers, option) && !strings.Contains(option, "=") {
					c.V1[option] = mount[4]
				}
			}
		}
	}
	if c.Unified != "" {
		controllers, err := fs.ReadFile(machine, strings.TrimPrefix(path.Join(c.Unified, "cgroup.controllers"), "/"))
		if err != nil {
			return c, fmt.Errorf("find cgroup controllers: %w", err)
		}
		c.V2 = strings.Fields(string(controllers))
	}
	switch {
	case c.Unified != "" && len(c.V1) == 0:
		c.Mode = ModeV2
	case c.Unified != "":
		c.Mode = ModeHybrid
	case len(c.V1) != 0:
		c.Mode = ModeV1
	}
	return c, nil
}

func checkCgroups(machine fs.FS) Check {
	const name = "cgroups"
	c, err := readCgroups(machine)
	if err != nil {
		return Check{name, Fail, err.Error(), "mount the cgroup2 file system on /sys/fs/cgroup"}
	}
	if c.Mode == ModeNone {
		return Check{name, Fail, "no cgroups are mounted", "mount -t cgroup2 none /sys/fs/cgroup"}
	}
	check := cgroupCheck(c)
	if check.Status == Fail || c.Unified == "" || os.Geteuid() != 0 {
		return check
	}
	kill, err := tryCgroup(c.Unified)
	switch {
	case err != nil:
		return Check{name, Fail, fmt.Sprintf("%s; none can be made: %v", check.Detail, err), "mount " + c.Unified + " read-write; inside a container, run it privileged"}
	case !kill:
		return Check{name, Warn, check.Detail + "; without cgroup.kill, so that commands are killed process by process", "use kernel 5.14 or newer"}
	}
	check.Detail += ", cgroup.kill"
	return check
}

func cgroupCheck(c Cgroups) Check {
	const name = "cgroups"
	var has, lacks []string
	for _, controller := range []string{"memory", "cpu", "pids"} {
		if c.Has(controller) {
			has = append(has, controller)
		} else {
			lacks = append(lacks, controller)
		}
	}
	detail := string(c.Mode) + " with " + strings.Join(has, ", ")
	switch {
	case len(lacks) != 0:
		lacking := strings.Join(lacks, ", ")
		return Check{name, Warn, fmt.Sprintf("%s; limits on %s cannot be set", detail, lacking), "enable the cgroup controllers " + lacking + " (kernel command line)"}
	case c.Mode == ModeV1:
		return Check{name, Warn, detail + "; without a cgroup2 hierarchy beside it, children that leave their command are found less surely", "mount -t cgroup2 none /sys/fs/cgroup/unified"}
	}
	return Check{name, OK, detail, ""}
}

// tryCgroup makes a cgroup, sees whether it can be killed in one stroke, and
// removes it.
func tryCgroup(unified string) (kill bool, err error) {
	dir, err := os.MkdirTemp(unified, "taibox-probe-*")
	if err != nil {
		return false, err
	}
	_, err = os.Stat(path.Join(dir, "cgroup.kill"))
	kill = err == nil
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return kill, errors.Join(err, os.Remove(dir))
}
