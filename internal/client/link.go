package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/errmap"
	"github.com/taibox/taibox/internal/wsconn"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// frameLimit bounds what the server may send in one frame: a record holds the
// arguments of its command.
const frameLimit = 2 * rest.MaxStart

// Exec starts a command and returns the attached stream. ctx bounds the start
// only.
func (c *Client) Exec(ctx context.Context, box string, req rest.ExecRequest) (Stream, error) {
	if req.ID == "" { // ours, so that the exec is found again if the link breaks now
		req.ID = taisandbox.NewID("e")
	}
	s := c.newStream(box, req.ID, taisandbox.AttachOptions{Hold: true}, time.Duration(req.LeaseMs)*time.Millisecond)
	start := func() (*wsconn.Conn, error) { return c.dialStart(ctx, box, req) }
	conn, err := start()
	if errors.Is(err, errBroken) || errors.Is(err, rest.ErrStopping) {
		conn, err = s.again(ctx, func() (*wsconn.Conn, error) {
			conn, err := s.dialAttach(ctx)
			if errors.Is(err, taisandbox.ErrExecNotFound) {
				return start() // it never began
			}
			return conn, err
		})
	}
	if err != nil {
		return nil, err
	}
	s.begin(conn)
	return s, nil
}

// Attach opens another reader of an exec. ctx bounds the opening only.
func (c *Client) Attach(ctx context.Context, box, exec string, opts taisandbox.AttachOptions) (Stream, error) {
	s := c.newStream(box, exec, opts, 0)
	conn, err := s.dial(ctx, opts.Takeover)
	if err != nil {
		return nil, err
	}
	s.begin(conn)
	return s, nil
}

func (c *Client) newStream(box, id string, o taisandbox.AttachOptions, lease time.Duration) *stream {
	if lease <= 0 {
		lease = taisandbox.DefaultLease
	}
	s := &stream{
		c: c, box: box, id: id, hold: o.Hold, noFollow: o.NoFollow, lease: lease,
		offset: o.Since, acked: o.Since, said: o.Since, known: make(chan struct{}), done: make(chan struct{}),
	}
	s.cond.L = &s.mu
	return s
}

func (s *stream) begin(conn *wsconn.Conn) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.stop = cancel
	s.conn = conn
	go s.run(ctx, conn)
}

// errBroken is a link that ended without a word.
var errBroken = fmt.Errorf("%w: the link broke", rest.ErrUnreachable)

func (c *Client) dialStart(ctx context.Context, box string, req rest.ExecRequest) (*wsconn.Conn, error) {
	raw, err := encode(rest.StartFrame{Type: rest.FrameStart, ExecRequest: req})
	if err != nil {
		return nil, err
	}
	if len(raw) > rest.MaxStart {
		return nil, fmt.Errorf("exec in box %s: arguments and environment of %d bytes: %w", box, len(raw), rest.ErrTooLarge)
	}
	u, err := c.box(box, "exec", "ws")
	if err != nil {
		return nil, err
	}
	conn, err := c.dial(ctx, u)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, conn.CloseNow)
	defer stop()
	if err := c.started(conn, json.RawMessage(raw)); err != nil {
		conn.CloseNow()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return conn, nil
}

// started sends the first frame and reads the answer to it.
func (c *Client) started(conn *wsconn.Conn, start json.RawMessage) error {
	if err := conn.WriteJSON(start); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	_, raw, err := conn.Read(nil)
	if err != nil {
		return c.closeError(err)
	}
	var f rest.Frame
	if err := json.Unmarshal(raw, &f); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	switch {
	case f.Type == rest.FrameError && f.Error != nil:
		return c.errorOf(*f.Error, errdefs.ErrUnknown)
	case f.Type != rest.FrameStarted:
		return fmt.Errorf("%w: frame %q", errProtocol, f.Type)
	}
	return nil
}

var errProtocol = fmt.Errorf("%w: the server does not keep to the protocol", rest.ErrInternal)

