package sandboxtest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func attach(e *env) {
	e.cases([]testCase{
		{"E08-resume-anywhere", resumeAnywhere},
		{"E08-beyond-the-end", beyondEnd},
		{"no-follow", noFollow},
		{"busy-and-takeover", busyAndTakeover},
		{"viewers-cannot-write", viewersCannotWrite},
		{"ended", attachEnded},
		{"ended-while-held", endedWhileHeld},
		{"many-viewers", manyViewers},
		{"close-wakes-recv", closeWakes},
		{"bad-options", badAttach},
	})
}

// resumeAnywhere cuts a reader at random offsets: what it got is the source.
func resumeAnywhere(e *env) {
	const n = 1_000_000
	id := e.box()
	s := e.stream(id, e.commands.Count(n), func(s *sandbox.ExecSpec) { s.MaxLog = 4 << 20 })
	e.ok(s.Close())
	var got []byte
	var end int64
	want := numbers(n)
	hold := sandbox.AttachOptions{Hold: true}
	for end < int64(len(want)) {
		hold.Since = end
		r, err := e.d.AttachExec(e.ctx, id, s.ID(), hold)
		e.ok(err)
		stop := end + rand.Int64N(500_000)
		t, err := readUntil(r, end, func(t text) bool { return t.end > stop })
		e.ok(err)
		// Between two readers the command ran freely: what is gone then is said
		// to be.
		got = append(got, want[len(got):len(got)+int(t.lost)]...)
		got, end = append(got, t.out...), t.end
		e.ok(r.Close())
	}
	if !bytes.Equal(got, []byte(want)) {
		e.Errorf("the parts make %d bytes, and are not the %d of the source", len(got), len(want))
	}
}

func beyondEnd(e *env) {
	id := e.box()
	s := e.stream(id, e.commands.Cat(), withStdin)
	write := func(text string) {
		_, err := s.Write([]byte(text))
		e.ok(err)
	}
	write("0123456789")
	e.eventually("ten bytes", func() bool {
		x, err := e.d.InspectExec(e.ctx, id, s.ID())
		return err == nil && x.Bytes == 10
	})
	beyond, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Since: 15})
	e.ok(err)
	defer beyond.Close()
	now, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Since: -1})
	e.ok(err)
	defer now.Close()
	inside, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Since: 7})
	e.ok(err)
	defer inside.Close()
	never, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Since: 1 << 40})
	e.ok(err)
	defer never.Close()
	write("abcdefghij")
	e.ok(s.CloseWrite())
	for _, c := range []struct {
		s     sandbox.Stream
		since int64
		want  string
	}{{beyond, 15, "fghij"}, {now, 10, "abcdefghij"}, {inside, 7, "789abcdefghij"}, {never, 1 << 40, ""}, {s, 0, "0123456789abcdefghij"}} {
		if t := e.read(c.s, c.since); string(t.out) != c.want {
			e.Errorf("since %d came %q; wanted is %q", c.since, t.out, c.want)
		}
	}
}

func noFollow(e *env) {
	id := e.box()
	s := e.stream(id, e.commands.TrapExit(0))
	e.waitFor(s, "ready\n")
	e.soon("a reader that does not follow", func() {
		v, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{NoFollow: true})
		e.ok(err)
		defer v.Close()
		if t := e.read(v, 0); string(t.out) != "ready\n" {
			e.Errorf("came %q", t.out)
		}
	})
	if x, err := e.d.InspectExec(e.ctx, id, s.ID()); err != nil || x.Done() {
		e.Errorf("the exec is %s, %v", x.State, err)
	}
}

func busyAndTakeover(e *env) {
	id := e.box()
	s := e.stream(id, e.commands.Cat(), withStdin)
	_, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Hold: true})
	e.wantErr(err, sandbox.ErrExecBusy)
	blocked := make(chan error, 1)
	go func() {
		_, err := s.Recv()
		blocked <- err
	}()
	taker, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Hold: true, Takeover: true})
	e.ok(err)
	select {
	case err := <-blocked:
		e.wantErr(err, sandbox.ErrExecBusy)
	case <-e.ctx.Done():
		e.Fatal("the one put out was not told")
	}
	if _, err := s.Write([]byte("x")); err == nil {
		e.Error("the one put out can still write")
	}
	_, err = taker.Write([]byte("hello"))
	e.ok(err)
	e.ok(taker.CloseWrite())
	if t := e.read(taker, 0); string(t.out) != "hello" {
		e.Errorf("came %q", t.out)
	}
	e.ok(taker.Close())

	// Once it is let go, anybody may hold it.
	s = e.stream(id, e.commands.Cat(), withStdin)
	e.ok(s.Close())
	next, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{Hold: true})
	e.ok(err)
	e.ok(next.CloseWrite())
	e.read(next, 0)
	e.ok(next.Close())
}

