package bridge_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/taibox/taibox/tai/sandbox"
)

// tty is a terminal whose screen is read in the background.
type tty struct {
	sandbox.Stream
	mu     sync.Mutex
	screen bytes.Buffer
	done   chan struct{}
}

func (b *box) tty(script string) *tty {
	b.t.Helper()
	s := b.start(sandbox.ExecSpec{Args: []string{"/bin/sh", "-c", script}, TTY: true, Stdin: true})
	t := &tty{Stream: s, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		for {
			c, err := s.Recv()
			if err != nil {
				return
			}
			t.mu.Lock()
			t.screen.Write(c.Data)
			t.mu.Unlock()
			s.Ack(c.End())
		}
	}()
	return t
}

func (t *tty) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.screen.String()
}

func (t *tty) shows(tt testing.TB, s string) {
	tt.Helper()
	until(tt, fmt.Sprintf("%q", s), func() bool { return strings.Contains(t.text(), s) })
}

func (t *tty) end(tt testing.TB) sandbox.ExecInfo {
	tt.Helper()
	<-t.done
	info, err := t.Wait(tt.Context())
	if err != nil {
		tt.Fatal(err)
	}
	return info
}

func TestT01InitialSize(t *testing.T) {
	b := start(t)
	for range 30 {
		res := b.exec(sandbox.ExecSpec{Args: []string{"stty", "size"}, TTY: true, Stdin: true, Size: sandbox.Size{Cols: 132, Rows: 43}})
		if string(res.Stdout) != "43 132\r\n" {
			t.Fatalf("%q", res.Stdout)
		}
	}
	if res := b.exec(sandbox.ExecSpec{Args: []string{"stty", "size"}, TTY: true}); string(res.Stdout) != "24 80\r\n" {
		t.Errorf("the default is %q", res.Stdout)
	}
	s := b.tty(`trap 'stty size' WINCH; echo up; while :; do sleep 0.02; done`)
	s.shows(t, "up")
	for i := range 500 {
		if err := s.Resize(sandbox.Size{Cols: uint16(20 + i), Rows: uint16(10 + i)}); err != nil {
			t.Fatal(err)
		}
	}
	s.shows(t, "509 519")
	for _, size := range []sandbox.Size{{}, {Cols: 80}, {Cols: 65535, Rows: 65535}} {
		wantErr(t, s.Resize(size), sandbox.ErrInvalidSpec)
	}
	_, err := b.run(sandbox.ExecSpec{Args: []string{"true"}, TTY: true, Size: sandbox.Size{Cols: 65535, Rows: 65535}})
	wantErr(t, err, sandbox.ErrInvalidSpec)
}

func TestT02ControlCharacters(t *testing.T) {
	b := start(t)
	for name, c := range map[string]struct {
		script, keys string
		code         int
		reason       sandbox.ExecReason
	}{
		"interrupt":         {"echo up; exec sleep 100", "\x03", 130, sandbox.ReasonSignal},
		"quit":              {"ulimit -c 0; echo up; exec sleep 100", "\x1c", 131, sandbox.ReasonSignal},
		"end_of_file":       {"echo up; exec cat", "\x04", 0, sandbox.ReasonExit},
		"interrupt_ignored": {"trap '' INT; echo up; read x; exit 5", "\x03\n", 5, sandbox.ReasonExit},
		"interrupt_twice":   {"trap 'n=x$n; [ $n = xx ] && exit 6; echo once' INT; echo up; while :; do sleep 0.05; done", "\x03", 6, sandbox.ReasonExit},
	} {
		t.Run(name, func(t *testing.T) {
			s := b.tty(c.script)
			s.shows(t, "up")
			s.Write([]byte(c.keys))
			if name == "interrupt_twice" {
				s.shows(t, "once") // two that come together are one
				s.Write([]byte(c.keys))
			}
			wantCode(t, s.end(t), c.code, c.reason)
		})
	}
}

