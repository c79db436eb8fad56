package oci

import (
	"fmt"
	"math"
	"os"
	"path"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/taibox/taibox/tai/sandbox"
)

const (
	// bridgePath is where a box sees its PID 1. It lies on the box's own /dev,
	// so that no image and no commit ever has a trace of it.
	bridgePath = "/dev/taibox/bridge"
	// bridgePids is what the bridge's own threads may take of the pids limit.
	bridgePids = 48
	// defaultShm is the size of /dev/shm, as Docker has it.
	defaultShm = "size=65536k"
	cpuPeriod  = 100_000 // microseconds
	// bridgeFiles is how many descriptors the bridge needs for execs and their
	// logs. Go raises its own soft limit to the hard one and gives commands the
	// soft limit that it found, which is the box's.
	bridgeFiles = 4096
	// defaultOpenFiles is the descriptor limit where none is asked for.
	defaultOpenFiles = 1 << 20
)

// capabilities is what root may do inside: Docker's set without raw sockets,
// device nodes and audit records.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
	"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	"/sys/devices/system/cpu/cpu0/thermal_throttle",
}

var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// bundle builds the OCI configuration of a box.
type bundle struct {
	spec     *sandbox.Spec
	rootfs   string
	bridge   string // on the machine
	userNS   string
	netNS    string
	cgroup   string
	hostname string
	mounts   []specs.Mount // of the image
	binds    []specs.Mount // that the box asks for
	nofile   uint64
	cgroups  *cgroupTree
}

func (b *bundle) build() (*specs.Spec, error) {
	oomScore, err := oomScoreAdj()
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{
		Version:  specs.Version,
		Hostname: b.hostname,
		Root:     &specs.Root{Path: b.rootfs, Readonly: b.spec.ReadOnly},
		Process: &specs.Process{
			Args:            []string{bridgePath},
			Env:             []string{},
			Cwd:             "/",
			NoNewPrivileges: true,
			OOMScoreAdj:     &oomScore,
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: b.nofile, Hard: max(b.nofile, min(bridgeFiles, hardOpenFiles()))},
				{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
			},
		},
		Mounts: b.allMounts(),
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace, Path: b.userNS},
				{Type: specs.NetworkNamespace, Path: b.netNS},
				{Type: specs.PIDNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.CgroupNamespace},
			},
			CgroupsPath:       b.cgroup,
			Resources:         b.resources(),
			MaskedPaths:       maskedPaths,
			ReadonlyPaths:     readonlyPaths,
			RootfsPropagation: "rprivate",
		},
	}
	s.Linux.Seccomp = seccomp.DefaultProfile(s)
	// The bridge starts execs right inside their cgroups, which takes clone3.
	// Its flags cannot be filtered; further user namespaces are stopped by
	// user.max_user_namespaces, all others take CAP_SYS_ADMIN.
	s.Linux.Seccomp.Syscalls = slices.DeleteFunc(s.Linux.Seccomp.Syscalls, func(c specs.LinuxSyscall) bool {
		return slices.Equal(c.Names, []string{"clone3"})
	})
	s.Linux.Seccomp.Syscalls = append(s.Linux.Seccomp.Syscalls, specs.LinuxSyscall{Names: []string{"clone3"}, Action: specs.ActAllow})
	// Other instruction sets of the processor have other ways to the same
	// calls: on i386 socketcall(2) hides the address family from any filter.
	// Leaving them out also takes two thirds of the time that the runtime
	// needs to compile the filter.
	if arch, ok := nativeArch[goruntime.GOARCH]; ok {
		s.Linux.Seccomp.Architectures = []specs.Arch{arch}
	}
	return s, injectDevices(s, b.spec.Devices)
}

// injectDevices adds devices by their CDI names.
func injectDevices(s *specs.Spec, names []string) error {
	if len(names) == 0 {
		return nil
	}
	cache, err := cdi.NewCache(cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("read CDI specifications: %w", err)
	}
	if missing, err := cache.InjectDevices(s, names...); err != nil {
		return fmt.Errorf("devices %s: %w: %w", strings.Join(missing, ", "), sandbox.ErrInvalidSpec, err)
	}
	return nil
}

var nativeArch = map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}

func (b *bundle) allMounts() []specs.Mount {
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", defaultShm}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: bridgePath, Type: "bind", Source: b.bridge, Options: []string{"bind", "ro", "nosuid", "nodev"}},
	}
	mounts = append(mounts, b.mounts...)
	tmpfs := slices.Clone(b.spec.Tmpfs)
	if b.spec.ReadOnly {
		for _, dir := range []string{"/tmp", "/run"} {
			if !slices.ContainsFunc(tmpfs, func(t string) bool { d, _, _ := strings.Cut(t, ":"); return path.Clean(d) == dir }) {
				tmpfs = append(tmpfs, dir)
			}
		}
	}
	own := slices.Clone(b.binds)
	for _, t := range tmpfs {
		dir, size, _ := sandbox.ParseTmpfs(t) // the spec has been validated
		opts := []string{"nosuid", "nodev", "mode=1777"}
		if size > 0 {
			opts = append(opts, fmt.Sprintf("size=%d", size))
		}
		own = append(own, specs.Mount{Destination: dir, Type: "tmpfs", Source: "tmpfs", Options: opts})
	}
	return append(mounts, sandbox.ByDepth(own, func(m specs.Mount) string { return m.Destination })...)
}

func (b *bundle) resources() *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	if m := b.spec.MemoryBytes; m > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &m}
		if b.cgroups.swapLimited() {
			r.Memory.Swap = &m // memory and swap together: no swap
		}
	}
	if b.spec.CPUs > 0 {
		quota, period := int64(math.Round(b.spec.CPUs*cpuPeriod)), uint64(cpuPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	if b.spec.Pids > 0 {
		limit := b.spec.Pids + bridgePids
		r.Pids = &specs.LinuxPids{Limit: &limit}
	}
	return r
}

// openFiles returns the descriptor limit of a box: what was asked for, within
// what this process itself may give.
func openFiles(asked uint64) (uint64, error) {
	hard := hardOpenFiles()
	switch {
	case asked == 0:
		return min(defaultOpenFiles, hard), nil
	case asked > hard && !hasSysResource():
		return 0, fmt.Errorf("%d open files: %w: this machine allows %d and the server lacks CAP_SYS_RESOURCE to raise it", asked, sandbox.ErrInvalidSpec, hard)
	}
	return asked, nil
}

// oomScoreAdj is the OOM score of a box's bridge: the machine's default, even
// where the server is protected. Without CAP_SYS_RESOURCE it cannot be less
// than the server's own.
func oomScoreAdj() (int, error) {
	data, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0, fmt.Errorf("own OOM score: %w", err)
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("own OOM score: %w", err)
	}
	return max(own, 0), nil
}

// hardOpenFiles is the descriptor limit of this process.
func hardOpenFiles() uint64 {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 1024 // it cannot fail
	}
	return lim.Max
}

func hasSysResource() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Capget(&header, &caps[0]) == nil && caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
