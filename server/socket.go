package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/wsconn"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// execSocket starts a command over a WebSocket. What is wrong with the first
// frame is told by a frame.
func (s *Server) execSocket(w http.ResponseWriter, r *http.Request) error {
	b, err := s.box(r.Context(), VerbExec, r.PathValue("id"))
	if err != nil {
		return err
	}
	settle := s.auditLater(r)
	return s.upgrade(w, r, rest.MaxStart, func(ctx context.Context, conn *wsconn.Conn) error {
		stream, err := startExec(ctx, b, conn)
		if err != nil {
			return err
		}
		settle()
		if err := tellStarted(conn, stream); err != nil {
			return err
		}
		s.newSession(ctx, b, conn, stream, taisandbox.AttachOptions{Hold: true}).run(ctx)
		return nil
	})
}

// startExec reads the first frame and does what it says.
func startExec(ctx context.Context, b *sandbox.Box, conn *wsconn.Conn) (taisandbox.Stream, error) {
	t := time.AfterFunc(startTimeout, conn.CloseNow)
	defer t.Stop()
	text, raw, err := conn.Read(nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoStart, err)
	}
	conn.SetReadLimit(1 + rest.MaxData)
	var f rest.StartFrame
	if !text {
		return nil, fmt.Errorf("%w: the first frame is text", rest.ErrRequest)
	}
	if err := decodeStrict(raw, &f); err != nil {
		return nil, err
	}
	if f.Type != rest.FrameStart || f.Detach || len(f.StdinB64) > 0 {
		return nil, fmt.Errorf("%w: the first frame has the type start, and neither detach nor stdin_b64", rest.ErrRequest)
	}
	spec, err := specOf(&f.ExecRequest)
	if err != nil {
		return nil, err
	}
	stream, err := b.OpenExec(ctx, spec)
	if err != nil {
		return nil, err
	}
	noteExec(ctx, stream.ID())
	return stream, nil
}

// tellStarted tells the client its exec's id.
func tellStarted(conn *wsconn.Conn, stream taisandbox.Stream) error {
	id, err := json.Marshal(stream.ID())
	if err == nil {
		err = conn.WriteJSON(rest.Frame{Type: rest.FrameStarted, Exec: id})
	}
	if err != nil {
		stream.Hangup() //nolint:errcheck // the client is gone, and there is nobody else to tell
		return fmt.Errorf("%w: %w", errNoStart, err)
	}
	return nil
}

// errNoStart is a client that left before its exec began.
var errNoStart = fmt.Errorf("socket ended before the start: %w", context.Canceled)

// attachSocket attaches to an exec over a WebSocket. What is wrong is told
// before the upgrade.
func (s *Server) attachSocket(w http.ResponseWriter, r *http.Request) error {
	opts, err := attachOptions(r)
	verb := VerbGet
	if opts.Hold {
		verb = VerbExec
	}
	b, denied := s.execBox(r.Context(), verb, r.PathValue("id"), r.PathValue("exec"))
	if denied != nil {
		return denied
	}
	if err != nil {
		return err
	}
	if err := checkUpgrade(r); err != nil {
		return err // before it takes another's place
	}
	stream, err := b.AttachExec(r.Context(), r.PathValue("exec"), opts)
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // the session has closed it, unless there was none
	return s.upgrade(w, r, 1+rest.MaxData, func(ctx context.Context, conn *wsconn.Conn) error {
		x := s.newSession(ctx, b, conn, stream, opts)
		x.attach = true
		x.run(ctx)
		return nil
	})
}

func attachOptions(r *http.Request) (taisandbox.AttachOptions, error) {
	var o taisandbox.AttachOptions
	q := r.URL.Query()
	var errs []error
	for name, to := range map[string]*bool{"hold": &o.Hold, "takeover": &o.Takeover, "nofollow": &o.NoFollow} {
		switch v := q.Get(name); v {
		case "", "0", "false":
		case "1", "true":
			*to = true
		default:
			errs = append(errs, fmt.Errorf("%w: query.%s: %.32q: 0 or 1 is expected", rest.ErrRequest, name, v))
		}
	}
	var err error
	o.Since, err = parseSince(r)
	// Taking over is about holding; alone it would do nothing.
	o.Hold = o.Hold || o.Takeover
	return o, errors.Join(append(errs, err)...)
}

// checkUpgrade refuses what is no handshake, in our form.
func checkUpgrade(r *http.Request) error {
	h := r.Header
	if r.Method != http.MethodGet || !strings.EqualFold(h.Get("Upgrade"), "websocket") || !strings.Contains(strings.ToLower(h.Get("Connection")), "upgrade") ||
		h.Get("Sec-WebSocket-Version") != "13" || h.Get("Sec-WebSocket-Key") == "" {
		return fmt.Errorf("%w: %s is a WebSocket", rest.ErrRequest, r.URL.Path)
	}
	return nil
}

// upgrade makes a WebSocket of the request and serves it. An error of serve is
// told by a frame.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, limit int64, serve func(context.Context, *wsconn.Conn) error) error {
	if err := checkUpgrade(r); err != nil {
		return err
	}
	if s.stopping.Err() != nil || !s.sockets.enter() {
		return rest.ErrStopping
	}
	defer s.sockets.leave()
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return nil // it has answered
	}
	var live wsconn.Liveness
	if !isLocal(r.Context()) {
		live = wsconn.Liveness{WriteTimeout: writeTimeout, PingEvery: pingInterval, PingTimeout: pingTimeout}
	}
	conn := wsconn.New(ws, limit, live)
	defer conn.CloseNow()
	err = serve(r.Context(), conn)
	if err == nil {
		return nil
	}
	failure := s.fail(r.Context(), err)
	if !errors.Is(err, errNoStart) {
		conn.WriteJSON(rest.Frame{Type: rest.FrameError, Error: &failure.Body}) //nolint:errcheck // the close follows
		conn.Close(rest.CloseFailed, "see the frame before")
	}
	return nil
}

func isLocal(ctx context.Context) bool {
	p, _ := ctx.Value(peerKey).(peer)
	return p.local
}
