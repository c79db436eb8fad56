package bridge_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// logOf makes the bytes of a log.
func logOf(offset int64, texts ...string) []byte {
	var raw []byte
	for i, s := range texts {
		var head [wire.LogHead]byte
		wire.PutLogHead(head[:], byte(1+i%2), offset, len(s))
		raw = append(append(raw, head[:]...), s...)
		offset += int64(len(s))
	}
	return raw
}

// openLog opens what a file of these bytes holds.
func openLog(t testing.TB, raw []byte, info sandbox.ExecInfo, since int64) sandbox.Stream {
	t.Helper()
	name := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(name, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := bridge.OpenLog(f, info, sandbox.AttachOptions{Since: since})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestOpenLogDamaged(t *testing.T) {
	code := 0
	ended := sandbox.ExecInfo{ID: "x", State: sandbox.ExecExited, ExitCode: &code, Bytes: 9}
	unseen := sandbox.ExecInfo{ID: "x", State: sandbox.ExecLost}
	whole := logOf(0, "abc", "def", "ghi")
	for name, c := range map[string]struct {
		raw  []byte
		info sandbox.ExecInfo
		want string
		lost int64
	}{
		"whole":                {whole, ended, "abcdefghi", 0},
		"whole_end_unseen":     {whole, unseen, "abcdefghi", 0},
		"torn_data":            {whole[:len(whole)-2], ended, "abcdefg", 2},
		"torn_head":            {whole[:len(whole)-5], ended, "abcdef", 3},
		"torn_end_unseen":      {whole[:len(whole)-1], unseen, "abcdefgh", 0},
		"hole_at_the_front":    {append(make([]byte, 5000), logOf(3, "def", "ghi")...), ended, "defghi", 3},
		"hole_end_unseen":      {append(make([]byte, 5000), logOf(3, "def")...), unseen, "def", 3},
		"nothing":              {nil, ended, "", 9},
		"nothing_unseen":       {nil, unseen, "", 0},
		"zeros":                {make([]byte, 1<<16), ended, "", 9},
		"garbage":              {[]byte("garbage, and no log at all"), ended, "", 9},
		"garbage_behind":       {append(logOf(0, "abc"), "garbage that is long enough"...), ended, "abc", 6},
		"jump_in_offsets":      {append(logOf(0, "abc"), logOf(6, "ghi")...), ended, "abc", 6},
		"more_than_the_record": {logOf(0, "abc", "defghijkl"), ended, "abcdefghi", 0},
		"wholly_beyond":        {logOf(100, "abc"), ended, "", 9},
	} {
		t.Run(name, func(t *testing.T) {
			out, lost := drain(t, openLog(t, c.raw, c.info, 0))
			if string(out) != c.want || lost != c.lost {
				t.Errorf("%q and %d lost, want %q and %d", out, lost, c.want, c.lost)
			}
		})
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bridge.OpenLog(dir, ended, sandbox.AttachOptions{}); err == nil {
		t.Error("a directory is no log")
	}
}

func FuzzOpenLog(f *testing.F) {
	f.Add(logOf(0, "abc", "def"), int64(6), int64(0))
	f.Add(append(make([]byte, 100), logOf(1<<61, "abc")...), int64(-1), int64(2))
	f.Add([]byte("garbage"), int64(3), int64(-1))
	f.Fuzz(func(t *testing.T, raw []byte, bytes, since int64) {
		info := sandbox.ExecInfo{ID: "x", State: sandbox.ExecLost}
		if bytes >= 0 {
			info.State, info.Bytes = sandbox.ExecExited, bytes
		}
		l := openLog(t, raw, info, max(since, -1)) // what is less is refused
		at := int64(-1)
		for range len(raw) + 2 {
			c, err := l.Recv()
			if errors.Is(err, io.EOF) {
				if bytes >= 0 && at >= 0 && at != bytes {
					t.Fatalf("ends at %d of %d", at, bytes)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if at >= 0 && c.Offset != at || c.End() <= c.Offset || c.Source == sandbox.Gap && len(c.Data) > 0 {
				t.Fatalf("%+v after %d", c, at)
			}
			at = c.End()
		}
		t.Fatal("no end")
	})
}
