package client

import "time"

const (
	dialTimeout  = 10 * time.Second
	idleConn     = 90 * time.Second
	pingInterval = 20 * time.Second // below the limit of the strictest hop
	pingTimeout  = 20 * time.Second
	// closeTimeout bounds Close and Hangup, which wait for the server: it may
	// have a box to remove first.
	closeTimeout = 60 * time.Second

	hangupTimeout = 5 * time.Second // for a link to come back, to hang up through it

	retryFirst = 20 * time.Millisecond
	retryMost  = time.Second
)
