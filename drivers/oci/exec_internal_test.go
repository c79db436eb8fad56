package oci

import (
	"context"
	"testing"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// What the bridge has told of is in no doubt, though the answer to its start
// never came.
func TestFinishedExecIsNotDoubtful(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	for _, state := range []sandbox.ExecState{sandbox.ExecStarting, sandbox.ExecRunning, sandbox.ExecExited} {
		live := &liveBox{doubt: make(chan struct{}, 1)}
		b, e := &box{live: live}, &execFile{info: sandbox.ExecInfo{ID: "e1", State: state}}
		if !b.mayHaveBegun(ctx, live, e, context.Canceled) {
			t.Errorf("%s: dropped", state)
		}
		if want := state == sandbox.ExecStarting; e.doubtful != want {
			t.Errorf("%s: doubtful %v", state, e.doubtful)
		}
	}
}

// A kill that several execs saw is one.
func TestKillsOfExecs(t *testing.T) {
	begin := time.Now()
	at := func(from, to int, kills int64, reason sandbox.ExecReason) *execFile {
		return &execFile{info: sandbox.ExecInfo{
			Started: begin.Add(time.Duration(from) * time.Second), Ended: begin.Add(time.Duration(to) * time.Second), OOMKills: kills, Reason: reason,
		}}
	}
	exit, oom := sandbox.ReasonExit, sandbox.ReasonOOM
	for name, c := range map[string]struct {
		execs []*execFile
		want  int64
	}{
		"none":                 {[]*execFile{at(0, 9, 0, exit)}, 0},
		"before":               {[]*execFile{at(-2, -1, 1, oom)}, 0},
		"one_seen_by_two":      {[]*execFile{at(0, 4, 1, oom), at(1, 9, 1, exit)}, 1},
		"two_at_once":          {[]*execFile{at(0, 4, 1, oom), at(1, 9, 1, oom)}, 2},
		"one_after_the_other":  {[]*execFile{at(0, 1, 1, oom), at(2, 3, 1, exit)}, 2},
		"many_in_one":          {[]*execFile{at(0, 1, 3, exit)}, 3},
		"overlapping_in_a_row": {[]*execFile{at(0, 5, 1, oom), at(4, 9, 1, exit), at(8, 12, 1, exit), at(20, 21, 2, exit)}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			b := &box{execs: map[string]*execFile{}}
			for i, e := range c.execs {
				b.execs[string(rune('a'+i))] = e
			}
			if got := b.execKills(begin); got != c.want {
				t.Errorf("%d kills, want %d", got, c.want)
			}
		})
	}
}

// An index that somebody else has by now is not given back.
func TestIndexHasOneOwner(t *testing.T) {
	pool := newPairPool("/run", nil, nil, nil, 0, nil)
	i, err := pool.allocate()
	if err != nil {
		t.Fatal(err)
	}
	pool.reserve(i, "/run/a")
	pool.release(i, "/run/a")
	pool.reserve(i, "/run/x")
	pool.release(i, "/run/a")
	pool.next = i
	if other, err := pool.allocate(); err != nil || other == i {
		t.Errorf("index %d was given away, %v", i, err)
	}
}
