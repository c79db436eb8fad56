package oci_test

import (
	"os/exec"
	"strconv"
	"testing"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/tai/sandbox"
)

func benchDriver(b *testing.B) *oci.Driver {
	b.Helper()
	machine(b)
	cfg := config(b, instanceOf(b))
	dismantle(b, cfg)
	return open(b, cfg)
}

func BenchmarkCreateToFirstExec(b *testing.B) {
	for _, c := range []struct {
		name string
		spec sandbox.Spec
	}{
		{"plain", sandbox.Spec{}},
		{"workspace", sandbox.Spec{Mounts: inWorkspace(workspaceDir(b), "/workspace")}},
		{"workspace-user", sandbox.Spec{User: "1000", Mounts: inWorkspace(workspaceDir(b), "/workspace")}},
	} {
		b.Run(c.name, func(b *testing.B) { benchCreateToFirstExec(b, c.spec) })
	}
}

func benchCreateToFirstExec(b *testing.B, spec sandbox.Spec) {
	d := benchDriver(b)
	n := 0
	for b.Loop() {
		id := "b" + strconv.Itoa(n)
		n++
		spec.ID = id
		started(b, d, spec)
		if _, err := d.Exec(b.Context(), id, sandbox.ExecSpec{Args: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if n == 5 {
			info, err := d.Inspect(b.Context(), id)
			if err != nil {
				b.Fatal(err)
			}
			b.Log(info.Phases)
		}
		if err := d.Remove(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkRemove(b *testing.B) {
	d := benchDriver(b)
	n := 0
	for b.Loop() {
		b.StopTimer()
		id := "b" + strconv.Itoa(n)
		n++
		started(b, d, sandbox.Spec{ID: id})
		b.StartTimer()
		if err := d.Remove(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExec is to be compared with BenchmarkForkExec.
func BenchmarkExec(b *testing.B) {
	d := benchDriver(b)
	started(b, d, sandbox.Spec{ID: "b1"})
	for b.Loop() {
		if _, err := d.Exec(b.Context(), "b1", sandbox.ExecSpec{Args: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
