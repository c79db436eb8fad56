package daemon

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// portHolder says which process listens on a TCP port, as far as proc and our
// rights tell.
func portHolder(proc string, port int) string {
	var inodes []string
	for _, table := range []string{"tcp", "tcp6"} {
		inodes = append(inodes, listeners(filepath.Join(proc, "net", table), port)...)
	}
	fds, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !slices.Contains(inodes, strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")) {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // it has just ended
		}
		return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), filepath.Base(dir))
	}
	return ""
}

// listeners returns the inodes of the sockets that listen on a port.
func listeners(table string, port int) (inodes []string) {
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // only read
	const listen = "0A"
	for s := bufio.NewScanner(f); s.Scan(); {
		field := strings.Fields(s.Text())
		if len(field) < 10 || field[3] != listen {
			continue
		}
		_, hex, _ := strings.Cut(field[1], ":")
		if p, err := strconv.ParseUint(hex, 16, 16); err == nil && int(p) == port {
			inodes = append(inodes, field[9])
		}
	}
	return inodes
}
