package inside

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestAlone walks through what ends a box that its node has left, and what
// does not.
func TestAlone(t *testing.T) {
	const hour = time.Hour
	for name, tc := range map[string]struct {
		after, lifetime time.Duration
		steps           func(a *alone) // each ends unlinked or linked as it says
		want            string
		at              time.Duration // since the begin
	}{
		"nothing_asked":    {0, 0, func(a *alone) { a.unlink() }, "", 0},
		"orphan":           {hour, 0, func(a *alone) { time.Sleep(2 * hour); a.unlink() }, endOrphan, 3 * hour},
		"node_is_there":    {hour, hour, func(*alone) {}, "", 0},
		"back_in_time":     {hour, 0, func(a *alone) { a.unlink(); time.Sleep(hour - 1); a.link() }, "", 0},
		"back_and_gone":    {hour, 0, func(a *alone) { a.unlink(); time.Sleep(hour - 1); a.link(); time.Sleep(hour); a.unlink() }, endOrphan, 3*hour - 1},
		"one_of_two_left":  {hour, 0, func(a *alone) { a.link(); a.unlink() }, "", 0},
		"lifetime":         {0, hour, func(a *alone) { a.unlink() }, endLifetime, hour},
		"lifetime_first":   {2 * hour, hour, func(a *alone) { a.unlink() }, endLifetime, hour},
		"orphan_first":     {hour, 3 * hour, func(a *alone) { a.unlink() }, endOrphan, hour},
		"lifetime_over":    {0, hour, func(a *alone) { time.Sleep(5 * hour); a.unlink() }, endLifetime, 5*hour + comeBack},
		"other_setting":    {hour, 0, func(a *alone) { a.setup(3*hour, 0); a.unlink() }, endOrphan, 3 * hour},
		"switched_off":     {hour, 0, func(a *alone) { a.setup(0, 0); a.unlink() }, "", 0},
		"lifetime_is_kept": {0, hour, func(a *alone) { time.Sleep(hour / 2); a.setup(0, 4*hour); a.unlink() }, endLifetime, hour},
		"box_has_ended":    {hour, 0, func(a *alone) { a.unlink(); a.close() }, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var got []string
				var at time.Duration
				a := &alone{end: func(why string) { got, at = append(got, why), time.Since(begin) }}
				a.link()
				a.setup(tc.after, tc.lifetime)
				tc.steps(a)
				time.Sleep(24 * hour)
				synctest.Wait()
				switch {
				case tc.want == "" && len(got) > 0:
					t.Fatalf("ended as %q after %v; it was to stay", got, at)
				case tc.want != "" && (len(got) != 1 || got[0] != tc.want || at != tc.at):
					t.Fatalf("ended as %q after %v, want %q after %v", got, at, tc.want, tc.at)
				}
			})
		})
	}
}
