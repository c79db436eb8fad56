package inside

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// tree is all processes of one exec.
//
// With a cgroup of its own nothing escapes: the kernel keeps the list and
// kills it in one stroke. Without, the tree is what can be found in /proc from
// the leader on, by parents and sessions; a process that both left the
// session and lost its parent between two looks is missed.
type tree struct {
	mu     sync.Mutex
	cgroup *os.File // the directory; nil without
	killer *os.File // cgroup.kill
	events *os.File // cgroup.events
	leader int
	known  map[int]uint64 // without a cgroup: the processes seen so far, by start
	gone   bool           // and there will be no more
}

// newTree takes over the files; any may be nil.
func newTree(cgroup, killer, events *os.File) *tree {
	return &tree{cgroup: cgroup, killer: killer, events: events}
}

// begin says which process the tree grows from.
func (t *tree) begin(leader int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leader = leader
	if t.cgroup == nil {
		t.known = map[int]uint64{}
		if stat, err := readSmall("/proc/" + strconv.Itoa(leader) + "/stat"); err == nil {
			if p, ok := parseStat(leader, stat); ok {
				t.known[leader] = p.start
			}
		}
	}
}

// look notes, where there is no cgroup, who is in the tree while its parents
// still live.
func (t *tree) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cgroup == nil {
		t.membersLocked()
	}
}

// membersLocked lists the living processes of the tree.
func (t *tree) membersLocked() []int {
	switch {
	case t.gone || t.leader == 0:
		return nil
	case t.cgroup != nil:
		return t.listCgroup()
	default:
		return t.scan()
	}
}

// empty reports whether nothing of the tree lives.
func (t *tree) empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.emptyLocked()
}

func (t *tree) emptyLocked() bool {
	if t.gone || t.leader == 0 {
		return true
	}
	if t.events != nil {
		var b [256]byte
		n, err := t.events.ReadAt(b[:], 0)
		if n > 0 || err == nil {
			return bytes.Contains(b[:n], []byte("populated 0"))
		}
	}
	return len(t.membersLocked()) == 0
}

// kill ends the tree by force. Without a cgroup it must be called until the
// tree is empty.
func (t *tree) kill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.killer != nil && !t.gone {
		if _, err := t.killer.WriteAt([]byte("1"), 0); err == nil {
			return
		}
	}
	t.signalLocked(unix.SIGKILL)
}

// killAll kills until nothing lives, or for limit.
func (t *tree) killAll(limit time.Duration) {
	late := time.NewTimer(limit)
	defer late.Stop()
	for wait := pollLeast; ; wait = min(2*wait, pollMost) {
		t.kill()
		if t.empty() {
			return
		}
		select {
		case <-time.After(wait):
		case <-late.C:
			return
		}
	}
}

// signal sends sig to every process of the tree, and tells whether there was one.
func (t *tree) signal(sig unix.Signal) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.signalLocked(sig)
}

func (t *tree) signalLocked(sig unix.Signal) bool {
	found := false
	for _, pid := range t.membersLocked() {
		if err := unix.Kill(pid, sig); err == nil {
			found = true
		}
	}
	return found
}

// leftover counts what lives on after the leader, and lets go of the cgroup
// when that is nothing.
func (t *tree) leftover() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.emptyLocked() {
		t.closeLocked()
	}
	return len(t.membersLocked())
}

// close forgets the tree.
func (t *tree) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeLocked()
}

func (t *tree) closeLocked() {
	t.gone = true
	for _, f := range []*os.File{t.cgroup, t.killer, t.events} {
		if f != nil {
			f.Close() //nolint:errcheck // nothing was written
		}
	}
	t.cgroup, t.killer, t.events, t.known = nil, nil, nil, nil
}

func (t *tree) listCgroup() []int {
	rc, err := t.cgroup.SyscallConn()
	if err != nil {
		return nil
	}
	fd := -1
	err = rc.Control(func(dir uintptr) {
		fd, err = unix.Openat(int(dir), "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil || fd < 0 {
		return nil
	}
	f := os.NewFile(uintptr(fd), "cgroup.procs")
	defer f.Close()
	var pids []int
	for line := range bytes.FieldsSeq(readAll(f)) {
		// A process outside the pid namespace shows as 0.
		if pid, err := strconv.Atoi(string(line)); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

func readAll(f *os.File) []byte {
	var all []byte
	buf := make([]byte, 4<<10)
	for len(all) < smallFile {
		n, err := f.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			break
		}
	}
	return all
}

// scan adds to the known processes their descendants and all of their
// sessions, and returns those that live.
func (t *tree) scan() []int {
	all, err := processes()
	if err != nil {
		return nil
	}
	in := map[int]bool{}
	sessions := map[int]bool{}
	add := func(p process) {
		in[p.pid] = true
		sessions[p.session] = true
	}
	// The leader made its own session, which keeps its number as long as
	// anybody is in it.
	sessions[t.leader] = true
	for _, p := range all {
		if start, ok := t.known[p.pid]; ok && start == p.start {
			add(p)
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !in[p.pid] && p.pid > 1 && (sessions[p.session] || in[p.parent]) {
				add(p)
				grown = true
			}
		}
	}
	clear(t.known)
	var pids []int
	for _, p := range all {
		if in[p.pid] {
			t.known[p.pid] = p.start
			if !p.zombie {
				pids = append(pids, p.pid)
			}
		}
	}
	return pids
}
