package sandboxtest

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

var errPatience = errors.New("this takes too long")

// env is one test: its T, and all that it needs.
type env struct {
	*testing.T
	*group
	ctx context.Context //nolint:containedctx // it is the life of the test
}

// test runs a subtest. With a parallel name it runs beside the others.
func (e *env) test(name string, f func(*env)) {
	e.T.Helper()
	e.Run(name, func(t *testing.T) { f(e.with(t)) })
}

// beside runs a subtest beside the other ones of the group.
func (e *env) beside(name string, f func(*env)) {
	e.T.Helper()
	e.Run(name, func(t *testing.T) {
		t.Parallel()
		f(e.with(t))
	})
}

func (e *env) with(t *testing.T) *env {
	ctx, cancel := context.WithTimeoutCause(t.Context(), e.patience, errPatience)
	t.Cleanup(cancel)
	return &env{T: t, group: e.group, ctx: ctx}
}

// cases runs named cases, each beside the others.
func (e *env) cases(cs []testCase) {
	for _, c := range cs {
		e.beside(c.name, c.run)
	}
}

type testCase struct {
	name string
	run  func(*env)
}

// ok stops the test at an error.
func (e *env) ok(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// wantErr wants an error that is target.
func (e *env) wantErr(err, target error) {
	e.Helper()
	if !errors.Is(err, target) {
		e.Errorf("the error is %q; wanted is %q", errText(err), errText(target))
	}
}

func errText(err error) string {
	if err == nil {
		return "<nil>"
	}
	return err.Error()
}

// has reports whether the driver has a feature.
func (e *env) has(f sandbox.Feature) bool { return e.d.Features().Has(f) }

// need skips a test of a feature that is absent; "optional" tests the absence.
func (e *env) need(f sandbox.Feature) {
	e.Helper()
	if !e.has(f) {
		e.Skipf("the driver has no %s", f)
	}
}

// spec returns a spec with a fresh ID.
func (e *env) spec(mods ...func(*sandbox.Spec)) sandbox.Spec {
	s := sandbox.Spec{ID: sandbox.NewID("t-"), Image: e.image}
	if !e.has(sandbox.FeatureNetwork) {
		s.Network = sandbox.NetworkNone
	}
	for _, m := range mods {
		m(&s)
	}
	return s
}

// create makes a box, which is removed in the end.
func (e *env) create(mods ...func(*sandbox.Spec)) string {
	e.Helper()
	s := e.spec(mods...)
	_, err := e.d.Create(e.ctx, s)
	e.ok(err)
	e.removeLater(s.ID)
	return s.ID
}

func (e *env) removeLater(id string) {
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), e.patience, errPatience)
		defer cancel()
		if err := e.d.Remove(ctx, id); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			e.Errorf("remove in the end: %v", err)
		}
	})
}

// started makes a box and starts it.
func (e *env) started(mods ...func(*sandbox.Spec)) string {
	e.Helper()
	id := e.create(mods...)
	e.ok(e.d.Start(e.ctx, id))
	return id
}

// box returns a running box that the tests of the group share. They may run
// anything in it that does not disturb others.
func (e *env) box() string {
	e.Helper()
	e.once.Do(func() {
		s := e.spec()
		ctx, cancel := context.WithTimeoutCause(context.Background(), e.patience, errPatience)
		defer cancel()
		if _, err := e.d.Create(ctx, s); err != nil {
			e.Error(err)
			return
		}
		if err := e.d.Start(ctx, s.ID); err != nil {
			e.Error(err)
		}
		e.shared = s.ID
	})
	if e.shared == "" {
		e.Fatal("there is no box to share")
	}
	return e.shared
}

func (e *env) inspect(id string) sandbox.Info {
	e.Helper()
	info, err := e.d.Inspect(e.ctx, id)
	e.ok(err)
	return info
}

func (e *env) wantState(id string, want sandbox.State) {
	e.Helper()
	if info := e.inspect(id); info.State != want {
		e.Errorf("box %s is %s (%s %s); wanted is %s", id, info.State, info.Reason, info.Error, want)
	}
}

