package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// machine is a server's data directory on a disk of its own, and the programs.
type machine struct {
	t        testing.TB
	dir      string // of the test, beside the disk
	data     string
	socket   string
	taibox   string
	env      []string
	instance string
	api      *client.Client

	starting sync.Mutex
	failures atomic.Int64
	tally    tally

	mu    sync.Mutex
	kills []window // of the server, until another one answered
	fills []window // of the disk
}

// window is a time in which something was broken; its end is zero while it is.
type window struct{ begin, end time.Time }

const (
	callLimit = 3 * time.Minute // for one call, on a machine that does much else
	// afterFault is how long a fault may still be seen after its end: by calls
	// that met it and come to their end only now.
	afterFault = 3 * time.Second
	maxTold    = 40 // failures
)

func newMachine(t testing.TB, diskMiB int64) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "tbxload") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, data: filepath.Join(dir, "disk", "data"), socket: filepath.Join(dir, "s.sock"), taibox: filepath.Join(binDir(t), "taibox")}
	m.env = append(os.Environ(), "TAIBOX_HOST=unix://"+m.socket, "TAIBOX_DATA_DIR="+m.data, "HOME="+dir, "NO_COLOR=1", "YAO_SANDBOX_MAX=1000")
	t.Cleanup(func() { os.RemoveAll(dir) })
	if diskMiB > 0 {
		m.mountDisk(diskMiB)
	}
	t.Cleanup(m.wreck)
	m.api = m.newClient()
	return m
}

// mountDisk makes a small disk, as a file on a loop device.
func (m *machine) mountDisk(mib int64) {
	m.t.Helper()
	file, point := filepath.Join(m.dir, "disk.img"), filepath.Join(m.dir, "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Truncate(file, mib<<20); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Mkdir(point, 0o711); err != nil {
		m.t.Fatal(err)
	}
	m.system("mkfs.ext4", "-q", "-m", "0", file) // none of it is kept back for root
	m.system("mount", "-o", "loop", file, point)
	m.t.Cleanup(func() { m.system("umount", point) })
	// The server's log is to say what went wrong on a full disk.
	log, there := filepath.Join(m.dir, "server.log"), filepath.Join(m.data, "server.log")
	if err := os.Mkdir(m.data, 0o700); err != nil {
		m.t.Fatal(err)
	}
	for _, name := range []string{log, there} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
	m.system("mount", "--bind", log, there)
	m.t.Cleanup(func() {
		m.system("umount", there)
		m.tellLog(log)
	})
}

var worth = regexp.MustCompile(`(?i)level=(ERROR|WARN)|panic|goroutine \d+ \[running`)

// tellLog shows what the server thought worth it, if the test failed.
func (m *machine) tellLog(name string) {
	data, err := os.ReadFile(name)
	if err != nil || !m.t.Failed() {
		return
	}
	var told []string
	for line := range strings.Lines(string(data)) {
		if worth.MatchString(line) && (!strings.Contains(line, unix.ENOSPC.Error()) || strings.Contains(line, "request failed")) {
			told = append(told, line)
		}
	}
	m.t.Logf("the server's log:\n%s", strings.Join(told[max(0, len(told)-300):], ""))
}

func (m *machine) system(name string, args ...string) string {
	m.t.Helper()
	out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// newClient returns a client that brings the server back as the command line
// does.
func (m *machine) newClient() *client.Client {
	m.t.Helper()
	c, err := client.New("unix://"+m.socket, client.WithReasons(sandbox.Reasons()), client.WithRevive(m.wake))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(c.Close)
	return c
}

// wake has a server started by the command line where none listens.
func (m *machine) wake(ctx context.Context) error {
	if m.listens() {
		return nil
	}
	m.starting.Lock() // 20 programs that wait for one another would take the machine from the server
	defer m.starting.Unlock()
	if m.listens() {
		return nil
	}
	begin := time.Now()
	r := m.run(ctx, nil, "ls", "-q")
	if r.code == 0 {
		m.answered()
		return nil
	}
	m.judgeCLI("start of the server", begin, r)
	return fmt.Errorf("start by ls: code %d: %s: %w", r.code, r.stderr, rest.ErrUnreachable)
}

func (m *machine) listens() bool {
	c, err := net.Dial("unix", m.socket)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// revive waits until a server answers.
func (m *machine) revive(ctx context.Context) {
	for end := time.Now().Add(callLimit); ; time.Sleep(100 * time.Millisecond) {
		err := m.wake(ctx)
		if err == nil {
			var v rest.Version
			if v, err = m.api.Version(ctx); err == nil {
				m.answered()
				m.instance = v.Instance
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		if time.Now().After(end) {
			m.t.Fatalf("no server comes up: %v", err)
		}
	}
}

// result is what a process did.
type result struct {
	stdout, stderr string
	code           int
}

func (m *machine) run(ctx context.Context, stdin []byte, args ...string) result {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), callLimit, errStuck)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, m.taibox, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = m.env, &out, &errs
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	err := cmd.Run()
	r := result{out.String(), errs.String(), 0}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		m.fail("taibox %q: not done in %v; stdout %.200q, stderr %.400q", args, callLimit, r.stdout, r.stderr)
		r.code = -1
	case errors.As(err, &exit):
		r.code = exit.ExitCode()
	case err != nil:
		m.fail("taibox %q: %v", args, err)
		r.code = -1
	}
	return r
}

var errStuck = errors.New("a call is stuck")

// fail notes a failure, and goes on: there may be more to learn.
func (m *machine) fail(format string, args ...any) {
	if n := m.failures.Add(1); n <= maxTold {
		m.t.Errorf(time.Now().Format("15:04:05.000 ")+format, args...)
	}
}

// serverPID returns the pid of the server that holds the socket, or 0.
func (m *machine) serverPID() int {
	data, err := os.ReadFile(m.socket + ".lock")
	var v rest.Version
	if err != nil || json.Unmarshal(data, &v) != nil || v.PID == 0 {
		return 0
	}
	exe, err := os.Readlink("/proc/" + strconv.Itoa(v.PID) + "/exe")
	if err != nil || !strings.HasPrefix(exe, filepath.Join(filepath.Dir(m.taibox), "taibox-server")) {
		return 0
	}
	return v.PID
}

// killing kills the server every so often.
func (m *machine) killing(ctx context.Context, every time.Duration) {
	for wait(ctx, every) {
		m.kill()
		m.revive(ctx)
	}
}

// kill ends the server as if by a crash.
func (m *machine) kill() {
	pid := m.serverPID()
	if pid == 0 {
		return
	}
	m.mu.Lock()
	m.kills = append(m.kills, window{begin: time.Now()})
	m.mu.Unlock()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	unix.Kill(pid, unix.SIGKILL)
	unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
	m.tally.add("kill -9")
}

// answered ends the windows of dead servers.
func (m *machine) answered() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.kills {
		if m.kills[i].end.IsZero() {
			m.kills[i].end = time.Now()
		}
	}
}

