package server_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// collect runs a command by the route that collects.
func (w *world) collect(box string, req rest.ExecRequest) rest.ExecResult {
	w.t.Helper()
	raw, err := json.Marshal(req)
	if err != nil {
		w.t.Fatal(err)
	}
	status, _, body := w.call(http.MethodPost, "/v1/sandboxes/"+box+"/exec", string(raw))
	if status != http.StatusOK {
		w.t.Fatalf("exec %v: %d %s", req.Cmd, status, body)
	}
	var r rest.ExecResult
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		w.t.Fatal(err)
	}
	return r
}

func boxWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1"})
	return w
}

func wantEnd(t *testing.T, what string, code *int, signal, reason string, wantCode int, wantSignal, wantReason string) {
	t.Helper()
	if code == nil || *code != wantCode || signal != wantSignal || reason != wantReason {
		t.Errorf("%s: code %v signal %q reason %q, want %d %q %q", what, code, signal, reason, wantCode, wantSignal, wantReason)
	}
}

// TestA_ExitCodes: the record, the stream and the answer say the same.
func TestA_ExitCodes(t *testing.T) {
	w := boxWorld(t)
	for _, c := range []struct {
		cmd    []string
		req    rest.ExecRequest
		code   int
		signal string
		reason string
	}{
		{cmd: []string{"true"}, code: 0, reason: "exit"},
		{cmd: []string{"exit", "7"}, code: 7, reason: "exit"},
		{cmd: []string{"exit", "255"}, code: 255, reason: "exit"},
		{cmd: []string{"/no/such"}, code: 127, reason: "exit"},
		{cmd: []string{"kill-self", "11"}, code: 139, signal: "SIGSEGV", reason: "signal"},
		{cmd: []string{"oom"}, code: 137, signal: "SIGKILL", reason: "oom"},
		{cmd: []string{"sleep", "60"}, req: rest.ExecRequest{TimeoutMs: 50}, code: 143, signal: "SIGTERM", reason: "timeout"},
	} {
		t.Run(strings.Join(c.cmd, "_"), func(t *testing.T) {
			req := c.req
			req.Cmd = c.cmd
			r := w.collect("b1", req)
			wantEnd(t, "collected", r.ExitCode, r.Signal, r.Reason, c.code, c.signal, c.reason)
			if r.Source != "command" || r.ExecID == "" {
				t.Errorf("A08: %+v", r)
			}
			if c.code == 127 && (r.Error == "" || r.Stderr == nil || *r.Stderr == "") {
				t.Errorf("A05: no reason on stderr: %+v", r)
			}
			e, err := w.WaitExec(w.ctx, "b1", r.ExecID)
			if err != nil {
				t.Fatal(err)
			}
			wantEnd(t, "record", e.ExitCode, e.Signal, e.Reason, c.code, c.signal, c.reason)
			s := w.runReq("b1", req)
			wantEnd(t, "stream", s.info.ExitCode, s.info.Signal, string(s.info.Reason), c.code, c.signal, c.reason)
		})
	}
}

// TestA02_NeverZeroBeforeTheEnd: no code before the record is final.
func TestA02_NeverZeroBeforeTheEnd(t *testing.T) {
	w := boxWorld(t)
	for range 200 {
		e, err := w.ExecDetached(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"exit", "7"}})
		if err != nil {
			t.Fatal(err)
		}
		if e.ExitCode != nil && *e.ExitCode != 7 {
			t.Fatalf("at once: %+v", e)
		}
		if e, err = w.WaitExec(w.ctx, "b1", e.ID); err != nil || e.ExitCode == nil || *e.ExitCode != 7 {
			t.Fatalf("waited: %+v %v", e, err)
		}
	}
}

func TestB01_ShortInputsAllEnd(t *testing.T) {
	w := boxWorld(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"cat"}, Stdin: true})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.Write([]byte("x")); err != nil {
					t.Error(err)
				}
				if err := s.CloseWrite(); err != nil {
					t.Error(err)
				}
				if c := readAll(t, s); string(c.stdout) != "x" || *c.info.ExitCode != 0 {
					t.Errorf("%q %+v", c.stdout, c.info)
				}
				if r := w.collect("b1", rest.ExecRequest{Cmd: []string{"cat"}, StdinB64: []byte("y")}); *r.Stdout != "y" {
					t.Errorf("%+v", r)
				}
			}
		})
	}
	wg.Wait()
}

