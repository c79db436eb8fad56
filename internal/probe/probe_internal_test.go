package probe

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
)

// machine makes a file system from names and contents.
func machine(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, data := range files {
		m[name] = &fstest.MapFile{Data: []byte(data)}
	}
	return m
}

func TestReadCgroups(t *testing.T) {
	const v1 = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
`
	mounts := map[string]string{
		"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
		"memory": "/sys/fs/cgroup/memory", "pids": "/sys/fs/cgroup/pids",
	}
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  Cgroups
	}{
		{"none", map[string]string{"proc/self/mountinfo": "23 1 8:1 / / rw - ext4 /dev/vda rw\n"}, Cgroups{Mode: ModeNone, V1: map[string]string{}}},
		{"v1", map[string]string{"proc/self/mountinfo": v1}, Cgroups{Mode: ModeV1, V1: mounts}},
		{
			"hybrid",
			map[string]string{
				"proc/self/mountinfo":                      v1 + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
				"sys/fs/cgroup/unified/cgroup.controllers": "\n",
			},
			Cgroups{Mode: ModeHybrid, Unified: "/sys/fs/cgroup/unified", V1: mounts},
		},
		{
			"v2",
			map[string]string{
				"proc/self/mountinfo":              "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
				"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
			},
			Cgroups{Mode: ModeV2, Unified: "/sys/fs/cgroup", V1: map[string]string{}, V2: []string{"cpuset", "cpu", "io", "memory", "pids"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := readCgroups(machine(tc.files))
			if err != nil {
				t.Fatal(err)
			}
			if got.V2 != nil && len(got.V2) == 0 {
				got.V2 = nil
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("cgroups differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCgroupCheckNamesWhatIsMissing(t *testing.T) {
	got := cgroupCheck(Cgroups{Mode: ModeV2, Unified: "/sys/fs/cgroup", V2: []string{"cpu", "pids"}})
	if got.Status != Warn || got.Detail != "v2 with cpu, pids; limits on memory cannot be set" {
		t.Errorf("got %+v", got)
	}
}

func TestUpstreams(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"none", nil, nil},
		{"plain", map[string]string{"etc/resolv.conf": "# made by hand\nsearch example.test\nnameserver 10.0.0.2\nnameserver 10.0.0.2\nnameserver\t2001:db8::1\noptions edns0\n"}, []string{"10.0.0.2", "2001:db8::1"}},
		{"garbage", map[string]string{"etc/resolv.conf": "nameserver\nnameserver nowhere\nnameserver ::ffff:10.0.0.3\n"}, []string{"10.0.0.3"}},
		{"resolved", map[string]string{
			"etc/resolv.conf":                        "nameserver 127.0.0.53\noptions trust-ad\n",
			"run/systemd/resolve/resolv.conf":        "nameserver 192.0.2.1\nnameserver 192.0.2.2\n",
			"run/NetworkManager/no-stub-resolv.conf": "nameserver 192.0.2.3\n",
		}, []string{"192.0.2.1", "192.0.2.2"}},
		{"dnsmasq", map[string]string{
			"etc/resolv.conf":                        "nameserver 127.0.0.1\n",
			"run/NetworkManager/no-stub-resolv.conf": "nameserver 192.0.2.3\n",
		}, []string{"192.0.2.3"}},
		{"stub_with_nothing_behind", map[string]string{"etc/resolv.conf": "nameserver ::1\n"}, nil},
		{"stub_beside_another", map[string]string{"etc/resolv.conf": "nameserver 127.0.0.1\nnameserver 192.0.2.9\n"}, []string{"192.0.2.9"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var want []netip.Addr
			for _, s := range tc.want {
				want = append(want, netip.MustParseAddr(s))
			}
			got := upstreams(machine(tc.files))
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("upstreams differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDNSCheckWantsIPv4(t *testing.T) {
	got := checkDNS(machine(map[string]string{"etc/resolv.conf": "nameserver 2001:db8::1\n"}))
	if got.Status != Warn || got.Fix == "" {
		t.Errorf("got %+v", got)
	}
}

func TestForwardDrops(t *testing.T) {
	drop, accept := nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	table := func(family nftables.TableFamily, name string) *nftables.Table {
		return &nftables.Table{Family: family, Name: name}
	}
	ip, ip6 := table(nftables.TableFamilyIPv4, "filter"), table(nftables.TableFamilyIPv6, "filter")
	ours, firewalld := table(nftables.TableFamilyIPv4, "taibox-1a2b3c4d"), table(nftables.TableFamilyINet, "firewalld")
	got := forwardDrops([]*nftables.Chain{
		{Name: "FORWARD", Table: ip, Hooknum: nftables.ChainHookForward, Policy: &drop},
		{Name: "INPUT", Table: ip, Hooknum: nftables.ChainHookInput, Policy: &drop},
		{Name: "DOCKER-USER", Table: ip},
		{Name: "FORWARD", Table: ip6, Hooknum: nftables.ChainHookForward, Policy: &drop},
		{Name: "ufw6-user-forward", Table: ip6},
		{Name: "forward", Table: ours, Hooknum: nftables.ChainHookForward, Policy: &drop},
		{Name: "filter_FORWARD", Table: firewalld, Hooknum: nftables.ChainHookForward, Policy: &accept},
		{Name: "forward", Table: table(nftables.TableFamilyINet, "own"), Hooknum: nftables.ChainHookForward, Policy: &accept},
	})
	want := []ForwardDrop{
		{nftables.TableFamilyIPv4, "filter", "FORWARD", "docker"},
		{nftables.TableFamilyIPv6, "filter", "FORWARD", "ufw"},
		{nftables.TableFamilyINet, "firewalld", "filter_FORWARD", "firewalld"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("drops differ (-want +got):\n%s", diff)
	}
	if s := got[0].String(); s != "ip filter FORWARD (docker)" {
		t.Errorf("String() = %q", s)
	}
	for _, tc := range []struct {
		drops  []ForwardDrop
		legacy bool
		want   Status
	}{{nil, false, OK}, {want[:1], false, OK}, {want, false, Warn}, {nil, true, Warn}} {
		if c := nftablesCheck(tc.drops, tc.legacy); c.Status != tc.want {
			t.Errorf("nftablesCheck(%v, %v) = %+v, want %s", tc.drops, tc.legacy, c, tc.want)
		}
	}
}

func TestCapabilities(t *testing.T) {
	for _, tc := range []struct {
		mask string
		want Check
	}{
		{"000001ffffffffff", Check{"root", OK, "root with all capabilities that are used", ""}},
		{"000001fffeffffff", Check{"root", Warn, "root without CAP_SYS_RESOURCE (limits on open files cannot be raised above this machine's, nor out-of-memory scores lowered)", "start the server with these capabilities"}},
		{"000001ffffdfffff", Check{"root", Fail, "root without CAP_SYS_ADMIN", "start the server with these capabilities"}},
	} {
		missing, err := missingCapabilities(machine(map[string]string{"proc/self/status": "Name:\tx\nCapEff:\t" + tc.mask + "\n"}))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, capabilityCheck("root", missing)); diff != "" {
			t.Errorf("mask %s (-want +got):\n%s", tc.mask, diff)
		}
	}
	if _, err := missingCapabilities(machine(map[string]string{"proc/self/status": "Name:\tx\n"})); err == nil {
		t.Error("a status without capabilities was read")
	}
}

func TestKernel(t *testing.T) {
	for release, want := range map[string]Status{
		"6.18.0": OK, "5.19.0-45-generic": OK, "5.18.19": Fail, "4.19.0-26-amd64": Fail, "10.0": OK, "custom": Warn,
	} {
		c := checkKernel(machine(map[string]string{"proc/sys/kernel/osrelease": release + "\n"}))
		if c.Status != want {
			t.Errorf("release %s: %+v, want %s", release, c, want)
		}
	}
}

func TestSysctls(t *testing.T) {
	for _, tc := range []struct {
		check Check
		want  Status
	}{
		{checkUserNS(machine(nil)), Fail},
		{checkUserNS(machine(map[string]string{"proc/sys/user/max_user_namespaces": "0\n"})), Fail},
		{checkSeccomp(machine(nil)), Fail},
		{checkSeccomp(machine(map[string]string{"proc/sys/kernel/seccomp/actions_avail": "kill_process errno allow\n"})), OK},
		{checkSeccomp(machine(map[string]string{"proc/sys/kernel/seccomp/actions_avail": "kill_thread allow\n"})), Fail},
		{checkForwarding(machine(map[string]string{"proc/sys/net/ipv4/ip_forward": "1\n"})), OK},
	} {
		if tc.check.Status != tc.want {
			t.Errorf("%+v, want %s", tc.check, tc.want)
		}
		if tc.want == Fail && tc.check.Fix == "" {
			t.Errorf("%+v does not say what to do", tc.check)
		}
	}
}

func TestDisk(t *testing.T) {
	for _, tc := range []struct {
		bytes, files, freeFiles uint64
		want                    Status
	}{
		{50 << 30, 1 << 20, 1 << 19, OK},
		{50 << 30, 0, 0, OK},
		{50 << 30, 1 << 20, 10, Warn},
		{1 << 30, 0, 0, Warn},
		{10 << 20, 0, 0, Fail},
	} {
		if c := diskCheck("/data", tc.bytes, tc.files, tc.freeFiles); c.Status != tc.want {
			t.Errorf("%+v: %+v", tc, c)
		}
	}
}

func TestInstances(t *testing.T) {
	data, run := t.TempDir(), t.TempDir()
	write(t, filepath.Join(data, "instance"), "00000001\n")
	for _, name := range []string{"00000001", "0000beef", "taibox.sock"} {
		if err := os.Mkdir(filepath.Join(run, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	want := Check{"instances", OK, "beside this one: 0000beef", ""}
	if diff := cmp.Diff(want, checkInstances(data, run)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want.Detail = "no other instance on this machine"
	if diff := cmp.Diff(want, checkInstances(data, filepath.Join(run, "absent"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProgram(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	write(t, good, "#!/bin/sh\necho version 1.2; echo more\n")
	write(t, bad, "#!/bin/sh\nexit 3\n")
	want := Check{"taibox-runc", OK, good + " (version 1.2)", ""}
	if diff := cmp.Diff(want, checkProgram(t.Context(), "taibox-runc", good)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, path := range []string{"", bad, filepath.Join(dir, "absent")} {
		if c := checkProgram(t.Context(), "taibox-runc", path); c.Status != Fail || c.Fix == "" {
			t.Errorf("%q: %+v", path, c)
		}
	}
}

func TestDocker(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, `{"Version": "28.1"}`)
	}))
	srv.Listener = listener
	srv.Start()
	defer srv.Close()
	file := filepath.Join(dir, "file")
	write(t, file, "")
	for _, tc := range []struct {
		socket string
		want   Check
	}{
		{socket, Check{"docker", OK, "version 28.1 at " + socket, ""}},
		{filepath.Join(dir, "absent"), Check{"docker", OK, "none; not needed", ""}},
		{file, Check{"docker", Warn, "does not answer: " + file + ": not a socket", "not needed, unless boxes are to run on it"}},
	} {
		if diff := cmp.Diff(tc.want, checkDocker(t.Context(), tc.socket)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.socket, diff)
		}
	}
}

func write(t *testing.T, name, data string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(data), 0o700); err != nil {
		t.Fatal(err)
	}
}
