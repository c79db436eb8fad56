package sandbox

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/workspace"
)

// LifecyclePolicy says how a box comes to its end.
type LifecyclePolicy string

// The policies.
const (
	OneShot     LifecyclePolicy = "oneshot"     // removed after its first command
	Session     LifecyclePolicy = "session"     // stopped and removed when idle; the default
	LongRunning LifecyclePolicy = "longrunning" // stopped when idle, removed after its max lifetime
	Persistent  LifecyclePolicy = "persistent"  // never cleaned up by itself
)

// Validate refuses policies that do not exist. The error wraps
// [ErrInvalidSpec].
func (p LifecyclePolicy) Validate() error {
	switch p {
	case OneShot, Session, LongRunning, Persistent:
		return nil
	}
	return fmt.Errorf("%w: policy %.32q: possible are oneshot, session, longrunning and persistent", ErrInvalidSpec, p)
}

// CreateOptions says what a box is to be. Zero fields mean the default in the
// comment.
type CreateOptions struct {
	ID     string // default a new one; see [taisandbox.ValidateID]
	Owner  string
	Labels map[string]string
	NodeID string // a TaiID from the registry; required unless a workspace says where

	Image      string            // required; a reference or the built-in "hostfs"
	WorkDir    string            // default where the workspace is; without one the image's, else /workspace
	User       string            // user[:group]; default the image's, else root
	Env        map[string]string // added to the image's; YAO_SANDBOX_ID, if it is not here, is the ID
	Hostname   string            // default the ID
	ExtraHosts []string          // "name:address"
	Entrypoint *[]string         // replaces the image's; a pointer to an empty slice means none
	NoStart    bool              // the entrypoint is not run at start: the caller runs it [WithEntrypoint]

	Isolation taisandbox.Isolation // default container
	Network   taisandbox.Network   // default internet
	Memory    int64                // bytes; 0 = unlimited
	CPUs      float64              // 0 = unlimited
	Pids      int64                // processes and threads; 0 = unlimited
	OpenFiles uint64               // descriptors a process; 0 = the node's default
	ReadOnly  bool                 // root file system read-only
	Tmpfs     []string             // "path[:size=bytes]"
	Devices   []string             // by CDI name

	// WorkspaceID is the workspace that the box works in. It decides the node.
	WorkspaceID string `json:",omitempty"`
	MountMode   string `json:",omitempty"` // "rw" (default) or "ro"
	MountPath   string `json:",omitempty"` // default /workspace
	// Mounts are further workspaces, of the same node, and directories of the
	// node's machine.
	Mounts []Mount `json:",omitempty"`
	// Workspaces are the very ones that WorkspaceID and Mounts mean, as
	// [workspace.Manager.Get] returned them. If another has the ID of one
	// meanwhile, Create is [workspace.ErrNotFound]. An ID that none here has
	// means whichever workspace has it.
	Workspaces []*workspace.Workspace `json:"-"`

	Policy LifecyclePolicy // default Session
	// IdleTimeout is how long a Session or LongRunning box may be idle; 0 =
	// for ever. The other policies do not look at it.
	IdleTimeout time.Duration
	// KeepAlive: the box is not idle either while its entrypoint runs, or what
	// an ended command left behind.
	KeepAlive bool `json:",omitempty"`
	// MaxLifetime is how long after its creation a box is removed, whatever it
	// does, unless it is Persistent; 0 = never.
	MaxLifetime time.Duration
	StopTimeout time.Duration // between TERM and KILL, at most MaxStopTimeout; 0 = DefaultStopTimeout

	// IdempotencyKey makes a repeated Create safe: within 24 hours the same
	// owner's same key with the same options returns the same box, and with
	// others is [ErrIdempotencyKey]. So it is after the box was removed, as
	// long as the manager runs.
	IdempotencyKey string
	// IdempotencyBody, if it is not empty, is what is compared in place of the
	// options: for who fills in defaults, which may be others for the repeat.
	IdempotencyBody []byte `json:"-"`
}

