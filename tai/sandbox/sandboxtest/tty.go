package sandboxtest

import (
	"fmt"
	"strings"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func tty(e *env) {
	e.need(sandbox.FeatureTTY)
	e.cases([]testCase{
		{"is-one", ttyIsOne},
		{"T01-initial-size", ttyInitialSize},
		{"T01-resize", ttyResize},
		{"T01-bad-sizes", ttyBadSizes},
		{"T02-ctrl-c", ttyCtrlC},
		{"T02-ctrl-d", ttyCtrlD},
		{"T05-locale", ttyLocale},
		{"T05-bytes", ttyBytes},
		{"E05-no-framing", ttyNoFraming},
	})
}

func withTTY(s *sandbox.ExecSpec) { s.TTY, s.Stdin = true, true }

func ttyIsOne(e *env) {
	e.wantEnd(e.run(e.box(), e.commands.IsTTY(), func(s *sandbox.ExecSpec) { s.TTY = true }).ExecInfo, sandbox.ReasonExit, 0)
	e.wantEnd(e.run(e.box(), e.commands.IsTTY()).ExecInfo, sandbox.ReasonExit, 1)
}

func ttyInitialSize(e *env) {
	id := e.box()
	for i := range 20 {
		size := sandbox.Size{Cols: uint16(100 + i), Rows: uint16(30 + i)}
		s := e.stream(id, e.commands.TTYSize(), withTTY, func(s *sandbox.ExecSpec) { s.Size = size })
		e.waitFor(s, fmt.Sprintf("%d %d\r\n", size.Rows, size.Cols))
		e.ok(s.CloseWrite())
		e.ok(s.Close())
	}
	s := e.stream(id, e.commands.TTYSize(), withTTY)
	e.waitFor(s, "24 80\r\n")
}

func ttyResize(e *env) {
	s := e.stream(e.box(), e.commands.TTYSize(), withTTY)
	seen := e.waitFor(s, "24 80")
	for i := range 1000 {
		e.ok(s.Resize(sandbox.Size{Cols: uint16(1 + i%300), Rows: uint16(1 + i%100)}))
	}
	e.ok(s.Resize(sandbox.Size{Cols: 132, Rows: 43}))
	_, err := s.Write([]byte("\r"))
	e.ok(err)
	t, err := readUntil(s, seen.end, func(t text) bool { return contains(t.out, "43 132\r\n") })
	if !contains(t.out, "43 132\r\n") {
		e.Errorf("the last size was not seen: %q, %v", clip(t.all()), err)
	}
}

func ttyBadSizes(e *env) {
	s := e.stream(e.box(), e.commands.TTYSize(), withTTY)
	for _, size := range []sandbox.Size{{}, {Cols: 80}, {Rows: 24}, {Cols: 65535, Rows: 65535}} {
		e.wantErr(s.Resize(size), sandbox.ErrInvalidSpec)
	}
	plain := e.stream(e.box(), e.commands.Cat(), withStdin)
	if err := plain.Resize(sandbox.Size{Cols: 80, Rows: 24}); err == nil {
		e.Error("an exec without a terminal can be resized")
	}
}

func ttyCtrlC(e *env) {
	id := e.box()
	for key, want := range map[string]int{"\x03": 130, "\x1c": 131} {
		s := e.stream(id, e.commands.Cat(), withTTY)
		_, err := s.Write([]byte(key))
		e.ok(err)
		x, err := s.Wait(e.ctx)
		e.ok(err)
		e.wantEnd(x, sandbox.ReasonSignal, want)
	}
	// One that ignores it goes on.
	s := e.stream(id, e.commands.Trap(), withTTY)
	e.waitFor(s, "ready")
	_, err := s.Write([]byte("\x03"))
	e.ok(err)
	time.Sleep(200 * time.Millisecond)
	if x, err := e.d.InspectExec(e.ctx, id, s.ID()); err != nil || x.Done() {
		e.Errorf("it is %s, %v", x.State, err)
	}
}

func ttyCtrlD(e *env) {
	s := e.stream(e.box(), e.commands.Cat(), withTTY)
	_, err := s.Write([]byte("line\r\x04"))
	e.ok(err)
	x, err := s.Wait(e.ctx)
	e.ok(err)
	e.wantEnd(x, sandbox.ReasonExit, 0)
	if t := e.read(s, 0); !contains(t.out, "line\r\n") || len(t.err) > 0 {
		e.Errorf("came %q and %q", t.out, t.err)
	}

	s = e.stream(e.box(), e.commands.Cat(), withTTY)
	e.ok(s.CloseWrite())
	x, err = s.Wait(e.ctx)
	e.ok(err)
	e.wantEnd(x, sandbox.ReasonExit, 0)
}

func ttyLocale(e *env) {
	env := string(e.run(e.box(), e.commands.Env(), func(s *sandbox.ExecSpec) { s.TTY = true }).Stdout)
	if !strings.Contains(env, "TERM=") || !strings.Contains(env, "UTF-8") {
		e.Errorf("neither TERM nor a UTF-8 locale in %q", env)
	}
	env = string(e.run(e.box(), e.commands.Env(), func(s *sandbox.ExecSpec) {
		s.TTY, s.Env = true, map[string]string{"TERM": "vt52", "LANG": "C"}
	}).Stdout)
	if !strings.Contains(env, "TERM=vt52\r\n") || !strings.Contains(env, "LANG=C\r\n") {
		e.Errorf("what was set was overwritten: %q", env)
	}
}

func ttyBytes(e *env) {
	s := e.stream(e.box(), e.commands.Cat(), withTTY)
	_, err := s.Write([]byte("é漢🙂\r"))
	e.ok(err)
	e.waitFor(s, "é漢🙂\r\n")
}

func ttyNoFraming(e *env) {
	res := e.run(e.box(), e.commands.Both(4), func(s *sandbox.ExecSpec) { s.TTY = true })
	if string(res.Stdout) != "1\r\n2\r\n3\r\n4\r\n" || len(res.Stderr) > 0 {
		e.Errorf("a terminal shows %q, and %q beside it", res.Stdout, res.Stderr)
	}
}
