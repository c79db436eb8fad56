package inside

import (
	"testing"
	"time"
)

// TestOOMClaims plays the kernel, and the clock.
func TestOOMClaims(t *testing.T) {
	now := time.Now()
	o := &oomCounter{count: 3}
	at := func(later time.Duration, count int64) { o.noteLocked(count, now.Add(later)) }
	want := func(what string, before int64, want bool) {
		t.Helper()
		if got := o.claimLocked(before); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	at(0, 3)
	want("nothing was killed", 0, false)
	at(time.Second, 4)
	want("killed before it began", 4, false)
	want("killed", 3, true)
	want("another one, for the same kill", 3, false)

	at(2*time.Second, 6)
	at(2*time.Second+oomFresh, 6)
	want("one of two that were killed at once", 4, true)
	want("the other, which died late", 3, true)
	want("a third", 3, false)

	at(time.Minute, 7)
	at(time.Minute+oomFresh+1, 7)
	want("long after a child was killed", 3, false)

	at(2*time.Minute, 8)
	at(2*time.Minute+time.Second, 9)
	want("the elder takes the older kill", 7, true)
	want("and leaves the younger its own", 8, true)

	at(3*time.Minute, 0) // not readable
	at(3*time.Minute, 9)
	want("a count that comes back", 3, false)
}
