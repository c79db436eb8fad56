package rest

import (
	"time"
	"unicode/utf8"
)

// ExecRequest says what to run. Absent fields mean the default in the comment.
type ExecRequest struct {
	ID         string   `json:"id,omitempty" doc:"A DNS label of at most 50 bytes; a new one if absent"`
	Cmd        []string `json:"cmd,omitempty" doc:"Program and arguments; no shell is involved"`
	CmdB64     [][]byte `json:"cmd_b64,omitempty" doc:"In place of cmd, for words that are not UTF-8"`
	Entrypoint bool     `json:"entrypoint,omitempty" doc:"Put the box's entrypoint before cmd"`

	Env     map[string]string `json:"env,omitempty"`
	WorkDir string            `json:"work_dir,omitempty"`
	User    string            `json:"user,omitempty"`

	Stdin    bool   `json:"stdin,omitempty" doc:"Input follows; without it the command reads an empty one"`
	StdinB64 []byte `json:"stdin_b64,omitempty" doc:"The whole input, for an exec that collects"`
	TTY      bool   `json:"tty,omitempty"`
	Cols     uint16 `json:"cols,omitempty" doc:"Width of the terminal; default 80"`
	Rows     uint16 `json:"rows,omitempty" doc:"Height of the terminal; default 24"`
	// Without it, or a terminal, order holds within each output only.
	MergeOutput bool `json:"merge_output,omitempty" doc:"One pipe for both outputs: all of it is stdout, in exactly the order written"`

	TimeoutMs    int64  `json:"timeout_ms,omitempty" doc:"0 means none"`
	KillGraceMs  int64  `json:"kill_grace_ms,omitempty" doc:"Between TERM and KILL on timeout; default 2000"`
	OnDisconnect string `json:"on_disconnect,omitempty" doc:"keep (default) or kill"`
	LeaseMs      int64  `json:"lease_ms,omitempty" doc:"How long an exec with on_disconnect kill outlives a lost link; default 60000"`
	MaxOutput    int64  `json:"max_output,omitempty" doc:"Bytes that an exec collects, the first half and the end of what there is; default 64 MiB"`
	MaxLog       int64  `json:"max_log,omitempty" doc:"Bytes of output kept; default 64 MiB, at most 1 GiB"`

	Detach bool `json:"detach,omitempty" doc:"Answer with the record once the exec is started"`

	// IdempotencyKey travels as a header of a POST: a request that is repeated
	// with the same key and the same body joins the exec that the first one
	// started, as long as that is kept. It makes the ID.
	IdempotencyKey string `json:"-"`
}

// Exec is the record of an exec.
type Exec struct {
	ID       string    `json:"id"`
	Box      string    `json:"box"`
	Args     []string  `json:"args"`
	ArgsB64  [][]byte  `json:"args_b64,omitempty" doc:"Their bytes, if they are not all UTF-8"`
	EnvNames []string  `json:"env_names,omitempty" doc:"Names, never values"`
	User     string    `json:"user"`
	WorkDir  string    `json:"work_dir"`
	TTY      bool      `json:"tty"`
	PID      int       `json:"pid,omitempty" doc:"Inside the box"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended,omitzero"`
	// DurationMs is the time from start to end, or so far.
	DurationMs int64  `json:"duration_ms"`
	State      string `json:"state" doc:"starting, running, exited or lost"`
	ExitCode   *int   `json:"exit_code,omitempty" doc:"0 to 255; absent until exited, and when lost"`
	Signal     string `json:"signal,omitempty"`
	Reason     string `json:"reason,omitempty" doc:"exit, signal, oom, timeout, killed, stop or lost"`
	Error      string `json:"error,omitempty" doc:"Why it could not be started"`

	Bytes            int64 `json:"bytes" doc:"How much output there was"`
	FirstOffset      int64 `json:"first_offset" doc:"The output from here on is kept"`
	Truncated        bool  `json:"truncated"`
	InputOpen        bool  `json:"input_open,omitempty" doc:"The input has not been ended yet"`
	InputBytes       int64 `json:"input_bytes,omitempty" doc:"While it runs: so much input was handed over"`
	OutputIncomplete bool  `json:"output_incomplete,omitempty" doc:"A child still held the output at the end"`
	Leftover         int   `json:"leftover,omitempty" doc:"Processes of it that still run"`
	OOMKills         int64 `json:"oom_kills,omitempty"`
}

// ExecList is one page of the execs of a box that are kept, oldest first.
type ExecList struct {
	Items     []Exec `json:"items"`
	NextToken string `json:"next_token,omitempty" doc:"Ask with it for the next page"`
}

// The sources of an answer: a command gave a result, or we failed. A failure
// of ours is an [ErrorBody] and never a result.
const (
	SourceCommand = "command"
	SourceManager = "manager"
)

// ExecResult is the outcome of an exec that collects. Output that is not UTF-8
// is in the _b64 fields instead.
type ExecResult struct {
	ExecID     string  `json:"exec_id"`
	Source     string  `json:"source" doc:"Always command"`
	State      string  `json:"state"`
	ExitCode   *int    `json:"exit_code,omitempty" doc:"0 to 255; absent when lost"`
	Signal     string  `json:"signal,omitempty"`
	Reason     string  `json:"reason"`
	Error      string  `json:"error,omitempty" doc:"Why it could not be started"`
	DurationMs int64   `json:"duration_ms"`
	Stdout     *string `json:"stdout,omitempty"`
	StdoutB64  []byte  `json:"stdout_b64,omitempty"`
	Stderr     *string `json:"stderr,omitempty"`
	StderrB64  []byte  `json:"stderr_b64,omitempty"`
	Truncated  bool    `json:"truncated" doc:"There was more output than is here"`
	// What the cap left out, between characters.
	StdoutOmitted *Omission `json:"stdout_omitted,omitempty"`
	StderrOmitted *Omission `json:"stderr_omitted,omitempty"`
	Bytes         int64     `json:"bytes" doc:"How much output there was"`
	// OutputIncomplete: a child still held the output when the command ended.
	OutputIncomplete bool `json:"output_incomplete,omitempty"`
}

// Omission is a hole in an output that was cut.
type Omission struct {
	At    int64 `json:"at" doc:"Offset in the output that is here"`
	Bytes int64 `json:"bytes" doc:"How much is missing there"`
}

// OmissionOf describes a hole of so many bytes; nil if there are none.
func OmissionOf(at, bytes int64) *Omission {
	if bytes == 0 {
		return nil
	}
	return &Omission{At: at, Bytes: bytes}
}

// SetOutput fills in what was collected.
func (r *ExecResult) SetOutput(stdout, stderr []byte) {
	r.Stdout, r.StdoutB64 = text(stdout)
	r.Stderr, r.StderrB64 = text(stderr)
}

func text(b []byte) (*string, []byte) {
	if !utf8.Valid(b) {
		return nil, b
	}
	s := string(b)
	return &s, nil
}

// KillExec says how to signal an exec.
type KillExec struct {
	Signal int  `json:"signal,omitempty" doc:"Its number; default 15"`
	Tree   bool `json:"tree,omitempty" doc:"The whole tree"`
	Group  bool `json:"group,omitempty" doc:"The leader's process group"`
}