func TestB02_InputOfAnySize(t *testing.T) {
	w := boxWorld(t)
	for _, n := range []int{0, 1, 4095, 4096, 65535, 65536, 65537, 1 << 20, 1<<20 + 1, 10 << 20} {
		in := pattern(n)
		s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"cat"}, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		fed := make(chan error, 1)
		go func() {
			_, err := s.Write(in)
			if err == nil {
				err = s.CloseWrite()
			}
			fed <- err
		}()
		c := readAll(t, s)
		if err := <-fed; err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		if !bytes.Equal(c.stdout, in) {
			t.Errorf("%d bytes: got %d", n, len(c.stdout))
		}
		if n <= 1<<16+1 {
			r := w.collect("b1", rest.ExecRequest{Cmd: []string{"cat"}, StdinB64: in})
			if got := text(r.Stdout, r.StdoutB64); !bytes.Equal(got, in) {
				t.Errorf("%d bytes collected: got %d", n, len(got))
			}
		}
	}
}

func text(s *string, b []byte) []byte {
	if s != nil {
		return []byte(*s)
	}
	return b
}

// pattern is n bytes that repeat nowhere near.
func pattern(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d,", i)
	}
	return b.Bytes()[:n]
}

// TestB04_OutputAfterTheEndOfInput: the two directions are independent.
func TestB04_OutputAfterTheEndOfInput(t *testing.T) {
	w := boxWorld(t)
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"drain", "1000"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("q\n")); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if c := readAll(t, s); bytes.Count(c.stdout, []byte("\n")) != 1000 {
		t.Errorf("%d lines", bytes.Count(c.stdout, []byte("\n")))
	}
}

func TestB05_InputNotAskedForIsEmpty(t *testing.T) {
	w := boxWorld(t)
	if c := w.run("b1", "cat"); *c.info.ExitCode != 0 || len(c.stdout) != 0 {
		t.Errorf("%+v", c)
	}
	if r := w.collect("b1", rest.ExecRequest{Cmd: []string{"cat"}}); *r.ExitCode != 0 || *r.Stdout != "" {
		t.Errorf("%+v", r)
	}
	// A command that ends without reading does not hold its writer.
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"true"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	fed := make(chan error, 1)
	go func() {
		_, err := s.Write(make([]byte, 8<<20))
		fed <- err
	}()
	readAll(t, s)
	if err := <-fed; err == nil {
		t.Error("8 MiB were written to a command that reads nothing")
	}
	if r := w.collect("b1", rest.ExecRequest{Cmd: []string{"true"}, StdinB64: make([]byte, 3<<20)}); *r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
}

// TestD05_NoDefaultLimit: a detached command goes on, and says what it is.
func TestD05_NoDefaultLimit(t *testing.T) {
	w := boxWorld(t)
	e, err := w.ExecDetached(w.ctx, "b1", rest.ExecRequest{ID: "bg", Cmd: []string{"sleep", "infinity"}, Env: map[string]string{"SECRET": "x"}})
	if err != nil || e.State != "running" || e.ID != "bg" || len(e.EnvNames) != 1 || e.EnvNames[0] != "SECRET" {
		t.Fatalf("%+v %v", e, err)
	}
	time.Sleep(20 * time.Millisecond)
	if execs, err := w.ListExecs(w.ctx, "b1"); err != nil || len(execs) != 1 || execs[0].State != "running" || execs[0].DurationMs < 10 {
		t.Errorf("%+v %v", execs, err)
	}
	if err := w.KillExec(w.ctx, "b1", "bg", taisandbox.KillOptions{Signal: 9, Tree: true}); err != nil {
		t.Error(err)
	}
	e, err = w.WaitExec(w.ctx, "b1", "bg")
	if err != nil {
		t.Fatal(err)
	}
	wantEnd(t, "killed", e.ExitCode, e.Signal, e.Reason, 137, "SIGKILL", "killed")
	if got, err := w.GetExec(w.ctx, "b1", "bg"); err != nil || got.DurationMs != e.DurationMs || got.Ended.IsZero() {
		t.Errorf("%+v %v", got, err)
	}
}

// TestE04_TextOrBase64: what is not UTF-8 is not bent into it.
func TestE04_TextOrBase64(t *testing.T) {
	w := boxWorld(t)
	rocket := "🚀"
	r := w.collect("b1", rest.ExecRequest{Cmd: []string{"cat"}, StdinB64: []byte(rocket)})
	if r.Stdout == nil || *r.Stdout != rocket || r.StdoutB64 != nil {
		t.Errorf("%+v", r)
	}
	raw := []byte{0xff, 0xfe, 0}
	status, _, body := w.call(http.MethodPost, "/v1/sandboxes/b1/exec", `{"cmd":["cat"],"stdin_b64":"`+base64.StdEncoding.EncodeToString(raw)+`"}`)
	if status != http.StatusOK || !strings.Contains(body, `"stdout_b64":"//4A"`) || strings.Contains(body, `"stdout":`) || !strings.Contains(body, `"stderr":""`) {
		t.Errorf("%d %s", status, body)
	}
}

