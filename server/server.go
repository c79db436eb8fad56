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
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/audit"
	"github.com/taibox/taibox/internal/keystore"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/workspace"
)

// Config says what a server is to be.
type Config struct {
	Manager *sandbox.Manager // required
	// Workspaces is the manager of the workspaces on the same nodes. Default
	// one of no nodes.
	Workspaces *workspace.Manager

	Version  string // of the program
	Commit   string
	DataDir  string
	Host     string // what clients are told to connect to
	Listen   string // address over TCP, if there is one
	Instance string

	Defaults   Defaults
	Max        Limits     // what a request may ask for
	Authorizer Authorizer // default [Border]

	Keys  *keystore.Store // default one in memory
	Audit *audit.Log      // default none

	// Requests of a key: so many a second, and so many at once. 0 = no limit.
	Rate  float64
	Burst int

	// OwnName says which names in a Host header are ours over TCP, beside the
	// address itself and, on loopback, localhost.
	OwnName func(string) bool

	// SocketGroup: the Unix socket's mode lets a group in, and whoever could
	// open it is admin. Without it only root and our own user are.
	SocketGroup bool

	// Traces makes a span of each request, which goes on where the request's
	// traceparent says. Default none.
	Traces trace.TracerProvider

	Logger *slog.Logger // default none
}

// Defaults is what the server fills in where a request leaves it out.
type Defaults struct {
	Node   string  // default registry.Local
	Image  string  // default hostfs
	Memory int64   // bytes; 0 = no limit
	CPUs   float64 // 0 = no limit
	Pids   int64   // 0 = no limit

	IdleTimeout time.Duration // of session boxes; 0 = none
}

// Validate reports all problems, joined.
func (c *Config) Validate() error {
	var errs []error
	if c.Manager == nil {
		errs = append(errs, fmt.Errorf("%w: a manager is required", taisandbox.ErrInvalidSpec))
	}
	if c.Defaults.Memory < 0 || c.Defaults.CPUs < 0 || c.Defaults.Pids < 0 || c.Defaults.IdleTimeout < 0 || c.Max.Memory < 0 || c.Max.CPUs < 0 || c.Max.Pids < 0 || c.Max.Disk < 0 {
		errs = append(errs, fmt.Errorf("%w: limits and their defaults cannot be negative", taisandbox.ErrInvalidSpec))
	}
	if c.Rate < 0 || c.Rate > 0 && c.Burst < 1 {
		errs = append(errs, fmt.Errorf("%w: a rate cannot be negative, and needs a burst of at least 1", taisandbox.ErrInvalidSpec))
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
	rates   rates
	auditor *auditor
	starts  claims // of execs with an idempotency key
	watches shares // of workspaces

	stopping context.Context //nolint:containedctx // the server's own life, not a call's: ended by Run
	stop     context.CancelCauseFunc
	sockets  sockets
	metrics  *metrics
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
		cfg.Authorizer = Border{}
	}
	if cfg.Keys == nil {
		cfg.Keys = keystore.New()
	}
	if cfg.Workspaces == nil {
		none, err := workspace.New(workspace.Config{Registry: registry.New(), Logger: cfg.Logger})
		if err != nil {
			return nil, err
		}
		cfg.Workspaces = none
	}
	cfg.Max.bound(&cfg.Defaults)
	if cfg.Defaults.Node == "" {
		cfg.Defaults.Node = registry.Local
	}
	if cfg.Defaults.Image == "" {
		cfg.Defaults.Image = taisandbox.HostFS
	}
	s := &Server{cfg: cfg, log: cfg.Logger, mux: http.NewServeMux(), rates: rates{limit: rate.Limit(cfg.Rate), burst: cfg.Burst}, auditor: newAuditor(cfg.Audit)}
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	s.metrics = newMetrics(s)
	s.routes()
	s.handler = s.edge(s.traced(http.HandlerFunc(s.serve)))
	return s, nil
}

// Handler returns the API. See [Server.ConnContext].
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves ln, and more, until ctx ends, and closes them. It may be called
// once.
func (s *Server) Run(ctx context.Context, ln net.Listener, more ...net.Listener) error {
	base, end := context.WithCancelCause(context.Background())
	defer end(nil)
	var following sync.WaitGroup
	defer following.Wait()
	defer s.stop(rest.ErrStopping)
	following.Go(func() { s.follow(s.stopping) })
	hs := &http.Server{
		Handler:           s.handler,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       s.ConnContext,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	all := append([]net.Listener{ln}, more...)
	served := make(chan error, len(all))
	for _, ln := range all {
		go func() {
			err := hs.Serve(ln)
			if !errors.Is(err, http.ErrServerClosed) {
				err = fmt.Errorf("serve %s: %w", ln.Addr(), err)
			}
			served <- err
		}()
	}
	left := len(all)
	var first error
	select {
	case first = <-served: // the others do not go on alone
		left--
	case <-ctx.Done():
	}
	s.shutdown(hs, end)
	for range left {
		if err := <-served; first == nil && !errors.Is(err, http.ErrServerClosed) {
			first = err
		}
	}
	return first
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

// open returns how many there are.
func (k *sockets) open() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.n
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
