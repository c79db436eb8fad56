package bridge_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func TestF01NoZombies(t *testing.T) {
	t.Parallel()
	needRoot(t)
	b := start(t)
	for range 60 {
		wantCode(t, b.exec(sh("(sleep .05 &) ; exit")).ExecInfo, 0, sandbox.ReasonExit)
	}
	until(t, "no zombies", func() bool {
		res := b.exec(sh("cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '"))
		return strings.TrimSpace(string(res.Stdout)) == "0"
	})
	until(t, "only PID 1", func() bool {
		st, err := b.Stats(t.Context())
		return err == nil && st.Processes == 1
	})
}

// TestF02Subreaper is the same where the bridge is not PID 1.
func TestF02Subreaper(t *testing.T) {
	t.Parallel()
	b := startAs(t, "child", "")
	for range 20 {
		b.exec(sh("(sleep .05 &) ; exit"))
	}
	until(t, "no zombies", func() bool {
		res := b.exec(sh(fmt.Sprintf("cat /proc/[0-9]*/stat 2>/dev/null | grep ') Z %d ' | wc -l", b.cmd.Process.Pid)))
		return strings.TrimSpace(string(res.Stdout)) == "0"
	})
}

// TestSignalsFromInside sends PID 1 every signal that can be caught.
func TestSignalsFromInside(t *testing.T) {
	needRoot(t)
	b := start(t)
	res := b.exec(sh("for i in $(seq 1 64); do kill -$i 1 2>/dev/null; done; sleep 0.3; echo alive"))
	if string(res.Stdout) != "alive\n" {
		t.Fatalf("%q %q", res.Stdout, res.Stderr)
	}
	wantCode(t, b.exec(sh("exit 3")).ExecInfo, 3, sandbox.ReasonExit)
}

// TestTermFromOutside stops the box, whatever was sent from inside before.
func TestTermFromOutside(t *testing.T) {
	needRoot(t)
	b := start(t)
	s := b.start(sh("kill -TERM 1; echo up; exec sleep 30"))
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	info, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, info, 143, sandbox.ReasonStop)
	if err := <-b.exited; err != nil {
		t.Errorf("PID 1 ended with %v", err)
	}
}

// TestPeerInside is refused: only the node may ask.
func TestPeerInside(t *testing.T) {
	needRoot(t)
	b := start(t)
	script := fmt.Sprintf(`import socket
s=socket.socket(socket.AF_UNIX); s.connect(%q)
s.sendall(b'\x01\x00\x00\x00\x15{"v":1,"op":"stats"} ')
print(s.recv(100))`, b.socket)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	res := b.exec(sandbox.ExecSpec{Args: []string{"python3", "-c", script}})
	if out := string(res.Stdout); out != "b''\n" && !strings.Contains(string(res.Stderr), "ConnectionReset") && !strings.Contains(string(res.Stderr), "BrokenPipe") {
		t.Errorf("%q %q", res.Stdout, res.Stderr)
	}
}

