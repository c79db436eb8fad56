package wire

import "encoding/binary"

// The log of an exec is a sequence of chunks, each a head and its data. The
// oldest chunks are dropped by punching holes, which read as zeros; no head
// begins with a zero.
const (
	LogHead  = 16 // bytes: magic, source, 2 × 0, length (4), offset (8)
	logMagic = 0xB7
)

// PutLogHead writes the head of a chunk to b.
func PutLogHead(b []byte, source byte, offset int64, n int) {
	b[0], b[1], b[2], b[3] = logMagic, source, 0, 0
	binary.BigEndian.PutUint32(b[4:], uint32(n))
	binary.BigEndian.PutUint64(b[8:], uint64(offset))
}

// ParseLogHead reads the head of a chunk. It is not ok if nothing this package
// writes could look like it.
func ParseLogHead(b []byte) (source byte, offset int64, n int, ok bool) {
	if len(b) < LogHead || b[0] != logMagic || b[1] < 1 || b[1] > 2 || b[2] != 0 || b[3] != 0 {
		return 0, 0, 0, false
	}
	size := binary.BigEndian.Uint32(b[4:])
	at := binary.BigEndian.Uint64(b[8:])
	if size == 0 || size > MaxData || at > 1<<62 {
		return 0, 0, 0, false
	}
	return b[1], int64(at), int(size), true
}
