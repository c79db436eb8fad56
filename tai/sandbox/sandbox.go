package sandbox

import (
	"context"
	"net"
	"time"
)

// Sandbox runs boxes on one node. Drivers implement it.
type Sandbox interface {
	Lifecycle
	Execs
	Inspector

	// Features says which optional abilities work here. Calls that need an
	// absent one return [ErrUnsupported].
	Features() Features
	// Close lets go of the node: boxes go on. Repeated calls do nothing.
	Close() error
}

// Lifecycle makes and ends boxes.
type Lifecycle interface {
	// Create prepares a box and does not start it. The spec is checked before
	// anything is touched ([ErrInvalidSpec]). A second Create with the same ID
	// returns [ErrAlreadyExists] and changes nothing. A Create that fails
	// leaves nothing behind, whatever moment the machine chose to fail at.
	Create(ctx context.Context, spec Spec) (Info, error)
	// Start starts a created or stopped box. It returns when the box can exec.
	// Starting a running box does nothing. If the box has an entrypoint, it is
	// running as the exec [EntrypointExec] by then.
	Start(ctx context.Context, id string) error
	// Stop asks every command of the box to end (TERM), kills after grace what
	// is left, and ends the box. Stopping a stopped box does nothing. Files stay.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove ends the box whatever its state, and deletes it with all that it
	// left on the node. When it returns nil the ID is free again. Removes of
	// one box at the same time join; an absent one is [ErrNotFound].
	Remove(ctx context.Context, id string) error
}

// Execs runs commands in boxes.
type Execs interface {
	// Exec runs a command to its end and collects its output, up to
	// spec.MaxOutput. The command ending with any code, or not being found, is
	// no error: see [ExecInfo]. When ctx ends first the command is killed, with
	// its whole tree, and the context's cause is returned.
	Exec(ctx context.Context, id string, spec ExecSpec) (ExecResult, error)
	// ExecStream starts a command and returns the attached stream. ctx bounds
	// the start only. A command that cannot be started is still an exec: it
	// ended with code 126 or 127 and a message on its stderr.
	ExecStream(ctx context.Context, id string, spec ExecSpec) (Stream, error)
	// AttachExec opens another reader of an exec, also of one that has ended.
	AttachExec(ctx context.Context, id, execID string, opts AttachOptions) (Stream, error)
	// ListExecs returns the execs of a box that are kept, oldest first.
	ListExecs(ctx context.Context, id string) ([]ExecInfo, error)
	// InspectExec returns the record of one exec, or [ErrExecNotFound].
	InspectExec(ctx context.Context, id, execID string) (ExecInfo, error)
	// WaitExec blocks until the exec's record is final, and returns it.
	WaitExec(ctx context.Context, id, execID string) (ExecInfo, error)
	// KillExec sends a signal to an exec. [ErrExecEnded] if nothing of it runs.
	KillExec(ctx context.Context, id, execID string, opts KillOptions) error
}

// Inspector looks at boxes and into them.
type Inspector interface {
	Inspect(ctx context.Context, id string) (Info, error)
	// List returns the boxes that match, ordered by creation time.
	List(ctx context.Context, f Filter) ([]Info, error)
	// Events delivers what happens from now on until ctx ends; then the
	// channel is closed. A reader that falls behind by more than the
	// channel's bound misses events, and is told by one [EventGap].
	Events(ctx context.Context) (<-chan Event, error)
	// Stats measures a running box.
	Stats(ctx context.Context, id string) (Stats, error)
	// Ports lists what listens inside a running box.
	Ports(ctx context.Context, id string) ([]Port, error)
	// Dial connects to a TCP port of the box as from its own loopback.
	// [ErrPortRefused] if nothing listens there. The caller closes it.
	Dial(ctx context.Context, id string, port int) (net.Conn, error)
}

// ReasonStopper is implemented by nodes that keep why a box was stopped, in
// [Info.Reason].
type ReasonStopper interface {
	// StopFor is Stop for a reason of the caller's: one word. A box that is
	// stopping or stopped already keeps its own.
	StopFor(ctx context.Context, id string, grace time.Duration, reason string) error
}

// Unwrapper is implemented by decorators, so that [As] can see through them.
type Unwrapper interface{ Unwrap() Sandbox }

// As finds an optional interface in s or in what s wraps.
func As[T any](s Sandbox) (T, bool) {
	for s != nil {
		if t, ok := s.(T); ok {
			return t, true
		}
		u, ok := s.(Unwrapper)
		if !ok {
			break
		}
		s = u.Unwrap()
	}
	var zero T
	return zero, false
}

// Feature is an optional ability of a node.
type Feature string

// The abilities a node may have.
const (
	FeatureTTY          Feature = "tty"           // terminals
	FeatureStats        Feature = "stats"         // Stats reports cgroup figures
	FeaturePorts        Feature = "ports"         // Ports and Dial
	FeatureMemoryLimit  Feature = "memory_limit"  // Spec.MemoryBytes is enforced, OOM is seen
	FeatureCPULimit     Feature = "cpu_limit"     // Spec.CPUs is enforced
	FeaturePidsLimit    Feature = "pids_limit"    // Spec.Pids is enforced
	FeatureNetworkNone  Feature = "network_none"  // boxes without a network
	FeatureNetwork      Feature = "network"       // boxes that reach the internet and nothing else
	FeatureUserNS       Feature = "user_ns"       // root inside is nobody outside
	FeatureExecCgroup   Feature = "exec_cgroup"   // an exec's whole tree is known and can be killed at once
	FeatureSurvives     Feature = "survives"      // boxes and execs go on while the node's process is down
	FeatureImageImport  Feature = "image_import"  // Image.Load
	FeatureImagePull    Feature = "image_pull"    // Image.Pull
	FeatureImageExport  Feature = "image_export"  // Image.Save and Commit
	FeatureReadOnlyRoot Feature = "readonly_root" // Spec.ReadOnly
	FeatureFiles        Feature = "files"         // Files
	FeatureFileWatch    Feature = "file_watch"    // FileWatcher
	FeatureProcesses    Feature = "processes"     // ProcessLister
	FeatureMounts       Feature = "mounts"        // Spec.Mounts
)

// Features is the set of abilities of a node.
type Features map[Feature]bool

// Has reports whether f is in the set.
func (s Features) Has(f Feature) bool { return s[f] }