func TestTerminal(t *testing.T) {
	b := start(t)
	s := b.tty(`test -t 0 && test -t 1 && test -t 2 && echo "$TERM $LANG"; tty; echo to stderr >&2; ps -o tty= -p $$; read x; echo "got $x"; exec cat`)
	s.shows(t, "xterm C.UTF-8")
	s.shows(t, "/dev/pts/")
	s.shows(t, "to stderr")
	s.Write([]byte("words\n"))
	s.shows(t, "got words")
	s.Write([]byte("unfinished"))
	s.shows(t, "unfinished")
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	info := s.end(t)
	wantCode(t, info, 0, sandbox.ReasonExit)
	if !strings.Contains(s.text(), "unfinishedunfinished") {
		t.Errorf("%q", s.text())
	}
	if !info.TTY || info.OutputIncomplete {
		t.Errorf("%+v", info)
	}
	wantErr(t, s.Resize(sandbox.Size{Cols: 80, Rows: 24}), sandbox.ErrExecEnded)
}

// TestT05Paste sends 64 KiB in one go, as lines and as they are.
func TestT05Paste(t *testing.T) {
	b := start(t)
	line := strings.Repeat("é漢🙂", 20) + "\n"
	paste := strings.Repeat(line, 64<<10/len(line))
	for name, script := range map[string]string{
		"lines": "stty -echo; echo up; head -c %d | wc -c; exit 0",
		"raw":   "stty raw -echo; echo up; head -c %d | wc -c; exit 0",
	} {
		t.Run(name, func(t *testing.T) {
			s := b.tty(fmt.Sprintf(script, len(paste)))
			s.shows(t, "up")
			if _, err := s.Write([]byte(paste)); err != nil {
				t.Fatal(err)
			}
			wantCode(t, s.end(t), 0, sandbox.ReasonExit)
			if !strings.Contains(s.text(), fmt.Sprint(len(paste))) {
				t.Errorf("%q", s.text())
			}
		})
	}
	res := b.exec(sandbox.ExecSpec{Args: []string{"printf", "%s", "é漢🙂"}, TTY: true})
	if string(res.Stdout) != "é漢🙂" {
		t.Errorf("%q", res.Stdout)
	}
}

// TestTerminalOutput is complete to the last byte, and its end no error.
func TestTerminalOutput(t *testing.T) {
	b := start(t)
	for range 10 {
		res := b.exec(sandbox.ExecSpec{Args: []string{"seq", "1", "20000"}, TTY: true})
		if n := bytes.Count(res.Stdout, []byte("\r\n")); n != 20000 || !bytes.HasSuffix(res.Stdout, []byte("\r\n20000\r\n")) {
			t.Fatalf("%d lines, %+v", n, res.ExecInfo)
		}
		wantCode(t, res.ExecInfo, 0, sandbox.ReasonExit)
	}
	res := b.exec(sandbox.ExecSpec{Args: []string{"/nope"}, TTY: true})
	if !bytes.HasSuffix(res.Stderr, []byte("no such file or directory\r\n")) {
		t.Errorf("%q", res.Stderr)
	}
}

// TestTerminalOfAUser belongs to who runs in it.
func TestTerminalOfAUser(t *testing.T) {
	needRoot(t)
	b := start(t)
	res := b.exec(sandbox.ExecSpec{Args: []string{"sh", "-c", "echo x >$(tty) && stat -c '%u %g %a' $(tty)"}, User: "12345", TTY: true})
	if string(res.Stdout) != "x\r\n12345 5 620\r\n" {
		t.Errorf("%q", res.Stdout)
	}
}

// TestTerminalClosedByItsCommand outlives the last of its open descriptors.
func TestTerminalClosedByItsCommand(t *testing.T) {
	b := start(t)
	res := b.exec(sandbox.ExecSpec{Args: []string{"sh", "-c", "exec <&- >&- 2>&-; sleep 0.3; echo back >/dev/tty; exit 3"}, TTY: true})
	wantCode(t, res.ExecInfo, 3, sandbox.ReasonExit)
	if string(res.Stdout) != "back\r\n" {
		t.Errorf("%q", res.Stdout)
	}
}
