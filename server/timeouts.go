package server

import "time"

// StopTimeout is how long [Server.Run] takes at most to return.
const StopTimeout = 5 * time.Second

const (
	headerTimeout  = 10 * time.Second // for a request's header
	bodyTimeout    = 30 * time.Second // for a JSON body
	idleTimeout    = 2 * time.Minute  // between requests
	startTimeout   = 30 * time.Second // for the first frame of an exec
	signalTimeout  = 10 * time.Second // for a signal by frame
	measureTimeout = 5 * time.Second  // for a box of a list
	commitLease    = 24 * time.Hour   // a commit keeps its box busy

	closeTimeout = 2 * time.Second // for a WebSocket to take its last frames

	// exitAckTimeout is how long a socket stays open for the acknowledgement
	// of the last output once the client was told of the end.
	exitAckTimeout = 30 * time.Second

	// For links whose other end can vanish without a word.
	pingInterval = 20 * time.Second
	pingTimeout  = 20 * time.Second
	writeTimeout = 20 * time.Second
)

// Bounds of JSON bodies. Archives have none: they are streamed.
const (
	maxBody     = 4 << 20
	maxExecBody = 32 << 20 // it may hold an input
	maxHeader   = 64 << 10
	// maxCollect is the most output that one answer holds; more is for a
	// WebSocket.
	maxCollect = 64 << 20
)
