package probe

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Since 5.19 the layers of an overlay may be id-mapped mounts.
const minMajor, minMinor = 5, 19

// capability is one that the embedded driver uses.
type capability struct {
	bit   uint
	name  string
	vital bool   // without it no box runs
	use   string // what is lost without a capability that is not vital
}

var capabilities = []capability{
	{unix.CAP_CHOWN, "CAP_CHOWN", true, ""},
	{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE", true, ""},
	{unix.CAP_FOWNER, "CAP_FOWNER", true, ""},
	{unix.CAP_KILL, "CAP_KILL", true, ""},
	{unix.CAP_SETGID, "CAP_SETGID", true, ""},
	{unix.CAP_SETUID, "CAP_SETUID", true, ""},
	{unix.CAP_SETPCAP, "CAP_SETPCAP", true, ""},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", true, ""},
	{unix.CAP_SYS_CHROOT, "CAP_SYS_CHROOT", true, ""},
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", true, ""},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", true, ""},
	{unix.CAP_MKNOD, "CAP_MKNOD", false, "images with device files cannot be loaded"},
	{unix.CAP_SETFCAP, "CAP_SETFCAP", false, "images with file capabilities cannot be loaded"},
	{unix.CAP_SYS_RESOURCE, "CAP_SYS_RESOURCE", false, "limits on open files cannot be raised above this machine's, nor out-of-memory scores lowered"},
}

// MissingCapabilities names the capabilities that the embedded driver uses
// and this process lacks.
func MissingCapabilities() ([]string, error) {
	missing, err := missingCapabilities(os.DirFS("/"))
	names := make([]string, len(missing))
	for i, c := range missing {
		names[i] = c.name
	}
	return names, err
}

func missingCapabilities(machine fs.FS) ([]capability, error) {
	status, err := procStatus(machine)
	if err != nil {
		return nil, err
	}
	effective, err := strconv.ParseUint(status["CapEff"], 16, 64)
	if err != nil {
		return nil, fmt.Errorf("read capabilities: %w", err)
	}
	var missing []capability
	for _, c := range capabilities {
		if effective&(1<<c.bit) == 0 {
			missing = append(missing, c)
		}
	}
	return missing, nil
}

func checkRoot(machine fs.FS) Check {
	const name = "root"
	if uid := os.Geteuid(); uid != 0 {
		return Check{name, Fail, fmt.Sprintf("user id %d; the server needs root", uid), "run as root, or use sudo"}
	}
	missing, err := missingCapabilities(machine)
	if err != nil {
		return Check{name, Warn, err.Error(), ""}
	}
	return capabilityCheck(name, missing)
}

func capabilityCheck(name string, missing []capability) Check {
	if len(missing) == 0 {
		return Check{name, OK, "root with all capabilities that are used", ""}
	}
	status := Warn
	texts := make([]string, len(missing))
	for i, c := range missing {
		texts[i] = c.name
		if c.vital {
			status = Fail
		} else {
			texts[i] += " (" + c.use + ")"
		}
	}
	return Check{name, status, "root without " + strings.Join(texts, ", "), "start the server with these capabilities"}
}

func checkKernel(machine fs.FS) Check {
	const name = "kernel"
	data, err := fs.ReadFile(machine, "proc/sys/kernel/osrelease")
	if err != nil {
		return Check{name, Warn, "version not found: " + err.Error(), ""}
	}
	release := strings.TrimSpace(string(data))
	major, minor, err := parseRelease(release)
	if err != nil {
		return Check{name, Warn, err.Error(), ""}
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		return Check{
			name, Fail, fmt.Sprintf("%s; %d.%d or newer is needed for overlays of id-mapped layers", release, minMajor, minMinor),
			"install a newer kernel",
		}
	}
	return Check{name, OK, release, ""}
}

func parseRelease(release string) (major, minor int, err error) {
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return 0, 0, fmt.Errorf("kernel release %q has no version", release)
	}
	return major, minor, nil
}

func checkUserNS(machine fs.FS) Check {
	const name = "user_namespaces"
	const limit = "proc/sys/user/max_user_namespaces"
	data, err := fs.ReadFile(machine, limit)
	if err != nil {
		return Check{name, Fail, "the kernel has none (" + err.Error() + ")", "use a kernel built with CONFIG_USER_NS"}
	}
	most := strings.TrimSpace(string(data))
	if most == "0" {
		return Check{name, Fail, "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000"}
	}
	if uid := os.Geteuid(); uid != 0 {
		return Check{name, OK, fmt.Sprintf("at most %s; not tried without root", most), ""}
	}
	ns, err := userNS()
	if err != nil {
		return Check{name, Fail, "cannot be made: " + err.Error(), "allow user namespaces for root; inside a container, run it privileged"}
	}
	if err := ns.Close(); err != nil {
		return Check{name, Warn, err.Error(), ""}
	}
	return Check{name, OK, "at most " + most, ""}
}

func checkSeccomp(machine fs.FS) Check {
	const name = "seccomp"
	data, err := fs.ReadFile(machine, "proc/sys/kernel/seccomp/actions_avail")
	if err != nil {
		return Check{name, Fail, "the kernel has no seccomp filters (" + err.Error() + ")", "use a kernel built with CONFIG_SECCOMP_FILTER"}
	}
	actions := strings.Fields(string(data))
	for _, need := range []string{"allow", "errno"} {
		if !slices.Contains(actions, need) {
			return Check{name, Fail, "the kernel's filters lack the action " + need, "use a newer kernel"}
		}
	}
	return Check{name, OK, "filters with " + strings.Join(actions, ", "), ""}
}

func checkKVM() Check {
	const name, device = "kvm", "/dev/kvm"
	switch err := unix.Access(device, unix.R_OK|unix.W_OK); {
	case err == nil:
		return Check{name, OK, device + " can be used", ""}
	case os.Geteuid() != 0:
		return Check{name, OK, device + ": " + err.Error() + "; not needed", ""}
	default:
		return Check{name, OK, "none; not needed", ""}
	}
}

// procStatus reads /proc/self/status.
func procStatus(machine fs.FS) (map[string]string, error) {
	data, err := fs.ReadFile(machine, "proc/self/status")
	if err != nil {
		return nil, err
	}
	status := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			status[key] = strings.TrimSpace(value)
		}
	}
	return status, nil
}
