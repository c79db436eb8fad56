package sandboxtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/taibox/taibox/tai/sandbox"
)

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

func contains(b []byte, s string) bool { return bytes.Contains(b, []byte(s)) }

// numbers is what Commands.Count prints.
func numbers(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// pattern returns n bytes of which no two near ones are alike.
func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(2463534242)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

// text is what a reader got.
type text struct {
	out, err []byte
	lost     int64
	end      int64
}

func (t *text) all() string { return string(t.out) + string(t.err) }

// read reads a stream to its end, acknowledging as it goes, and checks that
// offsets have neither holes nor overlaps.
func (e *env) read(s sandbox.Stream, since int64) text {
	e.Helper()
	t, err := readUntil(s, since, func(text) bool { return false })
	if err != nil {
		e.Fatalf("read exec %s: %v", s.ID(), err)
	}
	return t
}

// readUntil reads until the stream ends or enough says so.
func readUntil(s sandbox.Stream, since int64, enough func(text) bool) (text, error) {
	t := text{end: since}
	for !enough(t) {
		c, err := s.Recv()
		switch {
		case isEOF(err):
			return t, nil
		case err != nil:
			return t, err
		case c.Offset != t.end:
			return t, errors.New("there is a hole in the offsets")
		}
		switch c.Source {
		case sandbox.Stdout:
			t.out = append(t.out, c.Data...)
		case sandbox.Stderr:
			t.err = append(t.err, c.Data...)
		case sandbox.Gap:
			t.lost += c.Lost
		default:
			return t, errors.New("a chunk has no source")
		}
		t.end = c.End()
		if err := s.Ack(t.end); err != nil {
			return t, err
		}
	}
	return t, nil
}

// waitFor reads until the output contains want.
func (e *env) waitFor(s sandbox.Stream, want string) text {
	e.Helper()
	t, err := readUntil(s, 0, func(t text) bool { return contains(t.out, want) })
	if err != nil || !contains(t.out, want) {
		e.Fatalf("exec %s printed %q, %v; waited for was %q", s.ID(), clip(t.all()), err, want)
	}
	return t
}
