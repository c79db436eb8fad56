package rest

import "encoding/json"

// Limits of the WebSockets.
const (
	// Window bounds what may be on its way without a confirmation, in each
	// direction: the server sends at most this much output beyond the offset
	// that the client acknowledged, and the client at most this much input
	// beyond what the server confirmed.
	Window = 1 << 20
	// MaxData is the most data in one binary frame.
	MaxData = 64 << 10
	// MaxStart bounds the first text frame, which holds arguments and
	// environment; later text frames are small.
	MaxStart = 4 << 20
)

// First byte of a binary frame.
const (
	DataStdin  byte = 0
	DataStdout byte = 1
	DataStderr byte = 2
	// DataOffset is followed by eight bytes, big endian: the offset of the
	// next byte of output. It comes first on every WebSocket that attaches.
	DataOffset byte = 3
)

// Types of text frames.
const (
	// From the client.
	FrameStart    = "start" // a [StartFrame]; the first frame of an exec
	FrameStdinEOF = "stdin_eof"
	FrameAck      = "ack"    // Offset: all output before it has arrived for good
	FrameResize   = "resize" // Cols, Rows
	FrameSignal   = "signal" // Signal, Group, Tree
	FrameHangup   = "hangup" // the client is going: on_disconnect applies
	FramePing     = "ping"

	// From the server.
	FrameStarted     = "started"      // Exec: the exec's id, a string
	FrameGap         = "gap"          // Offset, Lost: output that is no longer kept
	FrameExit        = "exit"         // Exec: the final record, an [Exec]
	FrameEnd         = "end"          // the present end of the output, for nofollow
	FrameError       = "error"        // Error; the socket closes after it
	FramePong        = "pong"         //
	FrameStdinAck    = "stdin_ack"    // Offset: so many bytes of input were fed
	FrameStdinClosed = "stdin_closed" // the command takes no more input
)

// Close codes beyond those of RFC 6455.
const (
	// CloseTakenOver is for the client that another one put out.
	CloseTakenOver = 4001
	// CloseFailed follows a [FrameError].
	CloseFailed = 4000
	// CloseRestart asks the client to come again and resume by offset.
	CloseRestart = 1012
)

// StartFrame begins an exec.
type StartFrame struct {
	Type string `json:"type"`
	ExecRequest
}

// Frame is any other text frame; Type says which fields count.
type Frame struct {
	Type   string          `json:"type"`
	Exec   json.RawMessage `json:"exec,omitempty"`
	Offset int64           `json:"offset,omitempty"`
	Lost   int64           `json:"lost,omitempty"`
	Cols   uint16          `json:"cols,omitempty"`
	Rows   uint16          `json:"rows,omitempty"`
	Signal int             `json:"signal,omitempty"`
	Group  bool            `json:"group,omitempty"`
	Tree   bool            `json:"tree,omitempty"`
	Error  *Error          `json:"error,omitempty"`
}
