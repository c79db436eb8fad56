package bridge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/bridge/inside"
	"github.com/taibox/taibox/tai/sandbox"
)

// asBridge in the environment makes the test binary a bridge: "pid1" in a pid
// namespace of its own, "child" in the machine's.
const asBridge = "TAIBOX_TEST_BRIDGE"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == inside.FileWorker {
		if err := inside.ServeFile(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if mode := os.Getenv(asBridge); mode != "" {
		if err := beBridge(mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func beBridge(mode string) error {
	debug.SetGCPercent(25)
	cfg := inside.Config{Version: "test", TrustPeer: func(net.Conn) error { return nil }}
	if mode == "pid1" {
		cfg.TrustPeer = nil
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return err
		}
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	cfg.Listener = l
	return inside.Run(cfg)
}

// box is a bridge that runs for a test.
type box struct {
	*bridge.Client
	t      testing.TB
	cmd    *exec.Cmd
	socket string
	exited chan error
	cgroup string // parent of the cgroups of execs, or ""
	n      int
	mu     sync.Mutex
}

// start runs a bridge: as PID 1 with a cgroup for each exec where the test may
// do that, else as an ordinary process.
func start(t testing.TB) *box {
	t.Helper()
	if os.Geteuid() != 0 {
		return startAs(t, "child", "")
	}
	return startAs(t, "pid1", makeCgroup(t))
}

// needRoot skips, or fails where the whole must be tested.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		if strings.Contains(os.Getenv("TAIBOX_TEST_REQUIRE"), "oci") {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
}

func startAs(t testing.TB, mode, cgroup string) *box {
	t.Helper()
	return startCommand(t, exec.Command(os.Args[0]), mode, cgroup)
}

// startProgram runs the real program as PID 1.
func startProgram(t testing.TB, program string) *box {
	t.Helper()
	// A shell mounts /proc, and becomes the program.
	return startCommand(t, exec.Command("/bin/sh", "-c", "mount --make-rprivate / && mount -t proc proc /proc && exec "+program), "pid1", makeCgroup(t))
}

func startCommand(t testing.TB, cmd *exec.Cmd, mode, cgroup string) *box {
	t.Helper()
	dir, err := os.MkdirTemp("", "bridge")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &box{t: t, socket: filepath.Join(dir, "s"), exited: make(chan error, 1), cgroup: cgroup}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	b.cmd = cmd
	b.cmd.Env = []string{asBridge + "=" + mode, "PATH=" + os.Getenv("PATH")}
	b.cmd.ExtraFiles = []*os.File{f}
	b.cmd.Stderr = &out
	b.cmd.WaitDelay = time.Second
	if mode == "pid1" {
		b.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.exited <- b.cmd.Wait()
	}()
	b.Client = bridge.New(b.dial)
	t.Cleanup(func() {
		b.Close()
		b.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(100 * time.Millisecond):
			b.cmd.Process.Kill()
			<-done
		}
		if s := out.String(); strings.Contains(s, "DATA RACE") || strings.Contains(s, "panic") || strings.Contains(s, "fatal error") {
			t.Errorf("the bridge said:\n%s", s)
		}
	})
	if _, err := b.Setup(t.Context(), bridge.Setup{Box: "testbox"}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return b
}

func (b *box) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", b.socket)
}

// makeCgroup makes a cgroup for a test, or returns "" where that is not possible.
func makeCgroup(t testing.TB) string {
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var st unix.Statfs_t
		if unix.Statfs(root, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir, err := os.MkdirTemp(root, "taibox-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
			for range 6000 {
				subs, _ := os.ReadDir(dir)
				for _, s := range subs {
					if s.IsDir() {
						os.Remove(filepath.Join(dir, s.Name()))
					}
				}
				if err = os.Remove(dir); err == nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Errorf("cgroup left behind: %v", err)
		})
		return dir
	}
	return ""
}

// files makes the descriptors of an exec: a log, and a cgroup if there are any.
// They stay open until the test ends.
func (b *box) files() bridge.Files {
	b.t.Helper()
	b.mu.Lock()
	b.n++
	n := b.n
	b.mu.Unlock()
	open := func(name string, flags int) *os.File {
		f, err := os.OpenFile(name, flags, 0o600)
		if err != nil {
			b.t.Error(err)
			return nil
		}
		b.t.Cleanup(func() { f.Close() })
		return f
	}
	files := bridge.Files{Log: open(filepath.Join(filepath.Dir(b.socket), fmt.Sprintf("log%d", n)), os.O_RDWR|os.O_CREATE|os.O_EXCL)}
	if b.cgroup != "" {
		dir := filepath.Join(b.cgroup, fmt.Sprintf("x%d", n))
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.t.Error(err)
		}
		files.Cgroup = open(dir, os.O_RDONLY|unix.O_DIRECTORY)
		files.CgroupKill = open(dir+"/cgroup.kill", os.O_WRONLY)
		files.CgroupEvents = open(dir+"/cgroup.events", os.O_RDONLY)
	}
	return files
}

// run starts a command with files of its own.
func (b *box) run(spec sandbox.ExecSpec) (sandbox.Stream, error) {
	b.t.Helper()
	return b.StartExec(b.t.Context(), spec, b.files())
}

func sh(script string) sandbox.ExecSpec {
	return sandbox.ExecSpec{Args: []string{"/bin/sh", "-c", script}}
}

// exec runs a command to its end.
func (b *box) exec(spec sandbox.ExecSpec) sandbox.ExecResult {
	b.t.Helper()
	res, err := b.tryExec(spec)
	if err != nil {
		b.t.Fatalf("exec %q: %v", spec.Args, err)
	}
	return res
}

// timedOut runs a command beyond its timeout, and gives it a longer one as long
// as it is too short for the command to begin: a slow machine takes its time.
func (b *box) timedOut(spec sandbox.ExecSpec, begun func(res sandbox.ExecResult) bool) sandbox.ExecResult {
	b.t.Helper()
	for spec.Timeout = 300 * time.Millisecond; ; spec.Timeout *= 2 {
		res := b.exec(spec)
		if begun(res) {
			return res
		}
		if spec.Timeout > time.Minute {
			b.t.Fatalf("exec %q does not begin: %+v", spec.Args, res.ExecInfo)
		}
	}
}

func (b *box) tryExec(spec sandbox.ExecSpec) (sandbox.ExecResult, error) {
	s, err := b.run(spec)
	if err != nil {
		return sandbox.ExecResult{}, err
	}
	defer s.Close()
	return sandbox.Collect(b.t.Context(), s, spec.StdinData, spec.Stdin || spec.StdinData != nil, spec.MaxOutput)
}

func (b *box) start(spec sandbox.ExecSpec) sandbox.Stream {
	b.t.Helper()
	s, err := b.run(spec)
	if err != nil {
		b.t.Fatalf("exec %q: %v", spec.Args, err)
	}
	b.t.Cleanup(func() { s.Close() })
	return s
}

func wantCode(t testing.TB, info sandbox.ExecInfo, code int, reason sandbox.ExecReason) {
	t.Helper()
	if info.ExitCode == nil {
		t.Fatalf("no exit code in %+v", info)
	}
	if *info.ExitCode != code || info.Reason != reason || info.State != sandbox.ExecExited {
		t.Fatalf("code %d, reason %s, state %s; want %d, %s (%s)", *info.ExitCode, info.Reason, info.State, code, reason, info.Error)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v; want %v", err, want)
	}
}

// until waits for cond.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

func blocks(st os.FileInfo) int64 { return st.Sys().(*syscall.Stat_t).Blocks }

var errTestTimeout = errors.New("test timeout")

func withTimeout(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(t.Context(), d, errTestTimeout)
}
