package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
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
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
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

func TestE01_LargeOutputArrivesWhole(t *testing.T) {
	w := boxWorld(t)
	want := seq(2000000)
	for range 3 {
		if c := w.run("b1", "seq", "1", "2000000"); !bytes.Equal(c.stdout, want) || c.lost != 0 {
			t.Errorf("%d bytes of %d, %d lost", len(c.stdout), len(want), c.lost)
		}
	}
}

func seq(n int) []byte {
	var b []byte
	for i := 1; i <= n; i++ {
		b = append(strconv.AppendInt(b, int64(i), 10), '\n')
	}
	return b
}

// TestE02_OrderWithinAStream, and over both as they were written.
func TestE02_OrderWithinAStream(t *testing.T) {
	w := boxWorld(t)
	c := w.run("b1", "both", "1000")
	if !bytes.Equal(c.merged, seq(1000)) {
		t.Error("merged output is out of order")
	}
	if !bytes.HasPrefix(c.stdout, []byte("1\n3\n5\n")) || !bytes.HasPrefix(c.stderr, []byte("2\n4\n6\n")) {
		t.Errorf("%.20q %.20q", c.stdout, c.stderr)
	}
}

// cutter is a socket in front of the server's whose connections can be cut.
type cutter struct {
	ln    net.Listener
	to    string
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func newCutter(t *testing.T, w *world) (*cutter, *client.Client) {
	t.Helper()
	ln, err := net.Listen("unix", w.socket+"c")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{ln: ln, to: w.socket, conns: map[net.Conn]struct{}{}}
	c.wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			c.wg.Go(func() { c.join(conn) })
		}
	})
	cl, err := client.New("unix://" + w.socket + "c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cl.Close()
		ln.Close()
		c.cut()
		c.wg.Wait()
	})
	return c, cl
}

func (c *cutter) join(a net.Conn) {
	b, err := net.Dial("unix", c.to)
	if err != nil {
		a.Close()
		return
	}
	c.mu.Lock()
	c.conns[a], c.conns[b] = struct{}{}, struct{}{}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			io.Copy(p[0], p[1])
			a.Close()
			b.Close()
		})
	}
	wg.Wait()
	c.mu.Lock()
	delete(c.conns, a)
	delete(c.conns, b)
	c.mu.Unlock()
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		conn.Close()
	}
}

