package inside

import (
	"os"
	"sync"
	"time"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

const (
	minLogBytes = 4 << 10
	maxGranule  = 64 << 10
	maxMarks    = 4096
	// holdLimit is how long a reader that acknowledges nothing holds the
	// command back.
	holdLimit = 30 * time.Second
)

// execLog is the one log of an exec: chunks in the order in which they were
// read from the command, by an offset counted over both sources.
//
// Appending waits while the log is full of what the attached reader has not
// acknowledged; else the oldest chunks go.
type execLog struct {
	limit     int64 // bytes kept, heads included
	holdLimit time.Duration
	writing   sync.Mutex // one append at a time; held while it waits

	mu       sync.Mutex // never held over an access to the file
	st       *store
	pos      int64 // position and offset after the last chunk
	end      int64
	marks    []mark // every granule one, oldest first; the first is the oldest chunk kept
	granule  int64
	freed    int64 // positions before this were given back
	finished bool
	held     bool  // a reader is attached
	lapsed   bool  // it did not acknowledge in time, and not since
	acked    int64 // all before this reached its client
	ackedAt  time.Time
	changed  chan struct{} // closed at the next change of anything above; nil if nobody waits
}

// mark says at which position the chunk with an offset begins.
type mark struct{ offset, pos int64 }

// newLog makes a log that keeps limit bytes, in file if it is not nil. It owns file.
func newLog(file *os.File, limit int64) *execLog {
	if limit <= 0 {
		limit = sandbox.DefaultMaxLog
	}
	limit = max(limit, minLogBytes)
	return &execLog{limit: limit, st: newStore(file), granule: min(limit/16, maxGranule), holdLimit: holdLimit}
}

// maxChunk is how much data one append may carry.
func (l *execLog) maxChunk() int { return int(min(l.limit/16, wire.MaxData)) }

// append adds a chunk: frame has wire.LogHead bytes of room and then the data.
// It drops the chunk if the log is finished.
func (l *execLog) append(source sandbox.Source, frame []byte) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()

	n := len(frame) - wire.LogHead
	for {
		if !l.makeRoomLocked(int64(len(frame))) {
			return
		}
		pos := l.pos
		wire.PutLogHead(frame, byte(source), l.end, n)
		err := l.writeLocked(frame, pos)
		if l.finished {
			return
		}
		if err == nil {
			break
		}
		// A full disk, most likely. Our own oldest chunks are the first to
		// make room; memory is the last resort.
		if !l.dropOldestLocked() {
			l.st.useRing(l.pos)
		}
	}
	if last := len(l.marks) - 1; last < 0 || l.pos-l.marks[last].pos >= l.granule {
		l.marks = append(l.marks, mark{l.end, l.pos})
		l.thinLocked()
	}
	l.pos += int64(len(frame))
	l.end += int64(n)
	l.wakeLocked()
}

// writeLocked writes without the lock where that may take time.
func (l *execLog) writeLocked(frame []byte, pos int64) error {
	if !l.st.inFile() {
		return l.st.writeAt(frame, pos)
	}
	l.mu.Unlock()
	defer l.mu.Lock()
	return l.st.writeAt(frame, pos)
}

// thinLocked keeps the number of marks bounded however large the log may grow.
func (l *execLog) thinLocked() {
	if len(l.marks) < maxMarks {
		return
	}
	for i := range maxMarks / 2 {
		l.marks[i] = l.marks[2*i]
	}
	l.marks = l.marks[:maxMarks/2]
	l.granule *= 2
}

// makeRoomLocked waits until need more bytes may be kept. It is false if the
// log was finished meanwhile.
func (l *execLog) makeRoomLocked(need int64) bool {
	since := time.Now()
	for !l.finished && !l.fitsLocked(need) {
		if l.dropOldestLocked() {
			continue
		}
		if l.ackedAt.After(since) {
			since = l.ackedAt
		}
		if left := l.holdLimit - time.Since(since); left > 0 {
			l.waitLocked(left)
		} else {
			l.lapsed = true
		}
	}
	return !l.finished
}

func (l *execLog) fitsLocked(need int64) bool {
	if len(l.marks) == 0 {
		return true
	}
	kept := l.pos - l.marks[0].pos
	if l.st.inFile() {
		return kept+need <= l.limit
	}
	return l.pos-max(l.marks[0].pos, l.st.ringAt)+need <= ringBytes && kept+need <= l.limit
}

// dropOldestLocked lets go of the oldest granule, if the attached reader lets
// it and there is another one.
func (l *execLog) dropOldestLocked() bool {
	if len(l.marks) < 2 {
		return false
	}
	next := l.marks[1]
	if l.held && !l.lapsed && l.acked < next.offset {
		return false
	}
	l.marks = l.marks[1:]
	from := l.freed
	l.freed = next.pos
	l.mu.Unlock()
	err := l.st.drop(from, next.pos)
	l.mu.Lock()
	if err != nil && l.st.inFile() {
		l.st.useRing(l.pos) // what cannot shrink must not grow
	}
	return true
}

// waitLocked waits for a change, or for d.
func (l *execLog) waitLocked(d time.Duration) {
	ch := l.changedLocked()
	l.mu.Unlock()
	defer l.mu.Lock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ch:
	case <-t.C:
	}
}

func (l *execLog) changedLocked() <-chan struct{} {
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

func (l *execLog) wakeLocked() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// finish says that no more is coming. What is being appended at this moment is
// dropped.
func (l *execLog) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished = true
	l.wakeLocked()
}

// hold attaches a reader that has all before acked.
func (l *execLog) hold(acked int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held, l.lapsed, l.acked, l.ackedAt = true, false, acked, time.Now()
	l.wakeLocked()
}

// ack moves what the attached reader has acknowledged.
func (l *execLog) ack(offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held && offset > l.acked {
		l.acked, l.ackedAt, l.lapsed = offset, time.Now(), false
		l.wakeLocked()
	}
}

// release detaches the reader.
func (l *execLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
	l.wakeLocked()
}

// span returns the offsets that are kept.
func (l *execLog) span() (first, end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.firstLocked(), l.end
}

func (l *execLog) firstLocked() int64 {
	if len(l.marks) == 0 {
		return l.end
	}
	return l.marks[0].offset
}

// close lets the log's memory and file go. A reader that is left finds a gap.
func (l *execLog) close() {
	l.finish()
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.st.close()
	l.marks = nil
}
