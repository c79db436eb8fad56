package sandboxtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func execs(e *env) {
	e.test("S02-environment", environment)
	e.test("S02-nothing-of-ours", nothingOfOurs)
	e.cases([]testCase{
		{"A01-cannot-start", cannotStart},
		{"A02-never-zero-before-the-end", neverZeroEarly},
		{"A04-end-of-stream-is-after-the-end", endAfterEnd},
		{"A05-missing-program", missingProgram},
		{"A08-ours-or-the-commands", oursOrTheirs},
		{"A10-shell", shellCodes},
		{"A13-reasons", reasons},
		{"K13-too-long", tooLong},
		{"codes", codes},
		{"record", record},
		{"record-of-long-words", longRecord},
		{"user-and-directory", userAndDir},
		{"list", listExecs},
	})
}

const canary = "leaked-canary"

// nothingOfOurs: whatever runs in a box was not given our environment.
func nothingOfOurs(e *env) {
	e.Setenv("TAIBOX_TEST_CANARY", canary)
	printEnv := e.commands.Env()
	entrypoint := printEnv
	if e.commands.Shell != nil { // env would run the arguments that an entrypoint gets
		entrypoint = e.commands.Shell("env")
	}
	id := e.started(func(s *sandbox.Spec) { s.Entrypoint = &entrypoint })
	e.wait(id, sandbox.EntrypointExec)
	r, err := e.d.AttachExec(e.ctx, id, sandbox.EntrypointExec, sandbox.AttachOptions{})
	e.ok(err)
	defer r.Close()
	seen := map[string][]byte{
		"an exec":        e.run(id, printEnv).Stdout,
		"the entrypoint": e.read(r, 0).out,
	}
	if e.has(sandbox.FeatureTTY) {
		seen["a terminal"] = e.run(id, printEnv, func(s *sandbox.ExecSpec) { s.TTY = true }).Stdout
	}
	for who, env := range seen {
		if !contains(env, "PATH=") || contains(env, canary) {
			e.Errorf("%s has the environment %q", who, env)
		}
	}
	// That it may not be read is fine, too.
	if res := e.run(id, e.commands.Cat("/proc/1/environ")); contains(res.Stdout, canary) {
		e.Errorf("PID 1 has the environment %q", res.Stdout)
	}
}

func environment(e *env) {
	id := e.started(func(s *sandbox.Spec) { s.Env = map[string]string{"FROM_BOX": "b", "BOTH": "b"} })
	res := e.run(id, e.commands.Env(), func(s *sandbox.ExecSpec) {
		s.Env = map[string]string{"FROM_EXEC": "x\ny=z ", "BOTH": "x"}
	})
	for _, want := range []string{"FROM_BOX=b\n", "FROM_EXEC=x\ny=z \n", "BOTH=x\n", "PATH=", "HOME="} {
		if !contains(res.Stdout, want) {
			e.Errorf("%q is missing in %q", want, res.Stdout)
		}
	}
	for _, name := range []string{"BOTH", "FROM_EXEC"} {
		if !slices.Contains(res.EnvNames, name) {
			e.Errorf("the record names %v, not %s", res.EnvNames, name)
		}
	}
	if strings.ContainsAny(strings.Join(res.EnvNames, ""), "=\n") {
		e.Errorf("the record names values too: %v", res.EnvNames)
	}
}

