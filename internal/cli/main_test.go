package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/internal/daemon"
	"github.com/taibox/taibox/internal/probe"
	"github.com/taibox/taibox/internal/testimage"
	"github.com/taibox/taibox/node"
	"github.com/taibox/taibox/server"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// The test's own binary is both programs, by the name it is called by.
func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){
		"taibox":        func() { os.Exit(Main(context.Background(), testEnv(), os.Args[1:])) },
		"taibox-server": func() { os.Exit(Main(context.Background(), serverEnvironment(), os.Args[1:])) },
	})
}

// noRaceSleep keeps each program that was built with -race from sleeping for a
// second at its end.
const noRaceSleep = "atexit_sleep_ms=0"

// leakChecked looks for goroutines that are left after the tests.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// testEnv is the environment of taibox as a process, with the right to start
// a server, and a machine that the test describes.
func testEnv() Env {
	env := System(cmp.Or(os.Getenv("TEST_VERSION"), "1.2.3"), "abc")
	env.UID = 0
	if uid, err := strconv.Atoi(os.Getenv("TEST_UID")); err == nil {
		env.UID = uid
	}
	env.Probe = func(context.Context, probe.Config) []probe.Check {
		return []probe.Check{
			{Name: "kernel", Status: probe.OK, Detail: "6.18"},
			{Name: "cgroups", Status: probe.Status(cmp.Or(os.Getenv("TEST_PROBE"), "warn")), Detail: "hybrid", Fix: "boot with v2"},
		}
	}
	return env
}

// serverEnvironment is that of taibox-server, on the fake driver.
func serverEnvironment() Env {
	env := testEnv()
	env.Serve = func(ctx context.Context, o ServeOptions) error {
		return daemon.Run(ctx, daemon.Config{
			Socket: o.Socket, DataDir: o.DataDir, Group: o.Group, MaxBoxes: o.Max, Runtime: "fake",
			TCP:  daemon.TCP{Listen: o.Listen, TLS: o.TLS, Cert: o.TLSCert, Key: o.TLSKey, Names: o.TLSNames},
			Rate: o.Rate, Burst: o.Burst,
			Driver: func(ctx context.Context, cfg node.DriverConfig) (taisandbox.Sandbox, taisandbox.Image, error) {
				if msg, err := os.ReadFile(filepath.Join(o.DataDir, "fail")); err == nil {
					return nil, nil, errors.New(string(msg))
				}
				d, err := fake.Open(ctx, cfg.DataDir, fake.WithRegistry(map[string]taisandbox.ImageConfig{
					"example.test/pull:1": {Cmd: []string{"echo", "pulled"}}, "short:latest": {Cmd: []string{"echo", "hub"}},
				}))
				return d, d, err
			},
			Defaults:    server.Defaults{Image: o.Image, Memory: o.Memory, CPUs: o.CPUs, Pids: o.Pids, IdleTimeout: o.IdleTimeout},
			Max:         server.Limits{Memory: o.MaxMemory, CPUs: o.MaxCPUs, Pids: o.MaxPids},
			MaxPerOwner: o.MaxPerOwner, MaxPerImage: o.MaxPerImage, MaxPerNode: o.MaxPerNode,
			Version: o.Version, Commit: o.Commit, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		})
	}
	return env
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		UpdateScripts:       *update,
		Setup: func(env *testscript.Env) error {
			socket := filepath.Join(env.WorkDir, "s.sock")
			env.Setenv("TAIBOX_HOST", "unix://"+socket)
			env.Setenv("TAIBOX_DATA_DIR", filepath.Join(env.WorkDir, "data"))
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("GORACE", noRaceSleep)
			env.Defer(func() { killServer(socket) })
			for name, im := range map[string]testimage.Image{
				"plain.tar": {Name: "example.test/plain:1"},
				"ep.tar":    entrypointImage(),
			} {
				data, err := testimage.OCI(im)
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(env.WorkDir, name), data, 0o600); err != nil {
					return err
				}
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code":       scriptCode,
			"killserver": scriptKillServer,
			"waitfor":    scriptWaitFor,
		},
	})
}

// scriptWaitFor waits until the server's metrics have a line.
func scriptWaitFor(ts *testscript.TestScript, _ bool, args []string) {
	socket := socketPath(ts.Getenv("TAIBOX_HOST"))
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	want := strings.Join(args, " ")
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		resp, err := c.Get("http://taibox/metrics")
		if err != nil {
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil && strings.Contains(string(body), "\n"+want+"\n") {
			return
		}
	}
	ts.Fatalf("the metrics have no line %q", want)
}

// scriptCode runs a program and wants an exit code: code 3 taibox rm nosuch.
func scriptCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N PROGRAM ARG...")
	}
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

// scriptKillServer kills the server with KILL, or with the signal given.
func scriptKillServer(ts *testscript.TestScript, _ bool, _ []string) {
	if !killServer(filepath.Join(ts.Getenv("WORK"), "s.sock")) {
		ts.Fatalf("no server answers")
	}
}

// killServer kills the server behind a socket and waits until it is gone.
func killServer(socket string) bool {
	c, err := client.New("unix://" + socket)
	if err != nil {
		return false
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	v, err := c.Version(ctx)
	if err != nil {
		return false
	}
	if err := unix.Kill(v.PID, unix.SIGKILL); err != nil {
		return false
	}
	for ctx.Err() == nil && unix.Kill(v.PID, 0) == nil {
		if state, err := processState(v.PID); err != nil || state == 'Z' {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return true
}

// processState returns the letter that ps shows.
func processState(pid int) (byte, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var n int
	var name string
	var state rune
	if _, err := fmt.Fscanf(io.LimitReader(f, 512), "%d %s %c", &n, &name, &state); err != nil {
		return 0, err
	}
	return byte(state), nil
}

// entrypointImage is an image with an entrypoint and a command.
func entrypointImage() testimage.Image {
	im := testimage.Image{Name: "example.test/ep:1"}
	im.Config.Entrypoint, im.Config.Cmd = []string{"/bin/echo", "ep"}, []string{"from-cmd"}
	return im
}
