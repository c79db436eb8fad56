package bridge_test

import (
	"syscall"
	"testing"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/tai/sandbox"
)

// BenchmarkForkExec is the least a command costs: what BenchmarkExecTrue is
// measured against.
func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Env: []string{"PATH=/bin"}})
		if err != nil {
			b.Fatal(err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
			b.Fatal(err, status)
		}
	}
}

// BenchmarkExecTrue runs a command through client and bridge, to its collected
// result.
func BenchmarkExecTrue(b *testing.B) {
	box := start(b)
	spec := sandbox.ExecSpec{Args: []string{"/bin/true"}}
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			s, err := box.StartExec(b.Context(), spec, bridge.Files{})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := sandbox.Collect(b.Context(), s, nil, false, 0); err != nil {
				b.Fatal(err)
			}
			if err := box.ForgetExec(b.Context(), s.ID()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("with_log_and_cgroup", func(b *testing.B) {
		for b.Loop() {
			res := box.exec(spec)
			if err := box.ForgetExec(b.Context(), res.ID); err != nil {
				b.Fatal(err)
			}
		}
	})
}
