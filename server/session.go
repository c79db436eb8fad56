package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/wsconn"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// session joins a WebSocket and a stream.
//
// One goroutine reads the stream and writes output, one reads the socket, one
// feeds the input. Whatever ends the session first says how; the rest follows.
// Output beyond what the client acknowledged, and input beyond what the command
// took, is at most [rest.Window] each, so that neither direction ever has to
// wait for the other.
type session struct {
	s      *Server
	box    *sandbox.Box
	conn   *wsconn.Conn
	stream taisandbox.Stream
	opts   taisandbox.AttachOptions
	attach bool // to an exec that began before: the client is told the first offset
	local  bool // the socket is on a Unix socket

	once  sync.Once
	over  chan struct{} // closed when it is known how the session ends
	how   ending        // set before over is closed
	freed chan struct{} // closed after that, when the stream is

	mu      sync.Mutex
	cond    sync.Cond
	sent    int64 // offset behind the output that was sent
	acked   int64 // offset that the client acknowledged
	input   [][]byte
	waiting int  // bytes of input
	eof     bool // of the input
	deaf    bool // the command takes no more input
}

// ending is how a session ends.
type ending struct {
	code   int    // the client is told
	text   string // with this
	err    error  // and, before that, this
	hangup bool   // the client is gone
}

func (s *Server) newSession(ctx context.Context, b *sandbox.Box, conn *wsconn.Conn, stream taisandbox.Stream, opts taisandbox.AttachOptions) *session {
	x := &session{s: s, box: b, conn: conn, stream: stream, opts: opts, local: isLocal(ctx), over: make(chan struct{}), freed: make(chan struct{})}
	x.cond.L = &x.mu
	return x
}

// finish ends the session. Only the first call counts.
func (x *session) finish(e ending) {
	x.once.Do(func() {
		defer close(x.freed)
		x.how = e
		x.mu.Lock()
		close(x.over)
		x.cond.Broadcast()
		x.mu.Unlock()
		if e.hangup {
			x.stream.Hangup() //nolint:errcheck // the client is gone, and there is nobody else to tell
		} else {
			x.stream.Close() //nolint:errcheck // as above
		}
	})
}

func (x *session) isOver() bool {
	select {
	case <-x.over:
		return true
	default:
		return false
	}
}

// run serves the session to its end.
func (x *session) run(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unhook := context.AfterFunc(x.s.stopping, func() { x.finish(restart) })
	defer unhook()
	defer x.withKey(ctx)()

	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() { x.guard(ctx, func() { x.read(ctx) }) })
	wg.Go(func() { x.conn.KeepAlive(x.over) })
	wg.Go(func() {
		<-x.over
		cancel(errOver)
		// The socket stays while there is a box to remove: to the client its end
		// means that the box is gone.
		<-x.freed
		t := time.NewTimer(closeTimeout)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
		}
		x.conn.CloseNow()
	})
	var feeding sync.WaitGroup
	if x.opts.Hold {
		feeding.Go(func() { x.guard(ctx, x.feed) })
	}
	x.guard(ctx, func() { x.pump(ctx) })
	<-x.over
	feeding.Wait() // what it fed is told before the end: the client resumes behind it
	if x.how.err != nil {
		x.conn.WriteJSON(rest.Frame{Type: rest.FrameError, Error: &x.s.fail(ctx, x.how.err).Body}) //nolint:errcheck // the close follows
	}
	if x.how.code != 0 {
		x.conn.Close(x.how.code, x.how.text)
	}
	close(done)
	wg.Wait()
}

// withKey ends the session, as if the client had gone, when its key no longer
// counts. The returned function lifts that.
func (x *session) withKey(ctx context.Context) (lift func()) {
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, rest.ErrUnauthenticated) {
			x.finish(ending{err: cause, code: rest.CloseFailed, text: rest.ErrUnauthenticated.Msg, hangup: true})
		}
	})
	return func() { stop() }
}

// guard keeps a panic from ending the process.
func (x *session) guard(ctx context.Context, f func()) {
	defer func() {
		if p := recover(); p != nil {
			x.s.recovered(ctx, p)
			x.finish(ending{err: rest.ErrInternal, code: rest.CloseFailed})
		}
	}()
	f()
}

var (
	restart = ending{code: rest.CloseRestart, text: rest.ErrStopping.Msg}
	gone    = ending{hangup: true}
)

