package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// gauge shows on a terminal how much went by, once it takes long: a bar where
// it is known how much it will be.
type gauge struct {
	env   *Env
	what  string // was done
	total int64  // 0 = not known
	on    bool

	done  int64
	began time.Time
	shown time.Time
}

const progressAfter = time.Second

// moved is told how much went by so far.
func (g *gauge) moved(done int64) {
	now := time.Now()
	if g.began.IsZero() {
		g.began = now
	}
	if _, tty := terminalOf(g.env.Err); !g.on || !tty || now.Sub(g.began) <= progressAfter || now.Sub(g.shown) <= progressEvery {
		return
	}
	g.shown = now
	text := fmt.Sprintf("%s: %s", g.what, formatSize(done))
	if g.total > 0 {
		done = min(done, g.total)
		full := int(float64(barWidth) * float64(done) / float64(g.total))
		text = fmt.Sprintf("[%s%s] %3d %%  %s of %s", strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
			int(100*float64(done)/float64(g.total)), formatSize(done), formatSize(g.total))
	}
	if cols := int(g.env.terminalSize().Cols); cols > 0 && len(text) >= cols {
		text = text[:cols-1] // a second line would stay
	}
	fmt.Fprintf(g.env.Err, "\r\x1b[K%s", text) //nolint:errcheck // nobody looks
}

// add is told how much more went by.
func (g *gauge) add(n int64) {
	g.done += n
	g.moved(g.done)
}

// end takes the line away.
func (g *gauge) end() {
	if !g.shown.IsZero() {
		fmt.Fprint(g.env.Err, "\r\x1b[K") //nolint:errcheck // nobody looks
		g.shown = time.Time{}
	}
}

// gauged reads and tells a gauge.
type gauged struct {
	r io.Reader
	f *gauge
}

// Read implements io.Reader.
func (f *gauged) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	f.f.add(int64(n))
	return n, err
}
