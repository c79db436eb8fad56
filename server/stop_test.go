package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// stopPatience is more than any stop takes, and far less than what waits.
const stopPatience = time.Minute

// arrivals lets everybody do everything, and counts who asks for what is there.
type arrivals struct{ gets atomic.Int32 }

func (a *arrivals) Authorize(_ context.Context, _ server.Caller, verb server.Verb, _ server.Object) error {
	if verb == server.VerbGet {
		a.gets.Add(1)
	}
	return nil
}

// TestStopAnswersWhatWaits and ends nothing that runs in a box.
func TestStopAnswersWhatWaits(t *testing.T) {
	seen := &arrivals{}
	w := newWorldWith(t, func(c *server.Config) { c.Authorizer = seen })
	w.create(rest.CreateBox{ID: "b1"})
	if _, err := w.ExecDetached(w.ctx, "b1", rest.ExecRequest{ID: "bg", Cmd: []string{"sleep", "infinity"}}); err != nil {
		t.Fatal(err)
	}
	s := w.startRaw(t, "b1", `{"type":"start","id":"ws","cmd":["sleep","infinity"],"on_disconnect":"kill"}`)
	viewer := w.dial(t, "b1/execs/bg/ws")
	before := seen.gets.Load()
	var wg sync.WaitGroup
	for _, r := range []struct{ method, path, body, exec string }{
		{"GET", "/v1/sandboxes/b1/wait", "", ""},
		{"GET", "/v1/sandboxes/b1/execs/bg/wait", "", ""},
		{"POST", "/v1/sandboxes/b1/exec", `{"id":"col","cmd":["sleep","infinity"],"on_disconnect":"kill"}`, "col"},
	} {
		wg.Go(func() {
			status, header, body := w.call(r.method, r.path, r.body)
			e := failure(t, body)
			if status != http.StatusServiceUnavailable || e.Code != "SERVER_STOPPING" || !e.Retryable || header.Get("Retry-After") == "" {
				t.Errorf("%s: %d %s", r.path, status, body)
			}
			if r.exec != "" && e.Details["exec_id"] != r.exec {
				t.Errorf("%s: %s", r.path, body)
			}
		})
	}
	eventually(t, "all wait", func() bool {
		execs, err := w.driver.ListExecs(w.ctx, "b1")
		return err == nil && len(execs) == 3 && seen.gets.Load() == before+2
	})
	start := time.Now()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	s.wantClose(1012)
	viewer.wantClose(1012)
	<-stopped
	wg.Wait()
	if d := time.Since(start); d > stopPatience {
		t.Errorf("it took %v", d)
	}
	w.start()
	for _, id := range []string{"bg", "ws", "col"} {
		if e, err := w.GetExec(w.ctx, "b1", id); err != nil || e.State != "running" {
			t.Errorf("%s: %+v %v", id, e, err)
		}
	}
}

// TestStopWithDeafClients: clients that neither read nor answer do not hold
// the server.
func TestStopWithDeafClients(t *testing.T) {
	w := boxWorld(t)
	deaf := w.startRaw(t, "b1", `{"type":"start","cmd":["yes","100000000"]}`)
	deaf.send(`{"type":"ack","offset":0}`)
	half := w.dialRaw(t)
	if _, err := io.WriteString(half, "POST /v1/sandboxes HTTP/1.1\r\nHost: taibox\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	start := time.Now()
	w.stop()
	if d := time.Since(start); d > stopPatience {
		t.Errorf("it took %v", d)
	}
}

// TestStopLetsWorkFinish: a create under way is neither cut nor lost.
func TestStopLetsWorkFinish(t *testing.T) {
	begun := make(chan struct{})
	w := newWorld(t, fake.WithFault(func(op, _ string) error {
		if op == "create.network" {
			close(begun)
			time.Sleep(300 * time.Millisecond)
		}
		return nil
	}))
	made := make(chan error, 1)
	go func() {
		_, err := w.CreateBox(w.ctx, rest.CreateBox{ID: "b1"})
		made <- err
	}()
	<-begun
	w.stop()
	if err := <-made; err != nil {
		t.Error(err)
	}
	w.start()
	if b, err := w.GetBox(w.ctx, "b1"); err != nil || b.Status != "running" {
		t.Errorf("%+v %v", b, err)
	}
}

// TestResumeOverARestart: the reader sees nothing of a server that was
// replaced, as often as it is.
func TestResumeOverARestart(t *testing.T) {
	w := boxWorld(t)
	const n = 700000
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"seq", "1", strconv.Itoa(n)}, OnDisconnect: "kill"})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for next := 0; ; {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", len(got), err)
		}
		got = append(got, c.Data...)
		if err := s.Ack(c.End()); err != nil {
			t.Fatal(err)
		}
		if len(got) > next {
			w.restart()
			next = len(got) + 1500000
		}
	}
	if !bytes.Equal(got, seq(n)) || w.revived.Load() == 0 {
		t.Errorf("%d bytes, revived %d times", len(got), w.revived.Load())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestResumeKeepsInput: what was fed before a restart is not fed again, and
// the end of the input is not lost.
func TestResumeKeepsInput(t *testing.T) {
	w := boxWorld(t)
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"cat"}, Stdin: true, OnDisconnect: "kill"})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	until := func(want string) {
		t.Helper()
		for string(got) != want {
			c, err := s.Recv()
			if err != nil {
				t.Fatalf("%q: %v", got, err)
			}
			got = append(got, c.Data...)
			s.Ack(c.End())
		}
	}
	want := ""
	for i := range 3 {
		line := fmt.Sprintf("line %d\n", i)
		want += line
		if _, err := s.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		until(want)
		w.restart()
	}
	w.stop()
	if err := s.CloseWrite(); err != nil { // while there is no server
		t.Fatal(err)
	}
	w.start()
	if c := readAll(t, s); len(c.stdout) != 0 || *c.info.ExitCode != 0 {
		t.Errorf("%q %+v", c.stdout, c.info)
	}
}

