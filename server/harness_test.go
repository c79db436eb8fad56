package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume/local"
	"github.com/taibox/taibox/workspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a fake machine, and the server on it, which can be stopped and
// started again.
type world struct {
	t       testing.TB
	dir     string // what the machine's name is
	socket  string
	options []fake.Option
	change  func(*server.Config)
	wrap    func(*fake.Driver) taisandbox.Sandbox // what the server sees of the machine

	driver     *fake.Driver
	volume     *local.Volume
	manager    *sandbox.Manager
	workspaces *workspace.Manager

	stop    func()
	log     *lockedBuffer
	revived atomic.Int32    // times that the client asked for the server to be started
	ctx     context.Context //nolint:containedctx // the test's own

	*client.Client
	http *http.Client
}

func newWorld(t testing.TB, options ...fake.Option) *world {
	return newWorldWith(t, nil, options...)
}

func newWorldWith(t testing.TB, change func(*server.Config), options ...fake.Option) *world {
	t.Helper()
	return (&world{t: t, options: options, change: change}).begin()
}

// begin makes the machine and the server.
func (w *world) begin() *world {
	t := w.t
	t.Helper()
	short, err := os.MkdirTemp("", "tbs") // a socket's path has room for 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	w.dir, w.socket, w.log, w.ctx = t.TempDir(), filepath.Join(short, "s"), &lockedBuffer{}, context.Background()
	w.start()
	w.Client, err = client.New("unix://"+w.socket, client.WithReasons(sandbox.Reasons(), registry.Reasons(), workspace.Reasons()), client.WithRevive(func(context.Context) error {
		w.revived.Add(1)
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	w.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
	}}}
	t.Cleanup(func() {
		w.Client.Close()
		w.http.CloseIdleConnections()
		w.stop()
		fake.Wipe(w.dir)
		os.RemoveAll(short)
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
	return w
}

// restart stops the server and starts another one on the same machine.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// start opens the machine and serves it.
func (w *world) start() {
	w.t.Helper()
	var err error
	if w.driver, err = fake.Open(w.ctx, w.dir, w.options...); err != nil {
		w.t.Fatal(err)
	}
	if w.volume, err = local.Open(w.ctx, local.Config{Dir: filepath.Join(w.dir, "workspaces")}); err != nil {
		w.t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	reg := registry.New()
	node := registry.TaiNode{
		NodeSnapshot: registry.NodeSnapshot{TaiID: registry.Local, Runtime: "fake"},
		Client:       tai.NewClient(w.driver, w.driver, tai.WithVolume(w.volume)),
	}
	if w.wrap != nil {
		node.Client = tai.NewClient(w.wrap(w.driver), w.driver, tai.WithVolume(w.volume))
	}
	if err := reg.Register(node); err != nil {
		w.t.Fatal(err)
	}
	if w.workspaces, err = workspace.New(workspace.Config{Registry: reg, Logger: logger}); err != nil {
		w.t.Fatal(err)
	}
	if w.manager, err = sandbox.New(sandbox.Config{Instance: "test", Registry: reg, Workspaces: w.workspaces, Logger: logger, MaxTotal: 50}); err != nil {
		w.t.Fatal(err)
	}
	if err := w.manager.Start(w.ctx); err != nil {
		w.t.Fatal(err)
	}
	cfg := server.Config{Manager: w.manager, Workspaces: w.workspaces, Version: "v1", Instance: "test", Host: "unix://" + w.socket, DataDir: w.dir, Logger: logger}
	if w.change != nil {
		w.change(&cfg)
	}
	s, err := server.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ln, err := net.Listen("unix", w.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
		if err := w.manager.Close(); err != nil {
			w.t.Errorf("close manager: %v", err)
		}
		if err := w.driver.Close(); err != nil {
			w.t.Errorf("close driver: %v", err)
		}
		if err := w.volume.Close(); err != nil {
			w.t.Errorf("close volume: %v", err)
		}
	})
}

// create makes a running box.
func (w *world) create(req rest.CreateBox) rest.Box {
	w.t.Helper()
	b, err := w.CreateBox(w.ctx, req)
	if err != nil {
		w.t.Fatalf("create: %v", err)
	}
	return b
}

// createWorkspace makes a workspace.
func (w *world) createWorkspace(req rest.CreateWorkspace) *client.Workspace {
	w.t.Helper()
	ws, err := w.CreateWorkspace(w.ctx, req)
	if err != nil {
		w.t.Fatalf("create workspace: %v", err)
	}
	return w.Workspace(ws.ID)
}

// call sends a request as it is, and returns status, header and body.
func (w *world) call(method, path, body string, header ...string) (int, http.Header, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.ctx, method, "http://taibox"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	resp, err := w.http.Do(req)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, resp.Header, string(raw)
}

// dialRaw connects to the server's socket.
func (w *world) dialRaw(t testing.TB) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(w.ctx, "unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// failure decodes an error body, and fails unless it is one.
func failure(t testing.TB, body string) rest.Error {
	t.Helper()
	var got rest.ErrorBody
	dec := json.NewDecoder(strings.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil || got.Source != rest.SourceManager || got.Error.Code == "" {
		t.Fatalf("not an error body: %s", body)
	}
	e := got.Error
	if e.Message == "" || e.RequestID == "" || e.Details == nil {
		t.Fatalf("the error body is not complete: %s", body)
	}
	return e
}

// collected is what readAll gathers.
type collected struct {
	stdout, stderr, merged []byte
	lost                   int64
	info                   taisandbox.ExecInfo
}

// readAll reads a stream to its end, acknowledging all, and closes it.
func readAll(t testing.TB, s client.Stream) collected {
	t.Helper()
	var c collected
	for {
		chunk, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("recv: %v", err)
		}
		switch chunk.Source {
		case taisandbox.Stdout:
			c.stdout = append(c.stdout, chunk.Data...)
		case taisandbox.Stderr:
			c.stderr = append(c.stderr, chunk.Data...)
		case taisandbox.Gap:
			c.lost += chunk.Lost
		}
		c.merged = append(c.merged, chunk.Data...)
		if err := s.Ack(chunk.End()); err != nil {
			t.Fatalf("ack: %v", err)
		}
	}
	var err error
	if c.info, err = s.Wait(t.Context()); err != nil {
		t.Fatalf("wait: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	return c
}

// run starts a command and reads it to its end.
func (w *world) run(box string, cmd ...string) collected {
	w.t.Helper()
	return w.runReq(box, rest.ExecRequest{Cmd: cmd})
}

func (w *world) runReq(box string, req rest.ExecRequest) collected {
	w.t.Helper()
	s, err := w.Exec(w.ctx, box, req)
	if err != nil {
		w.t.Fatalf("exec %v: %v", req.Cmd, err)
	}
	return readAll(w.t, s)
}

// eventually waits until ok, which is asked again and again.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// copyLimited reads an answer that may be long.
func copyLimited(w io.Writer, r io.Reader) (int64, error) {
	return io.Copy(w, io.LimitReader(r, 1<<20))
}

type lockedBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b = append(b.b, p...)
	return len(p), nil
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.b)
}