func (c *Client) dial(ctx context.Context, u url.URL) (*wsconn.Conn, error) {
	ws, _, err := websocket.Dial(ctx, u.String(), &websocket.DialOptions{HTTPClient: c.http}) //nolint:bodyclose // Dial closes it
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok { // what our transport said, without the layers around it
			err = ue.Err
		}
		return nil, err
	}
	live := wsconn.Liveness{}
	if !c.local {
		live = wsconn.Liveness{WriteTimeout: pingTimeout, PingEvery: pingInterval, PingTimeout: pingTimeout}
	}
	return wsconn.New(ws, frameLimit, live), nil
}

// dialAttach resumes: it goes on where reading stopped, and puts out what the
// server still takes for the old link.
func (s *stream) dialAttach(ctx context.Context) (*wsconn.Conn, error) { return s.dial(ctx, s.hold) }

func (s *stream) dial(ctx context.Context, takeover bool) (*wsconn.Conn, error) {
	u, err := s.c.exec(s.box, s.id, "ws")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	q := url.Values{"since": {strconv.FormatInt(s.offset, 10)}}
	s.mu.Unlock()
	for name, set := range map[string]bool{"hold": s.hold, "takeover": takeover, "nofollow": s.noFollow} {
		if set {
			q.Set(name, "1")
		}
	}
	u.RawQuery = q.Encode()
	return s.c.dial(ctx, u)
}

// again tries to connect until it works, fails for good, or the lease is over.
func (s *stream) again(ctx context.Context, dial func() (*wsconn.Conn, error)) (*wsconn.Conn, error) {
	end := time.Now().Add(s.lease)
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		var err error
		if s.c.revive != nil {
			err = s.c.revive(ctx)
		}
		if err == nil {
			var conn *wsconn.Conn
			if conn, err = dial(); err == nil {
				return conn, nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !errmap.Temporary(err):
			return nil, err
		case time.Now().Add(wait).After(end):
			return nil, fmt.Errorf("gave up after %v: %w", s.lease, err)
		}
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// run reads one link after the other until the stream is over.
func (s *stream) run(ctx context.Context, conn *wsconn.Conn) {
	defer close(s.done)
	for {
		err := s.readLink(conn)
		if !s.broke(err) {
			return
		}
		conn, err = s.again(ctx, func() (*wsconn.Conn, error) { return s.dialAttach(ctx) })
		if err != nil {
			s.fail(fmt.Errorf("resume exec %s: %w", s.id, err))
			return
		}
		if !s.resume(conn) {
			return
		}
	}
}

// broke says whether err is worth another link.
func (s *stream) broke(err error) bool {
	if errors.Is(err, errBroken) {
		s.mu.Lock()
		s.conn = nil
		if s.fed > s.confirmed {
			s.lostLocked()
		}
		again := s.err == nil && !s.closed
		s.cond.Broadcast()
		s.mu.Unlock()
		return again
	}
	s.fail(err)
	return false
}

// resume puts a new link in place and repeats what may not have arrived.
func (s *stream) resume(conn *wsconn.Conn) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		conn.CloseNow()
		return false
	}
	s.conn = conn
	s.said = s.acked
	repeat := []rest.Frame{{Type: rest.FrameAck, Offset: s.acked}}
	if s.size != (taisandbox.Size{}) {
		repeat = append(repeat, rest.Frame{Type: rest.FrameResize, Cols: s.size.Cols, Rows: s.size.Rows})
	}
	if s.eof && s.inputErr == nil {
		repeat = append(repeat, rest.Frame{Type: rest.FrameStdinEOF})
	}
	s.fed, s.confirmed = 0, 0 // the server counts anew with each link
	s.cond.Broadcast()
	s.mu.Unlock()
	for _, f := range repeat {
		if s.write(conn, f) != nil {
			break
		}
	}
	return true
}

// fail ends the stream: err is what Recv returns after the queue.
func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = nil
	s.endLocked(err)
}

func (s *stream) endLocked(err error) {
	if s.err == nil {
		s.err = err
		close(s.known)
	}
	s.cond.Broadcast()
}