// filling fills the disk to the last byte every so often, and frees it again.
func (m *machine) filling(ctx context.Context, every, length time.Duration) {
	name := filepath.Join(m.dir, "disk", "ballast")
	for wait(ctx, every) {
		m.mu.Lock()
		m.fills = append(m.fills, window{begin: time.Now()})
		m.mu.Unlock()
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			m.t.Error(err)
			return
		}
		full := false
		size := int64(0)
		for end := time.Now().Add(length); ctx.Err() == nil && time.Now().Before(end); {
			step := int64(256 << 20)
			for ; step >= 4<<10; step /= 2 {
				for unix.Fallocate(int(f.Fd()), 0, size, step) == nil {
					size += step
				}
			}
			full = true
			wait(ctx, 50*time.Millisecond) // what others give back is taken as well
		}
		f.Close()
		os.Remove(name)
		m.mu.Lock()
		m.fills[len(m.fills)-1].end = time.Now()
		m.mu.Unlock()
		if full {
			m.tally.add("disk full")
		}
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// during reports whether one of the windows was open since begin.
func (m *machine) during(windows *[]window, begin time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range *windows {
		if w.end.IsZero() || w.end.Add(afterFault).After(begin) {
			return true
		}
	}
	return false
}

func (m *machine) killedSince(begin time.Time) bool { return m.during(&m.kills, begin) }
func (m *machine) fullSince(begin time.Time) bool   { return m.during(&m.fills, begin) }

// excused reports whether a fault that is going on explains a failure: a dead
// server that calls are unavailable, a full disk that there is no space. An
// error of any other class is the product's, and so is one of these without
// its fault.
func (m *machine) excused(begin time.Time, err error) bool {
	switch {
	case errors.Is(err, rest.ErrUnreachable), errors.Is(err, rest.ErrStopping), errors.Is(err, rest.ErrInputLost):
		return m.killedSince(begin)
	case errors.Is(err, taisandbox.ErrNoSpace):
		return m.fullSince(begin)
	case errors.Is(err, errdefs.ErrUnavailable):
		return false
	}
	return false
}

// judge tells an error that no fault explains. It reports whether there was
// one at all: then nobody knows what came of the call.
func (m *machine) judge(what string, begin time.Time, err error) bool {
	if err == nil {
		m.tally.add(what)
		return false
	}
	if m.excused(begin, err) {
		m.tally.add("excused")
		return true
	}
	m.fail("%s: %v (%T)", what, err, err)
	return true
}

// judgeCLI does the same for a program.
func (m *machine) judgeCLI(what string, begin time.Time, r result) {
	switch {
	case r.code == -1: // told
	case r.code == 6 || r.code == 125:
		text := r.stderr
		dead := m.killedSince(begin) && (strings.Contains(text, rest.ErrUnreachable.Msg) || strings.Contains(text, rest.ErrStopping.Msg) || strings.Contains(text, rest.ErrInputLost.Msg))
		full := m.fullSince(begin) && strings.Contains(text, taisandbox.ErrNoSpace.Msg)
		if dead || full {
			m.tally.add("excused")
			return
		}
		fallthrough
	default:
		if m.fullSince(begin) && strings.Contains(r.stderr, taisandbox.ErrNoSpace.Msg) {
			m.tally.add("excused")
			return
		}
		m.fail("%s: code %d, stdout %.200q, stderr %.600q", what, r.code, r.stdout, r.stderr)
	}
}

// tally counts what was done.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[what]++
}

func (c *tally) log(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Log(c.n)
}
