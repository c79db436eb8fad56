package server_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/taibox/taibox/api/rest"
)

// socket is a WebSocket without the client's help.
type socket struct {
	t  *testing.T
	ws *websocket.Conn
}

func (w *world) dial(t *testing.T, path string) *socket {
	t.Helper()
	ws, _, err := websocket.Dial(w.ctx, "ws://taibox/v1/sandboxes/"+path, &websocket.DialOptions{HTTPClient: w.http})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.CloseNow() })
	ws.SetReadLimit(1 << 20)
	return &socket{t, ws}
}

func (s *socket) send(frame string) {
	s.t.Helper()
	if err := s.ws.Write(context.Background(), websocket.MessageText, []byte(frame)); err != nil {
		s.t.Fatal(err)
	}
}

// next reads a frame; a binary one is raw.
func (s *socket) next() (f rest.Frame, raw []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	typ, p, err := s.ws.Read(ctx)
	if err != nil {
		return f, nil, err
	}
	if typ == websocket.MessageBinary {
		return f, p, nil
	}
	if err := json.Unmarshal(p, &f); err != nil {
		s.t.Fatalf("%v: %s", err, p)
	}
	return f, nil, nil
}

// want reads up to a text frame of a type.
func (s *socket) want(typ string) rest.Frame {
	s.t.Helper()
	for {
		f, raw, err := s.next()
		switch {
		case err != nil:
			s.t.Fatalf("waiting for %s: %v", typ, err)
		case raw != nil:
		case f.Type != typ:
			s.t.Fatalf("waiting for %s: %+v", typ, f)
		default:
			return f
		}
	}
}

// wantClose reads to the end of the socket.
func (s *socket) wantClose(code int) {
	s.t.Helper()
	for {
		if _, _, err := s.next(); err != nil {
			if got := int(websocket.CloseStatus(err)); got != code {
				s.t.Errorf("closed with %d (%v), want %d", got, err, code)
			}
			return
		}
	}
}

func (w *world) startRaw(t *testing.T, box, start string) *socket {
	t.Helper()
	s := w.dial(t, box+"/exec/ws")
	s.send(start)
	s.want(rest.FrameStarted)
	return s
}

func TestFramesOfAnExec(t *testing.T) {
	w := boxWorld(t)
	s := w.dial(t, "b1/exec/ws")
	s.send(`{"type":"start","id":"e1","cmd":["both","2"]}`)
	if f := s.want("started"); string(f.Exec) != `"e1"` {
		t.Errorf("%s", f.Exec)
	}
	s.send(`{"type":"ping"}`)
	var out []string
	for {
		f, raw, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		if raw != nil {
			out = append(out, string(raw))
		}
		if f.Type == "exit" {
			var e rest.Exec
			if err := json.Unmarshal(f.Exec, &e); err != nil || e.ID != "e1" || *e.ExitCode != 0 || e.Bytes != 4 {
				t.Errorf("%s %v", f.Exec, err)
			}
			break
		}
	}
	if strings.Join(out, "|") != "\x011\n|\x022\n" {
		t.Errorf("%q", out)
	}
	s.send(`{"type":"ack","offset":4}`)
	s.wantClose(1000)
}

func TestBadFrames(t *testing.T) {
	w := boxWorld(t)
	for _, c := range []struct{ name, start, frame, code, has string }{
		{"no_json", `{`, "", "BAD_REQUEST", ""},
		{"unknown_key", `{"type":"start","cmd":["true"],"timeout":5}`, "", "BAD_REQUEST", "timeout"},
		{"other_type", `{"type":"ack","offset":1}`, "", "BAD_REQUEST", ""},
		{"detach", `{"type":"start","cmd":["true"],"detach":true}`, "", "BAD_REQUEST", ""},
		{"no_command", `{"type":"start"}`, "", "INVALID_SPEC", "command"},
		{"terminal", `{"type":"start","cmd":["true"],"tty":true,"cols":0,"rows":5}`, "", "INVALID_SPEC", ""},
		{"user", `{"type":"start","cmd":["true"],"user":"ghost"}`, "", "USER_NOT_FOUND", "ghost"},
		{"later_unknown", `{"type":"start","cmd":["sleep","infinity"]}`, `{"type":"dance"}`, "BAD_REQUEST", "dance"},
		{"later_unknown_key", `{"type":"start","cmd":["sleep","infinity"]}`, `{"type":"ack","ofset":1}`, "BAD_REQUEST", "ofset"},
		{"resize", `{"type":"start","cmd":["size"],"tty":true}`, `{"type":"resize","cols":0,"rows":0}`, "INVALID_SPEC", ""},
		{"signal", `{"type":"start","cmd":["sleep","infinity"]}`, `{"type":"signal","signal":4000}`, "INVALID_SPEC", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := w.dial(t, "b1/exec/ws")
			s.send(c.start)
			if c.frame != "" {
				s.want(rest.FrameStarted)
				s.send(c.frame)
			}
			for {
				f, _, err := s.next()
				if err != nil {
					t.Fatal(err)
				}
				if f.Type == rest.FrameError {
					if f.Error.Code != c.code || !strings.Contains(f.Error.Message, c.has) || f.Error.RequestID == "" {
						t.Errorf("%+v", f.Error)
					}
					break
				}
			}
			s.wantClose(rest.CloseFailed)
		})
	}
	t.Run("binary_first", func(t *testing.T) {
		s := w.dial(t, "b1/exec/ws")
		if err := s.ws.Write(w.ctx, websocket.MessageBinary, []byte{0, 1}); err != nil {
			t.Fatal(err)
		}
		if f := s.want(rest.FrameError); f.Error.Code != "BAD_REQUEST" {
			t.Errorf("%+v", f.Error)
		}
	})
	// Whatever came of them, nothing of ours is broken.
	if c := w.run("b1", "echo", "ok"); string(c.stdout) != "ok\n" {
		t.Errorf("%q", c.stdout)
	}
}

