package cli

import (
	"strings"
	"testing"
	"time"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// A picture fits the terminal, and clears what was there before.
func TestFrame(t *testing.T) {
	text := "head of table\nrow one\nrow two\nrow three\n"
	got := frame(text, taisandbox.Size{Cols: 4, Rows: 4})
	if want := "\x1b[Hhead\x1b[K\nrow \x1b[K\nrow \x1b[K\n\x1b[J"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := frame(text, taisandbox.Size{}); strings.Count(got, "\n") != 4 || !strings.Contains(got, "row three") {
		t.Errorf("of unknown size: %q", got)
	}
}

func TestPercent(t *testing.T) {
	for _, c := range []struct {
		usedMs float64
		in     time.Duration
		want   float64
	}{
		{500, time.Second, 50}, {2000, time.Second, 200}, {1, time.Second, 0.1}, {0, time.Second, 0}, {-5, time.Second, 0}, {5, 0, 0},
	} {
		if got := percent(c.usedMs, c.in); got != c.want {
			t.Errorf("%v ms in %v: %v, want %v", c.usedMs, c.in, got, c.want)
		}
	}
}

// A box that does not answer is told as such, not as one that uses nothing.
func TestStatsOfSilentBox(t *testing.T) {
	var out strings.Builder
	if err := statsTable([]boxStats{{ID: "b1", Error: "bridge does not answer"}}).print(&out); err != nil {
		t.Fatal(err)
	}
	if row := strings.Split(out.String(), "\n")[1]; !strings.Contains(row, "no answer") || strings.ContainsAny(row, "023456789") {
		t.Errorf("told is %q", row)
	}
}
