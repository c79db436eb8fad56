package fake

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"github.com/taibox/taibox/tai/sandbox"
)

// inputBuffer is how much input waits for the command.
const inputBuffer = 64 << 10

var errInputStopped = errors.New("writer stopped")

// input is what a command reads. Its end is queued behind its bytes.
type input struct {
	mu      sync.Mutex
	buf     []byte
	ended   bool // no more is written
	broken  bool // no more is read
	got     int64
	changed chan struct{}
}

func newInput() *input { return &input{changed: make(chan struct{})} }

func (i *input) changedLocked() {
	close(i.changed)
	i.changed = make(chan struct{})
}

func (i *input) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.changedLocked()
}

func (i *input) shut() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.broken, i.buf = true, nil
	i.changedLocked()
}

// write queues p, waiting while the buffer is full.
func (i *input) write(stop <-chan struct{}, p []byte) (int, error) {
	for n := 0; ; {
		i.mu.Lock()
		cannot := i.broken || i.ended
		if !cannot {
			room := min(len(p)-n, inputBuffer-len(i.buf))
			i.buf = append(i.buf, p[n:n+room]...)
			n += room
			i.got += int64(room)
			i.changedLocked()
		}
		wait := i.changed
		i.mu.Unlock()
		switch {
		case cannot:
			return n, sandbox.ErrExecEnded
		case n == len(p):
			return n, nil
		}
		select {
		case <-wait:
		case <-stop:
			return n, errInputStopped
		}
	}
}

// progress tells whether the input goes on, and how much of it there was.
func (i *input) progress() (open bool, got int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.ended && !i.broken, i.got
}

// read is the command's side.
func (i *input) read(ctx context.Context, p []byte) (int, error) {
	for {
		i.mu.Lock()
		if n := copy(p, i.buf); n > 0 {
			i.buf = i.buf[n:]
			i.changedLocked()
			i.mu.Unlock()
			return n, nil
		}
		ended, wait := i.ended || i.broken, i.changed
		i.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case ended || len(p) == 0:
			return 0, io.EOF
		}
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}
}

// typed is what a terminal does with input: Ctrl-C and its kin are signals,
// Ctrl-D is the end, return is a newline.
func (e *exec) typed(stop <-chan struct{}, p []byte) (int, error) {
	const ctrlC, ctrlD, ctrlBackslash = 3, 4, 28
	for i, c := range p {
		switch c {
		case ctrlC:
			e.signal(syscall.SIGINT, func(p *Proc) bool { return p.inGroup })
		case ctrlBackslash:
			e.signal(syscall.SIGQUIT, func(p *Proc) bool { return p.inGroup })
		case ctrlD:
			e.in.end()
		case '\r':
			c = '\n'
			fallthrough
		default:
			if _, err := e.in.write(stop, []byte{c}); err != nil {
				return i, err
			}
		}
	}
	return len(p), nil
}

func (e *exec) resize(size sandbox.Size) {
	e.b.mu.Lock()
	changed := e.size != size
	e.size = size
	e.b.mu.Unlock()
	if changed {
		e.signal(syscall.SIGWINCH, func(p *Proc) bool { return p.inGroup })
	}
}
