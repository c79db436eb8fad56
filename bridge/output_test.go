package bridge_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/tai/sandbox"
)

// drain reads a stream to its end, acknowledging all.
func drain(t testing.TB, s sandbox.Stream) (out []byte, lost int64) {
	t.Helper()
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out, lost
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c.Data...)
		lost += c.Lost
		if err := s.Ack(c.End()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestE01AllBytesForASlowReader(t *testing.T) {
	t.Parallel()
	b := start(t)
	spec := sh("seq 1 300000")
	spec.MaxLog = 256 << 10 // far less than the output: the command waits for us
	s := b.start(spec)
	h := sha256.New()
	n := 0
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || c.Source == sandbox.Gap {
			t.Fatal(c, err)
		}
		h.Write(c.Data)
		n += len(c.Data)
		time.Sleep(time.Millisecond)
		s.Ack(c.End())
	}
	want := sha256.New()
	for i := 1; i <= 300000; i++ {
		fmt.Fprintf(want, "%d\n", i)
	}
	if !bytes.Equal(h.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes, and not the right ones", n)
	}
	info, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, info, 0, sandbox.ReasonExit)
	if !info.Truncated || info.Bytes-info.FirstOffset > spec.MaxLog {
		t.Errorf("%+v", info)
	}
}

// TestE01ReaderThatHolds stops a command by acknowledging nothing, and frees
// it by leaving.
func TestE01ReaderThatHolds(t *testing.T) {
	t.Parallel()
	b := start(t)
	spec := sh("head -c 3000000 /dev/zero; echo done")
	spec.MaxLog = 1 << 20
	s := b.start(spec)
	time.Sleep(300 * time.Millisecond)
	info, err := b.InspectExec(t.Context(), s.ID())
	if err != nil || info.Done() || info.FirstOffset != 0 || info.Bytes > 1<<20 {
		t.Fatalf("%+v, %v", info, err)
	}
	s.Close()
	info, err = b.WaitExec(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, info, 0, sandbox.ReasonExit)
	if info.Bytes != 3000005 || !info.Truncated {
		t.Errorf("%+v", info)
	}
	v, err := b.AttachExec(t.Context(), s.ID(), sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	out, lost := drain(t, v)
	if lost != info.FirstOffset || int64(len(out))+lost != info.Bytes || !bytes.HasSuffix(out, []byte("\x00done\n")) {
		t.Errorf("%d bytes and %d lost of %+v", len(out), lost, info)
	}
}

func TestE02OrderWithinAStream(t *testing.T) {
	b := start(t)
	res := b.exec(sh("i=0; while [ $i -lt 1000 ]; do echo $i; echo $i >&2; i=$((i+1)); done"))
	var want strings.Builder
	for i := range 1000 {
		fmt.Fprintln(&want, i)
	}
	if string(res.Stdout) != want.String() || string(res.Stderr) != want.String() {
		t.Error("order is lost")
	}
	res = b.exec(sh("exec 2>&1; i=0; while [ $i -lt 1000 ]; do echo $i; echo $i >&2; i=$((i+1)); done"))
	want.Reset()
	for i := range 1000 {
		fmt.Fprintf(&want, "%d\n%d\n", i, i)
	}
	if string(res.Stdout) != want.String() {
		t.Error("order is lost over one pipe")
	}
}

func TestE04BytesPassUntouched(t *testing.T) {
	b := start(t)
	res := b.exec(sh(`printf '\360\237'; printf x >&2; sleep 0.05; printf '\232\200\377\000\376'`))
	if string(res.Stdout) != "🚀\xff\x00\xfe" || string(res.Stderr) != "x" {
		t.Errorf("%q %q", res.Stdout, res.Stderr)
	}
	arg := "\xff\xfe é\n"
	res = b.exec(sandbox.ExecSpec{Args: []string{"printf", "%s%s", arg, "!"}, Env: map[string]string{"V": "\x80"}})
	if string(res.Stdout) != arg+"!" {
		t.Errorf("%q", res.Stdout)
	}
	spec := sh(`printf %s "$V"`)
	spec.Env = map[string]string{"V": "\x80\xff"}
	if res = b.exec(spec); string(res.Stdout) != "\x80\xff" {
		t.Errorf("%q", res.Stdout)
	}
}

func TestE07EndlessOutput(t *testing.T) {
	b := start(t)
	before, err := b.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, with := range []string{"file", "memory"} {
		t.Run(with, func(t *testing.T) {
			const enough = 5 << 20
			spec := sandbox.ExecSpec{Args: []string{"yes"}, MaxOutput: 1000, MaxLog: 1 << 20}
			var s sandbox.Stream
			var err error
			if with == "file" {
				s, err = b.run(spec)
			} else {
				s, err = b.StartExec(t.Context(), spec, bridge.Files{})
			}
			if err != nil {
				t.Fatal(err)
			}
			var res sandbox.ExecResult
			collected := make(chan error, 1)
			go func() {
				var err error
				res, err = sandbox.Collect(t.Context(), s, nil, false, spec.MaxOutput)
				collected <- err
			}()
			until(t, "enough output", func() bool {
				info, err := b.InspectExec(t.Context(), s.ID())
				return err == nil && info.Bytes >= enough
			})
			if err := b.KillExec(t.Context(), s.ID(), sandbox.KillOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := <-collected; err != nil {
				t.Fatal(err)
			}
			wantCode(t, res.ExecInfo, 143, sandbox.ReasonKilled)
			if !res.OutputTruncated || len(res.Stdout) != 1000 || !res.Truncated {
				t.Errorf("%d bytes, %+v", len(res.Stdout), res.ExecInfo)
			}
		})
	}
	logs, _ := filepath.Glob(filepath.Join(filepath.Dir(b.socket), "log*"))
	for _, l := range logs {
		if n := diskBytes(t, l); n > 2<<20 {
			t.Errorf("%s takes %d bytes of disk", l, n)
		}
	}
	after, err := b.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if grown := after.RSSBytes - before.RSSBytes; grown > 32<<20 {
		t.Errorf("the bridge grew by %d bytes", grown)
	}
}

// TestE08Replay cuts the link again and again and goes on by offset.
func TestE08Replay(t *testing.T) {
	b := start(t)
	s := b.start(sh("seq 1 400000"))
	var all []byte
	for cuts := 0; ; cuts++ {
		stop := rand.IntN(150_000)
		got := 0
		for {
			c, err := s.Recv()
			if errors.Is(err, io.EOF) {
				stop = -1
				break
			}
			if err != nil || c.Source == sandbox.Gap || c.Offset != int64(len(all)) {
				t.Fatalf("after %d cuts: %v at %d, have %d, %v", cuts, c.Source, c.Offset, len(all), err)
			}
			all = append(all, c.Data...)
			if got += len(c.Data); got > stop {
				break
			}
		}
		s.Close()
		if stop < 0 {
			break
		}
		var err error
		if s, err = b.AttachExec(t.Context(), s.ID(), sandbox.AttachOptions{Since: int64(len(all))}); err != nil {
			t.Fatal(err)
		}
	}
	var want bytes.Buffer
	for i := 1; i <= 400000; i++ {
		fmt.Fprintln(&want, i)
	}
	if !bytes.Equal(all, want.Bytes()) {
		t.Errorf("%d bytes, want %d", len(all), want.Len())
	}
}

func TestE08Cursors(t *testing.T) {
	b := start(t)
	s := b.start(sh("echo one; sleep 0.1; echo two >&2; sleep 0.1; echo three"))
	res := func(opts sandbox.AttachOptions) string {
		t.Helper()
		v, err := b.AttachExec(t.Context(), s.ID(), opts)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		out, lost := drain(t, v)
		return fmt.Sprintf("%s-%d", out, lost)
	}
	if _, err := s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		opts sandbox.AttachOptions
		want string
	}{
		{sandbox.AttachOptions{}, "one\ntwo\nthree\n-0"},
		{sandbox.AttachOptions{Since: 5}, "wo\nthree\n-0"},
		{sandbox.AttachOptions{Since: 8, NoFollow: true}, "three\n-0"},
		{sandbox.AttachOptions{Since: 14}, "-0"},
		{sandbox.AttachOptions{Since: 1 << 40}, "-0"},
		{sandbox.AttachOptions{Since: -1}, "-0"},
	} {
		if got := res(c.opts); got != c.want {
			t.Errorf("%+v: %q, want %q", c.opts, got, c.want)
		}
	}
	running := b.start(sh("echo x; sleep 30"))
	if _, err := running.Recv(); err != nil {
		t.Fatal(err)
	}
	v, err := b.AttachExec(t.Context(), running.ID(), sandbox.AttachOptions{NoFollow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if out, _ := drain(t, v); string(out) != "x\n" {
		t.Errorf("%q", out)
	}
}

// TestOpenLog reads what bridges left, also after they are gone.
func TestOpenLog(t *testing.T) {
	b := start(t)
	for name, spec := range map[string]sandbox.ExecSpec{
		"whole":     sh("seq 1 50000; echo err >&2"),
		"truncated": {Args: []string{"seq", "1", "500000"}, MaxLog: 300_000},
		"empty":     sh("true"),
	} {
		t.Run(name, func(t *testing.T) {
			s, err := b.run(spec)
			if err != nil {
				t.Fatal(err)
			}
			drain(t, s)
			info, err := s.Wait(t.Context())
			s.Close()
			if err != nil {
				t.Fatal(err)
			}
			live, err := b.AttachExec(t.Context(), info.ID, sandbox.AttachOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer live.Close()
			want, wantLost := drain(t, live)
			for _, since := range []int64{0, 1, info.FirstOffset, info.FirstOffset + 7777, info.Bytes, info.Bytes + 5, -1} {
				f, err := os.Open(filepath.Join(filepath.Dir(b.socket), fmt.Sprintf("log%d", b.n)))
				if err != nil {
					t.Fatal(err)
				}
				l, err := bridge.OpenLog(f, info, sandbox.AttachOptions{Since: since})
				if err != nil {
					t.Fatal(err)
				}
				got, lost := drain(t, l)
				if since < 0 {
					since = info.Bytes
				}
				from := min(max(since, wantLost), info.Bytes) - wantLost
				if !bytes.Equal(got, want[from:]) || lost != max(0, wantLost-since) {
					t.Errorf("since %d: %d bytes and %d lost, want %d and %d", since, len(got), lost, len(want[from:]), max(0, wantLost-since))
				}
				if _, err := l.Write(nil); !errors.Is(err, sandbox.ErrExecEnded) {
					t.Error(err)
				}
				l.Close()
			}
		})
	}
}

func diskBytes(t *testing.T, name string) int64 {
	t.Helper()
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return blocks(st) * 512
}
