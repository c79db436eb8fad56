package sandbox

import (
	"context"
	"time"
)

// EntrypointExec is the ID of the exec that runs a box's entrypoint.
const EntrypointExec = "entrypoint"

// Defaults of execs.
const (
	DefaultMaxOutput = 64 << 20         // bytes that Exec collects
	DefaultMaxLog    = 64 << 20         // bytes of output kept for an exec
	DefaultKillGrace = 2 * time.Second  // between TERM and KILL on timeout and stop
	DefaultLease     = 60 * time.Second // how long an exec with OnDisconnect kill survives a lost link
)

// OnDisconnect is what becomes of an exec when its client goes away.
type OnDisconnect string

// The empty value means keep.
const (
	OnDisconnectKeep OnDisconnect = "keep"
	OnDisconnectKill OnDisconnect = "kill"
)

// ExecSpec says what to run. Zero fields mean the default in the comment.
type ExecSpec struct {
	ID   string   // default a new one; see [ValidateID]
	Args []string // required unless Entrypoint
	// Entrypoint puts the box's entrypoint before Args; with empty Args the
	// image's command follows it.
	Entrypoint bool

	Env     map[string]string // added to the box's
	WorkDir string            // default the box's; [ErrDirNotFound] if missing
	User    string            // default the box's; [ErrUserNotFound]

	Stdin bool // false: the command reads an empty input
	TTY   bool // a terminal: one output, Ctrl-C and job control work
	Size  Size // of the terminal; default 80×24
	// MergeOutput gives the command one pipe for both outputs. All of it is
	// then Stdout, in exactly the order in which it was written; without it
	// that order holds within each output only.
	MergeOutput bool

	Timeout      time.Duration // 0 = none. TERM to the group, after KillGrace KILL to the whole tree
	KillGrace    time.Duration // default DefaultKillGrace
	OnDisconnect OnDisconnect  // default keep
	Lease        time.Duration // default DefaultLease

	MaxLog    int64 // bytes of output kept; default DefaultMaxLog, at most [MaxMaxLog]
	MaxOutput int64 // bytes that Exec collects; default DefaultMaxOutput

	// StdinData is the whole input of an Exec that collects; it implies Stdin.
	StdinData []byte
}

// Size is the size of a terminal in characters.
type Size struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// ExecState is where an exec is in its life.
type ExecState string

// The states of an exec.
const (
	ExecStarting ExecState = "starting"
	ExecRunning  ExecState = "running"
	ExecExited   ExecState = "exited"
	ExecLost     ExecState = "lost" // nobody saw its end: no exit code
)

// ExecReason is why an exec ended.
type ExecReason string

// The reasons of an end.
const (
	ReasonExit    ExecReason = "exit"    // by itself; also when it could not be started
	ReasonSignal  ExecReason = "signal"  // by a signal that was not ours
	ReasonOOM     ExecReason = "oom"     // the kernel killed it for memory
	ReasonTimeout ExecReason = "timeout" // it ran past its timeout
	ReasonKilled  ExecReason = "killed"  // by KillExec, or its client went away
	ReasonStop    ExecReason = "stop"    // its box was stopped
	ReasonLost    ExecReason = "lost"    // its box died, or the machine
)

// ExecInfo is the record of an exec. What describes the end is written once,
// after the process was reaped. Of text that is very long it has the beginning:
// see [ExecInfo.Clip].
type ExecInfo struct {
	ID       string     `json:"id"`
	Box      string     `json:"box"`
	Args     []string   `json:"args"`
	EnvNames []string   `json:"env_names,omitempty"` // names, never values
	User     string     `json:"user"`
	WorkDir  string     `json:"work_dir"`
	TTY      bool       `json:"tty"`
	PID      int        `json:"pid,omitempty"` // inside the box
	Started  time.Time  `json:"started"`
	Ended    time.Time  `json:"ended,omitzero"`
	State    ExecState  `json:"state"`
	ExitCode *int       `json:"exit_code,omitempty"` // 0 to 255; absent until exited, and when lost
	Signal   string     `json:"signal,omitempty"`    // "SIGKILL"; ExitCode is then 128+n
	Reason   ExecReason `json:"reason,omitempty"`
	Error    string     `json:"error,omitempty"` // why it could not be started
	// Bytes is how much output there was; [FirstOffset, Bytes) is kept.
	Bytes       int64 `json:"bytes"`
	FirstOffset int64 `json:"first_offset"`
	Truncated   bool  `json:"truncated"` // FirstOffset > 0
	// InputOpen: the command's input has not been ended yet. InputBytes were
	// handed over so far, and arrive whatever becomes of who fed them.
	InputOpen  bool  `json:"input_open,omitempty"`
	InputBytes int64 `json:"input_bytes,omitempty"`
	// OutputIncomplete: the leader ended while a child still held its output.
	OutputIncomplete bool `json:"output_incomplete,omitempty"`
	// Leftover is how many processes of an ended exec still run.
	Leftover int `json:"leftover,omitempty"`
	// OOMKills counts processes of the box that the kernel killed for memory
	// while the exec ran, whether or not the leader was one of them.
	OOMKills int64 `json:"oom_kills,omitempty"`
}

