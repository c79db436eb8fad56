package inside

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// partLimit is how long a stream that has said everything waits for the other
// side to close it.
const partLimit = 10 * time.Second

// stream is one reader of an exec's log, on one connection. Its sender is the
// goroutine of the request; its receiver reads what the node says.
type stream struct {
	e    *exec
	conn *wire.Conn
	opts wire.Attach
	cur  cursor

	consumed atomic.Int64  // the node took everything before this
	kick     chan struct{} // has room for one signal: look at the fields below
	gone     chan struct{} // closed when the link ended

	fed      atomic.Int64 // input bytes received
	taken    atomic.Int64 // input bytes the command took
	noInput  atomic.Bool  // the command takes no more
	takeover atomic.Bool  // another stream holds the exec now
}

// newStream makes a reader; a holder is attached at once.
func newStream(e *exec, conn *wire.Conn, opts wire.Attach) (*stream, error) {
	s := &stream{e: e, conn: conn, opts: opts, kick: make(chan struct{}, 1), gone: make(chan struct{})}
	s.cur.offset = opts.Since
	if opts.Since < 0 {
		_, s.cur.offset = e.log.span()
	}
	s.consumed.Store(s.cur.offset)
	s.noInput.Store(e.in == nil || !e.in.open())
	if opts.Hold {
		if err := e.hold(s, opts.Takeover); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// run answers with the record and then serves the stream to its end.
func (s *stream) run() {
	received := make(chan struct{})
	go func() {
		defer close(received)
		defer close(s.gone)
		clientGone := s.receive()
		s.e.letGo(s, clientGone)
	}()
	err := s.conn.WriteJSON(wire.TypeReply, s.e.record())
	if err == nil {
		err = s.send()
	}
	if err == nil {
		// What was said is still on its way; closing now could cut it off.
		select {
		case <-s.gone:
		case <-time.After(partLimit):
		case <-s.e.srv.stopped:
		}
	}
	s.conn.Close() //nolint:errcheck // it is over either way
	<-received
}

// receive reads until the link ends or the node says that its client is gone.
func (s *stream) receive() (clientGone bool) {
	defer func() {
		if recover() != nil {
			s.conn.Close() //nolint:errcheck // the sender ends by it
		}
	}()
	for {
		t, p, err := s.conn.ReadFrame()
		if err != nil {
			return false
		}
		switch t {
		case wire.TypeStdin:
			if s.fed.Add(int64(len(p)))-s.taken.Load() > wire.InputWindow {
				return false
			}
			s.feed(inputPart{data: append([]byte(nil), p...), from: s})
		case wire.TypeEOF:
			s.feed(inputPart{eof: true, from: s})
		case wire.TypeAck:
			if s.opts.Hold && !s.takeover.Load() {
				s.e.log.ack(wire.Offset(p, 0))
			}
			s.consume(wire.Offset(p, 0))
		case wire.TypeConsumed:
			s.consume(wire.Offset(p, 0))
		case wire.TypeResize:
			if s.opts.Hold && !s.takeover.Load() {
				s.e.resize(sandbox.Size{Cols: binary.BigEndian.Uint16(p), Rows: binary.BigEndian.Uint16(p[2:])})
			}
		case wire.TypeHangup:
			return true
		default:
			return false
		}
	}
}

func (s *stream) feed(p inputPart) {
	if !s.opts.Hold || s.takeover.Load() || s.e.in == nil || !s.e.in.put(p) {
		s.inputClosed()
	}
}

func (s *stream) consume(offset int64) {
	if offset > s.consumed.Load() {
		s.consumed.Store(offset)
		s.wake()
	}
}

func (s *stream) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// inputTaken tells the node that it may send n bytes more.
func (s *stream) inputTaken(n int) {
	s.taken.Add(int64(n))
	s.wake()
}

func (s *stream) inputClosed() {
	s.noInput.Store(true)
	s.wake()
}

// putOut ends the stream because another one holds the exec.
func (s *stream) putOut() {
	s.takeover.Store(true)
	s.wake()
}

// send writes output as the node takes it, and what else there is to tell,
// until everything was said.
func (s *stream) send() error {
	var told struct {
		taken   int64
		noInput bool
	}
	var out []byte
	var p piece
	var blocked bool
	for {
		if s.takeover.Load() {
			err := fmt.Errorf("exec %s: %w", s.e.info.ID, sandbox.ErrExecBusy)
			return s.conn.WriteJSON(wire.TypeError, wire.NewError(err))
		}
		out = out[:0]
		if taken := s.taken.Load(); taken != told.taken {
			told.taken = taken
			out = wire.AppendOffset(out, wire.TypeInput, taken)
		}
		if s.noInput.Load() && !told.noInput {
			told.noInput = true
			out = wire.AppendFrame(out, wire.TypeInputClosed)
		}
		out, p, blocked = s.output(out)
		if len(out) > 0 {
			if err := s.conn.WriteFrames(out); err != nil {
				return err
			}
			continue
		}
		switch {
		case blocked:
		case p.final:
			<-s.e.done
			return s.conn.WriteJSON(wire.TypeExit, s.e.record())
		case p.end && s.opts.NoFollow:
			return s.conn.WriteFrame(wire.TypeEnd, nil)
		}
		out = nil // an idle reader costs no buffer
		select {
		case <-p.change: // nil while the node takes nothing
		case <-s.kick:
		case <-s.gone:
			return nil
		}
	}
}

// output appends what the log has next, unless the node has not yet taken
// enough of what came before.
func (s *stream) output(out []byte) (frames []byte, p piece, blocked bool) {
	if s.cur.offset-s.consumed.Load() >= wire.OutputWindow {
		return out, piece{}, true
	}
	buf := getFrame()
	defer putFrame(buf)
	p = s.e.log.read(&s.cur, buf[:])
	switch {
	case p.lost > 0:
		out = wire.AppendOffset(out, wire.TypeGap, s.cur.offset-p.lost, s.cur.offset)
	case len(p.chunks) > 0:
		out = p.appendOutput(out)
	}
	return out, p, false
}
