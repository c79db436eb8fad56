package sandboxtest

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// optional: what a driver lacks it must say, in Features and in words.
func optional(e *env) {
	e.test("absent-features-are-refused", absentFeatures)
	e.test("known-features", knownFeatures)
	e.test("as", as)
}

func absentFeatures(e *env) {
	create := func(mod func(*sandbox.Spec)) func() error {
		return func() error {
			s := e.spec(mod)
			_, err := e.d.Create(e.ctx, s)
			if err == nil {
				e.removeLater(s.ID)
			}
			return err
		}
	}
	for _, c := range []struct {
		f   sandbox.Feature
		use func() error
	}{
		{sandbox.FeatureTTY, func() error {
			s, err := e.d.ExecStream(e.ctx, e.box(), sandbox.ExecSpec{Args: e.commands.Exit(0), TTY: true})
			if err == nil {
				err = s.Close()
			}
			return err
		}},
		{sandbox.FeatureStats, func() error { _, err := e.d.Stats(e.ctx, e.box()); return err }},
		{sandbox.FeatureProcesses, func() error { return e.listsProcesses() }},
		{sandbox.FeaturePorts, func() error { _, err := e.d.Ports(e.ctx, e.box()); return err }},
		{sandbox.FeatureMemoryLimit, create(func(s *sandbox.Spec) { s.MemoryBytes = smallMemory })},
		{sandbox.FeatureCPULimit, create(func(s *sandbox.Spec) { s.CPUs = 0.5 })},
		{sandbox.FeaturePidsLimit, create(func(s *sandbox.Spec) { s.Pids = 50 })},
		{sandbox.FeatureNetworkNone, create(func(s *sandbox.Spec) { s.Network = sandbox.NetworkNone })},
		{sandbox.FeatureNetwork, create(func(s *sandbox.Spec) { s.Network = sandbox.NetworkInternet })},
		{sandbox.FeatureReadOnlyRoot, create(func(s *sandbox.Spec) { s.ReadOnly = true })},
		{sandbox.FeatureMounts, create(withMount(e.sharedDir(), "/data"))},
		{sandbox.FeatureImageImport, func() error {
			_, err := e.d.Load(e.ctx, bytes.NewReader(e.archive("example.test/opt:1")), "")
			if err == nil {
				err = e.d.RemoveImage(e.ctx, "example.test/opt:1")
			}
			return err
		}},
	} {
		e.test(string(c.f), func(e *env) {
			err := c.use()
			if e.has(c.f) {
				e.ok(err)
			} else {
				e.wantErr(err, sandbox.ErrUnsupported)
			}
		})
	}
}

// listsProcesses looks at the processes of a box in which one command runs.
func (e *env) listsProcesses() error {
	l, ok := sandbox.As[sandbox.ProcessLister](e.d)
	if !ok {
		return sandbox.ErrUnsupported
	}
	id := e.box()
	before, err := l.Processes(e.ctx, id)
	if err != nil {
		return err
	}
	if len(before) == 0 || before[0].PID != 1 || before[0].Command == "" || before[0].RSSBytes == 0 {
		e.Errorf("the processes of a box are %+v", before)
	}
	s := e.stream(id, e.commands.Sleep(time.Minute))
	e.eventually("the command is listed", func() bool {
		after, err := l.Processes(e.ctx, id)
		e.ok(err)
		x, err := e.d.InspectExec(e.ctx, id, s.ID())
		e.ok(err)
		i := slices.IndexFunc(after, func(p sandbox.ProcessInfo) bool { return p.PID == x.PID })
		return i >= 0 && after[i].UID == 0 && after[i].PPID == 1 && after[i].State != "" && !after[i].StartedAt.IsZero()
	})
	if _, err := l.Processes(e.ctx, "nosuch"); !errors.Is(err, sandbox.ErrNotFound) {
		e.Errorf("processes of no box: %v", err)
	}
	return e.d.KillExec(e.ctx, id, s.ID(), sandbox.KillOptions{Signal: int(syscall.SIGKILL)})
}

func knownFeatures(e *env) {
	known := []sandbox.Feature{
		sandbox.FeatureTTY, sandbox.FeatureStats, sandbox.FeaturePorts, sandbox.FeatureMemoryLimit, sandbox.FeatureCPULimit,
		sandbox.FeaturePidsLimit, sandbox.FeatureNetworkNone, sandbox.FeatureNetwork, sandbox.FeatureUserNS,
		sandbox.FeatureExecCgroup, sandbox.FeatureSurvives, sandbox.FeatureImageImport, sandbox.FeatureReadOnlyRoot,
		sandbox.FeatureProcesses, sandbox.FeatureFiles, sandbox.FeatureFileWatch, sandbox.FeatureImagePull, sandbox.FeatureImageExport, sandbox.FeatureMounts,
	}
	fs := e.d.Features()
	for f := range fs {
		if !slices.Contains(known, f) {
			e.Errorf("nobody knows the feature %q", f)
		}
		delete(fs, f) // the caller's copy
	}
	if !e.has(sandbox.FeatureNetwork) && !e.has(sandbox.FeatureNetworkNone) {
		e.Error("there is no network that a box could have")
	}
}

type decorator struct{ sandbox.Sandbox }

func (d decorator) Unwrap() sandbox.Sandbox { return d.Sandbox }

type unheard interface{ Unheard(time.Time) }

func as(e *env) {
	wrapped := decorator{decorator{e.d}}
	if d, ok := sandbox.As[Driver](wrapped); !ok || d != e.d {
		e.Error("a decorator hides what it decorates")
	}
	if _, ok := sandbox.As[unheard](wrapped); ok {
		e.Error("it implements what nobody can")
	}
}
