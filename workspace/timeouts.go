package workspace

import (
	"errors"
	"time"
)

const (
	// readTimeout is how long a node may take to say what it has.
	readTimeout = 10 * time.Second
	// readRetry is how soon a node that did not say so is asked again.
	readRetry = 5 * time.Second
)

var errReadTimeout = errors.New("node does not answer")
