package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Config says what a server is to be.
type Config struct {
	Manager *sandbox.Manager // required

	Version  string // of the program
	Commit   string
	DataDir  string
	Host     string // what clients are told to connect to
	Instance string

	Defaults   Defaults
	Authorizer Authorizer // default AdminOnly

	// SocketGroup: the Unix socket's mode lets a group in, and whoever could
	// open it is admin. Without it only root and our own user are.
	SocketGroup bool

	Logger *slog.Logger // default none
}

// Defaults is what the server fills in where a request leaves it out.
type Defaults struct {
	Node   string  // default registry.Local
	Image  string  // default hostfs
	Memory int64   // bytes; 0 = no limit
	CPUs   float64 // 0 = no limit
}

// Validate reports all problems, joined.
func (c *Config) Validate() error {
	var errs []error
	if c.Manager == nil {
		errs = append(errs, fmt.Errorf("%w: a manager is required", taisandbox.ErrInvalidSpec))
	}
	if c.Defaults.Memory < 0 || c.Defaults.CPUs < 0 {
		errs = append(errs, fmt.Errorf("%w: default limits cannot be negative", taisandbox.ErrInvalidSpec))
	}
	return errors.Join(errs...)
}

// Server answers HTTP requests. Make it with [New].
type Server struct {
	cfg     Config
	log     *slog.Logger
	mux     *http.ServeMux
	api     huma.API
	handler http.Handler
	spec    func() ([]byte, error) // the OpenAPI document

	stopping context.Context //nolint:containedctx // the server's own life, not a call's: ended by Run
	stop     context.CancelCauseFunc
	sockets  sockets
}

// New returns a server. It does nothing by itself.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Authorizer == nil {
		cfg.Authorizer = AdminOnly{}
	}
	if cfg.Defaults.Node == "" {
		cfg.Defaults.Node = registry.Local
	}
	if cfg.Defaults.Image == "" {
		cfg.Defaults.Image = taisandbox.HostFS
	}
	s := &Server{cfg: cfg, log: cfg.Logger, mux: http.NewServeMux()}
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	s.routes()
	s.handler = s.edge(http.HandlerFunc(s.serve))
	return s, nil
}

// Handler returns the API. See [Server.ConnContext].
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves ln until ctx ends, and closes it. It may be called once.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	base, end := context.WithCancelCause(context.Background())
	defer end(nil)
	hs := &http.Server{
		Handler:           s.handler,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       s.ConnContext,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(ln) }()
	select {
	case err := <-served:
		s.stop(rest.ErrStopping)
		end(rest.ErrStopping)
		s.sockets.wait()
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	s.shutdown(hs, end)
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	}
	return nil
}

// shutdown answers what is under way and closes everything.
func (s *Server) shutdown(hs *http.Server, end context.CancelCauseFunc) {
	// What waits is told at once, what works has most of the time to finish.
	s.stop(rest.ErrStopping)
	work, cancel := context.WithTimeoutCause(context.Background(), StopTimeout*2/5, rest.ErrStopping)
	defer cancel()
	err := hs.Shutdown(work)
	end(rest.ErrStopping)
	if err != nil {
		last, cancel := context.WithTimeoutCause(context.Background(), StopTimeout/5, rest.ErrStopping)
		defer cancel()
		err = hs.Shutdown(last)
	}
	if err != nil {
		s.log.Warn("requests were cut off", slog.Any("err", hs.Close()))
	}
	s.sockets.wait()
}

// sockets counts the WebSockets, which [http.Server] does not wait for. The
// zero value is ready to use.
type sockets struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // closed when n is 0 again, once closed
}

// enter admits a WebSocket, unless wait was called.
func (k *sockets) enter() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		k.n++
	}
	return !k.closed
}

func (k *sockets) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.n--; k.n == 0 && k.idle != nil {
		close(k.idle)
	}
}

// wait waits until all have left, but not for ever: one may wait for a box.
func (k *sockets) wait() {
	k.mu.Lock()
	k.closed = true
	if k.n > 0 {
		k.idle = make(chan struct{})
	}
	idle := k.idle
	k.mu.Unlock()
	if idle == nil {
		return
	}
	t := time.NewTimer(closeTimeout)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
	}
}
