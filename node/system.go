package node

import (
	goruntime "runtime"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/registry"
)

// system describes this machine. What it does not tell stays empty.
func system() registry.System {
	s := registry.System{OS: goruntime.GOOS, Arch: goruntime.GOARCH, CPUs: goruntime.NumCPU()}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err == nil {
		s.Kernel, s.Hostname = unix.ByteSliceToString(uts.Release[:]), unix.ByteSliceToString(uts.Nodename[:])
	}
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err == nil {
		s.MemoryBytes = int64(si.Totalram) * int64(si.Unit)
	}
	return s
}
