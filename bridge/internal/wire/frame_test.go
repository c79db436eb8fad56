package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// stub is a connection that reads what is given.
type stub struct {
	io.Reader
	io.Writer
}

func (stub) Close() error                     { return nil }
func (stub) LocalAddr() net.Addr              { return nil }
func (stub) RemoteAddr() net.Addr             { return nil }
func (stub) SetDeadline(time.Time) error      { return nil }
func (stub) SetReadDeadline(time.Time) error  { return nil }
func (stub) SetWriteDeadline(time.Time) error { return nil }

// TestE05Framing splits frames at every byte.
func TestE05Framing(t *testing.T) {
	big := bytes.Repeat([]byte("x"), MaxData)
	var raw []byte
	raw = AppendFrame(raw, TypeRequest, []byte("{}"))
	raw = AppendFrame(raw, TypeEOF)
	raw = AppendOutput(raw, 2, 77, big)
	raw = AppendOffset(raw, TypeGap, 5, 9)
	raw = AppendFrame(raw, TypeStdin, []byte("a"), []byte("b"))
	for name, r := range map[string]io.Reader{
		"whole": bytes.NewReader(raw), "bytes": iotest.OneByteReader(bytes.NewReader(raw)), "halves": iotest.HalfReader(bytes.NewReader(raw)),
	} {
		t.Run(name, func(t *testing.T) {
			c := NewConn(stub{Reader: r})
			next := func(want Type) []byte {
				typ, p, err := c.ReadFrame()
				if err != nil || typ != want {
					t.Fatalf("type %d, %v; want %d", typ, err, want)
				}
				return p
			}
			if p := next(TypeRequest); string(p) != "{}" {
				t.Errorf("%q", p)
			}
			next(TypeEOF)
			if p := next(TypeOutput); Offset(p, 0) != 77 || p[8] != 2 || !bytes.Equal(p[OutputHead:], big) {
				t.Error("output is not what was sent")
			}
			if p := next(TypeGap); Offset(p, 0) != 5 || Offset(p, 1) != 9 {
				t.Errorf("%x", p)
			}
			if p := next(TypeStdin); string(p) != "ab" {
				t.Errorf("%q", p)
			}
			if _, _, err := c.ReadFrame(); !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		})
	}
}

func TestFramesRefused(t *testing.T) {
	for name, raw := range map[string]string{
		"unknown_type":   "\x63\x00\x00\x00\x00",
		"type_zero":      "\x00\x00\x00\x00\x00",
		"too_long_data":  "\x10\x00\x01\x00\x01",
		"too_long_json":  "\x01\x00\x40\x00\x01",
		"absurd_length":  "\x01\xff\xff\xff\xff",
		"short_offset":   "\x12\x00\x00\x00\x07",
		"eof_with_bytes": "\x11\x00\x00\x00\x01",
		"empty_output":   "\x20\x00\x00\x00\x09",
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := NewConn(stub{Reader: strings.NewReader(raw + strings.Repeat("x", 100))}).ReadFrame()
			if !errors.Is(err, ErrProtocol) {
				t.Error(err)
			}
		})
	}
	_, _, err := NewConn(stub{Reader: strings.NewReader("\x10\x00\x00\x00\x05abc")}).ReadFrame()
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

func TestFiles(t *testing.T) {
	a, b := socketPair(t)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	send := func(n int) {
		files := make([]*os.File, n)
		for i := range files {
			files[i] = f
		}
		if err := a.WriteJSONWithFiles(TypeRequest, struct{}{}, files); err != nil {
			t.Fatal(err)
		}
	}
	b.WantFiles()
	send(3)
	if _, _, err := b.ReadFrame(); err != nil {
		t.Fatal(err)
	}
	got := b.TakeFiles()
	if len(got) != 3 {
		t.Fatalf("%d files", len(got))
	}
	for _, g := range got {
		g.Close()
	}
	send(2) // unwanted: the kernel drops them
	if _, _, err := b.ReadFrame(); err != nil || len(b.TakeFiles()) != 0 {
		t.Fatal(err)
	}
	b.WantFiles()
	send(maxFDs + 1)
	if _, _, err := b.ReadFrame(); !errors.Is(err, ErrProtocol) {
		t.Fatal(err)
	}
}

func socketPair(t *testing.T) (a, b *Conn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	in, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		out.Close()
		in.Close()
	})
	return NewConn(out), NewConn(in)
}

func FuzzReadFrame(f *testing.F) {
	f.Add(AppendFrame(nil, TypeRequest, []byte(`{"v":1}`)))
	f.Add(AppendOutput(AppendOffset(nil, TypeAck, 1<<40), 1, 3, []byte("abc")))
	f.Add([]byte("\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c := NewConn(stub{Reader: bytes.NewReader(raw)})
		var again []byte
		for {
			typ, p, err := c.ReadFrame()
			if err != nil {
				break
			}
			if least, most := typ.bounds(); len(p) < least || len(p) > most {
				t.Fatalf("type %d with %d bytes", typ, len(p))
			}
			again = AppendFrame(again, typ, p)
		}
		if !bytes.HasPrefix(raw, again) {
			t.Fatal("what was read is not what was sent")
		}
	})
}

func FuzzLogHead(f *testing.F) {
	var b [LogHead]byte
	PutLogHead(b[:], 1, 5, 9)
	f.Add(b[:])
	f.Add([]byte{logMagic})
	f.Fuzz(func(t *testing.T, raw []byte) {
		source, offset, n, ok := ParseLogHead(raw)
		if !ok {
			return
		}
		var again [LogHead]byte
		PutLogHead(again[:], source, offset, n)
		if !bytes.Equal(again[:], raw[:LogHead]) || offset < 0 || n < 1 || n > MaxData {
			t.Fatalf("%d %d %d of %x", source, offset, n, raw)
		}
	})
}
