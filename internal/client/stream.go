package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/wsconn"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Stream is one reader of an exec's log, over the network.
//
// A link that breaks is made again, and reading goes on at the same byte.
// Input has no such offset in the box: if the link breaks while some of it is
// on its way, nobody knows how much the command got, and every later call of
// Recv, Write and CloseWrite returns [rest.ErrInputLost]; Hangup and Close work.
//
// Close returns when the server has let go of the exec, which for a box of
// policy oneshot whose exec has ended means that the box is gone.
type Stream interface {
	taisandbox.Stream
	// Signal sends a signal to the exec. It returns before the signal has
	// arrived, and fails while there is no link.
	Signal(opts taisandbox.KillOptions) error
}

// ackEvery is how much output is acknowledged at once while more is waiting.
const ackEvery = rest.Window / 4

var errClosed = fmt.Errorf("stream is closed: %w", net.ErrClosed)

type stream struct {
	c        *Client
	box, id  string
	hold     bool // feeds the input and holds the command back
	noFollow bool
	lease    time.Duration

	stop func(error)   // ends the link and every attempt to make a new one
	done chan struct{} // closed when the goroutine of the stream has ended

	mu   sync.Mutex
	cond sync.Cond    // something below has changed
	conn *wsconn.Conn // nil while there is no link

	queue  []taisandbox.Chunk
	offset int64                // after the last byte received; -1 = not known yet
	acked  int64                // by the reader
	said   int64                // of that, told to the server
	err    error                // what Recv returns after the queue
	final  *taisandbox.ExecInfo // once the exec has ended
	known  chan struct{}        // closed when err is set
	size   taisandbox.Size      // last asked for
	closed bool                 // by the reader

	fed, confirmed int64 // bytes of input sent, and of these fed to the command
	eof            bool  // asked for
	inputErr       error // why there can be no more input
}

func (s *stream) ID() string { return s.id }

func (s *stream) Recv() (taisandbox.Chunk, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return taisandbox.Chunk{}, errClosed
		case len(s.queue) > 0:
			c := s.queue[0]
			s.queue = s.queue[1:]
			return c, nil
		case errors.Is(s.inputErr, rest.ErrInputLost):
			return taisandbox.Chunk{}, s.inputErr
		case s.err != nil:
			return taisandbox.Chunk{}, s.err
		}
		s.cond.Wait()
	}
}

func (s *stream) Ack(offset int64) error {
	s.mu.Lock()
	s.acked = max(s.acked, min(offset, s.offset))
	conn, ack := s.conn, s.acked
	if conn == nil || ack == s.said || ack < s.offset && ack-s.said < ackEvery {
		s.mu.Unlock()
		return nil
	}
	s.said = ack
	s.mu.Unlock()
	// If it does not arrive, the next link begins with it.
	s.write(conn, rest.Frame{Type: rest.FrameAck, Offset: ack}) //nolint:errcheck // as said
	return nil
}

// write sends a text frame. A link that takes none is broken: its reader finds
// out at once.
func (s *stream) write(conn *wsconn.Conn, f rest.Frame) error {
	err := conn.WriteJSON(f)
	if err != nil {
		conn.CloseNow()
	}
	return err
}

func (s *stream) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		s.mu.Lock()
		for s.writableLocked() == nil && (s.conn == nil || s.fed-s.confirmed >= rest.Window) {
			s.cond.Wait()
		}
		if err := s.writableLocked(); err != nil {
			s.mu.Unlock()
			return total, err
		}
		conn := s.conn
		n := int(min(int64(len(p)), rest.MaxData, rest.Window-(s.fed-s.confirmed)))
		s.fed += int64(n) // before it is sent: a break from now on may have cut it
		s.mu.Unlock()
		if err := conn.WriteData(rest.DataStdin, p[:n]); err != nil {
			conn.CloseNow()
			return total, s.lost()
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

// writableLocked says why there can be no input.
func (s *stream) writableLocked() error {
	switch {
	case s.closed:
		return errClosed
	case s.inputErr != nil:
		return s.inputErr
	case s.eof:
		return fmt.Errorf("write to exec %s after the end of its input: %w", s.id, taisandbox.ErrExecEnded)
	case !s.hold:
		return fmt.Errorf("write to exec %s: %w", s.id, taisandbox.ErrExecBusy)
	case s.final != nil:
		return fmt.Errorf("write to exec %s: %w", s.id, taisandbox.ErrExecEnded)
	case s.err != nil:
		return s.err
	}
	return nil
}

// lost records that input was cut, unless the exec ended and needs none.
func (s *stream) lost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lostLocked()
	return s.inputErr
}

func (s *stream) lostLocked() {
	switch {
	case s.inputErr != nil:
	case s.final != nil:
		s.inputErr = fmt.Errorf("write to exec %s: %w", s.id, taisandbox.ErrExecEnded)
	default:
		s.inputErr = fmt.Errorf("write to exec %s: %w", s.id, rest.ErrInputLost)
	}
	s.cond.Broadcast()
}

