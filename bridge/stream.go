package bridge

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// tellConsumed is after how much output the bridge is told that it was taken.
const tellConsumed = wire.OutputWindow / 4

var errStreamClosed = fmt.Errorf("%w: the stream was closed", sandbox.ErrBridgeLost)

// execStream is a sandbox.Stream over one connection. A goroutine reads the
// connection, so that input goes on while nobody calls Recv; windows bound
// what it keeps.
type execStream struct {
	c    *Client
	conn *wire.Conn
	id   string
	hold bool
	tty  bool
	done chan struct{} // closed when the reader has ended

	writing sync.Mutex // one Write at a time

	mu       sync.Mutex
	changed  sync.Cond
	queue    []sandbox.Chunk
	queued   int64 // bytes in queue; a gap counts as one
	next     int64 // offset after what came
	consumed int64 // offset after what Recv gave out
	told     int64 // what the bridge knows of that
	err      error // after queue: io.EOF, or why the link ended
	final    *sandbox.ExecInfo
	sent     int64 // input bytes
	taken    int64
	noInput  bool
	closed   bool
}

func newStream(c *Client, conn *wire.Conn, opts wire.Attach, tty bool) *execStream {
	s := &execStream{
		c: c, conn: conn, id: opts.ID, hold: opts.Hold, tty: tty, done: make(chan struct{}),
		next: opts.Since, consumed: opts.Since, told: opts.Since,
	}
	s.changed.L = &s.mu
	go s.read()
	return s
}

// refuseInput says what the bridge will say too: there is no input.
func (s *execStream) refuseInput() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noInput = true
}

// read takes frames until the link or the stream ends.
func (s *execStream) read() {
	defer close(s.done)
	for {
		t, payload, err := s.conn.ReadFrame()
		s.mu.Lock()
		if err == nil {
			err = s.frameLocked(t, payload)
		} else {
			err = fmt.Errorf("%w: %w", sandbox.ErrBridgeLost, err)
		}
		if err != nil && s.err == nil {
			s.err = err
		}
		s.changed.Broadcast()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func badStream(what string) error {
	return fmt.Errorf("%w: %w: %s", sandbox.ErrBridgeLost, wire.ErrProtocol, what)
}

// takeLocked puts a chunk into the queue, unless more came than was asked for.
func (s *execStream) takeLocked(c sandbox.Chunk) error {
	if s.queued += weight(c); s.queued > 2*wire.OutputWindow {
		return badStream("more output than asked for")
	}
	s.queue = append(s.queue, c)
	s.next = c.End()
	return nil
}

// weight is what a chunk counts in a queue.
func weight(c sandbox.Chunk) int64 { return max(1, int64(len(c.Data))) }

// frameLocked takes one frame. io.EOF is the regular end.
func (s *execStream) frameLocked(t wire.Type, payload []byte) error {
	switch t {
	case wire.TypeOutput:
		offset, source, data := wire.Offset(payload, 0), sandbox.Source(payload[8]), payload[wire.OutputHead:]
		if offset != s.next || source != sandbox.Stdout && source != sandbox.Stderr {
			return badStream("output out of order")
		}
		return s.takeLocked(sandbox.Chunk{Source: source, Offset: offset, Data: slices.Clone(data)})
	case wire.TypeGap:
		from, to := wire.Offset(payload, 0), wire.Offset(payload, 1)
		if from != s.next || to <= from {
			return badStream("gap out of order")
		}
		return s.takeLocked(sandbox.Chunk{Source: sandbox.Gap, Offset: from, Lost: to - from})
	case wire.TypeInput:
		if n := wire.Offset(payload, 0); n >= s.taken && n <= s.sent {
			s.taken = n
			return nil
		}
		return badStream("input out of order")
	case wire.TypeInputClosed:
		s.noInput = true
	case wire.TypeExit:
		info := new(sandbox.ExecInfo)
		if err := json.Unmarshal(payload, info); err != nil {
			return badStream(err.Error())
		}
		if err := checkRecord(info, s.id); err != nil {
			return err
		}
		if !info.Done() {
			return badStream("an end that is none")
		}
		s.final, s.noInput = info, true
		return io.EOF
	case wire.TypeEnd:
		return io.EOF
	case wire.TypeError:
		return remoteError(payload)
	default:
		return badStream(fmt.Sprintf("frame of type %d", t))
	}
	return nil
}

// ID returns the exec's ID.
func (s *execStream) ID() string { return s.id }

// Recv returns the next chunk, then io.EOF.
func (s *execStream) Recv() (sandbox.Chunk, error) {
	s.mu.Lock()
	for len(s.queue) == 0 && s.err == nil && !s.closed {
		s.changed.Wait()
	}
	if s.closed {
		s.mu.Unlock()
		return sandbox.Chunk{}, errStreamClosed
	}
	if len(s.queue) == 0 {
		err := s.err
		s.mu.Unlock()
		return sandbox.Chunk{}, err
	}
	chunk := s.queue[0]
	s.queue = s.queue[1:]
	s.queued -= weight(chunk)
	s.consumed = chunk.End()
	tell := s.err == nil && s.consumed-s.told >= tellConsumed
	if tell {
		s.told = s.consumed
	}
	s.mu.Unlock()
	if tell {
		s.number(wire.TypeConsumed, chunk.End())
	}
	return chunk, nil
}

// number sends a frame that is not worth an error: if the link is broken,
// Recv tells.
func (s *execStream) number(t wire.Type, n int64) {
	s.conn.WriteFrames(wire.AppendOffset(nil, t, n)) //nolint:errcheck // see above
}

// Ack lets the command write on.
func (s *execStream) Ack(offset int64) error {
	s.mu.Lock()
	send := s.hold && !s.closed && s.err == nil
	if send {
		s.told = max(s.told, offset)
	}
	s.mu.Unlock()
	if send {
		s.number(wire.TypeAck, offset)
	}
	return nil
}

// Write feeds the input.
func (s *execStream) Write(p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for done := 0; ; {
		n, err := s.room(len(p) - done)
		if err != nil {
			return done, err
		}
		if n > 0 {
			if err := s.conn.WriteFrame(wire.TypeStdin, p[done:done+n]); err != nil {
				return done, s.cause(err)
			}
		}
		// The command may have ended by what it has read, as by a Ctrl-C.
		if done += n; done == len(p) {
			return done, nil
		}
	}
}

// room waits until some of n bytes may be sent.
func (s *execStream) room(n int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		room := wire.InputWindow - (s.sent - s.taken)
		switch {
		case s.closed:
			return 0, errStreamClosed
		case !s.hold:
			return 0, fmt.Errorf("write to exec %s: %w: a viewer feeds no input", s.id, sandbox.ErrExecBusy)
		case s.noInput:
			return 0, fmt.Errorf("write to exec %s: %w", s.id, sandbox.ErrExecEnded)
		case s.err != nil:
			return 0, s.err
		case n == 0:
			return 0, nil
		case room > 0:
			n = min(n, int(room), wire.MaxData)
			s.sent += int64(n)
			return n, nil
		}
		s.changed.Wait()
	}
}

// cause prefers what is known of the end of the link to err.
func (s *execStream) cause(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errStreamClosed
	case s.noInput:
		return fmt.Errorf("write to exec %s: %w", s.id, sandbox.ErrExecEnded)
	}
	return fmt.Errorf("%w: %w", sandbox.ErrBridgeLost, err)
}

