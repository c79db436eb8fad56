package oci

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/durable"
	"github.com/taibox/taibox/tai/sandbox"
)

// Two boxes never share an id or an address, in one instance or in two.
func TestSlotsAreDisjoint(t *testing.T) {
	ids, addrs := map[uint32]bool{}, map[netip.Addr]bool{}
	for n := range slots {
		s := &slot{number: n, subnet: slotSubnet(n)}
		for i := range boxesPerSlot {
			id := s.hostID(i)
			if ids[id] || id < firstHostID || uint64(id)+idsPerBox > 1<<32 {
				t.Fatalf("slot %d box %d: host id %d is taken or out of range", n, i, id)
			}
			ids[id] = true
			if s.index(id) != i || s.index(id+1) != -1 {
				t.Fatalf("slot %d box %d: host ids %d and the next are of %d and %d", n, i, id, s.index(id), s.index(id+1))
			}
			a := s.addr(i)
			if addrs[a] || !s.subnet.Contains(a) || a == s.gateway() {
				t.Fatalf("slot %d box %d: address %v is taken or out of %v", n, i, a, s.subnet)
			}
			addrs[a] = true
		}
	}
}

// A host id of another slot, or of none, is no box's of this one.
func TestForeignHostID(t *testing.T) {
	s := &slot{number: 3}
	for _, id := range []uint32{0, 1000, firstHostID - 1, (&slot{number: 2}).hostID(boxesPerSlot - 1), (&slot{number: 4}).hostID(0), 1<<32 - 1} {
		if i := s.index(id); i != -1 {
			t.Errorf("host id %d is of box %d", id, i)
		}
	}
}

// Subnets of boxes are private, so that no box reaches another one's by address.
func TestSlotsAreClosed(t *testing.T) {
	for n := range slots {
		closed := slices.ContainsFunc(closedRanges, func(r string) bool {
			p := netip.MustParsePrefix(r)
			return p.Bits() <= slotPrefixLen && p.Contains(slotSubnet(n).Addr())
		})
		if !closed {
			t.Errorf("subnet %v of slot %d is not in a closed range", slotSubnet(n), n)
		}
	}
}

// S05: what no box may reach, in the spelling that the packet filter sees.
func TestS05ClosedRanges(t *testing.T) {
	for _, a := range []string{"169.254.169.254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "10.0.0.1", "172.31.255.255", "192.168.1.1", "127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "198.19.0.1"} {
		if !slices.ContainsFunc(closedRanges, func(r string) bool { return netip.MustParsePrefix(r).Contains(netip.MustParseAddr(a)) }) {
			t.Errorf("%s is open", a)
		}
	}
	for _, a := range []string{"1.1.1.1", "11.22.33.7", "172.32.0.1", "192.0.2.1", "223.255.255.255", "100.128.0.1", "168.63.129.15", "168.63.129.17"} {
		if slices.ContainsFunc(closedRanges, func(r string) bool { return netip.MustParsePrefix(r).Contains(netip.MustParseAddr(a)) }) {
			t.Errorf("%s is closed", a)
		}
	}
}

