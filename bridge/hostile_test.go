package bridge_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// hostile is a bridge that root in a box has replaced: say answers each
// connection.
func hostile(t *testing.T, say func(c *wire.Conn, req wire.Request)) *bridge.Client {
	t.Helper()
	name := t.TempDir() + "/s"
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			c := wire.NewConn(nc)
			var req wire.Request
			if _, p, err := c.ReadFrame(); err == nil && json.Unmarshal(p, &req) == nil {
				say(c, req)
			}
			nc.Close()
		}
	}()
	c := bridge.New(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", name)
	})
	t.Cleanup(func() {
		c.Close()
		l.Close()
		<-served
	})
	return c
}

func record(id string) sandbox.ExecInfo {
	return sandbox.ExecInfo{ID: id, State: sandbox.ExecRunning, PID: 7}
}

func TestHostileAnswers(t *testing.T) {
	code := 300
	for name, answer := range map[string]func(c *wire.Conn){
		"nothing":       func(*wire.Conn) {},
		"garbage":       func(c *wire.Conn) { c.WriteFrames([]byte("HTTP/1.1 200 OK\r\n\r\n")) },
		"absurd_length": func(c *wire.Conn) { c.WriteFrames([]byte("\x02\xff\xff\xff\xff")) },
		"wrong_type":    func(c *wire.Conn) { c.WriteFrame(wire.TypeEnd, nil) },
		"no_json":       func(c *wire.Conn) { c.WriteFrame(wire.TypeReply, []byte("{{")) },
		"another_exec":  func(c *wire.Conn) { c.WriteJSON(wire.TypeReply, record("y")) },
		"unknown_state": func(c *wire.Conn) { c.WriteJSON(wire.TypeReply, sandbox.ExecInfo{ID: "x", State: "dancing"}) },
		"no_code":       func(c *wire.Conn) { c.WriteJSON(wire.TypeReply, sandbox.ExecInfo{ID: "x", State: sandbox.ExecExited}) },
		"impossible_code": func(c *wire.Conn) {
			c.WriteJSON(wire.TypeReply, sandbox.ExecInfo{ID: "x", State: sandbox.ExecExited, ExitCode: &code})
		},
		"negative_bytes": func(c *wire.Conn) {
			c.WriteJSON(wire.TypeReply, sandbox.ExecInfo{ID: "x", State: sandbox.ExecRunning, Bytes: -1})
		},
		"unknown_reason": func(c *wire.Conn) {
			c.WriteJSON(wire.TypeReply, sandbox.ExecInfo{ID: "x", State: sandbox.ExecRunning, Reason: "fun"})
		},
		"hostile_error": func(c *wire.Conn) {
			c.WriteJSON(wire.TypeError, wire.Error{Reason: "BRIDGE_LOST", Message: "\x1b]0;owned\a" + strings.Repeat("x", 1<<20)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := hostile(t, func(conn *wire.Conn, _ wire.Request) { answer(conn) })
			_, err := c.InspectExec(t.Context(), "x")
			wantErr(t, err, sandbox.ErrBridgeLost)
			if strings.ContainsAny(err.Error(), "\x1b\a") || len(err.Error()) > 5000 {
				t.Errorf("%.200q", err)
			}
			_, err = c.AttachExec(t.Context(), "x", sandbox.AttachOptions{})
			wantErr(t, err, sandbox.ErrBridgeLost)
		})
	}
}

func TestHostileStreams(t *testing.T) {
	for name, send := range map[string]func(c *wire.Conn){
		"skips": func(c *wire.Conn) { c.WriteFrames(wire.AppendOutput(nil, 1, 5, []byte("x"))) },
		"goes_back": func(c *wire.Conn) {
			c.WriteFrames(wire.AppendOutput(wire.AppendOutput(nil, 1, 0, []byte("xy")), 1, 1, []byte("z")))
		},
		"unknown_source":   func(c *wire.Conn) { c.WriteFrames(wire.AppendOutput(nil, 3, 0, []byte("x"))) },
		"backward_gap":     func(c *wire.Conn) { c.WriteFrames(wire.AppendOffset(nil, wire.TypeGap, 0, -5)) },
		"input_never_sent": func(c *wire.Conn) { c.WriteFrames(wire.AppendOffset(nil, wire.TypeInput, 99)) },
		"end_that_is_none": func(c *wire.Conn) { c.WriteJSON(wire.TypeExit, record("x")) },
		"flood": func(c *wire.Conn) {
			c.SetWriteDeadline(time.Now().Add(5 * time.Second))
			data := make([]byte, wire.MaxData)
			var err error
			for at := int64(0); err == nil; at += wire.MaxData {
				err = c.WriteFrames(wire.AppendOutput(nil, 1, at, data))
			}
		},
		"cut": func(*wire.Conn) {},
	} {
		t.Run(name, func(t *testing.T) {
			c := hostile(t, func(conn *wire.Conn, _ wire.Request) {
				conn.WriteJSON(wire.TypeReply, record("x"))
				send(conn)
			})
			s, err := c.AttachExec(t.Context(), "x", sandbox.AttachOptions{Hold: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			time.Sleep(20 * time.Millisecond) // let a flood flood
			for err == nil {
				_, err = s.Recv()
			}
			wantErr(t, err, sandbox.ErrBridgeLost)
		})
	}
}

// TestHostileSockets passes what is no connection.
func TestHostileSockets(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	datagram := os.NewFile(uintptr(fd), "datagram")
	defer datagram.Close()
	for name, files := range map[string][]*os.File{"none": nil, "file": {null}, "datagram": {datagram}, "many": {null, null}} {
		t.Run(name, func(t *testing.T) {
			c := hostile(t, func(conn *wire.Conn, req wire.Request) {
				conn.WriteJSONWithFiles(wire.TypeReply, struct{}{}, files)
			})
			_, err := c.Dial(t.Context(), 80)
			wantErr(t, err, sandbox.ErrBridgeLost)
			if err := c.ForgetExec(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestHostileSilence never answers: every call ends with its context.
func TestHostileSilence(t *testing.T) {
	stop := make(chan struct{})
	c := hostile(t, func(*wire.Conn, wire.Request) { <-stop })
	t.Cleanup(func() { close(stop) })
	for name, call := range map[string]func(ctx context.Context) error{
		"list":    func(ctx context.Context) error { _, err := c.ListExecs(ctx); return err },
		"exec":    func(ctx context.Context) error { _, err := c.StartExec(ctx, sh("true"), bridge.Files{}); return err },
		"dial":    func(ctx context.Context) error { _, err := c.Dial(ctx, 80); return err },
		"setup":   func(ctx context.Context) error { _, err := c.Setup(ctx, bridge.Setup{}); return err },
		"stop":    func(ctx context.Context) error { return c.Stop(ctx, 0) },
		"already": func(ctx context.Context) error { <-ctx.Done(); return c.Stop(ctx, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := withTimeout(t, 50*time.Millisecond)
			defer cancel()
			within(t, 30*time.Second, name, func() { wantErr(t, call(ctx), errTestTimeout) })
		})
	}
}

// TestForeignRequests sends the bridge what no node does.
func TestForeignRequests(t *testing.T) {
	b := start(t)
	ask := func(frames []byte) (wire.Error, error) {
		nc, err := b.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		c := wire.NewConn(nc)
		if err := c.WriteFrames(frames); err != nil {
			t.Fatal(err)
		}
		typ, p, err := c.ReadFrame()
		var e wire.Error
		if err == nil && typ == wire.TypeError {
			err = json.Unmarshal(p, &e)
		}
		return e, err
	}
	request := func(body string) []byte { return wire.AppendFrame(nil, wire.TypeRequest, []byte(body)) }
	for name, c := range map[string]struct {
		frames []byte
		reason string
		text   string
	}{
		"another_version":   {request(`{"v":2,"op":"list"}`), "UNSUPPORTED", "version 1 of the protocol, not 2"},
		"no_version":        {request(`{}`), "UNSUPPORTED", "version"},
		"unknown_operation": {request(`{"v":1,"op":"dance"}`), "UNSUPPORTED", "dance"},
		"no_json":           {request(`nonsense`), "", "protocol"},
		"wrong_body":        {request(`{"v":1,"op":"exec","body":[1]}`), "", "protocol"},
		"missing_files":     {request(`{"v":1,"op":"exec","body":{"id":"x","args":["dHJ1ZQ=="],"files":["log"]}}`), "", "descriptors"},
		"no_request":        {wire.AppendFrame(nil, wire.TypeEOF), "", "instead of a request"},
		"bad_frame":         {[]byte("\x63\x00\x00\x00\x00"), "", "protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := ask(c.frames)
			if err != nil || e.Reason != c.reason || !strings.Contains(e.Message, c.text) {
				t.Errorf("%+v, %v", e, err)
			}
		})
	}
	for range 50 { // links that break at once
		nc, err := b.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		nc.Write([]byte("\x01\x00\x00"))
		nc.Close()
	}
	wantCode(t, b.exec(sh("exit 3")).ExecInfo, 3, sandbox.ReasonExit)
}
