package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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
	unitPoll      = 500 * time.Millisecond
	unitRestarts  = 2 // that are no reason to give up: an old server may have been in the way
)

const (
	unitName = "taibox.service"
	journal  = "shown by: journalctl -u taibox" // where the unit's log is
)

// serverEnv lists the variables that a server in the background gets. What
// else is in the environment of whoever happened to need it first stays there.
var serverEnv = []string{
	"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"TAIBOX_LISTEN", "TAIBOX_TLS", "TAIBOX_TLS_CERT", "TAIBOX_TLS_KEY", "TAIBOX_TLS_NAMES", "TAIBOX_API_RATE", "TAIBOX_API_BURST",
	"TAIBOX_LOG", "YAO_SANDBOX_IMAGE", "YAO_SANDBOX_MAX", "YAO_SANDBOX_MEMORY", "YAO_SANDBOX_CPU",
	"YAO_SANDBOX_IDLE_TIMEOUT", "TAIBOX_ORPHAN_AFTER", "TAIBOX_SANDBOX_PIDS", "TAIBOX_SANDBOX_MAX_PER_OWNER", "TAIBOX_SANDBOX_MAX_PER_IMAGE", "TAIBOX_SANDBOX_MAX_PER_NODE",
	"TAIBOX_SANDBOX_MAX_MEMORY", "TAIBOX_SANDBOX_MAX_CPU", "TAIBOX_SANDBOX_MAX_PIDS", "TAIBOX_WORKSPACE_MAX_PER_OWNER", "TAIBOX_WORKSPACE_MAX_DISK",
	"TAIBOX_EXEC_KEEP", "TAIBOX_EXEC_KEEP_BYTES",
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
	if e.hasUnit(s) {
		e.note("starting the server as %s", unitName)
		if out, err := exec.CommandContext(ctx, "systemctl", "start", unitName).CombinedOutput(); err != nil {
			return rest.Version{}, startFailed(err, string(out), "systemctl status "+unitName)
		}
		var watch sync.WaitGroup
		defer watch.Wait()
		defer cancel()
		watch.Go(func() { watchUnit(ctx, dead) })
		return e.await(ctx, c, starting{dead, func() string { return "" }, journal})
	}
	tail, err := e.spawn(s, dead)
	if err != nil {
		return rest.Version{}, fmt.Errorf("start the server: %w", err)
	}
	return e.await(ctx, c, starting{dead, tail, filepath.Join(s.DataDir, "server.log")})
}

// starting is a server that is being started.
type starting struct {
	dead <-chan error  // why it ended, once it has
	tail func() string // the last lines of its log, as far as we have them
	log  string        // where the whole log is
}

// await polls until the server answers, or has died.
func (e *Env) await(ctx context.Context, c *client.Client, st starting) (rest.Version, error) {
	impatient := time.NewTimer(startPatience)
	defer impatient.Stop()
	for pause := startPollMin; ; pause = min(2*pause, startPollMax) {
		if v, err := c.Version(ctx); !errors.Is(err, rest.ErrUnreachable) && ctx.Err() == nil {
			return v, err
		}
		select {
		case err := <-st.dead:
			// It may have lost a race against a server that serves by now.
			if v, verr := c.Version(ctx); verr == nil {
				return v, nil
			}
			return rest.Version{}, startFailed(err, st.tail(), "the whole log is "+st.log)
		case <-impatient.C:
			e.note("the server does not answer yet; its log is %s", st.log)
		case <-time.After(pause):
		case <-ctx.Done():
			if err := context.Cause(ctx); errors.Is(err, errdefs.ErrUnavailable) {
				return rest.Version{}, startFailed(err, st.tail(), "the whole log is "+st.log)
			}
			return rest.Version{}, context.Cause(ctx)
		}
	}
}

// watchUnit sends it to dead when systemd has given the unit up, or starts it
// again and again. It returns at the latest when ctx ends.
func watchUnit(ctx context.Context, dead chan<- error) {
	first := -1
	for {
		u, err := showUnit(ctx)
		if first < 0 && err == nil {
			first = u.restarts
		}
		switch {
		case err != nil: // systemd itself may be busy
		case u.state == "failed":
			dead <- fmt.Errorf("%s has failed (%s)", unitName, u.result)
			return
		case u.restarts-first > unitRestarts:
			dead <- fmt.Errorf("%s ends again and again (%s)", unitName, u.result)
			return
		}
		select {
		case <-time.After(unitPoll):
		case <-ctx.Done():
			return
		}
	}
}

// unit is what systemd says of our unit.
type unit struct {
	state    string // "active", "activating", "failed", …
	result   string // of its last run: "success", "exit-code", "signal", …
	restarts int    // by systemd
}

func showUnit(ctx context.Context) (u unit, err error) {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=ActiveState,Result,NRestarts", unitName).Output()
	for line := range strings.Lines(string(out)) {
		switch name, v, _ := strings.Cut(strings.TrimSpace(line), "="); name {
		case "ActiveState":
			u.state = v
		case "Result":
			u.result = v
		case "NRestarts":
			u.restarts, _ = strconv.Atoi(v) // an old systemd does not count
		}
	}
	return u, err
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
