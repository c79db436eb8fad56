package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func output(e *env) {
	e.cases([]testCase{
		{"E01-nothing-is-lost", nothingLost},
		{"E02-order", order},
		{"E02-merged", merged},
		{"E07-cap", outputCap},
		{"hold-back", holdBack},
		{"hold-back-ends-with-the-link", holdBackEnds},
		{"viewers-hold-nothing-back", viewersDoNotHold},
		{"log-is-bounded", logBounded},
		{"acknowledgements", acknowledgements},
		{"C04-held-back-exec-stands-alone", heldBackAlone},
	})
	if !e.quick && !testing.Short() {
		e.beside("stalled-reader", stalledReader)
	}
}

// nothingLost: a reader slower than the command, with a log smaller than the output.
func nothingLost(e *env) {
	const n = 1_000_000
	s := e.stream(e.box(), e.commands.Count(n), func(s *sandbox.ExecSpec) { s.MaxLog = 1 << 20 })
	chunks := 0
	t, err := readUntil(s, 0, func(text) bool {
		if chunks++; chunks%50 == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		return false
	})
	e.ok(err)
	if want := numbers(n); string(t.out) != want || t.lost > 0 {
		e.Errorf("of %d bytes %d came, %d were lost", len(want), len(t.out), t.lost)
	}
	x, err := s.Wait(e.ctx)
	e.ok(err)
	e.wantEnd(x, sandbox.ReasonExit, 0)
	if x.Bytes != t.end || x.Bytes-x.FirstOffset > 1<<20 {
		e.Errorf("the record says %d to %d", x.FirstOffset, x.Bytes)
	}
}

func order(e *env) {
	res := e.run(e.box(), e.commands.Both(1000))
	var out, errs strings.Builder
	for i, line := range strings.SplitAfter(numbers(1000), "\n") {
		if i%2 == 0 {
			out.WriteString(line)
		} else {
			errs.WriteString(line)
		}
	}
	if string(res.Stdout) != out.String() || string(res.Stderr) != errs.String() {
		e.Errorf("stdout begins with %q, stderr with %q", clip(string(res.Stdout)), clip(string(res.Stderr)))
	}
}

// merged: with one pipe for both the order is exact, and all of it is stdout.
func merged(e *env) {
	merge := func(s *sandbox.ExecSpec) { s.MergeOutput = true }
	res := e.run(e.box(), e.commands.Both(1000), merge)
	if string(res.Stdout) != numbers(1000) || len(res.Stderr) > 0 {
		e.Errorf("merged output begins with %q, stderr with %q", clip(string(res.Stdout)), clip(string(res.Stderr)))
	}
	res = e.run(e.box(), []string{e.commands.Missing}, merge)
	e.wantEnd(res.ExecInfo, sandbox.ReasonExit, 127)
	if !contains(res.Stdout, e.commands.Missing) || len(res.Stderr) > 0 {
		e.Errorf("of what cannot be started stdout says %q, stderr %q", res.Stdout, res.Stderr)
	}
}

func outputCap(e *env) {
	const n, limit = 500_000, 64 << 10
	res := e.run(e.box(), e.commands.Count(n), func(s *sandbox.ExecSpec) { s.MaxOutput = limit })
	e.wantEnd(res.ExecInfo, sandbox.ReasonExit, 0)
	want := numbers(n)
	hole := sandbox.Omission{At: limit / 2, Bytes: int64(len(want) - limit)}
	if !res.OutputTruncated || string(res.Stdout) != want[:limit/2]+want[len(want)-limit/2:] || res.StdoutOmitted != hole || res.Bytes != int64(len(want)) {
		e.Errorf("with a cap: truncated %v, %d bytes collected, %+v left out, %d written", res.OutputTruncated, len(res.Stdout), res.StdoutOmitted, res.Bytes)
	}
	res = e.run(e.box(), e.commands.Count(10), func(s *sandbox.ExecSpec) { s.MaxOutput = int64(len(numbers(10))) })
	if res.OutputTruncated || res.StdoutOmitted.Bytes != 0 || string(res.Stdout) != numbers(10) {
		e.Errorf("output as long as the cap: truncated %v, %q", res.OutputTruncated, res.Stdout)
	}
}

const smallLog = 64 << 10

// held starts a command that wrote as much as it may and is held back.
func (e *env) held(id string, n int, mods ...func(*sandbox.ExecSpec)) sandbox.Stream {
	e.Helper()
	mods = append(mods, func(s *sandbox.ExecSpec) { s.MaxLog = smallLog })
	s := e.stream(id, e.commands.Count(n), mods...)
	last := int64(-1)
	e.eventually("the log is full", func() bool {
		x, err := e.d.InspectExec(e.ctx, id, s.ID())
		e.ok(err)
		before := last
		last = x.Bytes
		return x.Bytes > smallLog/2 && x.Bytes == before
	})
	return s
}

func holdBack(e *env) {
	id := e.box()
	s := e.held(id, 200_000)
	x, err := e.d.InspectExec(e.ctx, id, s.ID())
	e.ok(err)
	if x.Done() || x.Bytes > smallLog || x.FirstOffset != 0 {
		e.Errorf("a command that nobody acknowledges is %s, wrote %d bytes, %d are gone", x.State, x.Bytes, x.FirstOffset)
	}
	// Reading alone lets nothing through.
	c, err := s.Recv()
	e.ok(err)
	ctx, cancel := context.WithTimeoutCause(e.ctx, 100*time.Millisecond, errors.New("still held back"))
	defer cancel()
	if _, err := s.Wait(ctx); err == nil {
		e.Error("it ended though it was held back")
	}
	if y, err := e.d.InspectExec(e.ctx, id, s.ID()); err != nil || y.Bytes > smallLog {
		e.Errorf("after a read without acknowledgement: %d bytes, %v", y.Bytes, err)
	}
	first := bytes.Clone(c.Data)
	e.ok(s.Ack(c.End()))
	t := e.read(s, c.End())
	if got := string(first) + string(t.out); got != numbers(200_000) || t.lost > 0 {
		e.Errorf("%d bytes came, %d were lost", len(got), t.lost)
	}
}

