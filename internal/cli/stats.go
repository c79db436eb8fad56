package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

const (
	statsInterval = time.Second            // between two looks at a live table
	statsWindow   = 200 * time.Millisecond // for a load that is asked for once
)

// boxStats is a measurement with the box that it is of.
type boxStats struct {
	ID         string  `json:"id"`
	CPUPercent float64 `json:"cpu_percent"` // of one processor, lately
	// Error is why the box could not be measured; then little else is known.
	Error string `json:"error,omitempty"`
	rest.Stats
}

func newStats(env *Env) *cobra.Command {
	var (
		out      format
		noStream bool
	)
	cmd := &cobra.Command{
		Use:     "stats [flags] [BOX...]",
		GroupID: groupLook,
		Short:   "Measure boxes, or all that run",
		Long: `Measure boxes, or all that run. On a terminal the table is live until you
interrupt it; elsewhere, with --no-stream, -o json or -q it is printed once.
CPU is in percent of one processor.`,
		Args: wantArgs("[BOX]..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			m := &meter{c: c, boxes: args}
			if env.TTY && !noStream && !out.silent() {
				return env.liveStats(cmd.Context(), m)
			}
			all, err := m.twice(cmd.Context())
			switch {
			case err != nil:
				return err
			case out.json() && len(args) == 1:
				return printJSON(env.Out, all[0])
			case out.json():
				return printList(env.Out, all)
			case out.quiet:
				return printIDs(env, all, func(s boxStats) string { return s.ID })
			}
			return statsTable(all).print(env.Out)
		},
	}
	cmd.Flags().BoolVar(&noStream, "no-stream", false, "print the table once, also on a terminal")
	out.addOutput(cmd)
	out.addQuiet(cmd, "IDs")
	return cmd
}

// meter measures boxes again and again.
type meter struct {
	c     *client.Client
	boxes []string // empty: all that run
	last  map[string]rest.Stats
}

// measure returns how things are, and the load since the last call.
func (m *meter) measure(ctx context.Context) ([]boxStats, error) {
	var all []boxStats
	if len(m.boxes) == 0 {
		list, err := m.c.AllStats(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			all = append(all, boxStats{ID: s.ID, Error: s.Error, Stats: s.Stats})
		}
	}
	for _, id := range m.boxes {
		s, err := m.c.Stats(ctx, id)
		if err != nil {
			return nil, err
		}
		all = append(all, boxStats{ID: id, Stats: s})
	}
	now := map[string]rest.Stats{}
	for i := range all {
		s := &all[i]
		if s.Error != "" {
			continue // nothing to compare with, now or next time
		}
		now[s.ID] = s.Stats
		if before, ok := m.last[s.ID]; ok {
			s.CPUPercent = percent(s.CPUMs-before.CPUMs, s.Time.Sub(before.Time))
		}
	}
	m.last = now
	return all, nil
}

// twice measures over a short time.
func (m *meter) twice(ctx context.Context) ([]boxStats, error) {
	if all, err := m.measure(ctx); err != nil || len(all) == 0 {
		return all, err
	}
	if err := pause(ctx, statsWindow); err != nil {
		return nil, err
	}
	return m.measure(ctx)
}

// percent is how much of one processor was used.
func percent(usedMs float64, in time.Duration) float64 {
	if usedMs <= 0 || in <= 0 {
		return 0
	}
	return float64(int64(usedMs*float64(time.Millisecond)/float64(in)*1000+0.5)) / 10
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func statsTable(all []boxStats) *table {
	t := newTable("ID", "CPU %", "MEMORY", "LIMIT", "PEAK", "PIDS", "READ", "WRITTEN", "RECEIVED", "SENT", "OVERHEAD")
	for _, s := range all {
		if s.Error != "" {
			t.add(s.ID, "no answer", "-", limit(s.MemoryLimitBytes > 0, formatSize(s.MemoryLimitBytes)), "-", "-", "-", "-", "-", "-", "-")
			continue
		}
		t.add(s.ID, fmt.Sprintf("%.1f", s.CPUPercent), formatSize(s.MemoryBytes),
			limit(s.MemoryLimitBytes > 0, formatSize(s.MemoryLimitBytes)), formatSize(s.MemoryPeakBytes), fmt.Sprint(s.Pids),
			formatSize(s.ReadBytes), formatSize(s.WriteBytes), formatSize(s.NetRxBytes), formatSize(s.NetTxBytes), formatSize(s.OverheadBytes))
	}
	return t
}

// liveStats draws the table over itself until ctx ends.
func (e *Env) liveStats(ctx context.Context, m *meter) error {
	all, err := m.twice(ctx)
	screen := "\x1b[2J" // clear it
	for ; err == nil; all, err = m.measure(ctx) {
		var text strings.Builder
		if err := statsTable(all).print(&text); err != nil {
			return err
		}
		if _, err := fmt.Fprint(e.Out, screen+frame(text.String(), e.terminalSize())); err != nil {
			return err
		}
		screen = ""
		if err := pause(ctx, statsInterval); err != nil {
			return err
		}
	}
	return err
}

// frame makes lines into a picture that fits a terminal and leaves nothing of
// the one before.
func frame(text string, size taisandbox.Size) string {
	var b strings.Builder
	b.WriteString("\x1b[H") // to the upper left corner
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if rows := int(size.Rows); rows > 2 && len(lines) > rows-1 {
		lines = lines[:rows-1]
	}
	for _, line := range lines {
		if r := []rune(line); size.Cols > 0 && len(r) > int(size.Cols) {
			line = string(r[:size.Cols])
		}
		b.WriteString(line + "\x1b[K\n") // and clear the rest of the line
	}
	b.WriteString("\x1b[J") // and of the screen
	return b.String()
}

// boxProcess is a process with its load.
type boxProcess struct {
	CPUPercent float64 `json:"cpu_percent"` // of one processor, lately
	rest.Process
}

func newTop(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "top [flags] BOX",
		GroupID: groupLook,
		Short:   "List the processes of a box",
		Args:    wantArgs("BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			list, err := processesOf(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return printItems(env, out, list, []string{"PID", "USER", "STATE", "CPU %", "TIME", "MEMORY", "COMMAND"}, func(p *boxProcess) []string {
				used := time.Duration(p.CPUMs * float64(time.Millisecond))
				return []string{
					fmt.Sprint(p.PID), fmt.Sprint(p.UID), p.State, fmt.Sprintf("%.1f", p.CPUPercent),
					used.Round(10 * time.Millisecond).String(), formatSize(p.RSSBytes), p.Command,
				}
			})
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "PIDs")
	return cmd
}

// processesOf lists processes with their load over a short time.
func processesOf(ctx context.Context, c *client.Client, box string) ([]boxProcess, error) {
	began := time.Now()
	first, err := c.Processes(ctx, box)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, statsWindow); err != nil {
		return nil, err
	}
	took := time.Since(began)
	second, err := c.Processes(ctx, box)
	if errors.Is(err, taisandbox.ErrNotRunning) || errors.Is(err, taisandbox.ErrNotFound) {
		second, err = first, nil // it ended meanwhile: this is how it was
	}
	if err != nil {
		return nil, err
	}
	before := map[int]rest.Process{}
	for _, p := range first {
		before[p.PID] = p
	}
	list := make([]boxProcess, 0, len(second))
	for _, p := range second {
		b := boxProcess{Process: p}
		if old, ok := before[p.PID]; ok && old.CPUMs <= p.CPUMs {
			b.CPUPercent = percent(p.CPUMs-old.CPUMs, took)
		}
		list = append(list, b)
	}
	return list, nil
}