func TestEnvironment(t *testing.T) {
	b := start(t)
	spec := sandbox.ExecSpec{Args: []string{"/usr/bin/env"}, Env: map[string]string{"A": "1", "LC_ALL": "C"}}
	res := b.exec(spec)
	env := strings.Split(strings.TrimSpace(string(res.Stdout)), "\n")
	want := map[string]bool{"A=1": true, "LC_ALL=C": true, "HOME=/root": true, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin": true}
	if os.Geteuid() != 0 {
		t.Skip("HOME is root's")
	}
	for _, kv := range env {
		if !want[kv] {
			t.Errorf("unexpected %s", kv)
		}
		delete(want, kv)
	}
	if len(want) > 0 {
		t.Errorf("missing %v", want)
	}
	if got := strings.Join(res.EnvNames, " "); got != "A HOME LC_ALL PATH" {
		t.Errorf("the record names %s", got)
	}
	if out := b.exec(sh("ls /proc/self/fd | wc -l; pwd; umask")).Stdout; string(out) != "4\n/\n0022\n" {
		t.Errorf("descriptors, directory, umask: %q", out)
	}
	// The score may be raised a moment after the start.
	if out := b.exec(sh("for i in $(seq 600); do grep -qx 500 /proc/self/oom_score_adj && break; sleep 0.05; done; cat /proc/self/oom_score_adj; grep SigBlk /proc/self/status; grep SigIgn /proc/self/status")).Stdout; !bytes.HasPrefix(out, []byte("500\n")) ||
		bytes.Count(out, []byte("0000000000000000")) != 2 {
		t.Errorf("oom score, blocked and ignored signals: %q", out)
	}
}

func TestUsers(t *testing.T) {
	needRoot(t)
	b := start(t)
	id := func(user string) string {
		res := b.exec(sandbox.ExecSpec{Args: []string{"sh", "-c", "echo $(id -u):$(id -g):$(id -G) $HOME; echo x >/dev/stdout; echo y >/dev/stderr"}, User: user, WorkDir: "/tmp"})
		if len(res.Stderr) != 2 {
			t.Errorf("%s: %q", user, res.Stderr)
		}
		return string(res.Stdout)
	}
	for user, want := range map[string]string{
		"":           "0:0:0 /root\nx\n",
		"root":       "0:0:0 /root\nx\n",
		"12345":      "12345:0:0 /\nx\n",
		"12345:678":  "12345:678:678 /\nx\n",
		"daemon":     "1:1:1 /usr/sbin\nx\n",
		"daemon:bin": "1:2:2 /usr/sbin\nx\n",
	} {
		if got := id(user); got != want {
			t.Errorf("%q is %q, want %q", user, got, want)
		}
	}
	res := b.exec(sandbox.ExecSpec{Args: []string{"cat"}, User: "1000", StdinData: []byte("in")})
	if string(res.Stdout) != "in" {
		t.Errorf("%q", res.Stdout)
	}
}

func TestPortsAndDial(t *testing.T) {
	b := start(t)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	user := ""
	if os.Geteuid() == 0 {
		user = "12345"
	}
	s := b.start(sandbox.ExecSpec{User: user, WorkDir: "/tmp", Args: []string{"python3", "-uc", `import socket
l=socket.create_server(("127.0.0.1",0)); u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind(("127.0.0.1",0))
print(f"{l.getsockname()[1]} {u.getsockname()[1]}")
while True:
    c,_=l.accept(); c.sendall(b"hello "+c.recv(100)); c.close()`}})
	c, err := s.Recv()
	if err != nil {
		info, werr := s.Wait(t.Context())
		t.Fatalf("%v, %+v, %v", err, info, werr)
	}
	var tcp, udp int
	if _, err := fmt.Sscan(string(c.Data), &tcp, &udp); err != nil {
		t.Fatal(err)
	}
	ports, err := b.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	info, err := b.InspectExec(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, p := range ports {
		if p.Network == "tcp" && p.Port == tcp || p.Network == "udp" && p.Port == udp {
			found++
			if p.Address != "127.0.0.1" || p.PID != info.PID || !strings.HasPrefix(p.Process, "python") {
				t.Errorf("%+v, want process %d", p, info.PID)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d and %d are not both in %+v", tcp, udp, ports)
	}
	conn, err := b.Dial(t.Context(), tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte("you"))
	var buf [100]byte
	n, _ := conn.Read(buf[:])
	if m, _ := conn.Read(buf[n:]); string(buf[:n+m]) != "hello you" {
		t.Errorf("%q", buf[:n+m])
	}
	b.KillExec(t.Context(), s.ID(), sandbox.KillOptions{Signal: 9})
	s.Wait(t.Context())
	_, err = b.Dial(t.Context(), tcp)
	wantErr(t, err, sandbox.ErrPortRefused)
	_, err = b.Dial(t.Context(), 70000)
	wantErr(t, err, sandbox.ErrInvalidSpec)
}

func TestListForgetWait(t *testing.T) {
	b := start(t)
	var ids []string
	for range 5 {
		ids = append(ids, b.exec(sh("echo x")).ID)
	}
	list, err := b.ListExecs(t.Context())
	if err != nil || len(list) != 5 {
		t.Fatalf("%d execs, %v", len(list), err)
	}
	for i := range list {
		if list[i].ID != ids[i] || list[i].Box != "testbox" {
			t.Errorf("%d is %+v", i, list[i])
		}
	}
	if err := b.ForgetExec(t.Context(), ids[2]); err != nil {
		t.Fatal(err)
	}
	wantErr(t, b.ForgetExec(t.Context(), ids[2]), sandbox.ErrExecNotFound)
	_, err = b.AttachExec(t.Context(), ids[2], sandbox.AttachOptions{})
	wantErr(t, err, sandbox.ErrExecNotFound)

	s := b.start(sh("sleep 30"))
	ctx, cancel := withTimeout(t, 100*time.Millisecond)
	defer cancel()
	_, err = s.Wait(ctx)
	wantErr(t, err, errTestTimeout)
	if _, err = b.WaitExec(ctx, s.ID()); !errors.Is(err, errTestTimeout) {
		t.Error(err)
	}
}

// TestMemory holds the real program to its size.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	program := filepath.Join(t.TempDir(), "taibox-bridge")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "../cmd/taibox-bridge")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	needRoot(t)
	b := startProgram(t, program)
	st, err := b.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("idle: %d KiB", st.RSSBytes>>10)
	if st.RSSBytes > 8<<20 {
		t.Errorf("an idle bridge takes %d bytes", st.RSSBytes)
	}
	for range 200 {
		b.exec(sh("echo x"))
	}
	b.exec(sh("head -c 20000000 /dev/zero"))
	if st, err = b.Stats(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("after 200 execs that are kept: %d KiB", st.RSSBytes>>10)
	if st.RSSBytes > 16<<20 {
		t.Errorf("a used bridge takes %d bytes", st.RSSBytes)
	}
	for name, want := range map[string]string{"environ": "ermission", "maps": "ermission", "mem": "ermission"} {
		res := b.exec(sandbox.ExecSpec{Args: []string{"cat", "/proc/1/" + name}, User: "1000"})
		if !strings.Contains(string(res.Stderr), want) || len(res.Stdout) > 0 {
			t.Errorf("/proc/1/%s: %q %q", name, res.Stdout, res.Stderr)
		}
	}
}
