package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
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

// TestOneShotSlowRemoval: so it is also where that takes a while.
func TestOneShotSlowRemoval(t *testing.T) {
	const slow = 2500 * time.Millisecond // longer than a socket waits for anything else
	w := newWorld(t, fake.WithFault(func(op, _ string) error {
		if op == "remove.runtime" {
			<-time.After(slow)
		}
		return nil
	}))
	w.create(rest.CreateBox{ID: "b1", Policy: "oneshot"})
	w.run("b1", "true")
	if b, err := w.GetBox(w.ctx, "b1"); !errors.Is(err, taisandbox.ErrNotFound) {
		t.Errorf("after Close: %s, %v", b.Status, err)
	}
}

// TestK13_BigCommands: what is too big is said so, and what is not arrives.
func TestK13_BigCommands(t *testing.T) {
	w := boxWorld(t)
	for _, n := range []int{100 << 10, 128<<10 - 1} {
		if c := w.run("b1", "echo", strings.Repeat("x", n)); len(c.stdout) != n+1 {
			t.Errorf("%d bytes: %d arrived", n, len(c.stdout))
		}
	}
	for says, req := range map[string]rest.ExecRequest{
		"argument 1 is 131072 bytes":  {Cmd: []string{"echo", strings.Repeat("x", 128<<10)}},
		"argument 1 is 3145728 bytes": {Cmd: []string{"echo", strings.Repeat("x", 3<<20)}},
		`variable "A" with its name`:  {Cmd: []string{"env"}, Env: map[string]string{"A": strings.Repeat("x", 200<<10)}},
		"long in all":                 {Cmd: append([]string{"echo"}, slices.Repeat([]string{strings.Repeat("x", 120<<10)}, 20)...)},
	} {
		if r := w.collect("b1", req); *r.ExitCode != 126 || !strings.Contains(r.Error, says) || !strings.Contains(r.Error, "stdin") {
			t.Errorf("%q: code %d, %q", says, *r.ExitCode, r.Error)
		}
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
