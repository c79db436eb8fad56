package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

var someTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func testStream(t *testing.T, since int64) *stream {
	t.Helper()
	c, err := New("unix:///nonexistent")
	if err != nil {
		t.Fatal(err)
	}
	return c.newStream("b1", "e1", taisandbox.AttachOptions{Since: since, Hold: true}, 0)
}

func offsetFrame(at int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{rest.DataOffset}, uint64(at))
}

func TestFramesBecomeChunks(t *testing.T) {
	s := testStream(t, 0)
	for _, f := range [][]byte{[]byte("\x01ab"), []byte("\x01cd"), []byte("\x02ef"), []byte("\x01g"), offsetFrame(20), []byte("\x01h"), {2}} {
		if err := s.takeData(f); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{`{"type":"gap","offset":21,"lost":9}`, `{"type":"pong"}`, `{"type":"news"}`, `{"type":"exit","exec":{"id":"e1","exit_code":3}}`} {
		if err := s.takeText([]byte(f)); err != nil {
			t.Fatal(err)
		}
	}
	want := []taisandbox.Chunk{
		{Source: taisandbox.Stdout, Offset: 0, Data: []byte("abcd")},
		{Source: taisandbox.Stderr, Offset: 4, Data: []byte("ef")},
		{Source: taisandbox.Stdout, Offset: 6, Data: []byte("g")},
		{Source: taisandbox.Gap, Offset: 7, Lost: 13},
		{Source: taisandbox.Stdout, Offset: 20, Data: []byte("h")},
		{Source: taisandbox.Gap, Offset: 21, Lost: 9},
	}
	for _, w := range want {
		c, err := s.Recv()
		if err != nil || c.Source != w.Source || c.Offset != w.Offset || c.Lost != w.Lost || !bytes.Equal(c.Data, w.Data) {
			t.Errorf("%+v %v, want %+v", c, err, w)
		}
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	if info, err := s.Wait(t.Context()); err != nil || *info.ExitCode != 3 {
		t.Errorf("%+v %v", info, err)
	}
	if _, err := s.Write([]byte("x")); !errors.Is(err, taisandbox.ErrExecEnded) {
		t.Errorf("%v", err)
	}
	if err := s.CloseWrite(); err != nil {
		t.Errorf("%v", err)
	}
}

func TestFramesThatAreNone(t *testing.T) {
	for name, f := range map[string][]byte{
		"empty": {}, "stdin": {0, 1}, "source": {7, 1}, "short_offset": {3, 1}, "negative_offset": offsetFrame(-1),
		"back": offsetFrame(5), "no_offset_yet": []byte("\x01a"),
	} {
		since := int64(10)
		if name == "no_offset_yet" {
			since = -1
		}
		if err := testStream(t, since).takeData(f); !errors.Is(err, rest.ErrInternal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := testStream(t, 0).takeText([]byte("{")); !errors.Is(err, rest.ErrInternal) {
		t.Errorf("%v", err)
	}
	if err := testStream(t, 0).takeText([]byte(`{"type":"exit","exec":1}`)); !errors.Is(err, rest.ErrInternal) {
		t.Errorf("%v", err)
	}
}

func TestPresentEnd(t *testing.T) {
	s := testStream(t, -1)
	if err := s.takeData(offsetFrame(100)); err != nil {
		t.Fatal(err)
	}
	if err := s.takeData([]byte("\x01a")); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Recv(); err != nil || c.Offset != 100 || c.Lost != 0 {
		t.Errorf("%+v %v", c, err)
	}
}

// TestSmallPiecesAreJoined: a box that writes byte by byte does not fill memory
// with bookkeeping.
func TestSmallPiecesAreJoined(t *testing.T) {
	s := testStream(t, 0)
	for range 100000 {
		if err := s.takeData([]byte("\x01x")); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.queue) != 2 {
		t.Errorf("%d pieces", len(s.queue))
	}
}
