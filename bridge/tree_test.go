package bridge_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/tai/sandbox"
)

func TestD01TimeoutEndsTheCommand(t *testing.T) {
	t.Parallel()
	b := start(t)
	file := t.TempDir() + "/x"
	written := func(sandbox.ExecResult) bool {
		st, err := os.Stat(file)
		return err == nil && st.Size() > 0
	}
	res := b.timedOut(sh("while :; do date >>"+file+"; sleep .05; done"), written)
	if res.Reason != sandbox.ReasonTimeout || res.Leftover != 0 {
		t.Fatalf("%+v", res.ExecInfo)
	}
	size := func() int64 {
		st, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	before := size()
	time.Sleep(200 * time.Millisecond)
	if size() != before {
		t.Error("the command still writes")
	}
}

// deepTree leaves its session, its parent, its signals behind.
const deepTree = `sh -c '
	trap "" TERM
	setsid sh -c "trap \"\" TERM; nohup sleep 613 & (sleep 613 & sleep 613) & wait" &
	(setsid sleep 613 &)
	echo up
	sleep 613; sleep 613' & wait`

func (b *box) processes(mark string) int {
	res := b.exec(sandbox.ExecSpec{Args: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o '" + mark[:1] + "[" + mark[1:2] + "]" + mark[2:] + "' | wc -l"}})
	n := 0
	for _, c := range strings.TrimSpace(string(res.Stdout)) {
		n = 10*n + int(c-'0')
	}
	return n
}

func TestD02WholeTree(t *testing.T) {
	t.Parallel()
	needRoot(t)
	b := start(t)
	if b.cgroup == "" {
		t.Skip("needs cgroup version 2")
	}
	spec := sh(deepTree)
	spec.Timeout, spec.KillGrace = time.Second, 200*time.Millisecond
	res := b.exec(spec)
	if res.Reason != sandbox.ReasonTimeout || res.Leftover != 0 {
		t.Errorf("%+v", res.ExecInfo)
	}
	if n := b.processes("sleep 613"); n != 0 {
		t.Errorf("%d processes are left", n)
	}

	s := b.start(sh(deepTree))
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := b.KillExec(t.Context(), s.ID(), sandbox.KillOptions{Tree: true, Signal: 9}); err != nil {
		t.Fatal(err)
	}
	info, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, info, 137, sandbox.ReasonKilled)
	if n := b.processes("sleep 613"); n != 0 {
		t.Errorf("%d processes are left by the kill", n)
	}
}

// TestD02TreeWithoutCgroup finds what stayed in the session or under a parent.
func TestD02TreeWithoutCgroup(t *testing.T) {
	t.Parallel()
	b := startAs(t, "child", "")
	mark := fmt.Sprintf("sleep 6%d", os.Getpid())
	spec := sh("sh -c 'MARK & MARK' & setsid MARK & wait")
	spec.Args[2] = strings.ReplaceAll(spec.Args[2], "MARK", mark)
	spec.Timeout, spec.KillGrace = 500*time.Millisecond, 100*time.Millisecond
	res := b.exec(spec)
	if res.Reason != sandbox.ReasonTimeout {
		t.Errorf("%+v", res.ExecInfo)
	}
	if n := b.processes(mark); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	res = b.exec(sh("sleep 600 & echo ok"))
	if res.Leftover != 1 {
		t.Errorf("%+v", res.ExecInfo)
	}
	if err := b.KillExec(t.Context(), res.ID, sandbox.KillOptions{Tree: true, Signal: 9}); err != nil {
		t.Error(err)
	}
	if info, err := b.InspectExec(t.Context(), res.ID); err != nil || info.Leftover != 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestD04Disconnect(t *testing.T) {
	t.Parallel()
	b := start(t)
	begin := func(d sandbox.OnDisconnect, lease time.Duration) sandbox.Stream {
		s := b.start(sandbox.ExecSpec{Args: []string{"sh", "-c", "echo up; exec sleep 600"}, OnDisconnect: d, Lease: lease, KillGrace: 200 * time.Millisecond})
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	ends := func(s sandbox.Stream) {
		t.Helper()
		info, err := b.WaitExec(t.Context(), s.ID())
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, info, 143, sandbox.ReasonKilled)
	}
	runs := func(s sandbox.Stream) {
		t.Helper()
		time.Sleep(300 * time.Millisecond)
		if info, err := b.InspectExec(t.Context(), s.ID()); err != nil || info.Done() {
			t.Fatalf("%+v, %v", info, err)
		}
	}
	t.Run("client_gone", func(t *testing.T) {
		s := begin(sandbox.OnDisconnectKill, 0)
		if err := s.Hangup(); err != nil {
			t.Fatal(err)
		}
		ends(s)
	})
	t.Run("client_gone_keep", func(t *testing.T) {
		s := begin(sandbox.OnDisconnectKeep, 0)
		if err := s.Hangup(); err != nil {
			t.Fatal(err)
		}
		runs(s)
	})
	t.Run("link_lost", func(t *testing.T) {
		s := begin(sandbox.OnDisconnectKill, time.Hour)
		s.Close()
		runs(s)
	})
	t.Run("link_lost_for_the_lease", func(t *testing.T) {
		const lease = 200 * time.Millisecond
		s := begin(sandbox.OnDisconnectKill, lease)
		lost := time.Now()
		s.Close()
		ends(s)
		if took := time.Since(lost); took < lease {
			t.Errorf("with a lease of %v it ended after %v", lease, took)
		}
	})
	t.Run("link_lost_and_resumed", func(t *testing.T) {
		// On a slow machine a lease may be over before the client is back.
		for lease := 200 * time.Millisecond; ; lease *= 2 {
			s := begin(sandbox.OnDisconnectKill, lease)
			lost := time.Now()
			s.Close()
			again, err := b.AttachExec(t.Context(), s.ID(), sandbox.AttachOptions{Hold: true, Since: 3})
			if err != nil {
				t.Fatal(err)
			}
			if time.Since(lost) >= lease {
				again.Close()
				continue
			}
			time.Sleep(lease)
			runs(s)
			if err := again.Hangup(); err != nil {
				t.Fatal(err)
			}
			ends(s)
			return
		}
	})
	t.Run("viewers_do_not_count", func(t *testing.T) {
		s := begin(sandbox.OnDisconnectKill, 100*time.Millisecond)
		v, err := b.AttachExec(t.Context(), s.ID(), sandbox.AttachOptions{})
		if err != nil {
			t.Fatal(err)
		}
		v.Hangup()
		runs(s)
	})
	t.Run("takeover", func(t *testing.T) {
		s := begin(sandbox.OnDisconnectKill, 100*time.Millisecond)
		_, err := b.AttachExec(t.Context(), s.ID(), sandbox.AttachOptions{Hold: true})
		wantErr(t, err, sandbox.ErrExecBusy)
		again, err := b.AttachExec(t.Context(), s.ID(), sandbox.AttachOptions{Hold: true, Takeover: true})
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		_, err = s.Recv()
		wantErr(t, err, sandbox.ErrExecBusy)
		s.Close()
		runs(s)
	})
}

func TestStopEndsEverything(t *testing.T) {
	t.Parallel()
	b := start(t)
	s := b.start(sh("trap '' TERM; echo up; while :; do sleep 0.1; done"))
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	left := b.exec(sh("sleep 600 & echo ok"))
	w, err := b.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for range 2 {
		if _, err := w.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if left.Leftover != 1 {
		t.Errorf("%+v", left.ExecInfo)
	}
	within(t, 30*time.Second, "stop", func() {
		if err := b.Stop(t.Context(), 300*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	})
	info, err := w.Recv()
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, info, 137, sandbox.ReasonStop)
	if _, err := w.Recv(); err == nil {
		t.Error("the watcher goes on after the end")
	}
	info, err = s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, info, 137, sandbox.ReasonStop)
	if err := <-b.exited; err != nil {
		t.Errorf("PID 1 ended with %v", err)
	}
	_, err = b.StartExec(t.Context(), sh("true"), bridge.Files{})
	wantErr(t, err, sandbox.ErrBridgeLost)
}
