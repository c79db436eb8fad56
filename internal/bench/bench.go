// Package bench measures Taibox, and a peer beside it in the same run.
//
// # Model
//
// A [Peer] is one system through one kind of face: a command line or an API.
// [Measure] takes the peers in turns, round by round, after a warm-up, so that
// what else the machine does meets them alike, and compares faces of one kind
// only. Nothing is measured but the call: boxes that a measurement needs are
// made before it and removed after it.
//
// # Errors
//
// The first call that fails ends the measurement; what was made is removed.
//
// # Concurrency
//
// One measurement at a time: a second one would be measured too.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

const (
	warmUp       = 3 // rounds that do not count
	parallel     = 4 // creates at a time
	parallelEach = 5 // creates of each of these
	cleanUpLimit = 60 * time.Second
)

var errCleanUp = errors.New("boxes were not removed in time")

// Peer is a system to measure. Its boxes are made of one image, in which
// /bin/true is a program.
type Peer interface {
	// Prepare sees to it that the image is there.
	Prepare(ctx context.Context, archive []byte) error
	// Run makes a box, runs /bin/true in it, and returns when that has ended.
	// It reports whether the box is still there.
	Run(ctx context.Context, id string) (left bool, err error)
	// Create makes a box that stays and does nothing.
	Create(ctx context.Context, id string) error
	// Exec runs /bin/true in a box.
	Exec(ctx context.Context, id string) error
	// Remove removes a box that runs.
	Remove(ctx context.Context, id string) error
}

// Times is what many calls took.
type Times struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
}

// Figures are the results of one peer.
type Figures struct {
	CreateToFirstExec Times   `json:"create_to_first_exec"`
	Exec              Times   `json:"exec"`
	Remove            Times   `json:"remove"`
	ParallelCreate    float64 `json:"parallel_create_per_second"`
}

// Report is the result of a measurement.
type Report struct {
	Face string `json:"face"` // "cli" or "api"
	Figures
	IdleBoxRSS int64    `json:"idle_box_rss_bytes"` // memory of what Taibox itself runs for a box
	Docker     *Figures `json:"docker,omitempty"`
}

// subject is a peer with what was measured of it so far.
type subject struct {
	Peer
	prefix            string // of the IDs of its boxes
	next              int
	run, exec, remove []time.Duration
}

// id returns a fresh ID.
func (s *subject) id() string {
	s.next++
	return fmt.Sprintf("%s-%d", s.prefix, s.next)
}

// Measure measures the peers in n rounds each and returns their figures, in
// their order. idle, if not nil, is called with the ID of a box of the first
// peer that has done nothing for a while.
func Measure(ctx context.Context, n int, idle func(ctx context.Context, id string) error, peers ...Peer) ([]Figures, error) {
	archive, err := imageArchive()
	if err != nil {
		return nil, err
	}
	subjects := make([]*subject, len(peers))
	for i, p := range peers {
		subjects[i] = &subject{Peer: p, prefix: taisandbox.NewID("bench-")}
		if err := p.Prepare(ctx, archive); err != nil {
			return nil, err
		}
	}
	if err := rounds(ctx, n, idle, subjects); err != nil {
		return nil, err
	}
	figures := make([]Figures, len(subjects))
	for i, s := range subjects {
		rate, err := s.parallelCreate(ctx)
		if err != nil {
			return nil, err
		}
		figures[i] = Figures{times(s.run), times(s.exec), times(s.remove), rate}
	}
	return figures, nil
}

// rounds does the measurements that are taken one by one.
func rounds(ctx context.Context, n int, idle func(context.Context, string) error, subjects []*subject) (err error) {
	standing := make([]string, len(subjects)) // the boxes to exec in
	defer func() {
		for i, s := range subjects {
			if standing[i] != "" {
				err = errors.Join(err, s.discard(ctx, standing[i]))
			}
		}
	}()
	for i, s := range subjects {
		id := s.id()
		if err := s.Create(ctx, id); err != nil {
			return err
		}
		standing[i] = id
	}
	for round := range n + warmUp {
		if round == warmUp {
			for _, s := range subjects {
				s.run, s.exec, s.remove = nil, nil, nil
			}
		}
		for i := range subjects {
			i = (i + round) % len(subjects) // nobody is always the first
			if err := subjects[i].round(ctx, standing[i]); err != nil {
				return err
			}
		}
	}
	if idle != nil {
		return idle(ctx, standing[0])
	}
	return nil
}

// round takes each measurement once.
func (s *subject) round(ctx context.Context, standing string) error {
	id := s.id()
	var left bool
	if err := timed(&s.run, func() (err error) {
		left, err = s.Run(ctx, id)
		return err
	}); err != nil {
		return errors.Join(err, s.discard(ctx, id))
	}
	if left {
		if err := s.discard(ctx, id); err != nil {
			return err
		}
	}
	if err := timed(&s.exec, func() error { return s.Exec(ctx, standing) }); err != nil {
		return err
	}
	id = s.id()
	if err := s.Create(ctx, id); err != nil {
		return err
	}
	return timed(&s.remove, func() error { return s.Remove(ctx, id) })
}

// parallelCreate returns how many boxes a second come into being.
func (s *subject) parallelCreate(ctx context.Context) (rate float64, err error) {
	ids := make([]string, parallel*parallelEach)
	for i := range ids {
		ids[i] = s.id()
	}
	defer func() {
		for _, id := range ids {
			if e := s.discard(ctx, id); err == nil {
				err = e
			}
		}
	}()
	var g errgroup.Group
	begin := time.Now()
	for part := range slices.Chunk(ids, parallelEach) {
		g.Go(func() error {
			for _, id := range part {
				if err := s.Create(ctx, id); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return float64(len(ids)) / time.Since(begin).Seconds(), err
}

// discard removes a box, also when ctx has ended.
func (s *subject) discard(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanUpLimit, errCleanUp)
	defer cancel()
	return s.Remove(ctx, id)
}

func timed(to *[]time.Duration, f func() error) error {
	begin := time.Now()
	err := f()
	*to = append(*to, time.Since(begin))
	return err
}

// times sums up what calls took.
func times(d []time.Duration) Times {
	slices.Sort(d)
	at := func(p float64) float64 {
		if len(d) == 0 {
			return 0
		}
		i := max(int(math.Ceil(p*float64(len(d))))-1, 0)
		return math.Round(float64(d[i])/float64(time.Microsecond)) / 1000
	}
	return Times{N: len(d), P50: at(0.50), P99: at(0.99)}
}
