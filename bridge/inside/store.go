package inside

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	ringBytes = 1 << 20
	ringBlock = 16 << 10
)

// store keeps the framed bytes of a log by position: in the node's file as
// long as that works, from there on in a ring in memory.
type store struct {
	file   *os.File
	ringAt int64    // positions from here on are in the ring
	ring   [][]byte // blocks, made as they are needed
}

const never = int64(1) << 62

// newStore takes over file, which may be nil.
func newStore(file *os.File) *store {
	st := &store{file: file, ringAt: never}
	if file == nil {
		st.useRing(0)
	}
	return st
}

// inFile reports whether new bytes go to the file.
func (s *store) inFile() bool { return s.ringAt == never }

// useRing makes positions from pos on go to memory.
func (s *store) useRing(pos int64) {
	s.ringAt, s.ring = pos, make([][]byte, ringBytes/ringBlock)
}

func (s *store) writeAt(p []byte, pos int64) error {
	if s.inFile() {
		_, err := s.file.WriteAt(p, pos)
		return err
	}
	s.eachBlock(pos, len(p), func(block *[]byte, at, from, to int) {
		if *block == nil {
			*block = make([]byte, ringBlock)
		}
		copy((*block)[at:], p[from:to])
	})
	return nil
}

// readFile reads positions before ringAt.
func (s *store) readFile(p []byte, pos int64) (int, error) {
	n, err := s.file.ReadAt(p, pos)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// readRing reads positions from ringAt on.
func (s *store) readRing(p []byte, pos int64) {
	s.eachBlock(pos, len(p), func(block *[]byte, at, from, to int) {
		if *block != nil {
			copy(p[from:to], (*block)[at:])
		}
	})
}

// eachBlock calls do for each part of n bytes at pos that lies in one block.
func (s *store) eachBlock(pos int64, n int, do func(block *[]byte, at, from, to int)) {
	for from := 0; from < n; {
		in := (pos + int64(from)) % ringBytes
		at := int(in % ringBlock)
		to := min(n, from+ringBlock-at)
		do(&s.ring[in/ringBlock], at, from, to)
		from = to
	}
}

// wholeBlock is a multiple of every file system's block.
const wholeBlock = 64 << 10

// drop gives the disk space of [from, to) back. Everything before from was
// dropped earlier; the block that from lies in can go only now.
func (s *store) drop(from, to int64) error {
	from -= from % wholeBlock
	to = min(to, s.ringAt)
	if s.file == nil || from >= to {
		return nil
	}
	var perr error
	rc, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	err = rc.Control(func(fd uintptr) {
		perr = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
	})
	return errors.Join(err, perr)
}

func (s *store) close() {
	if s.file != nil {
		s.file.Close() //nolint:errcheck // nothing is buffered
	}
	clear(s.ring)
}
