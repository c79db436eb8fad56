package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
)

// Limits of a start in the background.
const (
	startTimeout  = 60 * time.Second // until the server answers
	startPatience = 2 * time.Second  // until we say that we still wait
	startPollMin  = 2 * time.Millisecond
	startPollMax  = 50 * time.Millisecond
	logTailBytes  = 2000 // of the log, shown when the start failed
)

const unitName = "taibox.service"

// serverEnv lists the variables that a server in the background gets. What
// else is in the environment of whoever happened to need it first stays there.
var serverEnv = []string{
	"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"TAIBOX_LISTEN", "TAIBOX_TLS", "TAIBOX_TLS_CERT", "TAIBOX_TLS_KEY", "TAIBOX_TLS_NAMES", "TAIBOX_API_RATE", "TAIBOX_API_BURST",
	"TAIBOX_LOG", "YAO_SANDBOX_IMAGE", "YAO_SANDBOX_MAX", "YAO_SANDBOX_MEMORY", "YAO_SANDBOX_CPU",
	"YAO_SANDBOX_IDLE_TIMEOUT", "TAIBOX_ORPHAN_AFTER", "TAIBOX_SANDBOX_PIDS", "TAIBOX_SANDBOX_MAX_PER_OWNER", "TAIBOX_SANDBOX_MAX_PER_IMAGE", "TAIBOX_SANDBOX_MAX_PER_NODE",
	"TAIBOX_SANDBOX_MAX_MEMORY", "TAIBOX_SANDBOX_MAX_CPU", "TAIBOX_SANDBOX_MAX_PIDS",
	"GOTRACEBACK", "GOCOVERDIR",
}

// startServer starts a server for the settings and waits until it answers. Of
// several commands that do so at once, one starts it and all get it.
func (e *Env) startServer(ctx context.Context, c *client.Client, s *settings) (rest.Version, error) {
	if e.UID != 0 {
		return rest.Version{}, withHint(
			fmt.Errorf("no server answers at %s, and only root may start one: %w", s.Host, errdefs.ErrPermissionDenied),
			"run the command as root, or start the server first: sudo taibox serve")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the server at %s did not answer within %v: %w", s.Host, startTimeout, errdefs.ErrUnavailable))
	defer cancel()

	socket := socketPath(s.Host)
	unlock, err := lockStart(ctx, socket+".start")
	if err != nil {
		return rest.Version{}, fmt.Errorf("start the server: %w", err)
	}
	defer unlock()
	if v, err := c.Version(ctx); !nobodyListens(err) {
		return v, err
	}

	dead := make(chan error, 1)
	var tail func() string
	if e.hasUnit(s) {
		e.note("starting the server as %s", unitName)
		if out, err := exec.CommandContext(ctx, "systemctl", "start", unitName).CombinedOutput(); err != nil {
			return rest.Version{}, startFailed(err, string(out), "systemctl status "+unitName)
		}
		tail = func() string { return "" }
	} else if tail, err = e.spawn(s, dead); err != nil {
		return rest.Version{}, fmt.Errorf("start the server: %w", err)
	}
	return e.await(ctx, c, s, dead, tail)
}

// await polls until the server answers, or has died.
func (e *Env) await(ctx context.Context, c *client.Client, s *settings, dead <-chan error, tail func() string) (rest.Version, error) {
	logName := filepath.Join(s.DataDir, "server.log")
	impatient := time.NewTimer(startPatience)
	defer impatient.Stop()
	for pause := startPollMin; ; pause = min(2*pause, startPollMax) {
		if v, err := c.Version(ctx); !errors.Is(err, rest.ErrUnreachable) && ctx.Err() == nil {
			return v, err
		}
		select {
		case err := <-dead:
			// It may have lost a race against a server that serves by now.
			if v, verr := c.Version(ctx); verr == nil {
				return v, nil
			}
			return rest.Version{}, startFailed(err, tail(), "the whole log is "+logName)
		case <-impatient.C:
			e.note("the server does not answer yet; its log is %s", logName)
		case <-time.After(pause):
		case <-ctx.Done():
			if err := context.Cause(ctx); errors.Is(err, errdefs.ErrUnavailable) {
				return rest.Version{}, startFailed(err, tail(), "the whole log is "+logName)
			}
			return rest.Version{}, context.Cause(ctx)
		}
	}
}

// startFailed says why there is no server, with the last words of its log.
func startFailed(err error, log, hint string) error {
	if log = strings.TrimSpace(log); log != "" {
		log = ": " + log
	}
	return withHint(fmt.Errorf("start the server: %w: %w%s", err, errdefs.ErrUnavailable, log), "%s", hint)
}

// spawn starts the server as a process that has nothing of ours but its
// arguments and a listed environment. Its end is sent to dead; tail returns
// the last lines that it has logged.
func (e *Env) spawn(s *settings, dead chan<- error) (tail func() string, err error) {
	program, err := e.serverProgram()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.DataDir, 0o700); err != nil {
		return nil, err
	}
	name := filepath.Join(s.DataDir, "server.log")
	log, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the server has its own
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}

	cmd := exec.Command(program, "serve", "--host", s.Host, "--data-dir", s.DataDir) //nolint:noctx // it outlives us
	if s.config != "" {
		cmd.Args = append(cmd.Args, "--config", s.config)
	}
	cmd.Dir = "/"
	cmd.Env = []string{}
	for _, k := range serverEnv {
		if v := e.Getenv(k); v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// What we ourselves inherited open would be passed on.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("close descriptors on exec: %w", err)
	}
	e.note("starting the server in the background, with its data and log in %s", s.DataDir)
	umask := unix.Umask(0o077)
	err = cmd.Start()
	unix.Umask(umask)
	if err != nil {
		return nil, err
	}
	go func() {
		err := cmd.Wait()
		if err == nil {
			err = errors.New("it ended at once")
		}
		dead <- err
	}()
	return func() string { return logTail(name, begin) }, nil
}

// logTail returns the last lines of a log from offset begin on.
func logTail(name string, begin int64) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // only read
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		begin = max(begin, size-logTailBytes)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, begin, logTailBytes))
	if err != nil {
		return ""
	}
	return string(data)
}

// hasUnit reports whether systemd runs and has a unit for just this server.
func (e *Env) hasUnit(s *settings) bool {
	if s.Host != defaultHost || s.DataDir != defaultDataDir || s.config != "" {
		return false
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return false
	}
	for _, dir := range []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"} {
		if _, err := os.Stat(filepath.Join(dir, unitName)); err == nil {
			return true
		}
	}
	return false
}

// lockStart takes the lock on starting a server, which ends with its holder.
func lockStart(ctx context.Context, name string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o711); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil //nolint:errcheck // the lock goes with the descriptor
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close() //nolint:errcheck // nothing was written
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			f.Close() //nolint:errcheck // nothing was written
			return nil, context.Cause(ctx)
		case <-time.After(startPollMax):
		}
	}
}
