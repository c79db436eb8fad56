package sandbox_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func stream(t *testing.T, b *sandbox.Box, cmd []string, opts ...sandbox.ExecOption) *sandbox.ExecStream {
	t.Helper()
	s, err := b.Stream(t.Context(), cmd, opts...)
	must(t, err)
	return s
}

func wantCode(t *testing.T, s *sandbox.ExecStream, code int) {
	t.Helper()
	if got, err := s.Wait(); err != nil || got != code {
		t.Errorf("Wait: %d, %v, want %d", got, err, code)
	}
}

func wantText(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got, err := io.ReadAll(r)
	if err != nil || string(got) != want {
		t.Errorf("read %.80q, %v, want %.80q", got, err, want)
	}
}

func TestStreamInput(t *testing.T) {
	r := newRig(t)
	b := r.create(sandbox.CreateOptions{ID: "x"})
	for _, n := range []int{0, 1, 4096, 65537, 3_000_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			in := bytes.Repeat([]byte("x"), n)
			s := stream(t, b, []string{"cat"})
			go func() {
				s.Stdin.Write(in)
				s.Stdin.Close()
			}()
			h := sha256.New()
			_, err := io.Copy(h, s.Stdout)
			must(t, err)
			if want := sha256.Sum256(in); !bytes.Equal(h.Sum(nil), want[:]) {
				t.Error("other bytes came out")
			}
			wantText(t, s.Stderr, "")
			wantCode(t, s, 0)
		})
	}
	t.Run("reader", func(t *testing.T) {
		s := stream(t, b, []string{"cat"}, sandbox.WithStdin(strings.NewReader("in")))
		wantText(t, s.Stdout, "in")
		wantCode(t, s, 0)
		if _, err := s.Stdin.Write([]byte("x")); err == nil {
			t.Error("there are two inputs")
		}
	})
	t.Run("none", func(t *testing.T) {
		s := stream(t, b, []string{"cat"}, sandbox.WithStdin(nil))
		wantCode(t, s, 0)
	})
	// Output goes on after the end of the input (B04).
	t.Run("B04", func(t *testing.T) {
		s := stream(t, b, []string{"drain", "1000"}, sandbox.WithStdin(strings.NewReader("q\n")))
		out, err := io.ReadAll(s.Stdout)
		must(t, err)
		if n := bytes.Count(out, []byte("\n")); n != 1000 {
			t.Errorf("%d lines", n)
		}
	})
}

// chatter writes n blocks to each output by turns.
func chatter(n int) fake.Option {
	return fake.WithProgram("chatter", func(_ context.Context, p *fake.Proc) int {
		for i := range n {
			for _, w := range []io.Writer{p.Stdout, p.Stderr} {
				if _, err := io.WriteString(w, block(i)); err != nil {
					return 1
				}
			}
		}
		return 0
	})
}

func block(i int) string { return strings.Repeat(string(rune('a'+i%26)), 32<<10) }

func TestStreamOutputs(t *testing.T) {
	const blocks = 100 // more than the buffers
	var text strings.Builder
	for i := range blocks {
		text.WriteString(block(i))
	}
	want := text.String()
	for name, read := range map[string]func(*testing.T, *sandbox.ExecStream){
		"one_after_the_other": func(t *testing.T, s *sandbox.ExecStream) {
			wantText(t, s.Stdout, want)
			wantText(t, s.Stderr, want)
		},
		"stderr_first": func(t *testing.T, s *sandbox.ExecStream) {
			wantText(t, s.Stderr, want)
			wantText(t, s.Stdout, want)
		},
		"at_once": func(t *testing.T, s *sandbox.ExecStream) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				wantText(t, s.Stderr, want)
			}()
			wantText(t, s.Stdout, want)
			<-done
		},
		"one_closed": func(t *testing.T, s *sandbox.ExecStream) {
			must(t, s.Stderr.Close())
			wantText(t, s.Stdout, want)
			if _, err := s.Stderr.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("a closed output reads %v", err)
			}
		},
		"both_closed": func(t *testing.T, s *sandbox.ExecStream) {
			must(t, s.Stderr.Close())
			must(t, s.Stdout.Close())
		},
		"after_wait": func(t *testing.T, s *sandbox.ExecStream) {
			wantCode(t, s, 0)
			wantText(t, s.Stdout, want)
			wantText(t, s.Stderr, want)
		},
		"slow": func(t *testing.T, s *sandbox.ExecStream) {
			must(t, s.Stderr.Close())
			time.Sleep(10 * time.Minute)
			wantText(t, s.Stdout, want)
		},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				b := newRig(t, chatter(blocks)).create(sandbox.CreateOptions{ID: "x"})
				s := stream(t, b, []string{"chatter"})
				read(t, s)
				wantCode(t, s, 0)
				wantCode(t, s, 0)
			})
		})
	}
}