func TestClaimSlotIsKeptAndNotShared(t *testing.T) {
	dir := t.TempDir()
	a, err := claimSlot(dir, "aaaaaaaa", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	data := t.TempDir()
	b, err := claimSlot(dir, "bbbbbbbb", data)
	if err != nil {
		t.Fatal(err)
	}
	if a.number == b.number {
		t.Fatalf("two instances have slot %d", a.number)
	}
	number := b.number
	if err := b.close(); err != nil {
		t.Fatal(err)
	}
	// While b's server is down its boxes may run: its numbers stay its own.
	c, err := claimSlot(dir, "cccccccc", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if c.number == number {
		t.Fatalf("slot %d of a server that is down was given away", number)
	}
	again, err := claimSlot(dir, "bbbbbbbb", data)
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
	if again.number != number {
		t.Fatalf("slot %d after a restart, want %d", again.number, number)
	}
}

func TestSlotOfDeletedDataDirIsReused(t *testing.T) {
	dir, data := t.TempDir(), filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	a, err := claimSlot(dir, "aaaaaaaa", data)
	if err != nil {
		t.Fatal(err)
	}
	number := a.number
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(data); err != nil {
		t.Fatal(err)
	}
	b, err := claimSlot(dir, "bbbbbbbb", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if b.number != number {
		t.Errorf("got slot %d; slot %d is free, its data directory is gone", b.number, number)
	}
}

// tree makes a directory that looks like a cgroup file system.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, data := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCgroupV2(t *testing.T) {
	box := "taibox-i/b1/"
	root := tree(t, map[string]string{
		"cgroup.controllers": "cpuset cpu io memory pids\n", box + "cgroup.controllers": "cpu memory pids\n", box + "cgroup.procs": "",
		box + "memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n",
	})
	cg, err := newCgroupTree(root, "i", cgroups.Unified)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"memory": true, "cpu": true, "pids": true, "hugetlb": false, "mem": false} {
		if got := cg.available(name); got != want {
			t.Errorf("available(%s) = %v", name, got)
		}
	}
	if got := cg.oomKills("b1"); got != 2 {
		t.Errorf("oomKills = %d, want 2", got)
	}
	f, err := cg.oomCounter("b1")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got := cg.dirs("/x"); !slices.Equal(got, []string{filepath.Join(root, "x")}) {
		t.Errorf("dirs = %v", got)
	}
	if err := cg.removeBox("nosuch"); err != nil {
		t.Errorf("removing an absent cgroup: %v", err)
	}
}

func TestCgroupHybridAndLegacy(t *testing.T) {
	files := map[string]string{
		"memory/tasks": "", "pids/tasks": "", "cpu,cpuacct/tasks": "", "unified/cgroup.controllers": "\n",
		"memory/taibox-i/b1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
	}
	root := tree(t, files)
	if err := os.Symlink("cpu,cpuacct", filepath.Join(root, "cpu")); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []cgroups.CGMode{cgroups.Hybrid, cgroups.Legacy} {
		cg, err := newCgroupTree(root, "i", mode)
		if err != nil {
			t.Fatal(err)
		}
		if !cg.available("memory") || !cg.available("cpu") || cg.available("hugetlb") || cg.available("unified") {
			t.Errorf("%v: controllers %v", mode, cg.v1)
		}
		if got := cg.oomKills("b1"); got != 5 {
			t.Errorf("%v: oomKills = %d, want 5", mode, got)
		}
		if (cg.unified != "") != (mode == cgroups.Hybrid) {
			t.Errorf("%v: unified at %q", mode, cg.unified)
		}
		if cg.swapLimited() {
			t.Errorf("%v: swap is limited without a file for it", mode)
		}
	}
	if _, err := newCgroupTree(root, "i", cgroups.Unavailable); err == nil {
		t.Error("a machine without cgroups is accepted")
	}
}

func build(t *testing.T, spec sandbox.Spec) *specs.Spec {
	t.Helper()
	cg, err := newCgroupTree(tree(t, map[string]string{"cgroup.controllers": "memory"}), "i", cgroups.Unified)
	if err != nil {
		t.Fatal(err)
	}
	s, err := (&bundle{spec: &spec, rootfs: "/r", bridge: "/b", userNS: "/u", netNS: "/n", cgroup: "/c", cgroups: cg, nofile: 1024}).build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSpecHardening(t *testing.T) {
	s := build(t, sandbox.Spec{ID: "b", Image: "i"})
	if !s.Process.NoNewPrivileges {
		t.Error("new privileges are possible")
	}
	for _, c := range []string{"CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_MKNOD", "CAP_SYS_MODULE", "CAP_BPF", "CAP_SYS_RESOURCE"} {
		if slices.Contains(s.Process.Capabilities.Bounding, c) {
			t.Errorf("%s is given", c)
		}
	}
	if len(s.Process.Capabilities.Ambient) > 0 || len(s.Process.Capabilities.Inheritable) > 0 {
		t.Error("capabilities pass to users other than root")
	}
	if len(s.Process.Env) > 0 {
		t.Errorf("PID 1 has an environment: %v", s.Process.Env)
	}
	if d := s.Linux.Resources.Devices; len(d) != 1 || d[0].Allow {
		t.Errorf("devices are not closed first: %+v", d)
	}
	for _, m := range s.Mounts {
		if !slices.Contains(m.Options, "nosuid") {
			t.Errorf("mount %s is not nosuid", m.Destination)
		}
	}
	for _, p := range []string{"/proc/kcore", "/proc/keys", "/sys/firmware"} {
		if !slices.Contains(s.Linux.MaskedPaths, p) {
			t.Errorf("%s is not masked", p)
		}
	}
}

// The profile stops the socket families that reach past namespaces, and what
// would need CAP_SYS_ADMIN; clone3 is open for the bridge.
func TestSpecSeccomp(t *testing.T) {
	s := build(t, sandbox.Spec{ID: "b", Image: "i"})
	if s.Linux.Seccomp.DefaultAction != specs.ActErrno {
		t.Fatalf("default action %v", s.Linux.Seccomp.DefaultAction)
	}
	allowed := map[string][]specs.LinuxSyscall{}
	for _, c := range s.Linux.Seccomp.Syscalls {
		if c.Action == specs.ActAllow {
			for _, n := range c.Names {
				allowed[n] = append(allowed[n], c)
			}
		}
	}
	for _, n := range []string{"mount", "umount2", "bpf", "unshare", "setns", "pivot_root", "open_tree", "move_mount", "fsopen", "init_module", "kexec_load", "perf_event_open", "io_uring_setup", "keyctl", "add_key", "userfaultfd"} {
		if len(allowed[n]) > 0 {
			t.Errorf("%s is allowed", n)
		}
	}
	if len(allowed["clone3"]) != 1 {
		t.Errorf("clone3: %+v", allowed["clone3"])
	}
	for _, family := range []uint64{unix.AF_VSOCK, unix.AF_ALG} {
		for _, rule := range allowed["socket"] {
			if passes(rule, family) {
				t.Errorf("socket family %d passes %+v", family, rule)
			}
		}
	}
}

// passes reports whether a rule lets socket(2) with a family through.
func passes(rule specs.LinuxSyscall, family uint64) bool {
	for _, a := range rule.Args {
		if a.Index != 0 {
			continue
		}
		ok := false
		switch a.Op {
		case specs.OpNotEqual:
			ok = family != a.Value
		case specs.OpEqualTo:
			ok = family == a.Value
		case specs.OpLessThan:
			ok = family < a.Value
		case specs.OpLessEqual:
			ok = family <= a.Value
		case specs.OpGreaterThan:
			ok = family > a.Value
		case specs.OpGreaterEqual:
			ok = family >= a.Value
		}
		if !ok {
			return false
		}
	}
	return true
}

func TestSpecLimits(t *testing.T) {
	s := build(t, sandbox.Spec{ID: "b", Image: "i", MemoryBytes: 64 << 20, CPUs: 1.5, Pids: 30, ReadOnly: true, Tmpfs: []string{"/scratch:size=1000"}})
	r := s.Linux.Resources
	if *r.Memory.Limit != 64<<20 || *r.Memory.Swap != 64<<20 {
		t.Errorf("memory %d, with swap %d", *r.Memory.Limit, *r.Memory.Swap)
	}
	if *r.CPU.Quota != 150_000 || *r.CPU.Period != 100_000 {
		t.Errorf("cpu %d of %d", *r.CPU.Quota, *r.CPU.Period)
	}
	if *r.Pids.Limit != 30+bridgePids {
		t.Errorf("pids %d", *r.Pids.Limit)
	}
	if !s.Root.Readonly {
		t.Error("root is writable")
	}
	for _, dir := range []string{"/tmp", "/run", "/scratch"} {
		if !slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == dir && m.Type == "tmpfs" }) {
			t.Errorf("no tmpfs on %s", dir)
		}
	}
	free := build(t, sandbox.Spec{ID: "b", Image: "i"}).Linux.Resources
	if free.Memory != nil || free.CPU != nil || free.Pids != nil {
		t.Errorf("limits that nobody asked for: %+v", free)
	}
}