// CloseWrite ends the input, after all that was written.
func (s *execStream) CloseWrite() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if _, err := s.room(0); err != nil {
		return err
	}
	if err := s.conn.WriteFrame(wire.TypeEOF, nil); err != nil {
		return s.cause(err)
	}
	return nil
}

// Resize sets the size of the terminal.
func (s *execStream) Resize(size sandbox.Size) error {
	if err := size.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	ended, closed := s.final != nil, s.closed
	s.mu.Unlock()
	switch {
	case !s.tty:
		return fmt.Errorf("resize exec %s: %w: it has no terminal", s.id, sandbox.ErrInvalidSpec)
	case closed:
		return errStreamClosed
	case ended:
		return fmt.Errorf("resize exec %s: %w", s.id, sandbox.ErrExecEnded)
	}
	b := binary.BigEndian.AppendUint16(nil, size.Cols)
	b = binary.BigEndian.AppendUint16(b, size.Rows)
	if err := s.conn.WriteFrame(wire.TypeResize, b); err != nil {
		return s.cause(err)
	}
	return nil
}

// Wait blocks until the record is final. It asks for it on a connection of its
// own, unless the stream has already brought it.
func (s *execStream) Wait(ctx context.Context) (sandbox.ExecInfo, error) {
	if info := s.end(); info != nil {
		return *info, nil
	}
	info, err := s.c.WaitExec(ctx, s.id)
	if err != nil {
		// A bridge that has just ended has told this stream first.
		select {
		case <-s.done:
		case <-ctx.Done():
		case <-time.After(farewellLimit):
		}
	}
	if end := s.end(); end != nil {
		return *end, nil
	}
	return info, err
}

// farewellLimit bounds the wait for the last that a bridge has said.
const farewellLimit = time.Second

func (s *execStream) end() *sandbox.ExecInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.final
}

// hangupLimit bounds the last message on a link that may be stuck.
const hangupLimit = time.Second

// hangUp tells that the client is gone.
func (c *Client) hangUp(conn *wire.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(hangupLimit)); err != nil {
		return err
	}
	return conn.WriteFrame(wire.TypeHangup, nil)
}

// Hangup tells that the client is gone, and closes the stream.
func (s *execStream) Hangup() error {
	s.mu.Lock()
	tell := s.hold && !s.closed && s.err == nil
	s.mu.Unlock()
	var err error
	if tell {
		if herr := s.c.hangUp(s.conn); herr != nil && s.end() == nil {
			err = s.cause(herr)
		}
	}
	s.Close() //nolint:errcheck // never fails
	return err
}

// Close detaches. When the stream held the exec, it is free for another one
// once Close has returned.
func (s *execStream) Close() error {
	s.mu.Lock()
	held := s.hold && !s.closed && s.err == nil
	s.closed = true
	s.changed.Broadcast()
	s.mu.Unlock()
	if held && s.conn.CloseWrite() == nil {
		select {
		case <-s.done: // the bridge has let go
		case <-time.After(farewellLimit):
		}
	}
	s.c.part(s.conn)
	<-s.done
	return nil
}
