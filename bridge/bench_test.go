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
// result: bare, and with all that a node passes for an exec.
func BenchmarkExecTrue(b *testing.B) {
	box := start(b)
	spec := sandbox.ExecSpec{Args: []string{"/bin/true"}}
	for name, files := range map[string]bridge.Files{"bare": {}, "log_and_cgroup": box.files()} {
		b.Run(name, func(b *testing.B) {
			ids := make([]string, 0, 64)
			for b.Loop() {
				s, err := box.StartExec(b.Context(), spec, files)
				if err != nil {
					b.Fatal(err)
				}
				res, err := sandbox.Collect(b.Context(), s, nil, false, 0)
				if err != nil || *res.ExitCode != 0 {
					b.Fatal(res.Error, err)
				}
				if ids = append(ids, s.ID()); len(ids) == cap(ids) {
					b.StopTimer()
					box.forget(ids)
					ids = ids[:0]
					b.StartTimer()
				}
			}
			box.forget(ids)
		})
	}
}

func (b *box) forget(ids []string) {
	for _, id := range ids {
		if err := b.ForgetExec(b.t.Context(), id); err != nil {
			b.t.Error(err)
		}
	}
}
