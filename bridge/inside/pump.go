package inside

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// frame is a buffer for one chunk.
type frame [wire.LogHead + wire.MaxData]byte

// frames are taken when there is something to read, so that idle commands
// cost none.
var frames = sync.Pool{New: func() any { return new(frame) }}

func getFrame() *frame  { return frames.Get().(*frame) }
func putFrame(f *frame) { frames.Put(f) }

// pump moves what a command writes to its log, and after the exec has ended,
// while a child still writes, to nowhere: closing the pipe would kill it.
type pump struct {
	source   sandbox.Source
	f        *os.File
	log      *execLog
	progress chan<- struct{} // has room for one signal
	eof      chan struct{}   // closed after the last byte
	// reaped is closed when the leader of a terminal was; nil for pipes.
	reaped <-chan struct{}

	mu     sync.Mutex // held over each read, so that owed is exact
	read   int64
	logged atomic.Int64
}

func newPump(source sandbox.Source, f *os.File, log *execLog, progress chan<- struct{}) *pump {
	return &pump{source: source, f: f, log: log, progress: progress, eof: make(chan struct{})}
}

func (p *pump) run() {
	defer p.signal()
	defer close(p.eof)
	defer p.f.Close()
	rc, err := p.f.SyscallConn()
	if err != nil {
		return
	}
	for {
		for p.move(rc) {
			p.signal()
		}
		if !p.mayReopen() {
			return
		}
	}
}

// ttyReopen is how often a terminal that nobody has open is looked at.
const ttyReopen = 20 * time.Millisecond

// mayReopen waits where a terminal's end may not be one. It says EIO as soon
// as nobody has it open; but closing our side would kill a command that has
// merely closed its own descriptors, and any may open /dev/tty again.
func (p *pump) mayReopen() bool {
	if p.reaped == nil {
		return false
	}
	select {
	case <-p.reaped:
		p.reaped = nil // one more look
	case <-time.After(ttyReopen):
	}
	return true
}

func (p *pump) signal() {
	select {
	case p.progress <- struct{}{}:
	default:
	}
}

// move waits for output and moves one chunk. It is false at the end, which for
// a terminal is EIO.
func (p *pump) move(rc syscall.RawConn) bool {
	var buf *frame
	var n int
	err := rc.Read(func(fd uintptr) bool {
		buf = getFrame()
		n = p.readOnce(int(fd), buf[wire.LogHead:wire.LogHead+p.log.maxChunk()])
		if n == again {
			putFrame(buf)
			buf = nil
			return false
		}
		return true
	})
	if buf == nil {
		return false
	}
	defer putFrame(buf)
	if err != nil || n <= 0 {
		return false
	}
	p.log.append(p.source, buf[:wire.LogHead+n])
	p.logged.Add(int64(n))
	return true
}

const again = -2

func (p *pump) readOnce(fd int, b []byte) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		n, err := unix.Read(fd, b)
		switch {
		case err == nil:
			p.read += int64(n)
			return n
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return again
		default:
			return 0
		}
	}
}

// owed returns how many bytes the command has written by now, read or not.
func (p *pump) owed() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	owed := p.read
	if rc, err := p.f.SyscallConn(); err == nil {
		rc.Control(func(fd uintptr) { //nolint:errcheck // closed: all was read
			if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
				owed += int64(n)
			}
		})
	}
	return owed
}

// paid reports whether everything up to owed is in the log.
func (p *pump) paid(owed int64) bool { return p.logged.Load() >= owed || p.atEnd() }

func (p *pump) atEnd() bool {
	select {
	case <-p.eof:
		return true
	default:
		return false
	}
}
