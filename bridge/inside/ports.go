package inside

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
)

// maxPorts bounds an answer, whatever the box opens.
const maxPorts = 4096

// The states of sockets that wait for others, as /proc/net writes them.
const (
	tcpListening   = "0A"
	udpUnconnected = "07"
)

// listening lists what listens in the box, and which process does.
func listening() []wire.Port {
	ports := []wire.Port{}
	inodes := map[string][]int{} // socket inode → indices of ports
	for _, table := range []struct{ network, state string }{
		{"tcp", tcpListening}, {"tcp6", tcpListening}, {"udp", udpUnconnected}, {"udp6", udpUnconnected},
	} {
		b, err := os.ReadFile("/proc/net/" + table.network)
		if err != nil {
			continue // no IPv6 here
		}
		for line := range bytes.Lines(b) {
			p, inode, ok := parseSocket(table.network, table.state, string(line))
			if ok && len(ports) < maxPorts {
				inodes[inode] = append(inodes[inode], len(ports))
				ports = append(ports, p)
			}
		}
	}
	if len(ports) > 0 {
		findOwners(ports, inodes)
	}
	return ports
}

// parseSocket reads a line of /proc/net/{tcp,udp}[6].
func parseSocket(network, state, line string) (p wire.Port, inode string, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 || f[3] != state {
		return p, "", false
	}
	host, port, ok := strings.Cut(f[1], ":")
	n, err := strconv.ParseUint(port, 16, 16)
	addr, addrOK := parseAddr(host)
	if !ok || err != nil || !addrOK || n == 0 {
		return p, "", false
	}
	return wire.Port{Network: network, Address: addr.String(), Port: int(n)}, f[9], true
}

// parseAddr reads an address as /proc/net writes it: words of four bytes in
// the order of the machine, which is little end first wherever we run.
func parseAddr(s string) (netip.Addr, bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.LittleEndian.Uint32(b[i:]))
	}
	return netip.AddrFromSlice(b)
}

// findOwners fills in the processes that have the sockets open.
func findOwners(ports []wire.Port, inodes map[string][]int) {
	pids, err := processIDs()
	if err != nil {
		return
	}
	// The kernel shows a process's descriptors to its own user, or to a
	// capability that boxes lack. A thread may look as another user; one that
	// cannot be turned back ends with its goroutine.
	goruntime.LockOSThread()
	for _, pid := range pids {
		var st unix.Stat_t
		dir := "/proc/" + strconv.Itoa(pid)
		if pid == os.Getpid() || unix.Stat(dir, &st) != nil {
			continue
		}
		asUser(int(st.Uid), int(st.Gid), func() {
			for _, i := range openSockets(dir+"/fd", inodes) {
				if ports[i].PID == 0 {
					ports[i].PID, ports[i].Process = pid, commandName(dir)
				}
			}
		})
	}
	if asUser(0, 0, func() {}) {
		goruntime.UnlockOSThread()
	}
}

// asUser calls do with the file system ids of this thread changed. It reports
// whether they are root's again.
func asUser(uid, gid int, do func()) bool {
	if os.Geteuid() != 0 {
		do()
		return true
	}
	unix.Setfsgid(gid) //nolint:errcheck // reports the old id, and no error
	unix.Setfsuid(uid) //nolint:errcheck // as above
	do()
	unix.Setfsuid(0)                      //nolint:errcheck // as above
	unix.Setfsgid(0)                      //nolint:errcheck // as above
	now, err := unix.SetfsuidRetUid(-1)   // changes nothing
	nowG, gerr := unix.SetfsgidRetGid(-1) // changes nothing
	return err == nil && gerr == nil && now == 0 && nowG == 0
}

// openSockets returns the indices of the ports whose sockets are open in dir.
func openSockets(dir string, inodes map[string][]int) []int {
	fds, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var found []int
	for _, fd := range fds {
		link, err := os.Readlink(dir + "/" + fd.Name())
		if err != nil {
			continue
		}
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			found = append(found, inodes[strings.TrimSuffix(inode, "]")]...)
		}
	}
	return found
}

func commandName(dir string) string {
	b, err := readSmall(dir + "/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
