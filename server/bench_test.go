package server_test

import (
	"errors"
	"io"
	"testing"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// BenchmarkExec is what the way through socket, server and manager adds to an
// exec: the fake driver's own part is in BenchmarkExecDirect.
func BenchmarkExec(b *testing.B) {
	w := newWorld(b)
	w.create(rest.CreateBox{ID: "b1"})
	for b.Loop() {
		s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"echo", "hi"}})
		if err != nil {
			b.Fatal(err)
		}
		drain(b, s)
	}
}

func BenchmarkExecDirect(b *testing.B) {
	w := newWorld(b)
	w.create(rest.CreateBox{ID: "b1"})
	for b.Loop() {
		s, err := w.driver.ExecStream(w.ctx, "b1", taisandbox.ExecSpec{Args: []string{"echo", "hi"}})
		if err != nil {
			b.Fatal(err)
		}
		drain(b, s)
	}
}

func BenchmarkExecCollect(b *testing.B) {
	w := newWorld(b)
	w.create(rest.CreateBox{ID: "b1"})
	for b.Loop() {
		w.collect("b1", rest.ExecRequest{Cmd: []string{"echo", "hi"}})
	}
}

func BenchmarkOutput(b *testing.B) {
	w := newWorld(b)
	w.create(rest.CreateBox{ID: "b1"})
	const size = 64 << 20
	b.SetBytes(size)
	for b.Loop() {
		s, err := w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"yes", "67108864"}})
		if err != nil {
			b.Fatal(err)
		}
		if n := drain(b, s); n != size {
			b.Fatalf("%d bytes", n)
		}
	}
}

func drain(b *testing.B, s taisandbox.Stream) (n int) {
	b.Helper()
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			b.Fatal(err)
		}
		n += len(c.Data)
		if err := s.Ack(c.End()); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := s.Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	return n
}
