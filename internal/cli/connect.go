package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
)

// socketPath returns the path of a host that is a Unix socket, or "".
func socketPath(host string) string {
	if u, err := url.Parse(host); err == nil && u.Scheme == "unix" {
		return u.Path
	}
	return ""
}

// connect returns a client of the server that the settings name, and starts
// one in the background where none answers.
func (e *Env) connect(cmd *cobra.Command) (*client.Client, *settings, error) {
	s, err := e.resolve(cmd)
	if err != nil {
		return nil, nil, err
	}
	c, err := e.dial(s)
	if err != nil {
		return nil, nil, err
	}
	v, err := e.version(cmd.Context(), c, s)
	if err != nil {
		return nil, nil, err
	}
	if err := e.accept(s, v); err != nil {
		return nil, nil, err
	}
	return c, s, nil
}

// dial returns a client of the server that s names. Streams bring a server on
// this machine back that goes away under them.
func (e *Env) dial(s *settings) (c *client.Client, err error) {
	opts, err := s.clientOptions()
	if err != nil {
		return nil, err
	}
	c, err = e.Dial(s.Host, append(opts, client.WithRevive(func(ctx context.Context) error {
		if e.UID != 0 { // only root starts one: others wait for it
			_, err := c.Version(ctx)
			return err
		}
		_, err := e.version(ctx, c, s)
		return err
	}))...)
	return c, err
}

// version asks the server what it is. One on this machine that does not answer
// is started.
func (e *Env) version(ctx context.Context, c *client.Client, s *settings) (rest.Version, error) {
	if v, ok := introduced(socketPath(s.Host)); ok {
		return v, nil
	}
	if socketPath(s.Host) == "" {
		return c.Version(ctx)
	}
	for range farewells {
		v, err := c.Version(ctx)
		switch {
		case nobodyListens(err):
			return e.startServer(ctx, c, s)
		case !errors.Is(err, rest.ErrUnreachable):
			return v, err
		}
		// A server that is just dying takes a connection and drops it.
		select {
		case <-time.After(startPollMax):
		case <-ctx.Done():
			return rest.Version{}, context.Cause(ctx)
		}
	}
	return c.Version(ctx)
}

// farewells is how often a server that drops connections is asked again.
const farewells = 20

// introduced returns what the server behind a socket wrote into its lock, if
// we may read that and it is the one that listens. This spares each command a
// request.
func introduced(socket string) (v rest.Version, ok bool) {
	if socket == "" {
		return v, false
	}
	data, err := os.ReadFile(socket + ".lock")
	if err != nil || json.Unmarshal(data, &v) != nil {
		return v, false
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return v, false
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was sent
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return v, false
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return v, err == nil && v.PID > 0 && int(peer.Pid) == v.PID
}

// nobodyListens reports that there is no socket, or one left by a dead server.
func nobodyListens(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
}

// accept refuses a server that is not the one that was meant, and notes one of
// another version.
func (e *Env) accept(s *settings, v rest.Version) error {
	if socketPath(s.Host) != "" && s.origin("data_dir") != "default" && !sameDir(s.DataDir, v.DataDir) {
		return withHint(
			fmt.Errorf("the server at %s keeps its data in %s, not in %s (%s): %w", s.Host, v.DataDir, s.DataDir, s.origin("data_dir"), errdefs.ErrFailedPrecondition),
			"set TAIBOX_HOST to another socket for a server of its own, or leave the data directory unset to use this one")
	}
	if v.Version != e.Version {
		e.note("the server at %s is version %s, this program is %s", s.Host, v.Version, e.Version)
		e.hint(fmt.Sprintf("kill %d ends that server and nothing else; the next command starts one of this version", v.PID))
	}
	return nil
}

// origin says where the value of a setting comes from.
func (s *settings) origin(key string) string {
	for _, src := range s.sources {
		if src.Key == key {
			return src.Origin
		}
	}
	return ""
}

func sameDir(a, b string) bool {
	if a == b {
		return true
	}
	ai, errA := os.Stat(a)
	bi, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(ai, bi)
}
