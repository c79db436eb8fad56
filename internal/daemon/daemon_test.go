package daemon_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/internal/daemon"
	"github.com/taibox/taibox/node"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(t *testing.T) daemon.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "tbx") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return daemon.Config{
		Socket: filepath.Join(dir, "run", "s.sock"), DataDir: filepath.Join(dir, "data"), Runtime: "fake", Version: "1",
		Driver: func(ctx context.Context, cfg node.DriverConfig) (taisandbox.Sandbox, taisandbox.Image, error) {
			d, err := fake.Open(ctx, cfg.DataDir)
			return d, d, err
		},
		Logger: slog.New(slog.DiscardHandler),
	}
}

// start runs a server until the test ends, and waits until it answers.
func start(t *testing.T, cfg daemon.Config) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx, cfg) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel(nil)
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	}
	t.Cleanup(stop)
	c, err := client.New("unix://" + cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		v, err := c.Version(ctx)
		if err == nil {
			if v.PID != os.Getpid() || v.DataDir != cfg.DataDir || v.Host != "unix://"+cfg.Socket || v.Instance == "" || v.Version != "1" {
				t.Errorf("version: %+v", v)
			}
			return stop
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func TestRun(t *testing.T) {
	cfg := config(t)
	stop := start(t, cfg)
	if info, err := os.Stat(cfg.Socket); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("socket: %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Dir(cfg.Socket)); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("its directory: %v, %v", info.Mode(), err)
	}

	second := config(t)
	second.Socket = cfg.Socket
	if err := daemon.Run(t.Context(), second); !errors.Is(err, errdefs.ErrConflict) || !strings.Contains(err.Error(), cfg.DataDir) {
		t.Errorf("a second server on the socket: %v; want a conflict that names the first", err)
	}
	second = config(t)
	second.DataDir = cfg.DataDir
	if err := daemon.Run(t.Context(), second); err == nil {
		t.Error("a second server on the data directory ran")
	}
	if _, err := os.Stat(second.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it left its socket: %v", err)
	}

	stop()
	if _, err := os.Stat(cfg.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	start(t, cfg)
}

func TestStaleSocket(t *testing.T) {
	cfg := config(t)
	if err := os.MkdirAll(filepath.Dir(cfg.Socket), 0o700); err != nil {
		t.Fatal(err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)

	// Somebody else's, who is there.
	if err := daemon.Run(t.Context(), cfg); !errors.Is(err, errdefs.ErrConflict) {
		t.Errorf("the socket of another program was taken: %v", err)
	}
	ln.Close()
	start(t, cfg)
}

func TestNoSocket(t *testing.T) {
	cfg := config(t)
	if err := os.MkdirAll(filepath.Dir(cfg.Socket), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.Socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := daemon.Run(t.Context(), cfg); !errors.Is(err, errdefs.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
	if data, err := os.ReadFile(cfg.Socket); string(data) != "precious" {
		t.Errorf("the file in the socket's place: %q, %v", data, err)
	}
}

func TestLongSocketPath(t *testing.T) {
	cfg := config(t)
	cfg.Socket = filepath.Join(filepath.Dir(cfg.Socket), strings.Repeat("s", 120))
	if err := daemon.Run(t.Context(), cfg); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "107 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestGroup(t *testing.T) {
	cfg := config(t)
	cfg.Group = "no-such-group"
	if err := daemon.Run(t.Context(), cfg); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), cfg.Group) {
		t.Errorf("an unknown group: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("giving a file to a group needs root")
	}
	cfg.Group = "daemon"
	start(t, cfg)
	if info, err := os.Stat(cfg.Socket); err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("socket: %v, %v", info.Mode(), err)
	}
}

func TestDriverFails(t *testing.T) {
	cfg := config(t)
	want := errors.New("no namespaces here")
	cfg.Driver = func(context.Context, node.DriverConfig) (taisandbox.Sandbox, taisandbox.Image, error) {
		return nil, nil, want
	}
	if err := daemon.Run(t.Context(), cfg); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(cfg.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a socket was left: %v", err)
	}
}

// Over TCP with TLS a client that pins the certificate and has a key is let
// in, and no other.
func TestListen(t *testing.T) {
	cfg := config(t)
	cfg.TCP = daemon.TCP{Listen: "127.0.0.1:0", TLS: daemon.TLSOn}
	stop := start(t, cfg)
	socket, err := client.New("unix://" + cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	v, err := socket.Version(t.Context())
	if err != nil || !strings.HasPrefix(v.Listen, "https://127.0.0.1:") {
		t.Fatalf("%+v %v", v, err)
	}
	key, err := socket.CreateKey(t.Context(), rest.CreateKey{Admin: true})
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(filepath.Join(cfg.DataDir, "tls", "cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		opts []client.Option
		want error
	}{
		"pinned": {[]client.Option{client.WithRootCAs(pem), client.WithAPIKey(key.Secret)}, nil},
		"no-key": {[]client.Option{client.WithRootCAs(pem)}, rest.ErrUnauthenticated},
		"no-pin": {[]client.Option{client.WithAPIKey(key.Secret)}, rest.ErrUnreachable},
	} {
		remote, err := client.New(v.Listen, c.opts...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Version(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		remote.Close()
	}
	if _, err := client.New(v.Listen, client.WithRootCAs([]byte("no PEM"))); err == nil {
		t.Error("no certificate was taken for one")
	}

	// Keys outlive the server.
	stop()
	cfg.TCP = daemon.TCP{}
	start(t, cfg)
	again, err := client.New("unix://"+cfg.Socket, client.WithAPIKey(key.Secret))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if keys, err := again.ListKeys(t.Context()); err != nil || len(keys) != 1 || keys[0].ID != key.ID {
		t.Errorf("%+v %v", keys, err)
	}
	for _, f := range []string{"keys", "audit.log"} {
		if info, err := os.Stat(filepath.Join(cfg.DataDir, f)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v", f, err)
		}
	}
}