// cannotStart: the result, the record and the event show one and the same code.
func cannotStart(e *env) {
	id := e.box()
	evs, err := e.d.Events(e.ctx)
	e.ok(err)
	const each = 25
	for _, c := range []struct {
		name string
		code int
	}{{e.commands.Missing, 127}, {e.commands.Dir, 126}} {
		infos := make([]sandbox.ExecResult, each)
		for _, err := range concurrently(each, func(i int) (err error) {
			infos[i], err = e.d.Exec(e.ctx, id, sandbox.ExecSpec{Args: []string{c.name}})
			return err
		}) {
			e.ok(err)
		}
		want := map[string]bool{}
		for _, x := range infos {
			e.wantEnd(x.ExecInfo, sandbox.ReasonExit, c.code)
			if x.Error == "" || !contains(x.Stderr, c.name) || len(x.Stdout) > 0 {
				e.Errorf("%s says %q, %q on stderr, %q on stdout", c.name, x.Error, x.Stderr, x.Stdout)
			}
			kept, err := e.d.InspectExec(e.ctx, id, x.ID)
			e.ok(err)
			e.wantEnd(kept, sandbox.ReasonExit, c.code)
			want[x.ID] = true
		}
		for len(want) > 0 {
			ev := e.event(evs)
			if ev.Type == sandbox.EventExec && want[ev.Exec.ID] && ev.Exec.Done() {
				e.wantEnd(*ev.Exec, sandbox.ReasonExit, c.code)
				delete(want, ev.Exec.ID)
			}
		}
	}
}

// event returns the next event.
func (e *env) event(evs <-chan sandbox.Event) sandbox.Event {
	e.Helper()
	select {
	case ev, ok := <-evs:
		if !ok {
			e.Fatal("the events ended")
		}
		return ev
	case <-e.ctx.Done():
		e.Fatal("no event came")
	}
	panic("not reached")
}

func neverZeroEarly(e *env) {
	id := e.box()
	for i := range 100 {
		cmd, want := e.commands.Exit(7), 7
		if i%2 == 1 {
			cmd, want = []string{e.commands.Missing}, 127
		}
		s := e.stream(id, cmd)
		x, err := e.d.InspectExec(e.ctx, id, s.ID())
		e.ok(err)
		if x.Done() != (x.ExitCode != nil) || x.ExitCode != nil && *x.ExitCode != want {
			e.Fatalf("right after the start the record is %s with %d", x.State, code(x))
		}
		if i%4 < 2 {
			x = e.wait(id, s.ID())
		} else {
			x, err = s.Wait(e.ctx)
			e.ok(err)
		}
		e.wantEnd(x, sandbox.ReasonExit, want)
		e.ok(s.Close())
	}
}

func endAfterEnd(e *env) {
	id := e.box()
	for _, err := range concurrently(20, func(int) error {
		s, err := e.d.ExecStream(e.ctx, id, sandbox.ExecSpec{Args: e.commands.Count(2000)})
		if err != nil {
			return err
		}
		defer s.Close()
		t, err := readUntil(s, 0, func(text) bool { return false })
		if err != nil {
			return err
		}
		x, err := e.d.InspectExec(e.ctx, id, s.ID())
		if err != nil {
			return err
		}
		if !x.Done() || code(x) != 0 || string(t.out) != numbers(2000) || x.Bytes != t.end {
			return fmt.Errorf("at the end of the stream: %s, %d bytes of %d, last %q", x.State, t.end, x.Bytes, t.out[max(0, len(t.out)-10):])
		}
		return nil
	}) {
		e.ok(err)
	}
}

func missingProgram(e *env) {
	for _, name := range []string{"nosuchprog", e.commands.Missing, "./nosuchprog"} {
		res := e.run(e.box(), []string{name, "arg"})
		e.wantEnd(res.ExecInfo, sandbox.ReasonExit, 127)
		if !strings.HasPrefix(string(res.Stderr), "taibox: ") || !contains(res.Stderr, name) {
			e.Errorf("stderr is %q", res.Stderr)
		}
	}
}