// TestInputLost: input that was on its way when the link broke is not lost in
// silence.
func TestInputLost(t *testing.T) {
	w := newWorld(t, fake.WithProgram("taste", func(ctx context.Context, p *fake.Proc) int {
		p.Stdin.Read(make([]byte, 1))
		io.WriteString(p.Stdout, "more")
		<-ctx.Done()
		return 0
	}))
	w.create(rest.CreateBox{ID: "b1"})
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{ID: "e1", Cmd: []string{"taste"}, Stdin: true, OnDisconnect: "kill", KillGraceMs: 10})
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := s.Write(make([]byte, 4<<20))
		wrote <- err
	}()
	if c, err := s.Recv(); err != nil || string(c.Data) != "more" {
		t.Fatalf("%q %v", c.Data, err)
	}
	w.restart()
	if err := <-wrote; !errors.Is(err, rest.ErrInputLost) || !errors.Is(err, errdefs.ErrDataLoss) {
		t.Errorf("write: %v", err)
	}
	if _, err := s.Recv(); !errors.Is(err, rest.ErrInputLost) {
		t.Errorf("recv: %v", err)
	}
	if err := s.CloseWrite(); !errors.Is(err, rest.ErrInputLost) {
		t.Errorf("close write: %v", err)
	}
	if err := s.Hangup(); err != nil {
		t.Errorf("hang up: %v", err)
	}
	eventually(t, "the command is killed", func() bool {
		e, err := w.GetExec(w.ctx, "b1", "e1")
		return err == nil && e.State == "exited"
	})
}

// TestLeaseIsOver: a server that does not come back is told in the end.
func TestLeaseIsOver(t *testing.T) {
	w := boxWorld(t)
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"sleep", "infinity"}, LeaseMs: 200})
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	start := time.Now()
	if _, err := s.Recv(); !errors.Is(err, rest.ErrUnreachable) || !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
	if _, err := s.Wait(w.ctx); !errors.Is(err, rest.ErrUnreachable) {
		t.Errorf("wait: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	w.start()
}

// TestCloseWhileTheServerIsAway returns, and leaves no goroutine.
func TestCloseWhileTheServerIsAway(t *testing.T) {
	w := boxWorld(t)
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"sleep", "infinity"}})
	if err != nil {
		t.Fatal(err)
	}
	blocked := make(chan error, 1)
	go func() {
		_, err := s.Recv()
		blocked <- err
	}()
	w.stop()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-blocked; err == nil {
		t.Error("Recv returned without an error")
	}
	w.start()
}

// TestExecThatIsGone: a link that comes back to a box that is not there fails
// for good, at once.
func TestExecThatIsGone(t *testing.T) {
	w := boxWorld(t)
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"sleep", "infinity"}})
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	fake.Wipe(w.dir)
	w.start()
	if _, err := s.Recv(); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestOneShotOverARestart: the output of a oneshot box is there for the client
// that comes back, and then the box goes.
func TestOneShotOverARestart(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1", Policy: "oneshot"})
	s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"trap-exit", "3"}, OnDisconnect: "kill"})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := s.Recv(); err != nil || string(c.Data) != "ready\n" {
		t.Fatalf("%q %v", c.Data, err)
	}
	w.restart()
	eventually(t, "the signal gets through", func() bool { return s.Signal(taisandbox.KillOptions{Signal: 15}) == nil })
	if c := readAll(t, s); *c.info.ExitCode != 3 {
		t.Errorf("%+v", c.info)
	}
	if boxes, err := w.ListBoxes(w.ctx, rest.ListBoxes{}); err != nil || len(boxes) != 0 {
		t.Errorf("%v %v", boxes, err)
	}
}

// TestUnreachable: no server, no permission, no server of ours.
func TestUnreachable(t *testing.T) {
	c, err := client.New("unix:///nonexistent/socket")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Version(t.Context()); !errors.Is(err, rest.ErrUnreachable) || !strings.Contains(err.Error(), "/nonexistent/socket") {
		t.Errorf("%v", err)
	}
	if _, err := c.Exec(t.Context(), "b1", rest.ExecRequest{Cmd: []string{"true"}}); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("my cause"))
	w := boxWorld(t)
	if _, err := w.Version(ctx); err == nil || err.Error() != "my cause" {
		t.Errorf("%v", err)
	}
	if _, err := w.Exec(ctx, "b1", rest.ExecRequest{Cmd: []string{"true"}}); err == nil || err.Error() != "my cause" {
		t.Errorf("%v", err)
	}
}
