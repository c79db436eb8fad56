// Package daemon is the server as a process: the local node, the manager and
// the HTTP API, put together behind one Unix socket.
//
// # Model
//
// [Run] takes the lock beside the socket, opens the node, lets the manager
// find its boxes again, and serves until its context ends. Boxes go on
// without it. A socket that a dead server left behind is replaced: whoever
// holds the lock knows that nobody listens there.
//
// # Errors
//
// A socket that another server holds, and a data directory that another one
// has, are conflicts that name the other process.
//
// # Concurrency
//
// Run may be called once a process: it sets the process's umask.
package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/audit"
	"github.com/taibox/taibox/internal/keystore"
	"github.com/taibox/taibox/internal/lifecycle"
	"github.com/taibox/taibox/node"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
	"github.com/taibox/taibox/tai/registry"
	"github.com/taibox/taibox/workspace"
)

const (
	lockTimeout = server.StopTimeout + 5*time.Second // for a server that is going
	lockPoll    = 20 * time.Millisecond

	maxSocketPath = 107 // bytes that the kernel takes for one
)

// Config says what a server is to be.
type Config struct {
	Socket  string          // path; required
	DataDir string          // required
	Group   string          // whose members may use the socket; "" for none
	Driver  node.OpenDriver // required
	Runtime string          // the driver's name

	TCP   TCP     // where else the API is served; with keys only
	Rate  float64 // requests of a key a second; 0 = no limit
	Burst int     // and at once

	MaxBoxes                             int           // 0 = no limit
	MaxPerOwner, MaxPerImage, MaxPerNode int           // likewise
	OrphanAfter                          time.Duration // boxes of other instances are stopped then; 0 = never
	Defaults                             server.Defaults
	MaxWorkspacesPerOwner                int           // 0 = no limit
	Max                                  server.Limits // of one box or workspace

	// Traces opens what makes and sends the spans of an instance's server, and
	// ends it. Default none.
	Traces func(ctx context.Context, instance string) (trace.TracerProvider, func(context.Context) error, error)

	Version, Commit string
	Logger          *slog.Logger // required
}

