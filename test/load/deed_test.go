package load

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// script returns a script that prints lines to stdout, a word to stderr, and
// exits with a code; and what it prints.
func (a *actor) script(lines int, pause string) (script, stdout, stderr string, code int) {
	word, code := fmt.Sprintf("w%d-%d", a.n, a.rnd.IntN(1e9)), a.rnd.IntN(120)
	var out strings.Builder
	for i := range lines {
		fmt.Fprintf(&out, "%s line %d of the output\n", word, i)
	}
	script = fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "%s line $i of the output"; i=$((i+1)); [ $((i %% 40)) != 0 ] || %s; done; echo %s >&2; exit %d`,
		lines, word, pause, word, code)
	return script, out.String(), word + "\n", code
}

// output is what a stream delivered.
type output struct {
	stdout, stderr bytes.Buffer
	at             int64
}

// read reads n bytes, or everything if n is negative, and acknowledges it.
func (o *output) read(s taisandbox.Stream, n int64) error {
	for n < 0 || o.at < n {
		c, err := s.Recv()
		if err != nil {
			return err
		}
		switch {
		case c.Source == taisandbox.Gap:
			return fmt.Errorf("output of %d bytes from %d is lost", c.Lost, c.Offset)
		case c.Offset != o.at:
			return fmt.Errorf("a piece at offset %d, after everything up to %d", c.Offset, o.at)
		case c.Source == taisandbox.Stdout:
			o.stdout.Write(c.Data)
		default:
			o.stderr.Write(c.Data)
		}
		o.at += int64(len(c.Data))
		if err := s.Ack(o.at); err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
	}
	return nil
}

// wantExit tells a record that is not that of an exit with a code.
func (a *actor) wantExit(what string, info taisandbox.ExecInfo, code int) {
	if info.State != taisandbox.ExecExited || info.ExitCode == nil || *info.ExitCode != code || info.Reason != taisandbox.ReasonExit {
		a.m.fail("%s: exec %s in %s: %s, code %s, reason %s %s; want code %d", what, info.ID, info.Box, info.State, codeText(info.ExitCode), info.Reason, info.Error, code)
	}
}

func codeText(code *int) string {
	if code == nil {
		return "none"
	}
	return fmt.Sprint(*code)
}

func (a *actor) wantOutput(what string, o *output, stdout, stderr string) {
	if o.stdout.String() != stdout || o.stderr.String() != stderr {
		a.m.fail("%s: stdout %.300q (%d bytes), stderr %.100q; want %.300q (%d bytes), %.100q",
			what, o.stdout.String(), o.stdout.Len(), o.stderr.String(), stdout, len(stdout), stderr)
	}
}

// exec runs a command to its end.
func (a *actor) exec(ctx context.Context, b *box) { a.attached(ctx, "exec", b, 1+a.rnd.IntN(200), ":") }

// stream runs one that takes seconds: servers may come and go meanwhile.
func (a *actor) stream(ctx context.Context, b *box) {
	a.attached(ctx, "stream", b, 40*(2+a.rnd.IntN(20)), "sleep 0.2")
}

func (a *actor) attached(ctx context.Context, what string, b *box, lines int, pause string) {
	script, stdout, stderr, code := a.script(lines, pause)
	begin := time.Now()
	s, err := a.api.Exec(ctx, b.id, rest.ExecRequest{ID: a.id(), Cmd: []string{"sh", "-c", script}})
	if !a.ok(ctx, what, b, begin, err) {
		return
	}
	defer s.Close()
	var o output
	if err := o.read(s, -1); !errors.Is(err, io.EOF) {
		if !a.cutShort(ctx, b, s.ID(), begin, err) {
			a.m.fail("%s %s in %s: after %d bytes: %v", what, s.ID(), b.id, o.at, err)
		}
		return
	}
	info, err := s.Wait(ctx)
	if err != nil {
		a.m.fail("%s %s in %s: its end: %v", what, s.ID(), b.id, err)
		return
	}
	if b.kind == mortal && info.Reason == taisandbox.ReasonStop {
		a.resolve(ctx, b, true)
		return
	}
	a.wantExit(what, info, code)
	a.wantOutput(what+" "+s.ID()+" in "+b.id, &o, stdout, stderr)
}

// cutShort reports whether the box of a stream was to end under it: its max
// lifetime asks no command.
func (a *actor) cutShort(ctx context.Context, b *box, _ string, begin time.Time, err error) bool {
	if b.kind != mortal || time.Since(begin) < 0 || err == nil {
		return false
	}
	a.resolve(ctx, b, true)
	return true
}

// reattach reads a command's output in pieces, each by a stream of its own.
func (a *actor) reattach(ctx context.Context, b *box) {
	script, stdout, stderr, code := a.script(40*(2+a.rnd.IntN(6)), "sleep 0.1")
	id := a.id()
	begin := time.Now()
	_, err := a.api.ExecDetached(ctx, b.id, rest.ExecRequest{ID: id, Cmd: []string{"sh", "-c", script}})
	if !a.ok(ctx, "exec -d", b, begin, err) {
		return
	}
	var o output
	total := int64(len(stdout) + len(stderr))
	for try := 0; ; try++ {
		begin := time.Now()
		s, err := a.api.Attach(ctx, b.id, id, taisandbox.AttachOptions{Since: o.at, Hold: a.rnd.IntN(2) == 0, Takeover: true})
		if err != nil && b.kind != stays && ownEnds(b, err) {
			a.resolve(ctx, b, true)
			return
		}
		if err != nil && a.m.excused(begin, err) {
			wait(ctx, 100*time.Millisecond)
			continue
		}
		if err != nil {
			a.m.fail("attach to %s in %s: %v", id, b.id, err)
			return
		}
		until := int64(-1)
		if try < 4 {
			until = min(total, o.at+1+a.rnd.Int64N(total))
		}
		err = o.read(s, until)
		s.Close()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if !a.cutShort(ctx, b, id, begin, err) {
				a.m.fail("attached to %s in %s: after %d bytes: %v", id, b.id, o.at, err)
			}
			return
		}
	}
	info, ok := a.waitExec(ctx, b, id)
	if !ok || b.kind == mortal && info.Reason == taisandbox.ReasonStop {
		return
	}
	a.wantExit("reattach", info, code)
	a.wantOutput("reattach to "+id+" in "+b.id, &o, stdout, stderr)
}

// waitExec waits for the end of a command, whatever happens to the server.
func (a *actor) waitExec(ctx context.Context, b *box, id string) (taisandbox.ExecInfo, bool) {
	for {
		begin := time.Now()
		e, err := a.api.WaitExec(ctx, b.id, id)
		if err == nil {
			return taisandbox.ExecInfo{
				ID: e.ID, Box: e.Box, State: taisandbox.ExecState(e.State), ExitCode: e.ExitCode, Signal: e.Signal,
				Reason: taisandbox.ExecReason(e.Reason), Error: e.Error,
			}, true
		}
		if ownEnds(b, err) {
			a.resolve(ctx, b, true)
			return taisandbox.ExecInfo{}, false
		}
		if !a.m.excused(begin, err) {
			a.m.fail("wait for %s in %s: %v", id, b.id, err)
			return taisandbox.ExecInfo{}, false
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// timeout runs a command past its time.
func (a *actor) timeout(ctx context.Context, b *box) {
	id := a.id()
	begin := time.Now()
	_, err := a.api.ExecDetached(ctx, b.id, rest.ExecRequest{ID: id, Cmd: []string{"sleep", "1000"}, TimeoutMs: 300, KillGraceMs: 200})
	if !a.ok(ctx, "exec with timeout", b, begin, err) {
		return
	}
	if info, ok := a.waitExec(ctx, b, id); ok && info.Reason != taisandbox.ReasonTimeout && !(b.kind == mortal && info.Reason == taisandbox.ReasonStop) {
		a.m.fail("exec %s in %s past its timeout: %s, code %s, reason %s", id, b.id, info.State, codeText(info.ExitCode), info.Reason)
	}
}

// killed kills a command, by the second try where the first is lost.
func (a *actor) killed(ctx context.Context, b *box) {
	id := a.id()
	begin := time.Now()
	_, err := a.api.ExecDetached(ctx, b.id, rest.ExecRequest{ID: id, Cmd: []string{"sh", "-c", "sleep 1000; exit 3"}})
	if !a.ok(ctx, "exec to kill", b, begin, err) {
		return
	}
	for {
		begin := time.Now()
		err := a.api.KillExec(ctx, b.id, id, taisandbox.KillOptions{Signal: 9, Tree: true})
		if err == nil || errors.Is(err, taisandbox.ErrExecEnded) {
			break
		}
		if ownEnds(b, err) {
			a.resolve(ctx, b, true)
			return
		}
		if !a.m.excused(begin, err) {
			a.m.fail("kill %s in %s: %v", id, b.id, err)
			return
		}
		wait(ctx, 100*time.Millisecond)
	}
	if info, ok := a.waitExec(ctx, b, id); ok && info.Reason != taisandbox.ReasonKilled && !(b.kind == mortal && info.Reason == taisandbox.ReasonStop) {
		a.m.fail("exec %s in %s was killed: %s, code %s, reason %s", id, b.id, info.State, codeText(info.ExitCode), info.Reason)
	}
}

// file writes a file and reads it back.
func (a *actor) file(ctx context.Context, b *box) {
	name := fmt.Sprintf("/tmp/f%d", a.rnd.IntN(5))
	content := strings.Repeat(fmt.Sprintf("%s in %s %d\n", name, b.id, a.rnd.Int()), 1+a.rnd.IntN(5000))
	begin := time.Now()
	_, err := a.api.WriteFile(ctx, b.id, name, strings.NewReader(content), taisandbox.FileOptions{})
	if err != nil {
		// Whole or not at all, and the actor does not know which.
		old, had := b.files[name]
		if !a.ok(ctx, "write a file", b, begin, err) && b.running {
			if got, ok := a.readFile(ctx, b, name); ok && (got != content && !(had && got == old)) {
				a.m.fail("file %s in %s after a write that failed: %d bytes, neither old (%d) nor new (%d)", name, b.id, len(got), len(old), len(content))
			}
		}
		delete(b.files, name)
		return
	}
	a.m.tally.add("write a file")
	b.files[name] = content
	if got, ok := a.readFile(ctx, b, name); ok && got != content {
		a.m.fail("file %s in %s: %d bytes were read, %d written", name, b.id, len(got), len(content))
	}
}

func (a *actor) readFile(ctx context.Context, b *box, name string) (string, bool) {
	begin := time.Now()
	r, _, err := a.api.ReadFile(ctx, b.id, name, taisandbox.FileOptions{})
	if errors.Is(err, taisandbox.ErrFileNotFound) {
		if _, want := b.files[name]; want {
			a.m.fail("file %s in %s is gone", name, b.id)
		}
		return "", false
	}
	if err == nil {
		defer r.Close()
		var data []byte
		if data, err = io.ReadAll(r); err == nil {
			return string(data), true
		}
		if a.m.killedSince(begin) {
			a.m.tally.add("excused") // the answer had begun: its end is missing, and that is told
			return "", false
		}
	}
	a.ok(ctx, "read a file", b, begin, err)
	return "", false
}

// wantFiles reads what was written before the box was stopped.
func (a *actor) wantFiles(ctx context.Context, b *box) {
	for name, want := range b.files {
		if strings.HasPrefix(name, "/tmp/") {
			if got, ok := a.readFile(ctx, b, name); ok && got != want {
				a.m.fail("file %s in %s after a restart: %d bytes, want %d", name, b.id, len(got), len(want))
			}
			return
		}
	}
}

// tree copies files in and out, also of a box that does not run.
func (a *actor) tree(ctx context.Context, b *box) {
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	want := map[string]string{}
	dir := fmt.Sprintf("d%d", a.rnd.IntN(1e9))
	w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755})
	for i := range 1 + a.rnd.IntN(20) {
		name, text := fmt.Sprintf("%s/f%d", dir, i), strings.Repeat(fmt.Sprint(a.rnd.Int()), a.rnd.IntN(2000))
		want[name] = text
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))})
		io.WriteString(w, text)
	}
	w.Close()
	begin := time.Now()
	err := a.api.CopyTo(ctx, b.id, "/tmp", &in, taisandbox.FileOptions{})
	if !a.ok(ctx, "cp in", b, begin, err) {
		return
	}
	begin = time.Now()
	r, err := a.api.CopyFrom(ctx, b.id, "/tmp/"+dir, taisandbox.FileOptions{})
	if !a.ok(ctx, "cp out", b, begin, err) {
		return
	}
	defer r.Close()
	for got := tar.NewReader(r); ; {
		h, err := got.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var data []byte
		if err == nil {
			data, err = io.ReadAll(got)
		}
		if err != nil {
			if !a.m.killedSince(begin) && b.kind == stays {
				a.m.fail("cp out of %s: %v", b.id, err)
			}
			return
		}
		if h.Typeflag == tar.TypeReg {
			if text, ok := want[h.Name]; !ok || text != string(data) {
				a.m.fail("cp out of %s: %s has %d bytes, want %d", b.id, h.Name, len(data), len(text))
			}
			delete(want, h.Name)
		}
	}
	if len(want) > 0 {
		a.m.fail("cp out of %s: %d files of %s are missing", b.id, len(want), dir)
	}
}

// stopUnderExec stops a box in which a command runs that does not want to end.
func (a *actor) stopUnderExec(ctx context.Context, b *box) {
	id := a.id()
	begin := time.Now()
	_, err := a.api.ExecDetached(ctx, b.id, rest.ExecRequest{ID: id, Cmd: []string{"sh", "-c", `trap "" TERM; while :; do sleep 1000; done`}})
	if !a.ok(ctx, "exec to stop", b, begin, err) {
		return
	}
	grace := 100 * time.Millisecond
	begin = time.Now()
	if !a.ok(ctx, "stop under an exec", b, begin, a.api.StopBox(ctx, b.id, &grace)) {
		return
	}
	b.running = false
	begin = time.Now()
	e, err := a.api.GetExec(ctx, b.id, id)
	if err != nil && (ownEnds(b, err) || a.m.excused(begin, err)) {
		return
	}
	if err != nil || e.Reason != string(taisandbox.ReasonStop) || e.ExitCode == nil || *e.ExitCode != 128+9 {
		a.m.fail("exec %s in %s, which was stopped: %s, code %s, reason %s, %v", id, b.id, e.State, codeText(e.ExitCode), e.Reason, err)
	}
}

// removeUnderStream removes a box in which somebody reads. A run that did not
// end has no code of its own.
func (a *actor) removeUnderStream(ctx context.Context, b *box) {
	begin := time.Now()
	s, err := a.api.Exec(ctx, b.id, rest.ExecRequest{ID: a.id(), Cmd: []string{"sh", "-c", "echo ready; sleep 1000; exit 0"}})
	if !a.ok(ctx, "exec to remove", b, begin, err) {
		return
	}
	defer s.Close()
	var o output
	if err := o.read(s, int64(len("ready\n"))); err != nil {
		if !a.cutShort(ctx, b, s.ID(), begin, err) {
			a.m.fail("stream %s in %s: %v", s.ID(), b.id, err)
		}
		return
	}
	a.remove(ctx, b)
	if err = o.read(s, -1); !errors.Is(err, io.EOF) {
		// It had no time to be told: the box is gone, or is just going.
		if !errors.Is(err, taisandbox.ErrNotFound) && !errors.Is(err, taisandbox.ErrExecNotFound) && !errors.Is(err, taisandbox.ErrNotRunning) &&
			!errors.Is(err, taisandbox.ErrRemoving) && !a.m.excused(begin, err) {
			a.m.fail("stream %s in %s, which was removed: %v", s.ID(), b.id, err)
		}
		return
	}
	if info, err := s.Wait(ctx); err != nil || info.Reason == taisandbox.ReasonExit {
		a.m.fail("exec %s in %s, which was removed: %s, code %s, reason %s, %v", s.ID(), b.id, info.State, codeText(info.ExitCode), info.Reason, err)
	}
}