func viewersCannotWrite(e *env) {
	id := e.box()
	s := e.stream(id, e.commands.Cat(), withStdin)
	v, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{})
	e.ok(err)
	defer v.Close()
	if _, err := v.Write([]byte("evil")); err == nil {
		e.Error("a viewer can write")
	}
	if err := v.CloseWrite(); err == nil {
		e.Error("a viewer can end the input")
	}
	_, err = s.Write([]byte("good"))
	e.ok(err)
	e.ok(s.CloseWrite())
	if t := e.read(v, 0); string(t.out) != "good" {
		e.Errorf("came %q", t.out)
	}
}

func attachEnded(e *env) {
	id := e.box()
	res := e.run(id, e.commands.Both(10))
	for _, opts := range []sandbox.AttachOptions{{}, {NoFollow: true}, {Hold: true}} {
		s, err := e.d.AttachExec(e.ctx, id, res.ID, opts)
		e.ok(err)
		t := e.read(s, 0)
		if !bytes.Equal(t.out, res.Stdout) || !bytes.Equal(t.err, res.Stderr) {
			e.Errorf("with %+v came %q and %q", opts, t.out, t.err)
		}
		x, err := s.Wait(e.ctx)
		e.ok(err)
		e.wantEnd(x, sandbox.ReasonExit, 0)
		if opts.Hold {
			_, err := s.Write([]byte("x"))
			e.wantErr(err, sandbox.ErrExecEnded)
		}
		e.ok(s.Close())
	}
}

// endedWhileHeld leaves the first holder there: an exec that has ended keeps
// nobody away.
func endedWhileHeld(e *env) {
	id := e.box()
	first := e.stream(id, e.commands.Count(10))
	e.eventually("the end", func() bool {
		x, err := e.d.InspectExec(e.ctx, id, first.ID())
		return err == nil && x.Done()
	})
	second, err := e.d.AttachExec(e.ctx, id, first.ID(), sandbox.AttachOptions{Hold: true})
	e.ok(err)
	for _, s := range []sandbox.Stream{first, second} {
		if t := e.read(s, 0); string(t.out) != numbers(10) {
			e.Errorf("came %q", t.out)
		}
		e.ok(s.Close())
	}
}

func manyViewers(e *env) {
	id := e.box()
	s := e.stream(id, e.commands.Drain(100_000), withStdin)
	var viewers []sandbox.Stream
	for range 10 {
		v, err := e.d.AttachExec(e.ctx, id, s.ID(), sandbox.AttachOptions{})
		e.ok(err)
		defer v.Close()
		viewers = append(viewers, v)
	}
	e.ok(s.CloseWrite())
	e.ok(s.Close())
	for _, err := range concurrently(len(viewers), func(i int) error {
		t, err := readUntil(viewers[i], 0, func(text) bool { return false })
		if err == nil && string(t.out) != numbers(100_000) {
			err = errors.New("a viewer got something else")
		}
		return err
	}) {
		e.ok(err)
	}
}

func closeWakes(e *env) {
	s := e.stream(e.box(), e.commands.Sleep(time.Hour), withStdin)
	done := make(chan error, 2)
	go func() {
		_, err := s.Recv()
		done <- err
	}()
	go func() {
		// More than any buffer: it blocks, the command reads nothing.
		_, err := s.Write(make([]byte, 32<<20))
		done <- err
	}()
	time.Sleep(50 * time.Millisecond)
	for range 2 {
		e.ok(s.Close())
	}
	for range 2 {
		select {
		case err := <-done:
			if err == nil || isEOF(err) {
				e.Errorf("a closed stream gives %v", err)
			}
		case <-e.ctx.Done():
			e.Fatal("a call is still blocked")
		}
	}
}

func badAttach(e *env) {
	id := e.box()
	res := e.run(id, e.commands.Exit(0))
	_, err := e.d.AttachExec(e.ctx, id, res.ID, sandbox.AttachOptions{Since: -2})
	e.wantErr(err, sandbox.ErrInvalidSpec)
}
