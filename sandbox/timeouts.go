package sandbox

import (
	"errors"
	"time"
)

// DefaultStopTimeout is how long a box that is stopped has between TERM and
// KILL.
const DefaultStopTimeout = 2 * time.Second

const (
	sweepInterval = time.Minute // between looks at all boxes of a node
	sweepPause    = time.Second // the same, when events were missed

	lookTimeout   = 750 * time.Millisecond // one look at a box, before memory answers
	listTimeout   = 30 * time.Second
	removeTimeout = 90 * time.Second
	killTimeout   = 10 * time.Second

	minRetry = time.Second // to reach a node again, doubled up to maxRetry
	maxRetry = 30 * time.Second

	oneShotUnused    = 5 * time.Minute // without a command, since the create
	oneShotRecovered = time.Minute     // the same, since the manager's start
	oneShotLease     = time.Minute     // ended, and its reader is gone without a word

	keyRetention = 24 * time.Hour // of idempotency keys
	maxKeys      = 10_000
)

var (
	errLookTimeout   = errors.New("node did not answer in time")
	errRemoveTimeout = errors.New("removal did not end in time")
	errKillTimeout   = errors.New("command was not killed in time")
)