// tooLong: what the kernel does not take is said, with what to do.
func tooLong(e *env) {
	id := e.box()
	const longest = 128<<10 - 1
	text := strings.Repeat("x", longest+1)
	variable := func(value string) func(*sandbox.ExecSpec) {
		return func(s *sandbox.ExecSpec) { s.Env = map[string]string{"LONG": value} }
	}
	fits := text[:longest]
	e.wantEnd(e.run(id, append(e.commands.Exit(0), fits)).ExecInfo, sandbox.ReasonExit, 0)
	e.wantEnd(e.run(id, e.commands.Exit(0), variable(fits[len("LONG="):])).ExecInfo, sandbox.ReasonExit, 0)

	long := append(e.commands.Exit(0), "short", text)
	many := e.commands.Exit(0)
	for range 20 {
		many = append(many, text[:120<<10])
	}
	for says, res := range map[string]sandbox.ExecResult{
		fmt.Sprintf("argument %d is 131072 bytes", len(long)-1): e.run(id, long),
		`variable "LONG" with its name is 131072 bytes`:         e.run(id, e.commands.Exit(0), variable(text[len("LONG="):])),
		"arguments and environment are":                         e.run(id, many),
	} {
		e.wantEnd(res.ExecInfo, sandbox.ReasonExit, 126)
		if !strings.Contains(res.Error, says) || !strings.Contains(res.Error, "stdin") || !contains(res.Stderr, res.Error) {
			e.Errorf("%q is not in %q, on stderr %q", says, res.Error, clip(string(res.Stderr)))
		}
	}
}

func oursOrTheirs(e *env) {
	e.wantEnd(e.run(e.box(), e.commands.Exit(1)).ExecInfo, sandbox.ReasonExit, 1)
	e.wantEnd(e.run(e.box(), e.commands.Exit(125)).ExecInfo, sandbox.ReasonExit, 125)
	_, err := e.d.Exec(e.ctx, "nosuch", sandbox.ExecSpec{Args: e.commands.Exit(0)})
	e.wantErr(err, sandbox.ErrNotFound)
}

// shellCodes: user text that ends or replaces its shell disturbs nothing of ours.
func shellCodes(e *env) {
	if e.commands.Shell == nil {
		e.Skip("there is no shell")
	}
	for script, want := range map[string]int{
		"exec echo hi":                0,
		"exit 3":                      3,
		"set -e; false; echo x":       1,
		"trap 'exit 9' EXIT; true":    9,
		"kill -9 $$":                  137,
		"cat <<X\nhi\nX":              0,
		"echo 'unbalanced":            2,
		"exec >&- 2>&-; exit 4":       4,
		"exit 256":                    0,
		"(exit 5)":                    5,
		"sleep 0.1 & wait $!; exit 6": 6,
	} {
		e.soon(script, func() {
			if res := e.run(e.box(), e.commands.Shell(script)); code(res.ExecInfo) != want {
				e.Errorf("%q ended with %d, %q; wanted is %d", script, code(res.ExecInfo), res.Stderr, want)
			}
		})
	}
}

func reasons(e *env) {
	id := e.started()
	e.wantEnd(e.run(id, e.commands.Exit(0)).ExecInfo, sandbox.ReasonExit, 0)
	e.wantEnd(e.run(id, e.commands.Exit(255)).ExecInfo, sandbox.ReasonExit, 255)
	died := e.run(id, e.commands.KillSelf(11))
	e.wantEnd(died.ExecInfo, sandbox.ReasonSignal, 139)
	if died.Signal != "SIGSEGV" {
		e.Errorf("the signal is %q", died.Signal)
	}
	late := e.run(id, e.commands.Sleep(time.Hour), func(s *sandbox.ExecSpec) { s.Timeout, s.KillGrace = 100*time.Millisecond, time.Hour })
	e.wantEnd(late.ExecInfo, sandbox.ReasonTimeout, 143)

	killed := e.stream(id, e.commands.Sleep(time.Hour))
	e.ok(e.d.KillExec(e.ctx, id, killed.ID(), sandbox.KillOptions{}))
	e.wantEnd(e.wait(id, killed.ID()), sandbox.ReasonKilled, 143)
	e.wantErr(e.d.KillExec(e.ctx, id, killed.ID(), sandbox.KillOptions{}), sandbox.ErrExecEnded)

	handled := e.stream(id, e.commands.TrapExit(5))
	e.waitFor(handled, "ready")
	e.ok(e.d.KillExec(e.ctx, id, handled.ID(), sandbox.KillOptions{Group: true}))
	if x := e.wait(id, handled.ID()); code(x) != 5 || x.Signal != "" {
		e.Errorf("a command that handles the signal ended with %d, %q", code(x), x.Signal)
	}

	stopped := e.stream(id, e.commands.Sleep(time.Hour))
	e.ok(e.d.Stop(e.ctx, id, time.Hour))
	e.wantEnd(e.wait(id, stopped.ID()), sandbox.ReasonStop, 143)
}