// readLink reads frames until the link ends.
func (s *stream) readLink(conn *wsconn.Conn) error {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { conn.KeepAlive(stop) })
	defer func() {
		close(stop)
		conn.CloseNow()
		wg.Wait()
	}()
	buf := make([]byte, 0, 4<<10)
	for {
		text, frame, err := conn.Read(buf)
		if err != nil {
			return s.c.closeError(err)
		}
		buf = frame
		if text {
			err = s.takeText(frame)
		} else {
			err = s.takeData(frame)
		}
		if err != nil {
			return err
		}
	}
}

// closeError says what the end of a link means.
func (c *Client) closeError(err error) error {
	switch code := wsconn.CloseCode(err); code {
	case rest.CloseTakenOver:
		return fmt.Errorf("%w: it took this one's place", taisandbox.ErrExecBusy)
	case closeTooBig:
		return rest.ErrTooLarge
	case closeNormal, closePolicy, closeProtocol, closeInternal, rest.CloseFailed:
		return fmt.Errorf("%w: it closed with code %d", errProtocol, code)
	}
	return fmt.Errorf("%w: %w", errBroken, err)
}

// Close codes of RFC 6455.
const (
	closeNormal   = 1000
	closeProtocol = 1002
	closePolicy   = 1008
	closeTooBig   = 1009
	closeInternal = 1011
)

func (s *stream) takeData(f []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(f) == 9 && f[0] == rest.DataOffset:
		at := int64(binary.BigEndian.Uint64(f[1:]))
		if at < 0 || s.offset > at {
			return fmt.Errorf("%w: offset %d after %d", errProtocol, at, s.offset)
		}
		if s.offset >= 0 && at > s.offset {
			s.queue = append(s.queue, taisandbox.Chunk{Source: taisandbox.Gap, Offset: s.offset, Lost: at - s.offset})
		}
		if s.offset < 0 {
			s.acked, s.said = at, at
		}
		s.offset = at
	case len(f) > 0 && (f[0] == rest.DataStdout || f[0] == rest.DataStderr):
		if s.offset < 0 {
			return fmt.Errorf("%w: output without an offset", errProtocol)
		}
		s.pushLocked(taisandbox.Source(f[0]), f[1:])
	default:
		return fmt.Errorf("%w: binary frame of %d bytes", errProtocol, len(f))
	}
	s.cond.Broadcast()
	return nil
}

// pushLocked queues output. What follows the last piece of the queue joins it,
// so that many small writes do not become many pieces.
func (s *stream) pushLocked(src taisandbox.Source, data []byte) {
	if n := len(s.queue); n > 0 && s.queue[n-1].Source == src && len(s.queue[n-1].Data)+len(data) <= rest.MaxData {
		s.queue[n-1].Data = append(s.queue[n-1].Data, data...)
	} else if len(data) > 0 {
		s.queue = append(s.queue, taisandbox.Chunk{Source: src, Offset: s.offset, Data: bytes.Clone(data)})
	}
	s.offset += int64(len(data))
}

func (s *stream) takeText(raw []byte) error {
	var f rest.Frame
	if err := json.Unmarshal(raw, &f); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f.Type {
	case rest.FrameGap:
		s.queue = append(s.queue, taisandbox.Chunk{Source: taisandbox.Gap, Offset: f.Offset, Lost: f.Lost})
		s.offset = f.Offset + f.Lost
	case rest.FrameExit:
		var e rest.Exec
		if err := json.Unmarshal(f.Exec, &e); err != nil {
			return fmt.Errorf("%w: %w", errProtocol, err)
		}
		info := execInfo(e)
		s.final = &info
		s.endLocked(io.EOF)
	case rest.FrameEnd:
		s.endLocked(io.EOF)
	case rest.FrameError:
		if f.Error != nil {
			s.endLocked(s.c.errorOf(*f.Error, errdefs.ErrUnknown))
		}
	case rest.FrameStdinAck:
		s.confirmed = max(s.confirmed, f.Offset)
	case rest.FrameStdinClosed:
		s.confirmed = s.fed
		if s.inputErr == nil {
			s.inputErr = fmt.Errorf("write to exec %s: %w", s.id, taisandbox.ErrExecEnded)
		}
	}
	s.cond.Broadcast()
	return nil
}