// TestE01_SlowReader: nothing is lost, and no more than the window is sent
// ahead of a client that acknowledges nothing.
func TestE01_SlowReader(t *testing.T) {
	w := boxWorld(t)
	s := w.startRaw(t, "b1", `{"type":"start","cmd":["yes","10000000"]}`)
	got := 0
	read := func() bool {
		f, raw, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		got += max(0, len(raw)-1)
		return f.Type != rest.FrameExit
	}
	for got < rest.Window {
		read()
	}
	if got > rest.Window+rest.MaxData {
		t.Errorf("%d bytes were sent ahead", got)
	}
	more := make(chan bool, 1)
	go func() { more <- read() }()
	select {
	case <-more:
		t.Errorf("more was sent ahead: %d bytes", got)
	case <-time.After(100 * time.Millisecond):
	}
	s.send(`{"type":"ack","offset":` + strconv.Itoa(rest.Window) + `}`)
	<-more
	for {
		if !read() {
			break
		}
		s.send(`{"type":"ack","offset":` + strconv.Itoa(got) + `}`)
	}
	if got != 10000000 {
		t.Errorf("%d bytes", got)
	}
}

func TestViewerCannotSteer(t *testing.T) {
	w := boxWorld(t)
	if _, err := w.ExecDetached(w.ctx, "b1", rest.ExecRequest{ID: "e1", Cmd: []string{"sleep", "infinity"}}); err != nil {
		t.Fatal(err)
	}
	for _, frame := range []string{`{"type":"signal","signal":9}`, `{"type":"stdin_eof"}`, `{"type":"resize","cols":1,"rows":1}`} {
		s := w.dial(t, "b1/execs/e1/ws")
		s.send(frame)
		if f := s.want(rest.FrameError); f.Error.Code != "EXEC_BUSY" {
			t.Errorf("%s: %+v", frame, f.Error)
		}
	}
	if e, err := w.GetExec(w.ctx, "b1", "e1"); err != nil || e.State != "running" {
		t.Errorf("%+v %v", e, err)
	}
}

func TestOffsetFrame(t *testing.T) {
	w := boxWorld(t)
	w.runReq("b1", rest.ExecRequest{ID: "e1", Cmd: []string{"echo", "0123456789"}})
	s := w.dial(t, "b1/execs/e1/ws?since=4")
	_, raw, err := s.next()
	if err != nil || len(raw) != 9 || raw[0] != 3 || binary.BigEndian.Uint64(raw[1:]) != 4 {
		t.Errorf("%v %v", raw, err)
	}
	if _, raw, err := s.next(); err != nil || string(raw) != "\x01456789\n" {
		t.Errorf("%q %v", raw, err)
	}
}

// TestN04_ManyWriters: output, pings, acknowledgements and sudden ends at once
// end no more than their own connection.
func TestN04_ManyWriters(t *testing.T) {
	const rounds = 30
	w := boxWorld(t)
	input := append([]byte{0}, pattern(5000)...)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range rounds {
				s := w.startRaw(t, "b1", `{"type":"start","cmd":["cat"],"stdin":true,"on_disconnect":"kill","kill_grace_ms":1}`)
				var in sync.WaitGroup
				for range 2 {
					in.Go(func() {
						for range 20 {
							s.ws.Write(w.ctx, websocket.MessageText, []byte(`{"type":"ping"}`))
							s.ws.Write(w.ctx, websocket.MessageBinary, input)
							s.ws.Write(w.ctx, websocket.MessageText, []byte(`{"type":"ack","offset":999}`))
						}
					})
				}
				for range rand.IntN(20) {
					s.next()
				}
				if i%2 == 0 {
					s.ws.CloseNow()
				} else {
					s.ws.Close(websocket.StatusNormalClosure, "")
				}
				in.Wait()
			}
		})
	}
	wg.Wait()
	if c := w.run("b1", "echo", "alive"); string(c.stdout) != "alive\n" {
		t.Errorf("%q", c.stdout)
	}
	if log := w.log.String(); strings.Contains(log, "level=ERROR") {
		t.Error(log[strings.Index(log, "level=ERROR"):])
	}
}