// Done reports whether the record is final.
func (e *ExecInfo) Done() bool { return e.State == ExecExited || e.State == ExecLost }

// ExecResult is what Exec collected.
type ExecResult struct {
	ExecInfo
	Stdout, Stderr []byte
	// OutputTruncated: there was more output than is here. Of what was longer
	// than MaxOutput the first half and the end are here: see [Collector].
	OutputTruncated bool
	// What MaxOutput left out of each.
	StdoutOmitted, StderrOmitted Omission
}

// Omission is a hole in a collected output: so many bytes are missing at that
// offset of what is there. The zero value means none.
type Omission struct {
	At, Bytes int64
}

// Source says where a chunk comes from.
type Source uint8

// The sources of chunks.
const (
	Stdout Source = 1
	Stderr Source = 2
	// Gap stands for output that is no longer kept: [Offset, Offset+Lost).
	Gap Source = 3
)

// Chunk is a piece of an exec's log. Offsets count bytes over both sources,
// in the order in which they were read from the command.
type Chunk struct {
	Source Source
	Offset int64  // of the first byte
	Data   []byte // valid until the next Recv
	Lost   int64  // for Gap
}

// End returns the offset after the chunk.
func (c Chunk) End() int64 { return c.Offset + int64(len(c.Data)) + c.Lost }

// AttachOptions says how to open a reader.
type AttachOptions struct {
	// Since is the offset to begin at. One beyond the end waits for it; -1
	// means the present end.
	Since int64
	// Hold makes this the attached stream: it feeds the input, its
	// acknowledgements hold the command back, and its going away counts as the
	// client's. Without it the stream is a viewer. [ErrExecBusy] if the exec is
	// held and Takeover is not set. One that has ended is held by nobody.
	Hold     bool
	Takeover bool
	// NoFollow ends the stream at the present end of the log.
	NoFollow bool
}

// KillOptions says how to kill an exec.
type KillOptions struct {
	Signal int  // default SIGTERM
	Tree   bool // the whole tree; with SIGKILL in one stroke
	Group  bool // the leader's process group instead of the leader alone
}

// Stream is one reader of an exec's log; the attached one also feeds the
// input. One goroutine may call Recv while others call the rest.
type Stream interface {
	// ID returns the exec's ID.
	ID() string
	// Recv returns the next chunk. After the last byte it returns io.EOF, once
	// the exec's record is final (or at the present end with NoFollow). Any
	// other error is a broken link and says nothing about the command.
	Recv() (Chunk, error)
	// Ack says that everything before offset has reached the client for good.
	// On the attached stream it lets the command write on.
	Ack(offset int64) error
	// Write feeds the input, blocking while the command does not read.
	// [ErrExecEnded] once it cannot.
	Write(p []byte) (int, error)
	// CloseWrite ends the input, after all that was written.
	CloseWrite() error
	// Resize sets the size of the terminal.
	Resize(size Size) error
	// Wait blocks until the record is final and returns it. It does not need
	// Recv to be called, except where the log is full and held back.
	Wait(ctx context.Context) (ExecInfo, error)
	// Hangup tells that the client is gone: the exec's OnDisconnect applies.
	// It also closes the stream.
	Hangup() error
	// Close detaches without saying anything about the client. Repeated calls
	// do nothing.
	Close() error
}