// Run serves until ctx ends. Its own end is then no error.
func Run(ctx context.Context, cfg Config) (err error) {
	// Sockets and files are private from the moment they exist.
	unix.Umask(0o077)
	var undo lifecycle.Stack
	defer func() { err = errors.Join(err, undo.Close(ctx)) }()

	gid := -1
	if cfg.Group != "" {
		g, err := user.LookupGroup(cfg.Group)
		if err != nil {
			return fmt.Errorf("group %q: %w: %w", cfg.Group, err, errdefs.ErrInvalidArgument)
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return fmt.Errorf("group %q: %w", cfg.Group, err)
		}
	}
	lock, err := lockSocket(ctx, cfg.Socket)
	if err != nil {
		return err
	}
	undo.Push(func(context.Context) error { return lock.Close() })

	n, err := node.Open(ctx, node.Config{DataDir: cfg.DataDir, Driver: cfg.Driver, Runtime: cfg.Runtime, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	undo.Push(func(context.Context) error { return n.Close() })
	var traces trace.TracerProvider
	if cfg.Traces != nil {
		provider, end, err := cfg.Traces(ctx, n.Instance())
		if err != nil {
			return err
		}
		traces = provider
		undo.Push(func(ctx context.Context) error {
			if err := end(ctx); err != nil {
				cfg.Logger.Warn("traces are not complete", slog.Any("err", err))
			}
			return nil
		})
	}
	m, workspaces, err := manage(ctx, &cfg, n)
	if err != nil {
		return err
	}
	undo.Push(func(context.Context) error { return m.Close() })
	tcp, err := listenTCP(&cfg.TCP, n.DataDir())
	if err != nil {
		return err
	}
	if tcp != nil {
		undo.Push(func(context.Context) error { tcp.Close(); return nil })
	}
	keys, err := keystore.Open(filepath.Join(n.DataDir(), "keys"))
	if err != nil {
		return err
	}
	undo.Push(func(context.Context) error { keys.Close(); return nil })
	auditLog, err := audit.Open(filepath.Join(n.DataDir(), "audit.log"))
	if err != nil {
		return err
	}
	undo.Push(func(context.Context) error { return auditLog.Close() })
	who := rest.Version{
		Version: cfg.Version, Commit: cfg.Commit, PID: os.Getpid(), DataDir: n.DataDir(),
		Host: "unix://" + cfg.Socket, Instance: n.Instance(),
	}
	var ownName func(string) bool
	var more []net.Listener
	if tcp != nil {
		who.Listen, ownName, more = tcp.url, tcp.ownName, []net.Listener{tcp}
	}
	if err := introduce(lock, who); err != nil {
		return err
	}
	s, err := server.New(server.Config{
		Manager: m, Workspaces: workspaces, Version: who.Version, Commit: who.Commit, DataDir: who.DataDir,
		Host: who.Host, Instance: who.Instance, Defaults: cfg.Defaults, Max: cfg.Max,
		SocketGroup: cfg.Group != "", Logger: cfg.Logger,
		Keys: keys, Audit: auditLog, Rate: cfg.Rate, Burst: cfg.Burst, OwnName: ownName, Listen: who.Listen, Traces: traces,
	})
	if err != nil {
		return err
	}
	ln, err := listen(ctx, cfg.Socket, gid)
	if err != nil {
		return err
	}
	cfg.Logger.Info("server is up", slog.String("host", who.Host), slog.String("listen", who.Listen), slog.String("data_dir", who.DataDir), slog.Int("pid", who.PID))
	err = s.Run(ctx, ln, more...)
	cfg.Logger.Info("server ends", slog.Any("cause", context.Cause(ctx)))
	return err
}

// manage starts the managers of a node's boxes and workspaces.
func manage(ctx context.Context, cfg *Config, n *node.Node) (*sandbox.Manager, *workspace.Manager, error) {
	nodes := registry.New()
	if err := n.Register(nodes); err != nil {
		return nil, nil, err
	}
	workspaces, err := workspace.New(workspace.Config{Registry: nodes, MaxPerOwner: cfg.MaxWorkspacesPerOwner, Logger: cfg.Logger})
	if err != nil {
		return nil, nil, err
	}
	if err := workspaces.Start(ctx); err != nil {
		return nil, nil, err
	}
	m, err := sandbox.New(sandbox.Config{
		Instance: n.Instance(), MaxTotal: cfg.MaxBoxes, MaxPerOwner: cfg.MaxPerOwner, MaxPerImage: cfg.MaxPerImage, MaxPerNode: cfg.MaxPerNode,
		OrphanAfter: cfg.OrphanAfter, Registry: nodes, Workspaces: workspaces, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, nil, err
	}
	if err := m.Start(ctx); err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	return m, workspaces, nil
}

// lockSocket takes the lock on a socket's path. The kernel lets go of it when
// we end, however that comes.
func lockSocket(ctx context.Context, socket string) (*os.File, error) {
	if err := makeSocketDir(filepath.Dir(socket)); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	f, err := os.OpenFile(socket+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the socket: %w", err)
	}
	if err := waitLock(ctx, f, socket); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		return nil, err
	}
	return f, nil
}

// introduce writes into the lock who holds it: a client that may read it need
// not ask.
func introduce(lock *os.File, who rest.Version) error {
	data, err := json.Marshal(who)
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = lock.WriteAt(data, 0)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", lock.Name(), err)
	}
	return nil
}

// holder reads who holds a lock.
func holder(lock *os.File) string {
	var who rest.Version
	if json.NewDecoder(io.NewSectionReader(lock, 0, 1<<16)).Decode(&who) != nil {
		return "another server, which is just starting"
	}
	return fmt.Sprintf("another server (pid %d, data in %s)", who.PID, who.DataDir)
}

// waitLock waits for a holder of the lock who is just going. One who answers
// stays.
func waitLock(ctx context.Context, f *os.File, socket string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lockTimeout, fmt.Errorf("it does not answer: %w", errdefs.ErrConflict))
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock the socket: %w", err)
		}
		err = errdefs.ErrConflict
		if !answers(ctx, socket) {
			select {
			case <-time.After(lockPoll):
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		return fmt.Errorf("socket %s is held by %s: %w", socket, holder(f), err)
	}
}

// answers reports whether somebody listens.
func answers(ctx context.Context, socket string) bool {
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	c.Close() //nolint:errcheck // the answer was all that mattered
	return true
}

// makeSocketDir makes a directory that can be passed through, but not listed.
func makeSocketDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	return errors.Join(os.MkdirAll(dir, 0o711), os.Chmod(dir, 0o711))
}

// listen replaces what is left of the socket of a server that died. The caller
// holds the lock.
func listen(ctx context.Context, socket string, gid int) (net.Listener, error) {
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("listen on %s: a socket's path has at most %d bytes, not %d: %w", socket, maxSocketPath, len(socket), errdefs.ErrInvalidArgument)
	}
	switch info, err := os.Lstat(socket); {
	case err == nil && info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("listen on %s: it is there and no socket: %w", socket, errdefs.ErrConflict)
	case err == nil:
		if answers(ctx, socket) {
			return nil, fmt.Errorf("listen on %s: another program listens there: %w", socket, errdefs.ErrConflict)
		}
		if err := os.Remove(socket); err != nil {
			return nil, err
		}
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	if gid >= 0 {
		// In this order the group gets in only once it is the right one.
		if err := errors.Join(os.Chown(socket, -1, gid), os.Chmod(socket, 0o660)); err != nil {
			return nil, errors.Join(err, ln.Close())
		}
		return ln, nil
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}
