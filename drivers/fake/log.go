package fake

import (
	"context"
	"errors"
	"sort"
	"sync"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

const (
	// stallLimit is how long an attached reader that acknowledges nothing may
	// hold the command back.
	stallLimit = 30 * time.Second
	// segmentSize bounds a piece of a log, and with it a chunk.
	segmentSize = 32 << 10
)

var errLogClosed = errors.New("nobody reads the output any more")

// outputLog is the output of an exec: the last max bytes of it, and how far the
// attached reader got.
type outputLog struct {
	mu       sync.Mutex
	max      int64
	segs     []segment
	first    int64 // offset of the first byte kept
	end      int64
	finished bool // nothing more is written
	held     bool // an attached reader holds the command back
	stalled  bool // it acknowledged nothing for too long
	acked    int64
	ackedAt  time.Time
	changed  chan struct{} // closed at the next change
}

type segment struct {
	src  sandbox.Source
	off  int64
	data []byte // only appended to: readers may keep parts of it
}

func newLog(limit int64) *outputLog {
	return &outputLog{max: limit, changed: make(chan struct{})}
}

func (l *outputLog) changedLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// write appends p, waiting while the attached reader holds it back.
func (l *outputLog) write(ctx context.Context, src sandbox.Source, p []byte) (int, error) {
	began := time.Now()
	written := 0
	for len(p) > 0 {
		if ctx.Err() != nil {
			return written, context.Cause(ctx)
		}
		l.mu.Lock()
		if l.finished {
			l.mu.Unlock()
			return written, errLogClosed
		}
		if n := min(l.roomLocked(), int64(len(p))); n > 0 {
			l.appendLocked(src, p[:n])
			l.mu.Unlock()
			p, written = p[n:], written+int(n)
			began = time.Now()
			continue
		}
		if l.ackedAt.After(began) {
			began = l.ackedAt
		}
		wait, left := l.changed, time.Until(began.Add(stallLimit))
		if left <= 0 {
			l.stalled = true
			l.mu.Unlock()
			continue
		}
		l.mu.Unlock()
		pause(ctx, left, wait)
	}
	return written, nil
}

// pause waits for a change, the end of ctx or of d.
func pause(ctx context.Context, d time.Duration, changed <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-changed:
	case <-ctx.Done():
	case <-t.C:
	}
}

// roomLocked is how much may be written now.
func (l *outputLog) roomLocked() int64 {
	if !l.held || l.stalled {
		return segmentSize
	}
	return l.max - (l.end - max(l.first, min(l.acked, l.end)))
}

func (l *outputLog) appendLocked(src sandbox.Source, p []byte) {
	for len(p) > 0 {
		var last *segment
		if n := len(l.segs); n > 0 && l.segs[n-1].src == src && len(l.segs[n-1].data) < segmentSize {
			last = &l.segs[n-1]
		} else {
			l.segs = append(l.segs, segment{src: src, off: l.end})
			last = &l.segs[len(l.segs)-1]
		}
		n := min(len(p), segmentSize-len(last.data))
		last.data = append(last.data, p[:n]...)
		l.end += int64(n)
		p = p[n:]
	}
	l.trimLocked()
	l.changedLocked()
}

// trimLocked drops the oldest bytes beyond max.
func (l *outputLog) trimLocked() {
	for over := l.end - l.first - l.max; over > 0; over = l.end - l.first - l.max {
		s := &l.segs[0]
		n := min(over, int64(len(s.data)))
		s.data, s.off = s.data[n:], s.off+n
		l.first += n
		if len(s.data) == 0 {
			l.segs = l.segs[1:]
		}
	}
}

// read returns the chunk at off, or a channel to wait on, or neither at the
// end. limit, unless negative, is an end of its own.
func (l *outputLog) read(off, limit int64) (c sandbox.Chunk, wait <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case limit >= 0 && off >= limit:
		return c, nil
	case off < l.first:
		return sandbox.Chunk{Source: sandbox.Gap, Offset: off, Lost: l.first - off}, nil
	case off >= l.end && l.finished:
		return c, nil
	case off >= l.end:
		return c, l.changed
	}
	i := sort.Search(len(l.segs), func(i int) bool { return l.segs[i].off > off }) - 1
	s := l.segs[i]
	data := s.data[off-s.off:]
	if limit >= 0 {
		data = data[:min(int64(len(data)), limit-off)]
	}
	return sandbox.Chunk{Source: s.src, Offset: off, Data: data}, nil
}

func (l *outputLog) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished = true
	l.changedLocked()
}

func (l *outputLog) hold(since int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held, l.stalled, l.acked, l.ackedAt = true, false, since, time.Now()
	l.changedLocked()
}

func (l *outputLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
	l.changedLocked()
}

func (l *outputLog) ack(off int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if off = min(off, l.end); off > l.acked {
		l.acked, l.ackedAt, l.stalled = off, time.Now(), false
		l.changedLocked()
	}
}

func (l *outputLog) bounds() (first, end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.end
}