// clone returns a copy that shares nothing with the caller's.
func (o *CreateOptions) clone() CreateOptions {
	c := *o
	c.Labels, c.Env = maps.Clone(o.Labels), maps.Clone(o.Env)
	c.ExtraHosts, c.Tmpfs, c.Devices = slices.Clone(o.ExtraHosts), slices.Clone(o.Tmpfs), slices.Clone(o.Devices)
	c.Mounts, c.Workspaces = slices.Clone(o.Mounts), slices.Clone(o.Workspaces)
	c.IdempotencyBody = slices.Clone(o.IdempotencyBody)
	if o.Entrypoint != nil {
		e := append([]string{}, *o.Entrypoint...)
		c.Entrypoint = &e
	}
	return c
}

// ListOptions selects boxes. Empty fields do not filter.
type ListOptions struct {
	Owner  string
	NodeID string
	Labels map[string]string // all must match
}

// ExecOption is a setting of one command.
type ExecOption func(*execOptions)

type execOptions struct {
	spec     taisandbox.ExecSpec
	stdin    io.Reader
	stdinSet bool
}

func newExecOptions(cmd []string, opts []ExecOption) *execOptions {
	o := &execOptions{spec: taisandbox.ExecSpec{Args: slices.Clone(cmd), OnDisconnect: taisandbox.OnDisconnectKill}}
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// WithWorkDir sets the command's directory; default the box's.
func WithWorkDir(dir string) ExecOption { return func(o *execOptions) { o.spec.WorkDir = dir } }

// WithEnv adds to the box's environment.
func WithEnv(env map[string]string) ExecOption {
	env = maps.Clone(env)
	return func(o *execOptions) { o.spec.Env = env }
}

// WithTimeout ends the command, with its whole tree, after so long; 0 = never.
func WithTimeout(timeout time.Duration) ExecOption {
	return func(o *execOptions) { o.spec.Timeout = timeout }
}

// WithUser runs the command as user[:group]; default the box's.
func WithUser(user string) ExecOption { return func(o *execOptions) { o.spec.User = user } }

// WithTTY gives the command a terminal of that size: all output is on Stdout.
func WithTTY(size taisandbox.Size) ExecOption {
	return func(o *execOptions) { o.spec.TTY, o.spec.Size = true, size }
}

// WithStdin feeds the command from r until its end; nil means an empty input.
// Without this option Exec's input is empty, and Stream's is its Stdin. A read
// of r that blocks does not hold back the end of the command; what it returns
// after that is dropped.
func WithStdin(r io.Reader) ExecOption {
	return func(o *execOptions) { o.stdin, o.stdinSet = r, true }
}

// WithExecID names the exec; default a new ID.
func WithExecID(id string) ExecOption { return func(o *execOptions) { o.spec.ID = id } }

// WithKillGrace sets the time between TERM and KILL when the command runs out
// of time; default [taisandbox.DefaultKillGrace].
func WithKillGrace(d time.Duration) ExecOption {
	return func(o *execOptions) { o.spec.KillGrace = d }
}

// WithOnDisconnect says what becomes of a streamed command when its context
// ends, or this program does; default kill.
func WithOnDisconnect(v taisandbox.OnDisconnect) ExecOption {
	return func(o *execOptions) { o.spec.OnDisconnect = v }
}

// WithLease sets how long the command survives the loss of this program when
// it is to be killed then; default [taisandbox.DefaultLease].
func WithLease(d time.Duration) ExecOption { return func(o *execOptions) { o.spec.Lease = d } }

// WithMergedOutput gives the command one pipe for both outputs: all of it is on
// Stdout, in exactly the order in which it was written. Without it that order
// holds within each output only.
func WithMergedOutput() ExecOption { return func(o *execOptions) { o.spec.MergeOutput = true } }

// WithMaxOutput bounds the bytes that Exec collects over both outputs, the
// first half and the end of what there is; default
// [taisandbox.DefaultMaxOutput]. The command runs to its end all the same.
func WithMaxOutput(n int64) ExecOption { return func(o *execOptions) { o.spec.MaxOutput = n } }

// WithMaxLog bounds the bytes of output that the node keeps; default
// [taisandbox.DefaultMaxLog].
func WithMaxLog(n int64) ExecOption { return func(o *execOptions) { o.spec.MaxLog = n } }

// WithEntrypoint puts the box's entrypoint before the command; with an empty
// command the image's own follows it.
func WithEntrypoint() ExecOption { return func(o *execOptions) { o.spec.Entrypoint = true } }
