package inside

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func put(l *execLog, source sandbox.Source, text string) {
	l.append(source, append(make([]byte, wire.LogHead), text...))
}

// readLog reads from since to the present end.
func readLog(t *testing.T, l *execLog, since int64) (out []byte, lost int64) {
	t.Helper()
	c := cursor{offset: since}
	var buf frame
	for {
		p := l.read(&c, buf[:])
		switch {
		case p.lost > 0:
			lost += p.lost
		case p.end:
			return out, lost
		default:
			out = append(out, output(t, p)...)
		}
	}
}

// output returns the data of the frames that a piece becomes.
func output(t *testing.T, p piece) (out []byte) {
	t.Helper()
	for raw := p.appendOutput(nil); len(raw) > 0; {
		n := int(raw[1])<<24 | int(raw[2])<<16 | int(raw[3])<<8 | int(raw[4])
		if wire.Type(raw[0]) != wire.TypeOutput || n > wire.OutputHead+wire.MaxData {
			t.Fatalf("frame of type %d with %d bytes", raw[0], n)
		}
		out = append(out, raw[wire.FrameHead+wire.OutputHead:wire.FrameHead+n]...)
		raw = raw[wire.FrameHead+n:]
	}
	return out
}

func logFile(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestLogKeepsTheLast fills logs of every kind far beyond their limits, with
// chunks of every size, and reads them from everywhere.
func TestLogKeepsTheLast(t *testing.T) {
	for _, limit := range []int64{1, 5000, 100_000, 3 << 20} {
		for _, kind := range []string{"file", "memory"} {
			t.Run(fmt.Sprintf("%s_%d", kind, limit), func(t *testing.T) {
				var f *os.File
				if kind == "file" {
					f = logFile(t, t.TempDir())
				}
				l := newLog(f, limit)
				defer l.close()
				var all []byte
				rng := rand.New(rand.NewPCG(1, uint64(limit)))
				for int64(len(all)) < 2*limit+20_000 {
					n := 1 + rng.IntN(l.maxChunk())
					text := bytes.Repeat([]byte{byte('a' + len(all)%26)}, n)
					put(l, sandbox.Source(1+rng.IntN(2)), string(text))
					all = append(all, text...)
				}
				first, end := l.span()
				if end != int64(len(all)) || first == 0 || end-first > max(limit, minLogBytes) || kind == "memory" && end-first > ringBytes {
					t.Fatalf("[%d, %d) of %d is kept", first, end, len(all))
				}
				if least := min(max(limit, minLogBytes), ringBytes) / 4; end-first < least {
					t.Errorf("only %d bytes are kept", end-first)
				}
				for range 50 {
					since := rng.Int64N(end + 1)
					out, lost := readLog(t, l, since)
					if want := max(0, first-since); lost != want || !bytes.Equal(out, all[max(since, first):]) {
						t.Fatalf("since %d: %d bytes and %d lost, want %d and %d", since, len(out), lost, end-max(since, first), want)
					}
				}
			})
		}
	}
}

// TestLogFullDisk goes on in memory, and loses nothing that a reader holds.
func TestLogFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skip(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	l := newLog(logFile(t, dir), 10<<20)
	defer l.close()
	l.hold(0)
	var all []byte
	for len(all) < 1<<20 {
		text := bytes.Repeat([]byte{byte('a' + len(all)%26)}, 1000)
		put(l, sandbox.Stdout, string(text))
		all = append(all, text...)
	}
	if l.st.inFile() {
		t.Fatal("the disk is not full")
	}
	if out, lost := readLog(t, l, 0); lost != 0 || !bytes.Equal(out, all) {
		t.Errorf("%d of %d bytes, %d lost", len(out), len(all), lost)
	}
}

// TestLogBrokenFile cannot write at all.
func TestLogBrokenFile(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	l := newLog(f, 1<<20)
	defer l.close()
	put(l, sandbox.Stdout, "still here")
	if out, lost := readLog(t, l, 0); string(out) != "still here" || lost != 0 {
		t.Errorf("%q, %d lost", out, lost)
	}
}

func TestLogHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(nil, 16<<10)
		defer l.close()
		l.hold(0)
		chunk := string(make([]byte, 1000))
		var written atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 40 {
				put(l, sandbox.Stdout, chunk)
				written.Add(1)
			}
		})
		synctest.Wait()
		if written.Load() != 16 {
			t.Fatalf("%d chunks in a log that is held at 0", written.Load())
		}
		time.Sleep(holdLimit - time.Second)
		l.ack(3000)
		synctest.Wait()
		if written.Load() != 18 {
			t.Fatalf("%d chunks after 3000 bytes were acknowledged", written.Load())
		}
		time.Sleep(holdLimit - time.Second)
		synctest.Wait()
		if first, _ := l.span(); written.Load() != 18 || first > 3000 {
			t.Fatalf("%d chunks, from %d: not held for the whole time", written.Load(), first)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if first, end := l.span(); written.Load() != 40 || end != 40_000 || first < 20_000 {
			t.Fatalf("%d chunks, [%d, %d): a silent reader holds the log", written.Load(), first, end)
		}
		wg.Wait()
	})
}

func TestLogReleaseFreesTheWriter(t *testing.T) {
	for name, free := range map[string]func(*execLog){"release": (*execLog).release, "finish": (*execLog).finish} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLog(nil, 16<<10)
				defer l.close()
				l.hold(0)
				var done atomic.Bool
				go func() {
					for range 40 {
						put(l, sandbox.Stdout, string(make([]byte, 1000)))
					}
					done.Store(true)
				}()
				synctest.Wait()
				if done.Load() {
					t.Fatal("not held")
				}
				free(l)
				synctest.Wait()
				if !done.Load() {
					t.Fatal("still held")
				}
			})
		})
	}
}

// TestLogMarksAreBounded does not let the index grow with the log.
func TestLogMarksAreBounded(t *testing.T) {
	l := newLog(logFile(t, t.TempDir()), 1<<40)
	defer l.close()
	l.granule = 1
	for i := range 3 * maxMarks {
		put(l, sandbox.Stdout, string(rune('a'+i%26)))
	}
	if len(l.marks) > maxMarks {
		t.Errorf("%d marks", len(l.marks))
	}
	if out, lost := readLog(t, l, 1000); lost != 0 || len(out) != 3*maxMarks-1000 || out[0] != byte('a'+1000%26) {
		t.Errorf("%d bytes, %d lost", len(out), lost)
	}
}

func TestLogReadersBesideAWriter(t *testing.T) {
	l := newLog(logFile(t, t.TempDir()), 64<<10)
	defer l.close()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var c cursor
			var buf frame
			at := int64(0)
			for {
				p := l.read(&c, buf[:])
				if p.lost > 0 {
					at += p.lost
				}
				for _, b := range output(t, p) {
					if b != byte(at%251) {
						t.Errorf("at %d is %d", at, b)
						return
					}
					at++
				}
				if p.final {
					return
				}
				if p.end {
					<-p.change
				}
			}
		})
	}
	text := make([]byte, 0, 1000)
	for i := 0; i < 2_000_000; {
		text = text[:0]
		for range 1 + i%1000 {
			text = append(text, byte(i%251))
			i++
		}
		put(l, sandbox.Source(1+i%2), string(text))
	}
	l.finish()
	wg.Wait()
}
