package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/api/rest"
)

// machine is a data directory and a socket of a test's own, whose server is a
// process on the fake driver.
type machine struct {
	t    *testing.T
	dir  string
	vars []string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "tbx") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t, dir, append(os.Environ(), "TAIBOX_HOST=unix://"+dir+"/s.sock", "TAIBOX_DATA_DIR="+dir+"/data", "HOME="+dir, "GORACE="+noRaceSleep)}
	t.Cleanup(func() {
		killServer(dir + "/s.sock")
		os.RemoveAll(dir)
	})
	return m
}

// cmd prepares a taibox process.
func (m *machine) cmd(args ...string) *exec.Cmd {
	m.t.Helper()
	path, err := exec.LookPath("taibox")
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	m.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = m.vars
	return cmd
}

// run runs one and returns what it did.
func (m *machine) run(args ...string) (stdout, stderr string, code int) {
	m.t.Helper()
	var out, errs bytes.Buffer
	cmd := m.cmd(args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	code = exitOf(m.t, cmd.Run())
	return out.String(), errs.String(), code
}

func exitOf(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return 0
}

// mustRun runs one that has to work, and returns its stdout.
func (m *machine) mustRun(args ...string) string {
	m.t.Helper()
	out, errs, code := m.run(args...)
	if code != 0 {
		m.t.Fatalf("taibox %s: code %d, stderr %q", strings.Join(args, " "), code, errs)
	}
	return strings.TrimSpace(out)
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// started starts one that prints a line, and waits for the line.
func (m *machine) started(line string, args ...string) *exec.Cmd {
	m.t.Helper()
	cmd := m.cmd(args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	if got, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(got) != line {
		m.t.Fatalf("taibox %v: first line %q, %v; want %q", args, got, err, line)
	}
	return cmd
}

// interrupt sends INT again and again until the process has ended, and returns
// its code and how many were sent: fewer may have arrived, since two that come
// at once are one.
func interrupt(t *testing.T, cmd *exec.Cmd) (code, sent int) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		sent++
		if err := cmd.Process.Signal(unix.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			return exitOf(t, err), sent
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// running reports whether an exec runs.
func (m *machine) running(box, exec string) bool {
	m.t.Helper()
	for line := range strings.Lines(m.mustRun("ps", box)) {
		if f := strings.Fields(line); f[0] == exec {
			return f[1] == "running"
		}
	}
	m.t.Fatalf("box %s has no exec %s", box, exec)
	return false
}

// TestT02Signals: without a terminal INT and TERM go to the command, and the
// third press gives up on it.
func TestT02Signals(t *testing.T) {
	m := newMachine(t)
	m.mustRun("create", "--id", "b", "hostfs")

	t.Run("forwarded", func(t *testing.T) {
		cmd := m.started("ready", "exec", "b", "--", "trap-exit", "3")
		unix.Kill(cmd.Process.Pid, unix.SIGTERM)
		if code := exitOf(t, cmd.Wait()); code != 3 {
			t.Errorf("code %d, want the command's 3", code)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		cmd := m.cmd("exec", "--id", "sleeper", "b", "--", "sleep", "infinity")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the command runs", func() bool {
			out, _, _ := m.run("ps", "-q", "b")
			return strings.Contains(out, "sleeper")
		})
		// It may be known before we are attached; signals come again then.
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		unix.Kill(cmd.Process.Pid, unix.SIGINT)
		if code := exitOf(t, <-done); code != 130 {
			t.Errorf("code %d, want 130", code)
		}
		eventually(t, "the command has ended", func() bool { return !m.running("b", "sleeper") })
	})
	t.Run("given_up", func(t *testing.T) {
		cmd := m.started("ready", "exec", "--id", "deaf", "b", "--", "trap")
		if code, sent := interrupt(t, cmd); code != 130 || sent < patience {
			t.Errorf("code %d after %d signals, want 130 after %d", code, sent, patience)
		}
		eventually(t, "D04: what was given up is killed", func() bool { return !m.running("b", "deaf") })
	})
	t.Run("given_up_with_output_stuck", func(t *testing.T) {
		cmd := m.cmd("exec", "--id", "stuck", "b", "--", "yes", "100000000000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 100)); err != nil { // and no more
			t.Fatal(err)
		}
		// The fake's program ends at the first one; we are stuck all the same.
		if code, _ := interrupt(t, cmd); code != 130 {
			t.Errorf("code %d, want 130", code)
		}
	})
	t.Run("run", func(t *testing.T) {
		cmd := m.started("ready", "run", "hostfs", "--", "trap-exit", "5")
		unix.Kill(cmd.Process.Pid, unix.SIGTERM)
		if code := exitOf(t, cmd.Wait()); code != 5 {
			t.Errorf("code %d, want 5", code)
		}
		if ids := m.mustRun("ls", "-q"); ids != "b" {
			t.Errorf("boxes left: %q", ids)
		}
	})
	t.Run("attach_only_looks_on", func(t *testing.T) {
		m.mustRun("exec", "-d", "--id", "watched", "b", "--", "trap")
		cmd := m.started("ready", "attach", "--since", "0", "b", "watched")
		unix.Kill(cmd.Process.Pid, unix.SIGINT)
		if code := exitOf(t, cmd.Wait()); code != 130 {
			t.Errorf("code %d, want 130", code)
		}
		if !m.running("b", "watched") {
			t.Error("leaving an attach ended the command")
		}
	})
}

// TestD04ClientKilled: a foreground command dies with its client, one in the
// background does not.
func TestD04ClientKilled(t *testing.T) {
	m := newMachine(t)
	m.mustRun("create", "--id", "b", "hostfs")
	m.mustRun("exec", "-d", "--id", "kept", "b", "--", "trap")
	cmd := m.started("ready", "exec", "--id", "fg", "b", "--", "trap")
	cmd.Process.Kill()
	cmd.Wait()
	eventually(t, "the foreground command has ended", func() bool { return !m.running("b", "fg") })
	if !m.running("b", "kept") {
		t.Error("the background command ended")
	}

	cmd = m.started("ready", "run", "--id", "one", "hostfs", "--", "trap")
	cmd.Process.Kill()
	cmd.Wait()
	eventually(t, "the box of a killed run is gone", func() bool { return m.mustRun("ls", "-q") == "b" })
}

// TestOutputClosed: like any filter, we end with whoever reads us.
func TestOutputClosed(t *testing.T) {
	m := newMachine(t)
	m.mustRun("create", "--id", "b", "hostfs")
	for _, args := range [][]string{{"run", "hostfs", "--"}, {"exec", "b", "--"}} {
		t.Run(args[0], func(t *testing.T) {
			cmd := m.cmd(append(args, "yes", "100000000000")...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(out, make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			out.Close()
			if code := exitOf(t, cmd.Wait()); code != exitPipe {
				t.Errorf("code %d, want %d", code, exitPipe)
			}
			if ids := m.mustRun("ls", "-q"); ids != "b" {
				t.Errorf("boxes: %q", ids)
			}
		})
	}
	t.Run("full_disk", func(t *testing.T) {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		defer full.Close()
		var errs bytes.Buffer
		cmd := m.cmd("run", "hostfs", "--", "echo", "hi")
		cmd.Stdout, cmd.Stderr = full, &errs
		if code := exitOf(t, cmd.Run()); code != exitOurs || !strings.Contains(errs.String(), "write stdout") {
			t.Errorf("code %d, stderr %q; want 125 and what could not be written", code, errs.String())
		}
	})
}

// TestE01AllOutput: every byte arrives, also where the reader is slow.
func TestE01AllOutput(t *testing.T) {
	m := newMachine(t)
	cmd := m.cmd("run", "hostfs", "--", "yes", "20000000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond) // nobody reads meanwhile
	n, err := io.Copy(io.Discard, out)
	if err != nil || n != 20000000 {
		t.Errorf("%d bytes, %v; want 20000000", n, err)
	}
	if code := exitOf(t, cmd.Wait()); code != 0 {
		t.Errorf("code %d", code)
	}
}

// TestB01ShortInputs and the like: an input of any size arrives and ends.
func TestB01Inputs(t *testing.T) {
	m := newMachine(t)
	m.mustRun("create", "--id", "b", "hostfs")
	for _, n := range []int{0, 1, 4095, 4096, 65537, 3000000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			in := bytes.Repeat([]byte{'x'}, n)
			cmd := m.cmd("exec", "-i", "b", "--", "cat")
			cmd.Stdin = bytes.NewReader(in)
			if out, err := cmd.Output(); err != nil || !bytes.Equal(out, in) {
				t.Errorf("%d bytes came back, %v", len(out), err)
			}
		})
	}
	t.Run("B05_input_that_stays_open", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		for _, flags := range [][]string{nil, {"-i"}} {
			cmd := m.cmd(append(append([]string{"exec"}, flags...), "b", "--", "echo", "hi")...)
			cmd.Stdin = r
			if out, err := cmd.Output(); err != nil || string(out) != "hi\n" {
				t.Errorf("exec %v: %q, %v", flags, out, err)
			}
		}
	})
}

// TestT01Terminal: the size is there from the start and follows the user's,
// every key goes through, and the terminal is as before afterwards.
func TestT01Terminal(t *testing.T) {
	m := newMachine(t)
	m.mustRun("create", "--id", "b", "hostfs")
	tty, in, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	defer in.Close()
	if err := pty.Setsize(tty, &pty.Winsize{Cols: 132, Rows: 43}); err != nil {
		t.Fatal(err)
	}
	before, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := m.cmd("exec", "-it", "b", "--", "size")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, in, in
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 16)
	go func() {
		defer close(lines)
		for r := bufio.NewReader(tty); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			lines <- strings.TrimSpace(line)
		}
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want {
				t.Fatalf("line %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no line %q", want)
		}
	}
	expect("43 132")
	raw, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil || raw.Lflag&(unix.ECHO|unix.ISIG|unix.ICANON) != 0 {
		t.Errorf("the terminal is not raw: %v, %v", raw, err)
	}
	if err := pty.Setsize(tty, &pty.Winsize{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	// The program looks at its size again at each line that is typed.
	eventually(t, "the new size is known in the box", func() bool {
		if _, err := tty.WriteString("\n"); err != nil {
			t.Fatal(err)
		}
		return <-lines == "30 100"
	})
	unix.Kill(cmd.Process.Pid, unix.SIGTERM)
	if code := exitOf(t, cmd.Wait()); code != 143 {
		t.Errorf("code %d, want 143", code)
	}
	after, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal was left as %v, %v; want %v", after, err, before)
	}
}

// TestBackgroundStart: of many commands at once one starts the server, and it
// has nothing of theirs.
func TestBackgroundStart(t *testing.T) {
	m := newMachine(t)
	m.vars = append(m.vars, "SECRET=hush")
	inherited, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()

	var mu sync.Mutex
	var starts int
	var wg sync.WaitGroup
	for range 8 {
		cmd := m.cmd("ls", "-q")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		cmd.ExtraFiles = []*os.File{inherited}
		wg.Go(func() {
			err := cmd.Run()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%v: %s", err, errs.String())
			}
			starts += strings.Count(errs.String(), "starting the server")
		})
	}
	wg.Wait()
	if starts != 1 {
		t.Errorf("%d starts, want 1", starts)
	}

	pid := m.server().PID
	if pid == 0 {
		t.Fatal("no server answers")
	}
	proc := filepath.Join("/proc", fmt.Sprint(pid))
	if cwd, err := os.Readlink(filepath.Join(proc, "cwd")); cwd != "/" {
		t.Errorf("cwd %q, %v", cwd, err)
	}
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("session %d, %v; want its own", sid, err)
	}
	environ, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil || bytes.Contains(environ, []byte("hush")) || !bytes.Contains(environ, []byte("PATH=")) {
		t.Errorf("environment %q, %v", environ, err)
	}
	for fd, want := range map[string]string{"0": os.DevNull, "1": m.dir + "/data/server.log", "2": m.dir + "/data/server.log"} {
		if got, err := os.Readlink(filepath.Join(proc, "fd", fd)); got != want {
			t.Errorf("descriptor %s is %q, %v; want %q", fd, got, err, want)
		}
	}
	if got, err := os.Readlink(filepath.Join(proc, "fd", "3")); got == os.DevNull {
		t.Errorf("descriptor 3 was passed on: %q, %v", got, err)
	}
	for name, want := range map[string]os.FileMode{"s.sock": 0o600 | os.ModeSocket, "data": 0o700 | os.ModeDir, "data/server.log": 0o600} {
		if info, err := os.Stat(filepath.Join(m.dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info, err, want)
		}
	}
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil || !strings.Contains(string(status), "Umask:\t0077") {
		t.Errorf("umask: %v in %s", err, status)
	}

	// TERM ends it in order; boxes are another matter.
	unix.Kill(pid, unix.SIGTERM)
	eventually(t, "the socket is gone", func() bool {
		_, err := os.Stat(filepath.Join(m.dir, "s.sock"))
		return errors.Is(err, os.ErrNotExist)
	})
}

// server returns what the server says of itself; zero if none answers.
func (m *machine) server() rest.Version {
	m.t.Helper()
	var v versions
	if err := json.Unmarshal([]byte(m.mustRun("version", "-o", "json")), &v); err != nil {
		m.t.Fatal(err)
	}
	if v.Server == nil {
		return rest.Version{}
	}
	return *v.Server
}

// TestServerSuccession: a server that is told to go makes way for the next.
func TestServerSuccession(t *testing.T) {
	m := newMachine(t)
	m.mustRun("create", "--id", "b", "hostfs")
	cmd := m.started("ready", "exec", "b", "--", "trap")
	first := m.server().PID
	unix.Kill(first, unix.SIGTERM)
	eventually(t, "another server answers", func() bool {
		_, _, code := m.run("ls", "-q")
		pid := m.server().PID // none if the first one answered as its last
		return code == 0 && pid != 0 && pid != first
	})
	cmd.Process.Kill()
	cmd.Wait()
}
