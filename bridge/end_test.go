package bridge_test

import (
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func within(t *testing.T, d time.Duration, what string, do func()) {
	t.Helper()
	begin := time.Now()
	do()
	if took := time.Since(begin); took > d {
		t.Errorf("%s took %v; at most %v is right", what, took, d)
	}
}

func TestC01ChildHoldsTheOutput(t *testing.T) {
	t.Parallel()
	b := start(t)
	for name, script := range map[string]string{
		"background": "sleep 600 & echo ok",
		"tail":       "tail -f /dev/null & echo ok",
		"nohup":      "nohup sleep 600 & echo ok",
		"setsid":     "setsid sleep 600 & echo ok",
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				within(t, 30*time.Second, script, func() {
					res := b.exec(sh(script))
					wantCode(t, res.ExecInfo, 0, sandbox.ReasonExit)
					if !strings.HasSuffix(string(res.Stdout), "ok\n") || !res.OutputIncomplete || res.Leftover != 1 {
						t.Errorf("%q, %+v", res.Stdout, res.ExecInfo)
					}
					// The child lives on until somebody ends it.
					if err := b.KillExec(t.Context(), res.ID, sandbox.KillOptions{Tree: true, Signal: 9}); err != nil {
						t.Error(err)
					}
					if info, err := b.InspectExec(t.Context(), res.ID); err != nil || info.Leftover != 0 {
						t.Errorf("after the kill: %+v, %v", info, err)
					}
				})
			}
		})
	}
}

// TestC01ChildOutlivesTheExec writes to the output of an exec that has ended:
// that must not kill the writer.
func TestC01ChildOutlivesTheExec(t *testing.T) {
	t.Parallel()
	b := start(t)
	dir := t.TempDir()
	res := b.exec(sh("(sleep 1; for i in 1 2 3; do echo x || exit; done; echo alive >" + dir + "/mark) & echo ok"))
	if string(res.Stdout) != "ok\n" {
		t.Fatalf("%q", res.Stdout)
	}
	res = b.exec(sh("for i in $(seq 1200); do [ -s " + dir + "/mark ] && cat " + dir + "/mark && exit; sleep 0.05; done"))
	if string(res.Stdout) != "alive\n" {
		t.Errorf("the child says %q", res.Stdout)
	}
}

func TestC02AllOfTheLeadersOutput(t *testing.T) {
	b := start(t)
	const size = 50 << 20
	begin := time.Now()
	res := b.exec(sh("sleep 600 & exec head -c 52428800 /dev/zero"))
	wantCode(t, res.ExecInfo, 0, sandbox.ReasonExit)
	if len(res.Stdout) != size || res.Bytes != size {
		t.Errorf("%d bytes came, the record says %d", len(res.Stdout), res.Bytes)
	}
	if over := time.Since(begin) - res.Ended.Sub(res.Started); over > time.Minute {
		t.Errorf("told %v after the leader's end", over)
	}
}

// TestC02NoisyChild never falls quiet: the drain ends all the same.
func TestC02NoisyChild(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes as long as the drain may")
	}
	b := start(t)
	within(t, time.Minute, "a noisy child", func() {
		res := b.exec(sh("(while :; do echo noise; sleep 0.1; done) & echo ok"))
		wantCode(t, res.ExecInfo, 0, sandbox.ReasonExit)
		if !res.OutputIncomplete {
			t.Error("the output is said to be complete")
		}
	})
}

func TestC05TimeoutAnswersInTime(t *testing.T) {
	b := start(t)
	within(t, 30*time.Second, "a leader that ended", func() {
		spec := sh("sleep 3600 &")
		spec.Timeout = time.Hour
		wantCode(t, b.exec(spec).ExecInfo, 0, sandbox.ReasonExit)
	})
	within(t, 30*time.Second, "a timeout", func() {
		spec := sh("sleep 3600")
		spec.Timeout = time.Second
		wantCode(t, b.exec(spec).ExecInfo, 143, sandbox.ReasonTimeout)
	})
	spec := sh("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")
	spec.KillGrace = time.Hour
	res := b.timedOut(spec, func(res sandbox.ExecResult) bool { return string(res.Stdout) == "ready\n" })
	wantCode(t, res.ExecInfo, 124, sandbox.ReasonTimeout)
}
