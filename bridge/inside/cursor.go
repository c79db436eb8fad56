package inside

import (
	"sort"

	"github.com/taibox/taibox/bridge/internal/wire"
)

// cursor is a place in a log. The zero value is its beginning.
type cursor struct {
	offset int64 // of the next byte to read
	pos    int64 // of the chunk with that offset, if known
	known  bool
}

// piece is what a cursor moved over.
type piece struct {
	lost   int64  // bytes that are no longer kept, before chunks
	chunks []byte // whole chunks, heads included
	skip   int    // bytes of the first chunk that come before the cursor
	end    bool   // nothing more now
	final  bool   // nothing more ever
	change <-chan struct{}
}

// read moves c forward over what is there, using buf, which must hold one
// chunk of the greatest size.
func (l *execLog) read(c *cursor, buf []byte) piece {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if first := l.firstLocked(); c.offset < first {
			p := piece{lost: first - c.offset}
			*c = cursor{offset: first}
			return p
		}
		if c.offset >= l.end {
			p := piece{end: true, final: l.finished}
			if !p.final {
				p.change = l.changedLocked()
			}
			return p
		}
		if !c.known {
			i := sort.Search(len(l.marks), func(i int) bool { return l.marks[i].offset > c.offset })
			c.pos, c.known = l.marks[i-1].pos, true
		}
		end := l.end
		n, err := l.readAtLocked(buf[:min(int64(len(buf)), l.pos-c.pos)], c.pos)
		if c.offset < l.firstLocked() {
			continue // dropped while we read
		}
		p, ok := c.take(buf[:n])
		if err != nil || !ok {
			// The file is not what was written to it; only the node could do that.
			p := piece{lost: end - c.offset}
			*c = cursor{offset: end}
			return p
		}
		if len(p.chunks) > 0 {
			return p
		}
	}
}

// readAtLocked reads without the lock where that may take time.
func (l *execLog) readAtLocked(p []byte, pos int64) (int, error) {
	if pos >= l.st.ringAt {
		l.st.readRing(p, pos)
		return len(p), nil
	}
	// Positions before ringAt stay in the file for good.
	p = p[:min(int64(len(p)), l.st.ringAt-pos)]
	l.mu.Unlock()
	defer l.mu.Lock()
	return l.st.readFile(p, pos)
}

// take moves c over the whole chunks in raw, and returns those that reach
// beyond its offset. It is not ok if raw does not begin with a chunk.
func (c *cursor) take(raw []byte) (piece, bool) {
	from, at, skip := 0, 0, 0
	for {
		_, offset, n, ok := wire.ParseLogHead(raw[at:])
		if !ok || at+wire.LogHead+n > len(raw) {
			break
		}
		if offset > c.offset || at > from && offset != c.offset {
			break
		}
		size := wire.LogHead + n
		if offset+int64(n) <= c.offset {
			from = at + size // wholly before the cursor
		} else {
			if at == from {
				skip = int(c.offset - offset)
			}
			c.offset = offset + int64(n)
		}
		at += size
		c.pos += int64(size)
	}
	return piece{chunks: raw[from:at], skip: skip}, at > 0
}

// appendOutput turns the chunks of p into frames. Neighbours of one source
// become one.
func (p piece) appendOutput(b []byte) []byte {
	raw, skip := p.chunks, p.skip
	var run []byte // data of the run, inside raw, moved together
	var source byte
	var at int64
	flush := func() {
		if len(run) > 0 {
			b = wire.AppendOutput(b, source, at, run)
		}
	}
	for len(raw) > 0 {
		src, offset, n, _ := wire.ParseLogHead(raw)
		data := raw[wire.LogHead+skip : wire.LogHead+n]
		if src == source && len(run) > 0 && len(run)+len(data) <= wire.MaxData {
			run = run[:len(run)+copy(run[len(run):cap(run)], data)]
		} else {
			flush()
			source, at, run = src, offset+int64(skip), data
		}
		raw, skip = raw[wire.LogHead+n:], 0
	}
	flush()
	return b
}
