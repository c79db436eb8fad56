package sandbox_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Why a command ended and its code are told apart (A13), and a command that
// cannot be started says why (A05).
func TestA13Reasons(t *testing.T) {
	for _, c := range []struct {
		name string
		cmd  []string
		opts []sandbox.ExecOption
		want sandbox.ExecResult
	}{
		{"ok", []string{"echo", "hi"}, nil, sandbox.ExecResult{Stdout: "hi\n", Reason: "exit"}},
		{"code", []string{"exit", "7"}, nil, sandbox.ExecResult{ExitCode: 7, Reason: "exit"}},
		{"missing", []string{"nosuchprog"}, nil, sandbox.ExecResult{ExitCode: 127, Reason: "exit", Error: "nosuchprog: not found", Stderr: "taibox: nosuchprog: not found\n"}},
		{"directory", []string{"/etc"}, nil, sandbox.ExecResult{ExitCode: 126, Reason: "exit", Error: "/etc: is a directory", Stderr: "taibox: /etc: is a directory\n"}},
		{"signal", []string{"kill-self", "11"}, nil, sandbox.ExecResult{ExitCode: 139, Reason: "signal", Signal: "SIGSEGV"}},
		{"oom", []string{"oom"}, nil, sandbox.ExecResult{ExitCode: 137, Reason: "oom", Signal: "SIGKILL"}},
		{
			"timeout",
			[]string{"sleep", "60"},
			[]sandbox.ExecOption{sandbox.WithTimeout(time.Second)},
			sandbox.ExecResult{ExitCode: 143, Reason: "timeout", Signal: "SIGTERM", DurationMs: 1000},
		},
		{"duration", []string{"sleep", "2"}, nil, sandbox.ExecResult{Reason: "exit", DurationMs: 2000}},
		{"truncated", []string{"yes", "1000"}, []sandbox.ExecOption{sandbox.WithMaxOutput(4)}, sandbox.ExecResult{Reason: "exit", Stdout: "y\ny\n", Truncated: true, StdoutOmitted: taisandbox.Omission{At: 2, Bytes: 996}}},
		{"merged", []string{"both", "4"}, []sandbox.ExecOption{sandbox.WithMergedOutput()}, sandbox.ExecResult{Reason: "exit", Stdout: "1\n2\n3\n4\n"}},
		{"user", []string{"id"}, []sandbox.ExecOption{sandbox.WithUser("1000")}, sandbox.ExecResult{Reason: "exit", Stdout: "1000\n"}},
		{"dir", []string{"pwd"}, []sandbox.ExecOption{sandbox.WithWorkDir("/tmp")}, sandbox.ExecResult{Reason: "exit", Stdout: "/tmp\n"}},
		{"tty", []string{"tty"}, []sandbox.ExecOption{sandbox.WithTTY(taisandbox.Size{Cols: 132, Rows: 43})}, sandbox.ExecResult{Reason: "exit", Stdout: "/dev/pts/0\r\n"}},
		{"no-stdin", []string{"cat"}, nil, sandbox.ExecResult{Reason: "exit"}},
		{"stdin", []string{"cat"}, []sandbox.ExecOption{sandbox.WithStdin(strings.NewReader("in"))}, sandbox.ExecResult{Reason: "exit", Stdout: "in"}},
		{"nil-stdin", []string{"cat"}, []sandbox.ExecOption{sandbox.WithStdin(nil)}, sandbox.ExecResult{Reason: "exit"}},
		{"unwanted-stdin", []string{"true"}, []sandbox.ExecOption{sandbox.WithStdin(strings.NewReader(strings.Repeat("x", 1<<20)))}, sandbox.ExecResult{Reason: "exit"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				b := newRig(t).create(sandbox.CreateOptions{ID: "x", Memory: 64 << 20})
				c.want.ExecID = "e-" + c.name
				got, err := b.Exec(t.Context(), c.cmd, append(c.opts, sandbox.WithExecID(c.want.ExecID))...)
				must(t, err)
				if d := cmp.Diff(&c.want, got); d != "" {
					t.Errorf("result (-want +got):\n%s", d)
				}
			})
		})
	}
}

func TestExecInvalid(t *testing.T) {
	r := newRig(t)
	b := r.create(sandbox.CreateOptions{ID: "x"})
	for name, c := range map[string]struct {
		cmd  []string
		opt  sandbox.ExecOption
		want error
	}{
		"empty":    {nil, sandbox.WithEnv(nil), sandbox.ErrInvalidSpec},
		"id":       {[]string{"true"}, sandbox.WithExecID("A"), sandbox.ErrInvalidSpec},
		"timeout":  {[]string{"true"}, sandbox.WithTimeout(-1), sandbox.ErrInvalidSpec},
		"tty":      {[]string{"true"}, sandbox.WithTTY(taisandbox.Size{Cols: 65535, Rows: 65535}), sandbox.ErrInvalidSpec},
		"user":     {[]string{"true"}, sandbox.WithUser("nosuch"), sandbox.ErrUserNotFound},
		"dir":      {[]string{"true"}, sandbox.WithWorkDir("/nosuch"), sandbox.ErrDirNotFound},
		"lease":    {[]string{"true"}, sandbox.WithLease(-1), sandbox.ErrInvalidSpec},
		"grace":    {[]string{"true"}, sandbox.WithKillGrace(-1), sandbox.ErrInvalidSpec},
		"log":      {[]string{"true"}, sandbox.WithMaxLog(-1), sandbox.ErrInvalidSpec},
		"on_leave": {[]string{"true"}, sandbox.WithOnDisconnect("x"), sandbox.ErrInvalidSpec},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.Exec(t.Context(), c.cmd, c.opt)
			wantErr(t, err, c.want)
			_, err = b.Stream(t.Context(), c.cmd, c.opt)
			wantErr(t, err, c.want)
		})
	}
}