// TestE08_ResumeAtTheSameByte: links that break at random places leave no
// trace in the output.
func TestE08_ResumeAtTheSameByte(t *testing.T) {
	w := boxWorld(t)
	cut, cl := newCutter(t, w)
	const n = 1500000
	s, err := cl.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"seq", "1", strconv.Itoa(n)}})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	next, cuts := 0, 0
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes and %d cuts: %v", len(got), cuts, err)
		}
		if c.Offset != int64(len(got)) {
			t.Fatalf("offset %d after %d bytes", c.Offset, len(got))
		}
		got = append(got, c.Data...)
		if err := s.Ack(c.End()); err != nil {
			t.Fatal(err)
		}
		if len(got) > next {
			cut.cut()
			cuts++
			next = len(got) + rand.IntN(400000)
		}
	}
	if cuts < 20 || !bytes.Equal(got, seq(n)) {
		t.Errorf("%d bytes after %d cuts", len(got), cuts)
	}
	if info, err := s.Wait(w.ctx); err != nil || *info.ExitCode != 0 {
		t.Errorf("%+v %v", info, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestE08_Since(t *testing.T) {
	w := boxWorld(t)
	w.runReq("b1", rest.ExecRequest{ID: "e1", Cmd: []string{"seq", "1", "5"}})
	w.runReq("b1", rest.ExecRequest{ID: "e2", Cmd: []string{"seq", "1", "100000"}, MaxLog: 4096})
	if _, err := w.ExecDetached(w.ctx, "b1", rest.ExecRequest{ID: "e3", Cmd: []string{"trap"}}); err != nil {
		t.Fatal(err)
	}
	read := func(exec string, o taisandbox.AttachOptions) (offset int64, data string, lost int64) {
		t.Helper()
		s, err := w.Attach(w.ctx, "b1", exec, o)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		offset = -1
		for {
			c, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return offset, data, lost
			}
			if err != nil {
				t.Fatal(err)
			}
			if offset < 0 {
				offset = c.Offset
			}
			data += string(c.Data)
			lost += c.Lost
		}
	}
	for since, want := range map[int64]string{0: "1\n2\n3\n4\n5\n", 4: "3\n4\n5\n", 10: "", 99: "", -1: ""} {
		if _, got, lost := read("e1", taisandbox.AttachOptions{Since: since}); got != want || lost != 0 {
			t.Errorf("since %d: %q, %d lost", since, got, lost)
		}
	}
	if offset, got, lost := read("e2", taisandbox.AttachOptions{Since: 100}); offset != 100 || len(got) != 4096 || lost != 588895-4096-100 {
		t.Errorf("a gap: from %d, %d bytes, %d lost", offset, len(got), lost)
	}
	eventually(t, "the present end of a running command", func() bool {
		_, got, _ := read("e3", taisandbox.AttachOptions{NoFollow: true})
		return got == "ready\n"
	})
}

// TestTakeover: one client holds an exec; another is refused, or puts it out.
func TestTakeover(t *testing.T) {
	w := boxWorld(t)
	first := w.startRaw(t, "b1", `{"type":"start","id":"e1","cmd":["cat"],"stdin":true}`)
	status, _, body := w.call("GET", "/v1/sandboxes/b1/execs/e1/ws?hold=1", "", wsHeader...)
	if status != http.StatusConflict || failure(t, body).Code != "EXEC_BUSY" {
		t.Errorf("%d %s", status, body)
	}
	viewer, err := w.Attach(w.ctx, "b1", "e1", taisandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := viewer.Write([]byte("x")); !errors.Is(err, taisandbox.ErrExecBusy) {
		t.Errorf("a viewer feeds: %v", err)
	}
	second, err := w.Attach(w.ctx, "b1", "e1", taisandbox.AttachOptions{Hold: true, Takeover: true})
	if err != nil {
		t.Fatal(err)
	}
	first.wantClose(4001)
	third, err := w.Attach(w.ctx, "b1", "e1", taisandbox.AttachOptions{Hold: true, Takeover: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Recv(); !errors.Is(err, taisandbox.ErrExecBusy) {
		t.Errorf("the one put out reads: %v", err)
	}
	if _, err := second.Write([]byte("x")); !errors.Is(err, taisandbox.ErrExecBusy) {
		t.Errorf("the one put out feeds: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if _, err := third.Write([]byte("hi")); err != nil {
		t.Error(err)
	}
	if err := third.CloseWrite(); err != nil {
		t.Error(err)
	}
	for _, s := range []client.Stream{third, viewer} {
		if c := readAll(t, s); string(c.stdout) != "hi" {
			t.Errorf("%q", c.stdout)
		}
	}
	viewerRaw := w.dial(t, "b1/execs/e1/ws?since=2")
	viewerRaw.want(rest.FrameExit)
}

var wsHeader = []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}

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

// TestD04_Disconnect: what a client that goes away leaves is what it asked for.
func TestD04_Disconnect(t *testing.T) {
	w := boxWorld(t)
	leave := map[string]func(*socket){
		"vanish": func(s *socket) { s.ws.CloseNow() },
		"hangup": func(s *socket) { s.send(`{"type":"hangup"}`); s.wantClose(1000) },
		"page":   func(s *socket) { s.ws.Close(websocket.StatusGoingAway, "") },
		"close":  func(s *socket) { s.ws.Close(websocket.StatusNormalClosure, "") },
	}
	for how, f := range leave {
		for _, rule := range []string{"keep", "kill", ""} {
			id := "e-" + how + rule
			s := w.startRaw(t, "b1", `{"type":"start","id":"`+id+`","cmd":["sleep","infinity"],"on_disconnect":"`+rule+`","kill_grace_ms":100,"lease_ms":600000}`)
			f(s)
			want := "running"
			if rule == "kill" && how != "close" {
				want = "exited"
			}
			if want == "running" {
				time.Sleep(50 * time.Millisecond)
			}
			eventually(t, id+" is "+want, func() bool {
				e, err := w.GetExec(w.ctx, "b1", id)
				return err == nil && e.State == want
			})
		}
	}
}

func TestSignalsAndSizes(t *testing.T) {
	w := boxWorld(t)
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"trap-exit", "9"}})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := s.Recv(); err != nil || string(c.Data) != "ready\n" {
		t.Fatalf("%q %v", c.Data, err)
	}
	if err := s.Signal(taisandbox.KillOptions{Signal: 15, Group: true}); err != nil {
		t.Error(err)
	}
	if c := readAll(t, s); *c.info.ExitCode != 9 {
		t.Errorf("%+v", c.info)
	}
	if err := s.Signal(taisandbox.KillOptions{}); err == nil {
		t.Error("a signal after the end")
	}

	// T01: the size is part of the start, and a change is seen.
	s, err = w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"size"}, TTY: true, Stdin: true, Cols: 132, Rows: 43})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	until := func(text string) {
		t.Helper()
		for !strings.Contains(got.String(), text) {
			c, err := s.Recv()
			if err != nil {
				t.Fatalf("%q: %v", got.String(), err)
			}
			got.Write(c.Data)
			s.Ack(c.End())
		}
	}
	until("43 132")
	if err := s.Resize(taisandbox.Size{}); !errors.Is(err, taisandbox.ErrInvalidSpec) {
		t.Errorf("0x0: %v", err)
	}
	for i := range 100 { // a storm: the last one wins
		if err := s.Resize(taisandbox.Size{Cols: uint16(100 + i), Rows: 50}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Resize(taisandbox.Size{Cols: 77, Rows: 11}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	until("11 77")
	if err := s.Hangup(); err != nil {
		t.Error(err)
	}
	if _, err := s.Recv(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Hangup: %v", err)
	}
}

// TestOneShot: once Close has returned, the box is gone.
func TestOneShot(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		id := "b" + strconv.Itoa(i)
		w.create(rest.CreateBox{ID: id, Policy: "oneshot"})
		cmd := []string{"echo", "hi"}
		if i%2 == 0 {
			cmd = []string{"true"}
		}
		if c := w.run(id, cmd...); *c.info.ExitCode != 0 {
			t.Errorf("%+v", c.info)
		}
		if boxes, err := w.ListBoxes(w.ctx, rest.ListBoxes{}); err != nil || len(boxes) != 0 {
			t.Fatalf("round %d: %v %v", i, boxes, err)
		}
	}
	w.create(rest.CreateBox{ID: "hung", Policy: "oneshot"})
	s, err := w.Exec(w.ctx, "hung", rest.ExecRequest{Cmd: []string{"sleep", "infinity"}, OnDisconnect: "kill", KillGraceMs: 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Hangup(); err != nil {
		t.Error(err)
	}
	eventually(t, "the box of a command that was hung up goes", func() bool {
		boxes, err := w.ListBoxes(w.ctx, rest.ListBoxes{})
		return err == nil && len(boxes) == 0
	})
	w.create(rest.CreateBox{ID: "once", Policy: "oneshot"})
	if r := w.collect("once", rest.ExecRequest{Cmd: []string{"echo", "x"}}); *r.Stdout != "x\n" {
		t.Errorf("%+v", r)
	}
	if boxes, err := w.ListBoxes(w.ctx, rest.ListBoxes{}); err != nil || len(boxes) != 0 {
		t.Errorf("after a collect: %v %v", boxes, err)
	}
}

// TestK13_BigCommands: what is too big is said so, and what is not arrives.
func TestK13_BigCommands(t *testing.T) {
	w := boxWorld(t)
	for _, n := range []int{100 << 10, 128<<10 - 1, 1 << 20, 3 << 20} {
		s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"echo", strings.Repeat("x", n)}})
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if c := readAll(t, s); len(c.stdout) != n+1 {
			t.Errorf("%d bytes: %d arrived", n, len(c.stdout))
		}
	}
	env := map[string]string{"A": strings.Repeat("x", 200<<10)}
	if c := w.runReq("b1", rest.ExecRequest{Cmd: []string{"env"}, Env: env}); len(c.stdout) < 200<<10 {
		t.Errorf("%d bytes of environment", len(c.stdout))
	}
	if _, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"echo", strings.Repeat("x", 5<<20)}}); !errors.Is(err, rest.ErrTooLarge) {
		t.Errorf("5 MiB by the client: %v", err)
	}
	s := w.dial(t, "b1/exec/ws")
	s.ws.Write(w.ctx, websocket.MessageText, []byte(`{"type":"start","cmd":["echo","`+strings.Repeat("x", 5<<20)+`"]}`))
	s.wantClose(1009)
	if r := w.collect("b1", rest.ExecRequest{Cmd: []string{"cat"}, StdinB64: make([]byte, 5<<20)}); r.Bytes != 5<<20 {
		t.Errorf("5 MiB of input: %d", r.Bytes)
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

// TestInputAndOutputDoNotWaitForEachOther: a command that copies, a client that
// writes far ahead of what it reads.
func TestInputAndOutputDoNotWaitForEachOther(t *testing.T) {
	w := boxWorld(t)
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"cat"}, Stdin: true, MaxLog: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	in := pattern(16 << 20)
	go func() {
		s.Write(in)
		s.CloseWrite()
	}()
	time.Sleep(50 * time.Millisecond)
	if c := readAll(t, s); !bytes.Equal(c.stdout, in) || c.lost != 0 {
		t.Errorf("%d of %d bytes, %d lost", len(c.stdout), len(in), c.lost)
	}
}

