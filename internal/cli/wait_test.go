package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// serve runs the machine's server in this process, where the fake machine is
// the same after a restart. What is returned ends it as TERM does.
func (m *machine) serve() (stop func()) {
	m.t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- serverEnvironment().Serve(ctx, ServeOptions{Socket: m.dir + "/s.sock", DataDir: m.dir + "/data", Image: "hostfs", Version: "1.2.3"})
	}()
	stop = sync.OnceFunc(func() {
		cancel(nil)
		if err := <-done; err != nil {
			m.t.Errorf("serve: %v", err)
		}
	})
	m.t.Cleanup(stop)
	eventually(m.t, "the server answers", func() bool {
		_, _, code := m.run("ls", "-q")
		return code == 0
	})
	return stop
}

// relay listens at p.sock, passes everything on to the server, and tells each
// request to wait that came to it.
func (m *machine) relay() (waits <-chan struct{}) {
	m.t.Helper()
	ln, err := net.Listen("unix", m.dir+"/p.sock")
	if err != nil {
		m.t.Fatal(err)
	}
	seen := make(chan struct{}, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			from, err := ln.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", m.dir+"/s.sock")
			if err != nil {
				from.Close()
				continue
			}
			wg.Go(func() {
				defer from.Close()
				io.Copy(from, to)
			})
			wg.Go(func() {
				defer to.Close()
				io.Copy(writerFunc(func(p []byte) (int, error) {
					n, err := to.Write(p)
					if bytes.Contains(p, []byte("/wait HTTP/")) {
						seen <- struct{}{}
					}
					return n, err
				}), from)
			})
		}
	})
	m.t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return seen
}

// TestWaitOutlastsTheServer: a server that stops in order and comes back,
// again and again, does not end a wait.
func TestWaitOutlastsTheServer(t *testing.T) {
	m := newMachine(t)
	m.vars = append(m.vars, "TEST_UID=1000") // who may not start a server waits for one
	waits := m.relay()
	stop := m.serve()
	m.mustRun("create", "--id", "b", "hostfs")
	m.mustRun("exec", "-d", "--id", "job", "b", "--", "trap-exit", "3")
	cmd := m.cmd("--host", "unix://"+m.dir+"/p.sock", "wait", "b", "job")
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for range 2 {
		select {
		case <-waits:
		case err := <-ended:
			t.Fatalf("the wait ended: %v, stderr %q", err, errs.String())
		}
		stop()
		stop = m.serve()
	}
	viewer := m.started("ready", "attach", "--since", "0", "b", "job")
	m.mustRun("kill", "b", "job")
	viewer.Wait()
	if code := exitOf(t, <-ended); code != 3 {
		t.Errorf("code %d, want the command's 3; stderr %q", code, errs.String())
	}
}
