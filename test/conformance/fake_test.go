package conformance

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/sandbox/sandboxtest"
)

func fakeDrivers() []driver {
	opts := []sandboxtest.Option{
		sandboxtest.WithCommands(fakeCommands()),
		sandboxtest.WithWipe(func(_ *testing.T, dir string) { fake.Wipe(dir) }),
	}
	all := driver{name: "fake", open: openFake(), opts: opts, need: nothing}
	// The same driver with less, so that the absence of features is tested.
	less := driver{name: "fake-less", opts: append(slices.Clone(opts), sandboxtest.Quick()), need: nothing, open: openFake(fake.WithoutFeatures(
		sandbox.FeatureTTY, sandbox.FeatureStats, sandbox.FeaturePorts, sandbox.FeatureMemoryLimit, sandbox.FeatureCPULimit,
		sandbox.FeaturePidsLimit, sandbox.FeatureNetwork, sandbox.FeatureReadOnlyRoot, sandbox.FeatureImageImport, sandbox.FeatureProcesses, sandbox.FeatureFiles,
	))}
	return []driver{all, less}
}

func nothing() string { return "" }

func openFake(opts ...fake.Option) sandboxtest.Subject {
	return func(t *testing.T, dir string) sandboxtest.Driver {
		d, err := fake.Open(t.Context(), dir, opts...)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// fakeCommands says how things are done with the fake's own programs.
func fakeCommands() sandboxtest.Commands {
	program := func(args ...string) func() []string { return func() []string { return args } }
	number := func(name string) func(int) []string {
		return func(n int) []string { return []string{name, strconv.Itoa(n)} }
	}
	bytes := func(name string) func(int64) []string {
		return func(n int64) []string { return []string{name, strconv.FormatInt(n, 10)} }
	}
	return sandboxtest.Commands{
		Echo:  func(text string) []string { return []string{"echo", text} },
		Exit:  number("exit"),
		Cat:   func(files ...string) []string { return append([]string{"cat"}, files...) },
		Sleep: func(d time.Duration) []string { return []string{"sleep", d.String()} },
		Write: func(file, text string) []string { return []string{"write", file, text} },
		Count: func(n int) []string { return []string{"seq", "1", strconv.Itoa(n)} },
		Drain: number("drain"),
		Both:  number("both"),
		Env:   program("env"), Pwd: program("pwd"), UID: program("id"),
		KillSelf: number("kill-self"),
		Trap:     program("trap"), TrapExit: number("trap-exit"),
		Spawn: func(n int, d time.Duration, session bool) []string {
			args := []string{"spawn", d.String(), strconv.Itoa(n)}
			if session {
				args = append(args, "session")
			}
			return args
		},
		BusyTree: func(file string) []string { return []string{"busy-tree", file} },
		Fork:     number("fork"),
		Alloc:    bytes("alloc"), AllocChild: bytes("alloc-child"),
		OpenFiles: program("ulimit"), Interfaces: program("interfaces"),
		Listen: number("listen"),
		IsTTY:  program("tty"), TTYSize: program("size"),
		Entrypoint: program("entry"),
		Dir:        "/etc", Missing: "/no/such/program",
	}
}
