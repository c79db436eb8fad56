package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

var errStreamClosed = errors.New("stream is closed")

// stream is one reader of an exec's log.
type stream struct {
	d     *Driver
	e     *exec
	hold  bool
	off   int64 // of the next chunk
	limit int64 // where the stream ends; -1 at the end of the log

	once   sync.Once
	closed chan struct{}
	err    error // set before closed is closed
}

// open makes a reader, the attached one if asked for.
func (d *Driver) open(e *exec, opts sandbox.AttachOptions) (*stream, error) {
	if opts.Since < -1 {
		return nil, fmt.Errorf("%w: offset %d", sandbox.ErrInvalidSpec, opts.Since)
	}
	_, end := e.log.bounds()
	s := &stream{d: d, e: e, hold: opts.Hold, off: opts.Since, limit: -1, closed: make(chan struct{})}
	if opts.Since == -1 {
		s.off = end
	}
	if opts.NoFollow {
		s.limit = end
	}
	if !d.track(s) {
		return nil, errClosed
	}
	if opts.Hold {
		if err := e.attach(s, opts.Takeover); err != nil {
			d.untrack(s)
			return nil, err
		}
	}
	return s, nil
}

// attach makes s the attached stream.
func (e *exec) attach(s *stream, takeover bool) error {
	e.b.mu.Lock()
	old := e.holder
	if e.info.Done() {
		e.b.mu.Unlock()
		return nil // there is nothing left to hold
	}
	if old != nil && !takeover {
		e.b.mu.Unlock()
		return sandbox.ErrExecBusy
	}
	e.holder = s
	if e.lease != nil {
		e.lease.Stop()
	}
	e.log.hold(s.off)
	e.b.mu.Unlock()
	if old != nil {
		old.detach(fmt.Errorf("%w: taken over", sandbox.ErrExecBusy), false)
	}
	return nil
}

// detach ends the stream, with err for whoever still uses it. gone says that
// its client went away.
func (s *stream) detach(err error, gone bool) {
	first := false
	s.once.Do(func() {
		first = true
		s.err = err
		close(s.closed)
	})
	if !first {
		return
	}
	s.d.untrack(s)
	e := s.e
	e.b.mu.Lock()
	held := e.holder == s
	if held {
		e.holder = nil
		e.log.release()
	}
	kill := held && e.spec.OnDisconnect == sandbox.OnDisconnectKill && !e.info.Done()
	if kill && !gone {
		e.lease = time.AfterFunc(e.spec.Lease, func() { e.terminate(sandbox.ReasonKilled) })
	}
	e.b.mu.Unlock()
	if kill && gone {
		e.terminate(sandbox.ReasonKilled)
	}
}

func (s *stream) ID() string { return s.e.spec.ID }

// fail says that the stream has ended, if so.
func (s *stream) fail() error {
	select {
	case <-s.closed:
		return fmt.Errorf("stream of exec %s: %w", s.ID(), s.err)
	default:
		return nil
	}
}

func (s *stream) Recv() (sandbox.Chunk, error) {
	for {
		if err := s.fail(); err != nil {
			return sandbox.Chunk{}, err
		}
		c, wait := s.e.log.read(s.off, s.limit)
		switch {
		case c.Source != 0:
			s.off = c.End()
			return c, nil
		case wait == nil:
			return c, io.EOF
		}
		select {
		case <-wait:
		case <-s.closed:
		}
	}
}

func (s *stream) Ack(offset int64) error {
	if err := s.fail(); err != nil {
		return err
	}
	if s.hold {
		s.e.log.ack(offset)
	}
	return nil
}

// feeds says why this stream cannot feed the exec, if so.
func (s *stream) feeds() error {
	switch err := s.fail(); {
	case err != nil:
		return err
	case !s.hold:
		return fmt.Errorf("exec %s: only the attached stream feeds it: %w", s.ID(), sandbox.ErrExecBusy)
	}
	return nil
}

func (s *stream) Write(p []byte) (int, error) {
	if err := s.feeds(); err != nil {
		return 0, err
	}
	write := s.e.in.write
	if s.e.spec.TTY {
		write = s.e.typed
	}
	n, err := write(s.closed, p)
	switch {
	case errors.Is(err, errInputStopped):
		return n, s.fail()
	case err != nil:
		return n, fmt.Errorf("write to exec %s: %w", s.ID(), err)
	}
	return n, nil
}

func (s *stream) CloseWrite() error {
	if err := s.feeds(); err != nil {
		return err
	}
	s.e.in.end()
	return nil
}

func (s *stream) Resize(size sandbox.Size) error {
	if err := size.Validate(); err != nil {
		return err
	}
	switch err := s.feeds(); {
	case err != nil:
		return err
	case !s.e.spec.TTY:
		return fmt.Errorf("%w: exec %s has no terminal", sandbox.ErrInvalidSpec, s.ID())
	}
	s.e.resize(size)
	return nil
}

func (s *stream) Wait(ctx context.Context) (sandbox.ExecInfo, error) {
	select {
	case <-s.e.done:
		return s.e.record(), nil
	default:
	}
	select {
	case <-s.e.done:
		return s.e.record(), nil
	case <-ctx.Done():
		return sandbox.ExecInfo{}, fmt.Errorf("wait for exec %s: %w", s.ID(), context.Cause(ctx))
	case <-s.closed:
		return sandbox.ExecInfo{}, s.fail()
	}
}

func (s *stream) Hangup() error {
	s.detach(errStreamClosed, true)
	return nil
}

func (s *stream) Close() error {
	s.detach(errStreamClosed, false)
	return nil
}