// TestE07_CollectHasACap: cut while reading, at a whole character, and said.
func TestE07_CollectHasACap(t *testing.T) {
	w := boxWorld(t)
	r := w.collect("b1", rest.ExecRequest{Cmd: []string{"yes", "50000000"}, MaxOutput: 1000})
	if !r.Truncated || len(*r.Stdout) != 1000 || r.Bytes != 50000000 || *r.ExitCode != 0 {
		t.Errorf("truncated %v, %d bytes of %d", r.Truncated, len(*r.Stdout), r.Bytes)
	}
	if hole := (rest.Omission{At: 500, Bytes: 50000000 - 1000}); r.StdoutOmitted == nil || *r.StdoutOmitted != hole || r.StderrOmitted != nil {
		t.Errorf("%+v and %+v were left out", r.StdoutOmitted, r.StderrOmitted)
	}
	for max := int64(1); max < 9; max++ {
		r := w.collect("b1", rest.ExecRequest{Cmd: []string{"cat"}, StdinB64: []byte("a🚀é🚀"), MaxOutput: max})
		if r.Stdout == nil || !utf8.ValidString(*r.Stdout) || !r.Truncated || int64(len(*r.Stdout)) > max {
			t.Errorf("cut at %d: %+v", max, r)
		}
	}
	if r := w.collect("b1", rest.ExecRequest{Cmd: []string{"both", "10"}}); *r.Stdout != "1\n3\n5\n7\n9\n" || *r.Stderr != "2\n4\n6\n8\n10\n" || r.Truncated {
		t.Errorf("%+v", r)
	}
}

func TestOutputRoute(t *testing.T) {
	w := boxWorld(t)
	w.runReq("b1", rest.ExecRequest{ID: "e1", Cmd: []string{"both", "6"}})
	w.runReq("b1", rest.ExecRequest{ID: "e2", Cmd: []string{"seq", "1", "100000"}, MaxLog: 4096})
	w.runReq("b1", rest.ExecRequest{ID: "e3", Cmd: []string{"true"}})
	if _, err := w.ExecDetached(w.ctx, "b1", rest.ExecRequest{ID: "e4", Cmd: []string{"trap"}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, body, offset string }{
		{"e1/output", "1\n2\n3\n4\n5\n6\n", "0"},
		{"e1/output?since=6", "4\n5\n6\n", "6"},
		{"e1/output?since=12", "", "12"},
		{"e1/output?since=1000", "", "1000"},
		{"e3/output", "", "0"},
	} {
		status, header, body := w.call("GET", "/v1/sandboxes/b1/execs/"+c.path, "")
		if status != http.StatusOK || body != c.body || header.Get("X-Taibox-Offset") != c.offset || header.Get("Content-Type") != "application/octet-stream" {
			t.Errorf("%s: %d %q %v", c.path, status, body, header)
		}
	}
	eventually(t, "what a running command has said", func() bool {
		_, _, body := w.call("GET", "/v1/sandboxes/b1/execs/e4/output", "")
		return body == "ready\n"
	})
	status, header, body := w.call("GET", "/v1/sandboxes/b1/execs/e2/output", "")
	if status != http.StatusOK || len(body) != 4096 || !strings.HasSuffix(body, "\n100000\n") || header.Get("X-Taibox-Offset") != fmt.Sprint(588895-4096) {
		t.Errorf("%d, %d bytes from %s", status, len(body), header.Get("X-Taibox-Offset"))
	}
}

// TestD04_ClientOfACollectGoesAway: on_disconnect applies, and it is keep
// unless asked for.
func TestD04_ClientOfACollectGoesAway(t *testing.T) {
	w := boxWorld(t)
	for id, want := range map[string]string{"keep": "running", "kill": "exited"} {
		raw := fmt.Sprintf(`{"id":%q,"cmd":["sleep","infinity"],"on_disconnect":%q,"kill_grace_ms":100}`, id, id)
		conn := w.dialRaw(t)
		fmt.Fprintf(conn, "POST /v1/sandboxes/b1/exec HTTP/1.1\r\nHost: taibox\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(raw), raw)
		eventually(t, "it runs", func() bool {
			e, err := w.GetExec(w.ctx, "b1", id)
			return err == nil && e.State == "running"
		})
		conn.Close()
		if want == "running" {
			time.Sleep(100 * time.Millisecond)
		}
		eventually(t, id+" is "+want, func() bool {
			e, err := w.GetExec(w.ctx, "b1", id)
			return err == nil && e.State == want
		})
	}
}