func codes(e *env) {
	id := e.box()
	for _, n := range []int{0, 1, 2, 124, 125, 126, 127, 128, 137, 255} {
		if res := e.run(id, e.commands.Exit(n)); code(res.ExecInfo) != n || res.Reason != sandbox.ReasonExit || res.Signal != "" {
			e.Errorf("exit %d ended with %d, %s, %q", n, code(res.ExecInfo), res.Reason, res.Signal)
		}
	}
	for sig, name := range map[int]string{6: "SIGABRT", 9: "SIGKILL", 15: "SIGTERM"} {
		res := e.run(id, e.commands.KillSelf(sig))
		e.wantEnd(res.ExecInfo, sandbox.ReasonSignal, 128+sig)
		if res.Signal != name {
			e.Errorf("signal %d is called %q", sig, res.Signal)
		}
	}
}

func record(e *env) {
	id := e.box()
	cmd := e.commands.Echo("a b")
	res := e.run(id, cmd, func(s *sandbox.ExecSpec) { s.WorkDir, s.User = "/tmp", "1000" })
	x, err := e.d.InspectExec(e.ctx, id, res.ID)
	e.ok(err)
	if x.Box != id || !slices.Equal(x.Args, cmd) || x.WorkDir != "/tmp" || x.User != "1000" || x.TTY || x.Bytes != 4 || x.Truncated {
		e.Errorf("the record is %+v", x)
	}
	s := e.stream(id, e.commands.Sleep(time.Hour))
	x, err = e.d.InspectExec(e.ctx, id, s.ID())
	e.ok(err)
	if x.State != sandbox.ExecRunning || x.PID <= 1 || x.ExitCode != nil || !x.Ended.IsZero() || x.Reason != "" {
		e.Errorf("the record of a running exec is %+v", x)
	}
}

func userAndDir(e *env) {
	id := e.box()
	for user, want := range map[string]string{"": "0", "root": "0", "0": "0", "1000": "1000", "4321:8": "4321", "root:root": "0"} {
		if res := e.run(id, e.commands.UID(), func(s *sandbox.ExecSpec) { s.User = user }); string(res.Stdout) != want+"\n" {
			e.Errorf("as %q the user is %q, %q", user, res.Stdout, res.Stderr)
		}
	}
	for dir, want := range map[string]string{"/": "/", "/tmp": "/tmp", "/tmp/": "/tmp", "/etc/../tmp": "/tmp"} {
		if res := e.run(id, e.commands.Pwd(), func(s *sandbox.ExecSpec) { s.WorkDir = dir }); string(res.Stdout) != want+"\n" {
			e.Errorf("in %q the directory is %q, %q", dir, res.Stdout, res.Stderr)
		}
	}
}

func listExecs(e *env) {
	id := e.started()
	if list, err := e.d.ListExecs(e.ctx, id); err != nil || len(list) != 0 {
		e.Errorf("a new box has the execs %v, %v", list, err)
	}
	var want []string
	for range 3 {
		want = append(want, e.run(id, e.commands.Exit(0)).ID)
	}
	want = append(want, e.stream(id, e.commands.Sleep(time.Hour)).ID())
	list, err := e.d.ListExecs(e.ctx, id)
	e.ok(err)
	var got []string
	for _, x := range list {
		got = append(got, x.ID)
	}
	if !slices.Equal(got, want) {
		e.Errorf("the execs are %v; wanted is %v", got, want)
	}
	e.eventually("one exec runs", func() bool { return e.inspect(id).RunningExecs == 1 })
}
