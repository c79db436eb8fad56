package sandbox

import (
	"io"
	"time"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// BoxInfo is what is known of a box.
type BoxInfo struct {
	ID          string
	ContainerID string // the node's own name for it
	NodeID      string
	Owner       string
	Status      string // a [taisandbox.State]: "running", "stopped", …
	Policy      LifecyclePolicy
	Labels      map[string]string
	Image       string // as given
	ImageDigest string
	CreatedAt   time.Time
	StartedAt   time.Time // zero if never
	StoppedAt   time.Time // zero if running or never
	LastActive  time.Time
	// ProcessCount is how many processes and threads run in the box, ours
	// included. Info measures it; 0 if it was never measured.
	ProcessCount int
	RunningExecs int // commands whose leader runs

	StopReason string // why the box is not running: "user", "oom", "bridge-lost", "lost", …
	Error      string // what went wrong, for people
	OOMKills   int64  // processes that the kernel killed for memory

	Isolation  taisandbox.Isolation
	Network    taisandbox.Network
	IP         string
	Entrypoint []string
	Cmd        []string
	WorkDir    string
	User       string

	// Effective limits; 0 = none.
	Memory    int64
	CPUs      float64
	Pids      int64
	OpenFiles uint64
	ReadOnly  bool
	Devices   []string

	WorkspaceID string  // that the box works in; empty if none
	Mounts      []Mount // all, that of WorkspaceID too

	IdleTimeout time.Duration // 0 = none
	KeepAlive   bool
	MaxLifetime time.Duration // 0 = none
	StopTimeout time.Duration
	// Busy says what keeps a running box from being idle, by name: "exec …",
	// "stream of exec …", "heartbeat", "lease" and calls under way; with
	// KeepAlive "exec entrypoint" and "left by exec …" too. Info asks the node;
	// a Snapshot knows what was heard.
	Busy   []string
	Phases []taisandbox.Phase // where the time of the create went, in order
}

// ExecResult is a command that has ended. Whether it did well is told by
// Reason first, then by ExitCode.
type ExecResult struct {
	ExitCode int // 0 to 255
	Stdout   string
	Stderr   string

	ExecID     string
	Signal     string                // "SIGKILL" if a signal ended it; ExitCode is then 128+n
	Reason     taisandbox.ExecReason // why it ended
	Error      string                // why it could not be started; ExitCode is then 126 or 127
	DurationMs int64
	Truncated  bool // there was more output than [WithMaxOutput]
	// What that left out of Stdout and Stderr.
	StdoutOmitted, StderrOmitted taisandbox.Omission
}

// ExecStream is a command that runs. Read Stdout and Stderr to their ends or
// close them, else the command is held back when its output is more than what
// is kept. A closed one is read and dropped.
type ExecStream struct {
	Stdout io.ReadCloser
	Stderr io.ReadCloser
	Stdin  io.WriteCloser      // Close ends the input
	Wait   func() (int, error) // blocks until the command has ended; returns its exit code
	Cancel func()              // kills the command with its whole tree

	ExecID string
	Resize func(taisandbox.Size) error // of the terminal
}