// A caller that leaves takes its command along.
func TestD04ContextEndsExec(t *testing.T) {
	for name, opts := range map[string][]sandbox.ExecOption{
		"plain": nil, "stdin": {sandbox.WithStdin(iotest.ErrReader(io.EOF))},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				r := newRig(t)
				b := r.create(sandbox.CreateOptions{ID: "x"})
				why := errors.New("client left")
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
				defer cancel()
				_, err := b.Exec(ctx, []string{"trap"}, append(opts, sandbox.WithExecID("e1"))...)
				wantErr(t, err, why)
				info, err := b.WaitExec(t.Context(), "e1")
				must(t, err)
				if info.Reason != taisandbox.ReasonKilled {
					t.Errorf("it ended by %s", info.Reason)
				}
			})
		})
	}
}

// A command whose end nobody saw has no code.
func TestExecLost(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		b := r.create(sandbox.CreateOptions{ID: "x"})
		time.AfterFunc(time.Second, func() {
			if err := r.d.Break("x", "bridge-lost"); err != nil {
				t.Error(err)
			}
		})
		res, err := b.Exec(t.Context(), []string{"sleep", "60"})
		wantErr(t, err, sandbox.ErrExecLost)
		if res == nil || res.Reason != taisandbox.ReasonLost {
			t.Errorf("got %+v", res)
		}
	})
}

func TestExecRecords(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		b := r.create(sandbox.CreateOptions{ID: "x"})
		s, err := b.OpenExec(t.Context(), taisandbox.ExecSpec{ID: "e1", Args: []string{"sleep", "60"}})
		must(t, err)
		must(t, s.Close())
		_, err = b.OpenExec(t.Context(), taisandbox.ExecSpec{ID: "e1", Args: []string{"true"}})
		wantErr(t, err, sandbox.ErrExecExists)
		execs, err := b.Execs(t.Context())
		must(t, err)
		if len(execs) != 1 || execs[0].ID != "e1" || execs[0].State != taisandbox.ExecRunning {
			t.Errorf("execs are %+v", execs)
		}
		must(t, b.KillExec(t.Context(), "e1", taisandbox.KillOptions{}))
		info, err := b.WaitExec(t.Context(), "e1")
		must(t, err)
		if info.ExitCode == nil || *info.ExitCode != 143 {
			t.Errorf("got %+v", info)
		}
		wantErr(t, b.KillExec(t.Context(), "e1", taisandbox.KillOptions{}), sandbox.ErrExecEnded)
		_, err = b.InspectExec(t.Context(), "e2")
		wantErr(t, err, sandbox.ErrExecNotFound)
		_, err = b.AttachExec(t.Context(), "e2", taisandbox.AttachOptions{})
		wantErr(t, err, sandbox.ErrExecNotFound)
		stats, err := b.Stats(t.Context())
		must(t, err)
		if stats.Pids == 0 {
			t.Errorf("stats are %+v", stats)
		}
		ports, err := b.Ports(t.Context())
		must(t, err)
		if len(ports) != 0 {
			t.Errorf("ports are %+v", ports)
		}
	})
}

// Requests share nothing: each run removes the box that it made.
func TestG23ConcurrentRuns(t *testing.T) {
	r := newRig(t)
	env := map[string]string{"SHARED": "1"}
	opts := with(sandbox.CreateOptions{Policy: sandbox.OneShot, Env: env, Labels: map[string]string{"a": "b"}})
	for _, err := range parallel(50, func(int) error {
		b, err := r.m.Create(t.Context(), opts)
		if err != nil {
			return err
		}
		res, err := b.Exec(t.Context(), []string{"env"}, sandbox.WithEnv(env))
		if err != nil {
			return err
		}
		if !strings.Contains(res.Stdout, "SHARED=1") {
			return errors.New(res.Stdout)
		}
		if err := b.Remove(t.Context()); !errors.Is(err, sandbox.ErrNotFound) {
			return errors.New("a run has not removed its box")
		}
		return nil
	}) {
		must(t, err)
	}
	r.want()
}

func TestMissingFeature(t *testing.T) {
	r := newRig(t, fake.WithoutFeatures(taisandbox.FeatureTTY, taisandbox.FeatureStats))
	b := r.create(sandbox.CreateOptions{ID: "x"})
	_, err := b.Exec(t.Context(), []string{"tty"}, sandbox.WithTTY(taisandbox.Size{Cols: 80, Rows: 24}))
	wantErr(t, err, sandbox.ErrUnsupported)
	_, err = b.Info(t.Context())
	must(t, err)
}

// A box knows its ID, and the caller has the last word.
func TestIDInBox(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"ours":   {map[string]string{"K": "v"}, "x"},
		"theirs": {map[string]string{"YAO_SANDBOX_ID": "other"}, "other"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			entrypoint := []string{"env"}
			b := r.create(sandbox.CreateOptions{ID: "x", Env: c.env, Entrypoint: &entrypoint, NoStart: true})
			exec, err := b.Exec(t.Context(), []string{"env"})
			must(t, err)
			run, err := b.Exec(t.Context(), nil, sandbox.WithEntrypoint())
			must(t, err)
			for what, got := range map[string]string{"exec": exec.Stdout, "entrypoint": run.Stdout} {
				if !slices.Contains(strings.Split(got, "\n"), "YAO_SANDBOX_ID="+c.want) {
					t.Errorf("%s: the environment is %q", what, got)
				}
			}
		})
	}
}
