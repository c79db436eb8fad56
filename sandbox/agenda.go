package sandbox

import (
	"container/heap"
	"log/slog"
	"time"
)

// agenda says which box is to be looked at when: a heap, so that what is not
// due costs nothing. An entry may be early, since use of a box does not move
// it; it is never late. Guarded by Manager.mu.
type agenda struct {
	queue   queue
	changed chan struct{} // there is a new first entry, or room for another reap
	keeping bool          // keepTime runs
	pulse   time.Duration // when it last looked at the clock
	resumed time.Duration // when this process last came back from a standstill
	reaps   map[*Box]*flight
	turns   int // reaps that still have their turn: as many as maxReaps
}

func newAgenda() agenda {
	return agenda{changed: make(chan struct{}, 1), reaps: map[*Box]*flight{}}
}

func (a *agenda) wake() {
	select {
	case a.changed <- struct{}{}:
	default: // woken already
	}
}

// queue is a heap of boxes by Box.at.
type queue []*Box

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i+1, j+1
}

func (q *queue) Push(x any) {
	b := x.(*Box)
	*q = append(*q, b)
	b.place = len(*q)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	b := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	b.place = 0
	return b
}

// scheduleLocked enters a box at the time at which something is due for it, or
// takes it out if nothing ever is. One that is just being reaped is entered
// afterwards.
func (m *Manager) scheduleLocked(b *Box) {
	if m.agenda.reaps[b] != nil {
		return
	}
	q := &m.agenda.queue
	at, why := m.nextLocked(b, m.now())
	switch {
	case why == "":
		if b.place > 0 {
			heap.Remove(q, b.place-1)
		}
		return
	case b.place == 0:
		b.at = at
		heap.Push(q, b)
	default:
		b.at = at
		heap.Fix(q, b.place-1)
	}
	if b.place == 1 {
		m.agenda.wake()
	}
}

// keepTime reaps what is due until the manager ends.
func (m *Manager) keepTime() {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-m.agenda.changed:
		case <-m.life.Done():
			return
		}
		m.mu.Lock()
		t.Reset(m.ringLocked())
		m.mu.Unlock()
	}
}

// ringLocked starts what is due, and returns when to look again.
func (m *Manager) ringLocked() time.Duration {
	a, now := &m.agenda, m.now()
	if stood := now - a.pulse; a.keeping && stood > pulseInterval+standstill {
		// Who would have used a box could not, since nobody answered.
		a.resumed = now
		m.log.WarnContext(m.life, "process stood still", slog.Duration("dur", stood))
	}
	a.pulse = now
	for len(a.queue) > 0 && a.queue[0].at <= now && a.turns < maxReaps {
		b := heap.Pop(&a.queue).(*Box)
		switch at, why := m.nextLocked(b, now); {
		case why == "":
		case at > now:
			b.at = at
			heap.Push(&a.queue, b)
		default:
			m.startReapLocked(b, why)
		}
	}
	if len(a.queue) == 0 || a.turns >= maxReaps {
		return pulseInterval
	}
	return min(pulseInterval, max(0, a.queue[0].at-now))
}