// pump sends the output, then the end of the exec.
func (x *session) pump(ctx context.Context) {
	for first := true; ; first = false {
		c, err := x.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			x.end(ctx)
			return
		case err != nil:
			x.finish(x.endingOf(err))
			return
		}
		if first && x.attach {
			var at [8]byte
			binary.BigEndian.PutUint64(at[:], uint64(c.Offset))
			x.begin(c.Offset)
			if x.conn.WriteData(rest.DataOffset, at[:]) != nil {
				x.finish(gone)
				return
			}
		}
		if err := x.send(c); err != nil {
			x.finish(gone)
			return
		}
	}
}

// endingOf says what the end of a stream before its time means.
func (x *session) endingOf(err error) ending {
	switch {
	case errors.Is(err, taisandbox.ErrExecBusy):
		return ending{code: rest.CloseTakenOver, text: "taken over by another client"}
	case errors.Is(err, sandbox.ErrClosed):
		return restart
	}
	return ending{code: rest.CloseFailed, err: fmt.Errorf("read exec %s: %w", x.stream.ID(), err)}
}

// begin notes where the output begins.
func (x *session) begin(offset int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent, x.acked = offset, max(x.acked, offset)
}

// send sends a chunk in pieces, each as soon as the window allows.
func (x *session) send(c taisandbox.Chunk) error {
	if c.Source == taisandbox.Gap {
		x.skip(c.Lost)
		return x.conn.WriteJSON(rest.Frame{Type: rest.FrameGap, Offset: c.Offset, Lost: c.Lost})
	}
	for data := c.Data; len(data) > 0; {
		n := min(len(data), rest.MaxData)
		if !x.window() {
			return errOver
		}
		x.advance(int64(n))
		if err := x.conn.WriteData(byte(c.Source), data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

var errOver = errors.New("session is over")

// window waits until the client has acknowledged enough. It reports false if
// the session ended meanwhile.
func (x *session) window() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for x.sent-x.acked >= rest.Window && !x.isOver() {
		x.cond.Wait()
	}
	return !x.isOver()
}

// advance counts output before it is sent, so that no acknowledgement comes
// too early.
func (x *session) advance(n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent += n
}

// skip counts output that nobody has to acknowledge.
func (x *session) skip(n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent += n
	x.acked += n
}

// end tells the client of the end, waits until it has everything, and lets go
// of the exec; only then is the socket closed.
func (x *session) end(ctx context.Context) {
	f := rest.Frame{Type: rest.FrameEnd}
	if !x.opts.NoFollow {
		info, err := x.stream.Wait(ctx)
		if err != nil {
			x.finish(x.endingOf(err))
			return
		}
		f.Type = rest.FrameExit
		if f.Exec, err = json.Marshal(execOf(&info)); err != nil {
			x.finish(ending{code: rest.CloseFailed, err: err})
			return
		}
	}
	if x.conn.WriteJSON(f) != nil {
		x.finish(gone)
		return
	}
	x.awaitAck()
	x.finish(ending{code: closeNormal})
}

// Close codes of RFC 6455.
const (
	closeNormal    = 1000
	closeGoingAway = 1001
)

func (x *session) awaitAck() {
	late := false
	t := time.AfterFunc(exitAckTimeout, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		late = true
		x.cond.Broadcast()
	})
	defer t.Stop()
	x.mu.Lock()
	defer x.mu.Unlock()
	for x.acked < x.sent && !late && !x.isOver() {
		x.cond.Wait()
	}
}

// read takes what the client sends until the socket ends.
func (x *session) read(ctx context.Context) {
	buf := make([]byte, 0, 4<<10)
	for {
		text, frame, err := x.conn.Read(buf)
		if err != nil {
			x.finish(readEnding(err, x.local))
			return
		}
		buf = frame
		if text {
			err = x.takeText(ctx, frame)
		} else {
			err = x.takeData(frame)
		}
		if err != nil {
			x.finish(ending{code: rest.CloseFailed, err: err})
		}
	}
}

// readEnding says what the end of the socket means. A client that closes has
// detached. One that vanishes from a Unix socket is dead; over a network it may
// be the link alone, and within the lease the client may come back.
func readEnding(err error, local bool) ending {
	switch code := wsconn.CloseCode(err); {
	case code == closeNormal:
		return ending{}
	case code == closeGoingAway: // a page that is left
		return gone
	}
	return ending{hangup: local}
}

func (x *session) takeData(f []byte) error {
	if len(f) == 0 || f[0] != rest.DataStdin {
		return fmt.Errorf("%w: a binary frame of a client begins with 0", rest.ErrRequest)
	}
	if !x.opts.Hold {
		return fmt.Errorf("feed exec %s: only who holds it can: %w", x.stream.ID(), taisandbox.ErrExecBusy)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.eof {
		return fmt.Errorf("%w: input after its end", rest.ErrRequest)
	}
	// A client that keeps to the window never waits here.
	for x.waiting > rest.Window && !x.deaf && !x.isOver() {
		x.cond.Wait()
	}
	if !x.deaf && len(f) > 1 {
		x.input = append(x.input, bytes.Clone(f[1:]))
		x.waiting += len(f) - 1
		x.cond.Broadcast()
	}
	return nil
}

func (x *session) takeText(ctx context.Context, raw []byte) error {
	var f rest.Frame
	if err := decodeStrict(raw, &f); err != nil {
		return err
	}
	switch f.Type {
	case rest.FrameAck:
		x.ack(f.Offset)
		return nil
	case rest.FramePing:
		x.conn.WriteJSON(rest.Frame{Type: rest.FramePong}) //nolint:errcheck // the reader finds out
		return nil
	case rest.FrameHangup:
		x.finish(ending{hangup: true, code: closeNormal})
		return nil
	case rest.FrameStdinEOF, rest.FrameResize, rest.FrameSignal:
		if !x.opts.Hold {
			return fmt.Errorf("%s exec %s: only who holds it can: %w", f.Type, x.stream.ID(), taisandbox.ErrExecBusy)
		}
	default:
		return fmt.Errorf("%w: frame type %.32q", rest.ErrRequest, f.Type)
	}
	var err error
	switch f.Type {
	case rest.FrameStdinEOF:
		x.mu.Lock()
		x.eof = true
		x.cond.Broadcast()
		x.mu.Unlock()
	case rest.FrameResize:
		err = x.stream.Resize(taisandbox.Size{Cols: f.Cols, Rows: f.Rows})
	case rest.FrameSignal:
		ctx, cancel := context.WithTimeoutCause(ctx, signalTimeout, errSignalTimeout)
		defer cancel()
		err = x.box.KillExec(ctx, x.stream.ID(), taisandbox.KillOptions{Signal: f.Signal, Tree: f.Tree, Group: f.Group})
	}
	if errors.Is(err, taisandbox.ErrInvalidSpec) {
		return err
	}
	if err != nil { // most often the exec has just ended
		x.s.log.LogAttrs(ctx, slog.LevelDebug, "frame had no effect", slog.String("op", f.Type), slog.String("box", x.box.ID()), slog.Any("err", err))
	}
	return nil
}

var errSignalTimeout = errors.New("box did not take the signal in time")

func (x *session) ack(offset int64) {
	x.mu.Lock()
	offset = min(offset, x.sent)
	grown := offset > x.acked
	x.mu.Unlock()
	if !grown {
		return
	}
	// First the stream: once it is counted here, the stream may be closed, and
	// what was not acknowledged then is kept.
	x.stream.Ack(offset) //nolint:errcheck // a broken stream is found by its reader
	x.mu.Lock()
	defer x.mu.Unlock()
	x.acked = max(x.acked, offset)
	x.cond.Broadcast()
}

// feed writes the input to the command, tells the client how much it took, and
// ends it.
func (x *session) feed() {
	var fed, told int64
	defer func() {
		if fed > told {
			x.conn.WriteJSON(rest.Frame{Type: rest.FrameStdinAck, Offset: fed}) //nolint:errcheck // as below
		}
	}()
	for {
		p, more := x.nextInput()
		if p == nil {
			if !x.isOver() {
				x.stream.CloseWrite() //nolint:errcheck // a command that ended needs no end of input
			}
			return
		}
		n, err := x.stream.Write(p)
		fed += int64(n)
		if err != nil {
			x.mu.Lock()
			x.deaf, x.input, x.waiting = true, nil, 0
			x.cond.Broadcast()
			x.mu.Unlock()
			// Any other error is a broken stream, which says nothing about the command.
			if errors.Is(err, taisandbox.ErrExecEnded) {
				x.conn.WriteJSON(rest.Frame{Type: rest.FrameStdinClosed}) //nolint:errcheck // the reader finds out
			}
			return
		}
		if more && fed-told < rest.Window/4 {
			continue
		}
		told = fed
		x.conn.WriteJSON(rest.Frame{Type: rest.FrameStdinAck, Offset: fed}) //nolint:errcheck // as above
	}
}

// nextInput waits for input. It returns nil at the end, and whether more waits.
func (x *session) nextInput() (p []byte, more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.input) == 0 && !x.eof && !x.isOver() {
		x.cond.Wait()
	}
	if len(x.input) == 0 || x.isOver() {
		return nil, false
	}
	p = x.input[0]
	x.input = x.input[1:]
	x.waiting -= len(p)
	x.cond.Broadcast()
	return p, len(x.input) > 0
}