func holdBackEnds(e *env) {
	id := e.box()
	for name, end := range map[string]func(s sandbox.Stream) error{
		"close":  sandbox.Stream.Close,
		"hangup": sandbox.Stream.Hangup,
		"takeover": func(s sandbox.Stream) error {
			t, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Hold: true, Takeover: true, Since: -1})
			if err == nil {
				err = t.Close()
			}
			return err
		},
	} {
		s := e.held(id, 100_000)
		e.ok(end(s))
		e.soon("after "+name, func() { e.wantEnd(e.wait(id, s.ID()), sandbox.ReasonExit, 0) })
	}
}

func viewersDoNotHold(e *env) {
	id := e.box()
	s := e.held(id, 100_000)
	v, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{})
	e.ok(err)
	defer v.Close()
	e.ok(v.Ack(smallLog))
	time.Sleep(100 * time.Millisecond)
	if x, err := e.d.InspectExec(e.ctx, id, s.ID()); err != nil || x.Done() || x.Bytes > smallLog {
		e.Errorf("the acknowledgement of a viewer let the command go on: %s, %d, %v", x.State, x.Bytes, err)
	}
	e.ok(s.Close())
	e.wait(id, s.ID()) // though the viewer has read nothing
	t := e.read(v, 0)
	if t.lost == 0 || t.end != int64(len(numbers(100_000))) {
		e.Errorf("a slow viewer lost %d bytes and came to %d", t.lost, t.end)
	}
}

// logBounded: of the output of a command that nobody reads the last MaxLog
// bytes are kept, and what is gone is said.
func logBounded(e *env) {
	id := e.box()
	s := e.stream(id, e.commands.Count(100_000), func(s *sandbox.ExecSpec) { s.MaxLog = smallLog })
	e.ok(s.Close())
	x := e.wait(id, s.ID())
	e.wantEnd(x, sandbox.ReasonExit, 0)
	want := numbers(100_000)
	if kept := x.Bytes - x.FirstOffset; !x.Truncated || x.Bytes != int64(len(want)) || kept > smallLog || kept < smallLog/2 {
		e.Errorf("kept is from %d to %d of %d", x.FirstOffset, x.Bytes, len(want))
	}
	v, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{})
	e.ok(err)
	defer v.Close()
	c, err := v.Recv()
	e.ok(err)
	if c.Source != sandbox.Gap || c.Offset != 0 || c.Lost != x.FirstOffset || len(c.Data) > 0 {
		e.Fatalf("the first chunk is of source %d, at %d, %d lost; wanted is a gap of %d", c.Source, c.Offset, c.Lost, x.FirstOffset)
	}
	t := e.read(v, c.End())
	if string(t.out) != want[x.FirstOffset:] {
		e.Errorf("after the gap come %d bytes, %q", len(t.out), clip(string(t.out)))
	}
}

func acknowledgements(e *env) {
	id := e.box()
	s := e.held(id, 100_000)
	for _, off := range []int64{-5, 0} {
		e.ok(s.Ack(off)) // old news
	}
	time.Sleep(100 * time.Millisecond)
	if x, err := e.d.InspectExec(e.ctx, id, s.ID()); err != nil || x.Bytes > smallLog {
		e.Errorf("old news let %d bytes through, %v", x.Bytes, err)
	}
	e.ok(s.Ack(1 << 50)) // beyond the end means all there is
	e.eventually("it goes on", func() bool {
		x, err := e.d.InspectExec(e.ctx, id, s.ID())
		return err == nil && x.Bytes > smallLog
	})
	if x, err := e.d.InspectExec(e.ctx, id, s.ID()); err != nil || x.Done() && code(x) != 0 {
		e.Errorf("it is %s with %d, %v", x.State, code(x), err)
	}
}

func heldBackAlone(e *env) {
	id := e.started()
	s := e.held(id, 100_000)
	e.soon("calls beside one that hangs", func() {
		if res := e.run(id, e.commands.Echo("x")); string(res.Stdout) != "x\n" {
			e.Errorf("it printed %q", res.Stdout)
		}
		e.inspect(id)
		_, err := e.d.List(e.ctx, sandbox.Filter{})
		e.ok(err)
		other := e.started()
		e.run(other, e.commands.Exit(0))
		e.ok(e.d.Remove(e.ctx, other))
	})
	e.soon("stopping a box with one that hangs", func() { e.ok(e.d.Stop(e.ctx, id, 200*time.Millisecond)) })
	if x := e.wait(id, s.ID()); x.Reason != sandbox.ReasonStop {
		e.Errorf("it ended by %s", x.Reason)
	}
}

// stalledReader: who acknowledges nothing for half a minute holds nothing back
// any more.
func stalledReader(e *env) {
	id := e.box()
	began := time.Now()
	s := e.held(id, 100_000)
	e.wantEnd(e.wait(id, s.ID()), sandbox.ReasonExit, 0)
	if took := time.Since(began); took < 25*time.Second {
		e.Errorf("it was let go after %v", took)
	}
	if t := e.read(s, 0); t.lost == 0 || t.end != int64(len(numbers(100_000))) {
		e.Errorf("its reader lost %d bytes and came to %d", t.lost, t.end)
	}
}