// TestC_WaitDoesNotNeedRecv: the end is known although the output is not read.
func TestC_WaitDoesNotNeedRecv(t *testing.T) {
	w := boxWorld(t)
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"yes", "5000000"}})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := s.Wait(w.ctx); err != nil || *info.ExitCode != 0 {
		t.Errorf("%+v %v", info, err)
	}
	if c := readAll(t, s); len(c.stdout) != 5000000 {
		t.Errorf("%d bytes", len(c.stdout))
	}
	s, err = w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"sleep", "infinity"}, OnDisconnect: "kill"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := s.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := s.Hangup(); err != nil {
		t.Error(err)
	}
}

// TestStreamFailure: a node that fails in the middle is a failure of ours.
func TestStreamFailure(t *testing.T) {
	fault, err := fake.Failpoints("exec.start:error(NO_SPACE)")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, fake.WithFault(fault))
	w.create(rest.CreateBox{ID: "b1"})
	if _, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"true"}}); !errors.Is(err, taisandbox.ErrNoSpace) {
		t.Errorf("%v", err)
	}
	if _, err := w.Exec(w.ctx, "nosuch", rest.ExecRequest{Cmd: []string{"true"}}); !errors.Is(err, taisandbox.ErrNotFound) {
		t.Errorf("%v", err)
	}
}
