// Package wsconn carries the frames of execs over a WebSocket, for both ends.
//
// One goroutine reads; any number may write: each frame is written whole, and
// control frames take their turn between them.
package wsconn

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/taibox/taibox/api/rest"
)

// Liveness says how a silent peer is found out. The zero value is for a link
// whose end is always seen, such as a Unix socket: there a peer may be stopped
// for as long as it likes.
type Liveness struct {
	WriteTimeout time.Duration // for one frame; 0 = none
	PingEvery    time.Duration // 0 = never
	PingTimeout  time.Duration // for the answer to a ping
}

// Conn is one end of a WebSocket.
type Conn struct {
	ws   *websocket.Conn
	live Liveness
}

// New wraps ws. limit bounds the size of a frame that is read.
func New(ws *websocket.Conn, limit int64, live Liveness) *Conn {
	c := &Conn{ws: ws, live: live}
	c.SetReadLimit(limit)
	return c
}

// SetReadLimit bounds the frames that are read from now on.
func (c *Conn) SetReadLimit(limit int64) { c.ws.SetReadLimit(limit) }

// Read reads one frame into buf, which grows as needed, and returns it.
func (c *Conn) Read(buf []byte) (text bool, frame []byte, err error) {
	typ, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return false, buf[:0], err
	}
	b := buf[:0]
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return typ == websocket.MessageText, b, nil
		}
		if err != nil {
			return false, b[:0], err
		}
	}
}

var frames = sync.Pool{New: func() any { return new([1 + rest.MaxData]byte) }}

// WriteData writes a binary frame: kind, then at most [rest.MaxData] bytes.
func (c *Conn) WriteData(kind byte, data []byte) error {
	f := frames.Get().(*[1 + rest.MaxData]byte)
	defer frames.Put(f)
	f[0] = kind
	n := copy(f[1:], data)
	return c.write(websocket.MessageBinary, f[:1+n])
}

// WriteJSON writes a text frame.
func (c *Conn) WriteJSON(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.write(websocket.MessageText, raw)
}

var errWriteTimeout = errors.New("peer takes nothing")

func (c *Conn) write(typ websocket.MessageType, p []byte) error {
	ctx := context.Background()
	if c.live.WriteTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.live.WriteTimeout, errWriteTimeout)
		defer cancel()
	}
	return c.ws.Write(ctx, typ, p)
}

var errPingTimeout = errors.New("peer does not answer")

// KeepAlive pings the peer until stop is closed or the connection ends; it
// ends the connection of a peer that does not answer.
func (c *Conn) KeepAlive(stop <-chan struct{}) {
	if c.live.PingEvery == 0 {
		return
	}
	tick := time.NewTicker(c.live.PingEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeoutCause(context.Background(), c.live.PingTimeout, errPingTimeout)
		err := c.ws.Ping(ctx)
		cancel()
		if err != nil {
			c.CloseNow()
			return
		}
	}
}

// Close ends the connection with a code that the peer is told, and waits a
// little for it to agree.
func (c *Conn) Close(code int, reason string) {
	const most = 120 // bytes that a close frame has room for
	if len(reason) > most {
		reason = reason[:most]
	}
	c.ws.Close(websocket.StatusCode(code), reason) //nolint:errcheck // the connection is over either way
}

// CloseNow ends the connection without a word.
func (c *Conn) CloseNow() { c.ws.CloseNow() } //nolint:errcheck // as above

// CloseCode returns the code with which the peer closed, or -1 if err does not
// stand for an orderly close.
func CloseCode(err error) int { return int(websocket.CloseStatus(err)) }

// TooBig reports whether err stands for a frame beyond the limit.
func TooBig(err error) bool { return errors.Is(err, websocket.ErrMessageTooBig) }