// run runs a command to its end.
func (e *env) run(id string, cmd []string, mods ...func(*sandbox.ExecSpec)) sandbox.ExecResult {
	e.Helper()
	res, err := e.d.Exec(e.ctx, id, execSpec(cmd, mods))
	e.ok(err)
	e.checkRecord(res.ExecInfo)
	return res
}

// stream starts a command; what is left of it ends with the test.
func (e *env) stream(id string, cmd []string, mods ...func(*sandbox.ExecSpec)) sandbox.Stream {
	e.Helper()
	s, err := e.d.ExecStream(e.ctx, id, execSpec(cmd, mods))
	e.ok(err)
	e.Cleanup(func() {
		s.Close()
		ctx, cancel := context.WithTimeoutCause(context.Background(), e.patience, errPatience)
		defer cancel()
		e.d.KillExec(ctx, id, s.ID(), sandbox.KillOptions{Signal: 9, Tree: true})
	})
	return s
}

func execSpec(cmd []string, mods []func(*sandbox.ExecSpec)) sandbox.ExecSpec {
	spec := sandbox.ExecSpec{Args: cmd}
	for _, m := range mods {
		m(&spec)
	}
	return spec
}

// checkRecord holds each final record to what every one promises.
func (e *env) checkRecord(x sandbox.ExecInfo) {
	e.Helper()
	switch {
	case !x.Done():
		e.Errorf("the record of %s is not final: %s", x.ID, x.State)
	case x.State == sandbox.ExecLost && x.ExitCode != nil:
		e.Errorf("exec %s was lost, and yet has the code %d", x.ID, *x.ExitCode)
	case x.State == sandbox.ExecExited && (x.ExitCode == nil || *x.ExitCode < 0 || *x.ExitCode > 255):
		e.Errorf("exec %s ended with the code %v", x.ID, code(x))
	case x.Reason == "":
		e.Errorf("exec %s ended for no reason", x.ID)
	case x.Signal != "" && code(x) <= 128:
		e.Errorf("exec %s died of %s with the code %d", x.ID, x.Signal, code(x))
	case x.Started.IsZero() || x.Ended.Before(x.Started):
		e.Errorf("exec %s ran from %v to %v", x.ID, x.Started, x.Ended)
	case x.Truncated != (x.FirstOffset > 0) || x.FirstOffset > x.Bytes:
		e.Errorf("exec %s: truncated %v, output from %d to %d", x.ID, x.Truncated, x.FirstOffset, x.Bytes)
	}
}

// code returns the exit code, or -1.
func code(x sandbox.ExecInfo) int {
	if x.ExitCode == nil {
		return -1
	}
	return *x.ExitCode
}

// wantEnd checks how an exec ended.
func (e *env) wantEnd(x sandbox.ExecInfo, reason sandbox.ExecReason, want int) {
	e.Helper()
	e.checkRecord(x)
	if x.Reason != reason || code(x) != want {
		e.Errorf("exec %s ended by %s with %d (signal %q, error %q); wanted is %s with %d",
			x.ID, x.Reason, code(x), x.Signal, x.Error, reason, want)
	}
}

// wait waits for an exec's end.
func (e *env) wait(id, exec string) sandbox.ExecInfo {
	e.Helper()
	x, err := e.d.WaitExec(e.ctx, id, exec)
	e.ok(err)
	e.checkRecord(x)
	return x
}

// eventually waits for something that comes by itself.
func (e *env) eventually(what string, cond func() bool) {
	e.Helper()
	for !cond() {
		select {
		case <-e.ctx.Done():
			e.Fatalf("%s: not yet, and %v", what, context.Cause(e.ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// soon fails if f takes longer than what is at once on a slow machine.
func (e *env) soon(what string, f func()) {
	e.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > e.patience/2 {
		e.Errorf("%s took %v", what, took)
	}
}

// concurrently runs f n times at once and returns the errors.
func concurrently(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// clip shortens a text for a message.
func clip(s string) string {
	const most = 200
	return s[:min(len(s), most)] + cmp.Or(map[bool]string{true: "…"}[len(s) > most], "")
}
