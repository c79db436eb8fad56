package inside

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	// oomLook is how often the kernel's count is looked at while a command runs.
	oomLook = 5 * time.Second
	// oomFresh is how long a kill that was seen may wait for the end of its
	// victim: it takes time to die with a lot of memory, on a busy machine.
	oomFresh = 30 * time.Second
)

// oomCounter follows the kernel's count of the processes that it killed for
// memory. The count is the whole box's and names nobody, so each kill is made
// to account for one death at most, and for none but those that follow it soon.
type oomCounter struct {
	mu    sync.Mutex
	file  *os.File // nil if not known
	count int64    // when it was looked at last
	open  []oomKills
}

// oomKills are kills that were seen at one look.
type oomKills struct {
	last int64 // count after them
	left int64 // those that account for no death yet
	seen time.Time
}

// follow takes over the file that counts from now on; nil changes nothing.
func (o *oomCounter) follow(f *os.File) {
	if f == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		o.count = readOOMKills(f) // nobody we know of died of those
	} else {
		o.file.Close() //nolint:errcheck // only read from
	}
	o.file = f
}

// look returns the count.
func (o *oomCounter) look() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lookLocked()
}

func (o *oomCounter) lookLocked() int64 {
	if o.file != nil {
		o.noteLocked(readOOMKills(o.file), time.Now())
	}
	return o.count
}

// noteLocked takes in a count, and forgets kills whose victims died unseen: as
// children of a command, mostly.
func (o *oomCounter) noteLocked(count int64, now time.Time) {
	for len(o.open) > 0 && now.Sub(o.open[0].seen) > oomFresh {
		o.open = o.open[1:]
	}
	if count > o.count {
		o.open = append(o.open, oomKills{last: count, left: count - o.count, seen: now})
		o.count = count
	}
}

// claim reports whether the death by KILL of a command was the kernel's doing.
// The count was before when the command began.
func (o *oomCounter) claim(before int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lookLocked()
	return o.claimLocked(before)
}

// claimLocked takes the oldest that can be meant: younger commands cannot claim
// it.
func (o *oomCounter) claimLocked(before int64) bool {
	for i := range o.open {
		if k := &o.open[i]; k.last > before && k.left > 0 {
			k.left--
			return true
		}
	}
	return false
}

func readOOMKills(f *os.File) int64 {
	var b [1024]byte
	n, _ := f.ReadAt(b[:], 0)
	return parseOOMKills(b[:n])
}

// parseOOMKills finds the count in memory.events (v2) or memory.oom_control (v1).
func parseOOMKills(b []byte) int64 {
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			if n, err := strconv.ParseInt(string(bytes.TrimSpace(v)), 10, 64); err == nil {
				return n
			}
		}
	}
	return 0
}
