package inside

import (
	"os"
	"sync"
	"time"
)

// alone ends the box of a node that does not come back: nobody else is there to
// do it. While the node has a connection it does nothing at all.
type alone struct {
	end func(reason string) // stops the box; called once, on a goroutine of its own

	mu       sync.Mutex
	links    int           // connections of the node
	left     time.Time     // when the last one went, if links is 0
	after    time.Duration // an orphan is ended so long after that; 0 = never
	deadline time.Time     // of the box's max lifetime; zero = none
	timer    *time.Timer   // runs while links is 0 and something is due
	ended    bool
}

// comeBack is how long a node may have no connection and still be there.
const comeBack = 10 * time.Second

// The reasons for which a box ends itself, as its node reads them.
const (
	endOrphan   = "orphan"
	endLifetime = "max-lifetime"
)

// setup takes what the node says. The lifetime begins with the first one that
// is told: later ones would be off by however the node's clock was set.
func (a *alone) setup(after, lifetime time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.after = after
	if lifetime > 0 && a.deadline.IsZero() {
		a.deadline = time.Now().Add(lifetime)
	}
}

// link notes a connection of the node.
func (a *alone) link() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.links++
	a.stopLocked()
}

// unlink notes that a connection has ended.
func (a *alone) unlink() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.links--; a.links == 0 {
		a.left = time.Now()
		a.armLocked()
	}
}

// dueLocked returns when the box is to end, and why; "" if never.
func (a *alone) dueLocked() (at time.Time, why string) {
	if a.after > 0 {
		at, why = a.left.Add(a.after), endOrphan
	}
	if a.deadline.IsZero() {
		return at, why
	}
	// A node that connects anew, or that restarts, is not gone.
	over := a.deadline
	if back := a.left.Add(comeBack); over.Before(back) {
		over = back
	}
	if why == "" || over.Before(at) {
		at, why = over, endLifetime
	}
	return at, why
}

func (a *alone) armLocked() {
	a.stopLocked()
	if at, why := a.dueLocked(); why != "" && !a.ended {
		a.timer = time.AfterFunc(time.Until(at), a.ring)
	}
}

func (a *alone) stopLocked() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

// ring ends the box if the node has not come back meanwhile.
func (a *alone) ring() {
	a.mu.Lock()
	at, why := a.dueLocked()
	if a.links > 0 || a.ended || why == "" || time.Now().Before(at) {
		a.mu.Unlock()
		return
	}
	a.ended = true
	a.mu.Unlock()
	a.end(why)
}

// close makes sure that nothing is ended any more.
func (a *alone) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.stopLocked()
}

// noteEnd tells the next server why the box ended. The node has made the file
// and its room.
func noteEnd(f *os.File, why string) {
	if f != nil {
		f.WriteAt([]byte(why), 0) //nolint:errcheck // the end is then one that nobody saw
	}
}
