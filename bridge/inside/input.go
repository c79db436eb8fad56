package inside

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// input is the queue in front of a command's standard input. Its end is queued
// like its bytes. Windows of the streams bound it.
type input struct {
	mu     sync.Mutex
	queue  []inputPart
	closed bool          // the command reads no more
	ended  bool          // its end is queued
	got    int64         // bytes that were queued
	more   chan struct{} // has room for one signal
}

// inputPart is some bytes from a stream, or the end.
type inputPart struct {
	data []byte
	from *stream
	eof  bool
}

func newInput() *input { return &input{more: make(chan struct{}, 1)} }

// put queues a part. It is false if nobody reads any more.
func (in *input) put(p inputPart) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return false
	}
	in.queue = append(in.queue, p)
	in.got += int64(len(p.data))
	in.ended = in.ended || p.eof
	select {
	case in.more <- struct{}{}:
	default:
	}
	return true
}

func (in *input) open() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.closed
}

// progress tells whether the input goes on, and how much of it there was.
func (in *input) progress() (open bool, got int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.closed && !in.ended, in.got
}

// close drops what is queued and refuses more.
func (in *input) close() {
	in.mu.Lock()
	dropped := in.queue
	in.queue, in.closed = nil, true
	in.mu.Unlock()
	for _, p := range dropped {
		p.from.inputClosed()
	}
}

func (in *input) next() (inputPart, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.queue) == 0 {
		return inputPart{}, false
	}
	p := in.queue[0]
	in.queue = in.queue[1:]
	return p, true
}

// feed writes the queue to w until its end, until the command stops reading,
// or until done is closed; then it closes what closeWrite closes.
func (in *input) feed(w inputWriter, done <-chan struct{}) {
	defer w.closeWrite()
	defer in.close()
	for {
		p, ok := in.next()
		if !ok {
			select {
			case <-in.more:
				continue
			case <-done:
				return
			}
		}
		if p.eof {
			return
		}
		if _, err := w.Write(p.data); err != nil {
			p.from.inputClosed()
			return
		}
		p.from.inputTaken(len(p.data))
	}
}

// inputWriter is what a command reads from.
type inputWriter interface {
	Write(p []byte) (int, error)
	closeWrite()
	// stop makes a Write that blocks fail.
	stop()
}

// pipeInput is the write end of a pipe, the only one there is.
type pipeInput struct{ *os.File }

func (p pipeInput) closeWrite() { p.Close() }                           //nolint:errcheck // nothing is buffered
func (p pipeInput) stop()       { p.SetWriteDeadline(time.Unix(1, 0)) } //nolint:errcheck // closed already

// ttyInput is the master of a terminal, which others still read from: its end
// is the character that says so.
type ttyInput struct {
	f       *os.File
	midLine bool
	stopped atomic.Bool
}

func (t *ttyInput) stop() { t.stopped.Store(true) }

// ttyRetry bounds the wait for room in a terminal: the kernel does not always
// tell when there is some again.
const ttyRetry = 50 * time.Millisecond

// Write writes all of p.
func (t *ttyInput) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		if err := t.f.SetWriteDeadline(time.Now().Add(ttyRetry)); err != nil {
			return done, err
		}
		n, err := t.f.Write(p[done:])
		done += n
		if err != nil && (!errors.Is(err, os.ErrDeadlineExceeded) || t.stopped.Load()) {
			return done, err
		}
	}
	if done > 0 {
		t.midLine = p[done-1] != '\n' && p[done-1] != '\r'
	}
	return done, nil
}

// closeWrite ends the input as a user would: once after a line, twice in the
// midst of one.
func (t *ttyInput) closeWrite() {
	eof := []byte{4}
	if rc, err := t.f.SyscallConn(); err == nil {
		rc.Control(func(fd uintptr) { //nolint:errcheck // the default stays
			if tio, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil && tio.Cc[unix.VEOF] != 0 {
				eof[0] = tio.Cc[unix.VEOF]
			}
		})
	}
	if t.midLine {
		eof = append(eof, eof[0])
	}
	t.Write(eof) //nolint:errcheck // the terminal may be gone
}