func TestOpenFilesBeyondTheMachine(t *testing.T) {
	if hasSysResource() {
		t.Skip("this process may raise limits")
	}
	if _, err := openFiles(1 << 29); err == nil || !strings.Contains(err.Error(), "CAP_SYS_RESOURCE") {
		t.Errorf("error %v does not name the capability", err)
	}
	if n, err := openFiles(0); err != nil || n == 0 {
		t.Errorf("default: %d, %v", n, err)
	}
}

func TestWriteJSONReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.json")
	for _, want := range []string{"one", strings.Repeat("two", 10000), "three"} {
		if err := durable.WriteJSON(path, want); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := durable.ReadJSON(path, &got); err != nil || got != want {
			t.Fatalf("read %d bytes, %v", len(got), err)
		}
	}
	if names := list(dir); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
}

func TestPidStartTellsProcessesApart(t *testing.T) {
	own, err := pidStart(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		run  run
		want bool
	}{
		{run{BootID: boot, PID: os.Getpid(), PIDStart: own}, true},
		{run{BootID: boot, PID: os.Getpid(), PIDStart: own + 1}, false},
		{run{BootID: "another", PID: os.Getpid(), PIDStart: own}, false},
		{run{BootID: boot}, false},
	} {
		if got := c.run.alive(boot); got != c.want {
			t.Errorf("%+v alive = %v", c.run, got)
		}
	}
}
