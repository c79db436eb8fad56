package sandbox

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/taibox/taibox/internal/tracing"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// boxStream is a node's stream that keeps its box awake, and ends a oneshot
// box when it is done.
type boxStream struct {
	taisandbox.Stream
	b        *Box
	execID   string
	noFollow bool // its end says nothing about the command

	holds   bool // counts in Box.once
	release sync.Once
	unuse   func()       // its box is not in use by it any more
	end     atomic.Int64 // offset behind what was received
	acked   atomic.Int64
	eof     atomic.Bool
	span    *tracing.Span // of the command; nil without
	told    sync.Once     // the span has ended
}

func (b *Box) track(s taisandbox.Stream, execID string, hold, noFollow bool) *boxStream {
	if noFollow {
		return &boxStream{Stream: s, b: b, execID: execID, noFollow: true, unuse: func() {}, holds: hold && b.holds(execID)}
	}
	b.m.mu.Lock()
	unuse := b.useLocked(useStream(execID))
	b.m.mu.Unlock()
	return &boxStream{Stream: s, b: b, execID: execID, unuse: unuse, holds: hold && b.holds(execID)}
}

func (s *boxStream) Recv() (taisandbox.Chunk, error) {
	c, err := s.Stream.Recv()
	if !s.noFollow {
		s.b.touch()
	}
	switch {
	case err == nil:
		s.end.Store(c.End())
	case errors.Is(err, io.EOF) && !s.noFollow:
		s.eof.Store(true)
		s.ended()
	}
	return c, err
}

func (s *boxStream) Ack(offset int64) error {
	for {
		old := s.acked.Load()
		if offset <= old || s.acked.CompareAndSwap(old, offset) {
			break
		}
	}
	return s.Stream.Ack(offset)
}

func (s *boxStream) Write(p []byte) (int, error) {
	s.b.touch()
	return s.Stream.Write(p)
}

func (s *boxStream) Wait(ctx context.Context) (taisandbox.ExecInfo, error) {
	info, err := s.Stream.Wait(ctx)
	if err == nil {
		s.ended()
		s.told.Do(func() { endExecSpan(s.span, &info, nil) })
	}
	return info, err
}

func (s *boxStream) ended() {
	s.b.m.mu.Lock()
	defer s.b.m.mu.Unlock()
	s.b.m.execEndedLocked(s.b, s.execID)
}

func (s *boxStream) Hangup() error {
	err := s.Stream.Hangup()
	s.done(true)
	return err
}

func (s *boxStream) Close() error {
	err := s.Stream.Close()
	if f := s.done(s.eof.Load() && s.acked.Load() >= s.end.Load()); f != nil {
		<-f.done
	}
	return err
}

// done ends the stream's claim on a oneshot box. taken: its output was taken
// to the end, or nobody will. It returns the removal that follows, if one does.
func (s *boxStream) done(taken bool) (f *flight) {
	s.unuse()
	s.told.Do(func() { s.span.End(nil) })
	if s.holds {
		s.release.Do(func() { f = s.b.released(taken) })
	}
	return f
}
