package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// script is a stream that gives fixed chunks, then ends as told.
type script struct {
	chunks []sandbox.Chunk
	end    error // after the chunks; io.EOF, or nil to block until hung up
	info   sandbox.ExecInfo

	mu     sync.Mutex
	acked  int64
	in     bytes.Buffer
	inEnd  bool
	closed bool
	gone   chan struct{}
	once   sync.Once
}

var errGone = errors.New("hung up")

func (s *script) ID() string { return "x" }

func (s *script) Recv() (sandbox.Chunk, error) {
	if len(s.chunks) > 0 {
		c := s.chunks[0]
		s.chunks = s.chunks[1:]
		return c, nil
	}
	if s.end != nil {
		return sandbox.Chunk{}, s.end
	}
	<-s.gone
	return sandbox.Chunk{}, errGone
}

func (s *script) Ack(off int64) error { s.acked = off; return nil }

func (s *script) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in.Write(p)
}

func (s *script) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inEnd = true
	return nil
}

func (s *script) Resize(sandbox.Size) error { return nil }

func (s *script) Wait(context.Context) (sandbox.ExecInfo, error) { return s.info, nil }

func (s *script) Hangup() error { s.once.Do(func() { close(s.gone) }); return nil }

func (s *script) Close() error { s.closed = true; return nil }

func chunks(parts ...string) []sandbox.Chunk {
	var cs []sandbox.Chunk
	off := int64(0)
	for i, p := range parts {
		cs = append(cs, sandbox.Chunk{Source: sandbox.Source(1 + i%2), Offset: off, Data: []byte(p)})
		off += int64(len(p))
	}
	return cs
}

func TestCollect(t *testing.T) {
	for name, c := range map[string]struct {
		chunks    []sandbox.Chunk
		max       int64
		out, err  string
		truncated bool
		acked     int64
	}{
		"nothing":     {nil, 0, "", "", false, 0},
		"both":        {chunks("ab", "X", "cd", "Y"), 0, "abcd", "XY", false, 6},
		"exactly-max": {chunks("ab", "X"), 3, "ab", "X", false, 3},
		"over":        {chunks("ab", "XY", "cd", "Z"), 4, "abd", "Z", true, 7},
		"gap": {
			append([]sandbox.Chunk{{Source: sandbox.Gap, Lost: 10}}, sandbox.Chunk{Source: sandbox.Stdout, Offset: 10, Data: []byte("t")}),
			0, "t", "", true, 11,
		},
	} {
		t.Run(name, func(t *testing.T) {
			code := 3
			s := &script{chunks: c.chunks, end: io.EOF, gone: make(chan struct{}), info: sandbox.ExecInfo{ID: "x", ExitCode: &code}}
			res, err := sandbox.Collect(t.Context(), s, nil, false, c.max)
			if err != nil {
				t.Fatal(err)
			}
			if string(res.Stdout) != c.out || string(res.Stderr) != c.err || res.OutputTruncated != c.truncated {
				t.Errorf("collected %q, %q, truncated %v", res.Stdout, res.Stderr, res.OutputTruncated)
			}
			if s.acked != c.acked || !s.closed || *res.ExitCode != 3 {
				t.Errorf("acknowledged %d, closed %v, code %d", s.acked, s.closed, *res.ExitCode)
			}
		})
	}
}

func TestCollectFeedsInput(t *testing.T) {
	for _, in := range []string{"", "text"} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{end: io.EOF, gone: make(chan struct{})}
			if _, err := sandbox.Collect(t.Context(), s, []byte(in), true, 0); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if s.in.String() != in || !s.inEnd {
				t.Errorf("the input was %q, ended %v", s.in.String(), s.inEnd)
			}
		})
	}
}

func TestCollectHangsUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		s := &script{chunks: chunks("before"), gone: make(chan struct{})}
		_, err := sandbox.Collect(ctx, s, nil, false, 0)
		if !errors.Is(err, cause) {
			t.Errorf("the error is %v", err)
		}
		select {
		case <-s.gone:
		default:
			t.Error("nobody told that the client is gone")
		}
	})
}

func TestCollectReportsABrokenLink(t *testing.T) {
	broken := errors.New("broken")
	s := &script{chunks: chunks("part"), end: broken, gone: make(chan struct{})}
	res, err := sandbox.Collect(t.Context(), s, nil, false, 0)
	if !errors.Is(err, broken) || string(res.Stdout) != "part" {
		t.Errorf("collected %q, %v", res.Stdout, err)
	}
}

func TestCollectFeedsToTheEndThoughTheClientIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		s := &slow{script: script{gone: make(chan struct{})}, may: make(chan struct{})}
		until, stop := sandbox.Feed(ctx, s, []byte("text"))
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err = sandbox.Collect(until, s, nil, false, 0)
		}()
		cancel(gone)
		synctest.Wait()
		select {
		case <-s.gone:
			t.Fatal("hung up before the input was there")
		default:
		}
		close(s.may)
		<-done
		stop()
		if s.in.String() != "text" || !s.inEnd || !errors.Is(err, gone) {
			t.Errorf("the input was %q, ended %v; the error is %v", s.in.String(), s.inEnd, err)
		}
	})
}

func TestFeedEndsWithTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{end: io.EOF, gone: make(chan struct{})}
		until, stop := sandbox.Feed(t.Context(), s, nil)
		if _, err := sandbox.Collect(until, s, nil, false, 0); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// slow takes input only when it may.
type slow struct {
	script
	may chan struct{}
}

func (s *slow) Write(p []byte) (int, error) {
	<-s.may
	return s.script.Write(p)
}
