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
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/lifecycle"
	"github.com/taibox/taibox/node"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
	"github.com/taibox/taibox/tai/registry"
)

// Config says what a server is to be.
type Config struct {
	Socket  string          // path; required
	DataDir string          // required
	Group   string          // whose members may use the socket; "" for none
	Driver  node.OpenDriver // required
	Runtime string          // the driver's name

	MaxBoxes int // 0 = no limit
	Defaults server.Defaults

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
	lock, err := lockSocket(cfg.Socket)
	if err != nil {
		return err
	}
	undo.Push(func(context.Context) error { return lock.Close() })

	n, err := node.Open(ctx, node.Config{DataDir: cfg.DataDir, Driver: cfg.Driver, Runtime: cfg.Runtime, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	undo.Push(func(context.Context) error { return n.Close() })
	m, err := manage(ctx, &cfg, n)
	if err != nil {
		return err
	}
	undo.Push(func(context.Context) error { return m.Close() })
	s, err := server.New(server.Config{
		Manager: m, Version: cfg.Version, Commit: cfg.Commit, DataDir: n.DataDir(),
		Host: "unix://" + cfg.Socket, Instance: n.Instance(), Defaults: cfg.Defaults,
		SocketGroup: cfg.Group != "", Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	ln, err := listen(cfg.Socket, gid)
	if err != nil {
		return err
	}
	cfg.Logger.Info("server is up", slog.String("host", "unix://"+cfg.Socket), slog.String("data_dir", cfg.DataDir), slog.Int("pid", os.Getpid()))
	err = s.Run(ctx, ln)
	cfg.Logger.Info("server ends", slog.Any("cause", context.Cause(ctx)))
	return err
}

// manage starts the manager of a node's boxes.
func manage(ctx context.Context, cfg *Config, n *node.Node) (*sandbox.Manager, error) {
	nodes := registry.New()
	if err := n.Register(nodes); err != nil {
		return nil, err
	}
	m, err := sandbox.New(sandbox.Config{Instance: n.Instance(), MaxTotal: cfg.MaxBoxes, Registry: nodes, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	if err := m.Start(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// lockSocket takes the lock on a socket's path. The kernel lets go of it when
// we end, however that comes.
func lockSocket(socket string) (*os.File, error) {
	if err := makeSocketDir(filepath.Dir(socket)); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	f, err := os.OpenFile(socket+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the socket: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0) //nolint:errcheck // who it is is only nice to know
		f.Close()                   //nolint:errcheck // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("socket %s is held by another server (pid %s): %w", socket, holder[:n], errdefs.ErrConflict)
		}
		return nil, fmt.Errorf("lock the socket: %w", err)
	}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		f.Close() //nolint:errcheck // the error at hand is the one to tell
		return nil, fmt.Errorf("lock the socket: %w", err)
	}
	return f, nil
}

// makeSocketDir makes a directory that can be passed through, but not listed.
func makeSocketDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	return errors.Join(os.MkdirAll(dir, 0o711), os.Chmod(dir, 0o711))
}

func writePID(f *os.File) error {
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	return err
}

// listen replaces what is left of the socket of a server that died. The caller
// holds the lock.
func listen(socket string, gid int) (net.Listener, error) {
	switch info, err := os.Lstat(socket); {
	case err == nil && info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("listen on %s: it is there and no socket: %w", socket, errdefs.ErrConflict)
	case err == nil:
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close() //nolint:errcheck // the answer was all that mattered
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
