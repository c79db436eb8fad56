package sandbox

import (
	"errors"
	"time"
)

// DefaultStopTimeout is how long a box that is stopped has between TERM and
// KILL.
const DefaultStopTimeout = 2 * time.Second

// MaxStopTimeout is the longest time between TERM and KILL.
const MaxStopTimeout = time.Hour

const (
	sweepInterval = time.Minute // between looks at all boxes of a node
	sweepPause    = time.Second // the same, when events were missed

	lookTimeout   = 750 * time.Millisecond // one look at a box, before memory answers
	listTimeout   = 30 * time.Second
	removeTimeout = 90 * time.Second
	killTimeout   = 10 * time.Second

	minRetry = time.Second // to reach a node again, doubled up to maxRetry
	maxRetry = 30 * time.Second

	pulseInterval   = 5 * time.Second        // between looks at the clock
	standstill      = 10 * time.Second       // a look that is later than that: the process stood still
	resumeGrace     = time.Minute            // for those who use a box to come back, after a standstill or a restart
	heartbeatWindow = time.Minute            // an active heartbeat counts
	lastWords       = 100 * time.Millisecond // for what a node has told of a box that it removed to arrive
	retryPause      = time.Minute            // until what is due is tried again
	maxReaps        = 64                     // boxes that have their turn at once, when policies end them
	reapTurn        = time.Second            // after it the next box is begun, whatever the slow one does
	maxLease        = 24 * time.Hour
	stopTimeout     = 30 * time.Second // on top of a box's own
	maxOrphanStops  = 8                // orphans of one node that are stopped at once

	oneShotUnused    = 5 * time.Minute // without a command, since the create
	oneShotRecovered = time.Minute     // the same, since the manager's start
	oneShotLease     = time.Minute     // ended, and its reader is gone without a word

	keyRetention = 24 * time.Hour // of idempotency keys
	maxKeys      = 10_000
)

var (
	errLookTimeout   = errors.New("node did not answer in time")
	errRemoveTimeout = errors.New("removal did not end in time")
	errStopTimeout   = errors.New("box was not stopped in time")
	errHurried       = errors.New("somebody did not wait for the box to end by itself")
	errKillTimeout   = errors.New("command was not killed in time")
)
