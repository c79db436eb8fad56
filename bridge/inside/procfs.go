package inside

import (
	"bytes"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// process is a line of /proc.
type process struct {
	pid, parent, group, session int
	start                       uint64 // ticks since boot; tells two users of one pid apart
	zombie                      bool
}

// processIDs lists the processes of the box.
func processIDs() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// processes reads the whole table. What ends meanwhile is left out.
func processes() ([]process, error) {
	pids, err := processIDs()
	if err != nil {
		return nil, err
	}
	all := make([]process, 0, len(pids))
	for _, pid := range pids {
		stat, err := readSmall("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		if p, ok := parseStat(pid, stat); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// parseStat reads /proc/PID/stat. The command in it is any bytes up to the
// last parenthesis.
func parseStat(pid int, stat []byte) (process, bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return process{}, false
	}
	const startField = 19 // counted from the state
	f := bytes.Fields(stat[i+1:])
	if len(f) <= startField {
		return process{}, false
	}
	num := func(i int) int {
		n, err := strconv.Atoi(string(f[i]))
		if err != nil {
			return -1
		}
		return n
	}
	start, err := strconv.ParseUint(string(f[startField]), 10, 64)
	return process{
		pid: pid, parent: num(1), group: num(2), session: num(3), start: start,
		zombie: f[0][0] == 'Z' || f[0][0] == 'X',
	}, err == nil
}

const smallFile = 1 << 20

// readSmall reads a regular file of at most smallFile bytes, whatever the box
// may have put in its place: it waits for nothing and ends.
func readSmall(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &os.PathError{Op: "read", Path: name, Err: unix.EINVAL}
	}
	b, err := io.ReadAll(io.LimitReader(f, smallFile+1))
	if len(b) > smallFile {
		return nil, &os.PathError{Op: "read", Path: name, Err: unix.EFBIG}
	}
	return b, err
}