func (s *stream) CloseWrite() error {
	s.mu.Lock()
	if errors.Is(s.inputErr, rest.ErrInputLost) {
		defer s.mu.Unlock()
		return s.inputErr
	}
	again := s.eof
	s.eof = true
	conn := s.conn
	if again || conn == nil || s.final != nil {
		s.mu.Unlock()
		return nil // without a link, the next one begins with it
	}
	s.mu.Unlock()
	s.write(conn, rest.Frame{Type: rest.FrameStdinEOF}) //nolint:errcheck // as above
	return nil
}

func (s *stream) Resize(size taisandbox.Size) error {
	if err := size.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	if err := s.liveLocked("resize"); err != nil {
		s.mu.Unlock()
		return err
	}
	s.size = size
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		s.write(conn, rest.Frame{Type: rest.FrameResize, Cols: size.Cols, Rows: size.Rows}) //nolint:errcheck // the next link begins with it
	}
	return nil
}

func (s *stream) Signal(opts taisandbox.KillOptions) error {
	s.mu.Lock()
	err, conn := s.liveLocked("signal"), s.conn
	s.mu.Unlock()
	if err == nil && conn == nil {
		err = fmt.Errorf("signal exec %s: %w", s.id, rest.ErrUnreachable)
	}
	if err != nil {
		return err
	}
	f := rest.Frame{Type: rest.FrameSignal, Signal: opts.Signal, Tree: opts.Tree, Group: opts.Group}
	if err := s.write(conn, f); err != nil {
		return fmt.Errorf("signal exec %s: %w: %w", s.id, rest.ErrUnreachable, err)
	}
	return nil
}

func (s *stream) liveLocked(verb string) error {
	switch {
	case s.closed:
		return errClosed
	case s.final != nil:
		return fmt.Errorf("%s exec %s: %w", verb, s.id, taisandbox.ErrExecEnded)
	case s.err != nil:
		return s.err
	}
	return nil
}

func (s *stream) Wait(ctx context.Context) (taisandbox.ExecInfo, error) {
	known := s.known
	if s.noFollow {
		known = nil // its end is not the exec's
	}
	select {
	case <-known:
		return s.result()
	default:
	}
	// The end travels behind the output, and a reader that does not read would
	// not see it: ask beside the stream as well.
	type answer struct {
		exec rest.Exec
		err  error
	}
	ctx, cancel := context.WithCancelCause(ctx)
	asked, joined := make(chan answer, 1), make(chan struct{})
	go func() {
		defer close(joined)
		e, err := s.c.WaitExec(ctx, s.box, s.id)
		if err == nil || s.noFollow { // else the stream knows better
			asked <- answer{e, err}
		}
	}()
	defer func() {
		cancel(nil)
		<-joined
	}()
	select {
	case <-known:
		return s.result()
	case a := <-asked:
		return execInfo(a.exec), a.err
	case <-ctx.Done():
		return taisandbox.ExecInfo{}, context.Cause(ctx)
	}
}

func (s *stream) result() (taisandbox.ExecInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.final != nil {
		return *s.final, nil
	}
	return taisandbox.ExecInfo{}, s.err
}

func (s *stream) Hangup() error {
	s.awaitLink()
	conn, ended, ok := s.leave()
	switch {
	case !ok:
		return nil
	case ended:
		return s.finish(conn, ended)
	}
	err := error(rest.ErrUnreachable)
	if conn != nil {
		if err = s.write(conn, rest.Frame{Type: rest.FrameHangup}); err == nil {
			s.await()
		}
	}
	s.shut(conn)
	if err != nil {
		return fmt.Errorf("hang up exec %s: %w", s.id, err)
	}
	return nil
}

// awaitLink waits a little for a link that is being made again.
func (s *stream) awaitLink() {
	late := false
	t := time.AfterFunc(hangupTimeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.cond.Broadcast()
	})
	defer t.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.conn == nil && s.err == nil && !s.closed && !late {
		s.cond.Wait()
	}
}

func (s *stream) Close() error {
	conn, ended, ok := s.leave()
	if !ok {
		return nil
	}
	return s.finish(conn, ended)
}

// leave marks the stream as closed, once, and returns what there is to close.
func (s *stream) leave() (conn *wsconn.Conn, ended, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = !s.closed
	s.closed = true
	conn, ended = s.conn, s.err != nil
	s.endLocked(errClosed)
	return conn, ended, first
}

func (s *stream) finish(conn *wsconn.Conn, ended bool) error {
	switch {
	case conn != nil && ended:
		// The server still has to let go, once it knows that we need no more.
		s.mu.Lock()
		all := s.offset
		s.mu.Unlock()
		s.write(conn, rest.Frame{Type: rest.FrameAck, Offset: all}) //nolint:errcheck // the exec has ended and its end is known
		s.await()
	case conn != nil:
		conn.Close(closeNormal, "")
	}
	s.shut(conn)
	return nil
}

// await waits until the server has closed the link.
func (s *stream) await() {
	t := time.NewTimer(closeTimeout)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
	}
}

// shut ends the link, and waits for the goroutine of the stream.
func (s *stream) shut(conn *wsconn.Conn) {
	if conn != nil {
		conn.CloseNow()
	}
	s.stop(errClosed)
	<-s.done
}
