package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program builds the command as it is shipped.
func program(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "taibox-bridge")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", name, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return name
}

func TestHold(t *testing.T) {
	name := program(t)
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		// Nothing tells that it holds, and before that it dies of the signal: it
		// gets more time to begin until it has had enough.
		for wait := 100 * time.Millisecond; ; wait *= 2 {
			err := holds(t, name, sig, wait)
			if died(err, sig) && wait < 30*time.Second {
				continue
			}
			if err != nil {
				t.Errorf("%v after %v: %v", sig, wait, err)
			}
			break
		}
	}
}

// holds runs the program, sends it a signal after a while, and returns how it
// ended.
func holds(t *testing.T, name string, sig os.Signal, wait time.Duration) error {
	t.Helper()
	cmd := exec.Command(name, "hold")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("it ended by itself: %v", err)
	case <-time.After(wait):
	}
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	return <-ended
}

// died reports whether err is the end of a process by the signal.
func died(err error, sig os.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == sig
}

func TestWrongUse(t *testing.T) {
	name := program(t)
	for _, args := range [][]string{{"dance"}, {"hold", "on"}, {}} {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "taibox-bridge: ") {
			t.Errorf("%q: %v, %q", args, err, out)
		}
	}
}

func TestPair(t *testing.T) {
	if os.Geteuid() != 0 {
		if strings.Contains(os.Getenv("TAIBOX_TEST_REQUIRE"), "oci") {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	cmd := exec.Command(program(t), "pair")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 300000, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{},
	}
	var said strings.Builder
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// The program must be in reach of a user that is nobody here.
	if err := os.Chmod(filepath.Dir(cmd.Path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(cmd.Path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		in.Close()
		cmd.Wait()
		t.Fatalf("%q, %v, %s", line, err, said.String())
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