// Output that is no longer kept is told in its place, and what follows is read.
func TestStreamGap(t *testing.T) {
	at(t, func(t *testing.T) {
		b := newRig(t).create(sandbox.CreateOptions{ID: "x"})
		s := stream(t, b, []string{"yes", fmt.Sprint(8 << 20)}, sandbox.WithMaxLog(1<<20))
		pass(10 * time.Minute)
		wantCode(t, s, 0)
		var gaps int
		var got int64
		for {
			n, err := io.Copy(io.Discard, s.Stdout)
			got += n
			if err == nil {
				break
			}
			wantErr(t, err, sandbox.ErrOutputLost)
			gaps++
		}
		if gaps == 0 || got == 0 || got >= 8<<20 {
			t.Errorf("%d bytes and %d gaps", got, gaps)
		}
	})
}

func TestStreamTTY(t *testing.T) {
	at(t, func(t *testing.T) {
		b := newRig(t).create(sandbox.CreateOptions{ID: "x"})
		s := stream(t, b, []string{"size"}, sandbox.WithTTY(taisandbox.Size{Cols: 132, Rows: 43}))
		synctest.Wait()
		must(t, s.Resize(taisandbox.Size{Cols: 80, Rows: 24}))
		if _, err := s.Stdin.Write([]byte("\n")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		s.Cancel()
		out, err := io.ReadAll(s.Stdout)
		must(t, err)
		if sizes := strings.Fields(string(out)); !slices.Equal(sizes, []string{"43", "132", "24", "80"}) {
			t.Errorf("sizes are %q", sizes)
		}
		wantText(t, s.Stderr, "")
		wantCode(t, s, 137)
	})
}

func TestStreamCancel(t *testing.T) {
	for name, cmd := range map[string][]string{
		"silent": {"sleep", "infinity"}, "deaf": {"trap"}, "loud": {"yes", fmt.Sprint(1 << 30)},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				b := newRig(t).create(sandbox.CreateOptions{ID: "x"})
				s := stream(t, b, cmd)
				pass(time.Second)
				s.Cancel()
				s.Cancel()
				wantCode(t, s, 137)
			})
		})
	}
}

// When the context ends, the command goes the way its option says.
func TestD04ContextEndsStream(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep=%v", keep), func(t *testing.T) {
			at(t, func(t *testing.T) {
				b := newRig(t).create(sandbox.CreateOptions{ID: "x"})
				var opts []sandbox.ExecOption
				if keep {
					opts = append(opts, sandbox.WithOnDisconnect(taisandbox.OnDisconnectKeep))
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				s, err := b.Stream(ctx, []string{"sleep", "3600"}, opts...)
				must(t, err)
				why := errors.New("client left")
				cancel(why)
				_, err = s.Wait()
				wantErr(t, err, why)
				_, err = s.Stdout.Read(make([]byte, 1))
				wantErr(t, err, why)
				pass(time.Minute)
				info, err := b.InspectExec(t.Context(), s.ExecID)
				must(t, err)
				if info.Done() == keep {
					t.Errorf("the command is %s", info.State)
				}
			})
		})
	}
}

// The end of the manager is not the end of the command.
func TestCloseDetachesStreams(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		b := r.create(sandbox.CreateOptions{ID: "x"})
		s := stream(t, b, []string{"sleep", "30"})
		r.restart()
		_, err := s.Wait()
		wantErr(t, err, sandbox.ErrClosed)
		b, err = r.m.Get(t.Context(), "x")
		must(t, err)
		info, err := b.WaitExec(t.Context(), s.ExecID)
		must(t, err)
		if info.Reason != taisandbox.ReasonExit {
			t.Errorf("it ended by %s", info.Reason)
		}
	})
}

// A stream that is not read holds its command back, and nobody else.
func TestStreamHoldsBack(t *testing.T) {
	at(t, func(t *testing.T) {
		wrote := make(chan struct{})
		b := newRig(t, fake.WithProgram("writer", func(_ context.Context, p *fake.Proc) int {
			defer close(wrote)
			if _, err := p.Stdout.Write(make([]byte, 8<<20)); err != nil {
				return 1
			}
			return 0
		})).create(sandbox.CreateOptions{ID: "x"})
		s := stream(t, b, []string{"writer"}, sandbox.WithMaxLog(1<<20))
		pass(time.Second)
		select {
		case <-wrote:
			t.Error("the command wrote more than is kept")
		default:
		}
		n, err := io.Copy(io.Discard, s.Stdout)
		if err != nil || n != 8<<20 {
			t.Errorf("read %d bytes, %v", n, err)
		}
		wantCode(t, s, 0)
	})
}
