package sandbox

import (
	"slices"
	"time"
)

// Isolation is how a box is walled off from the machine.
type Isolation string

// IsolationContainer is Linux namespaces, a user namespace of its own,
// seccomp and cgroups. The empty value means it.
const IsolationContainer Isolation = "container"

// Network is what a box may reach.
type Network string

// The networks of a box.
const (
	// NetworkNone leaves the box its loopback.
	NetworkNone Network = "none"
	// NetworkInternet lets the box out to public addresses: not to the
	// machine, other boxes, private ranges or the metadata address. The empty
	// value means it.
	NetworkInternet Network = "internet"
)

// Spec says what a box is to be. Zero fields mean the default in the comment.
type Spec struct {
	ID        string            // required; see [ValidateID]
	Image     string            // required; a reference or the built-in "hostfs"
	Labels    map[string]string // kept with the box, for [Filter]
	Isolation Isolation         // default container

	User       string            // user[:group], names or numbers; default the image's, else root
	WorkDir    string            // absolute; default the image's, else /workspace; made if missing
	Env        map[string]string // added to the image's
	Hostname   string            // default the ID
	ExtraHosts []string          // lines for /etc/hosts, "name:address"

	// Entrypoint replaces the image's; a pointer to an empty slice means none.
	Entrypoint *[]string
	// NoStart keeps Start from running the entrypoint by itself: the caller
	// will run it with ExecSpec.Entrypoint.
	NoStart bool

	// MaxLifetime is how long after its create a box ends at its node while
	// nobody is there who would remove it; 0 = never. Whether it is removed
	// before is the manager's business.
	MaxLifetime time.Duration

	Network     Network  // default internet
	MemoryBytes int64    // 0 = no limit
	CPUs        float64  // in cores; 0 = no limit
	Pids        int64    // user processes and threads; 0 = no limit
	OpenFiles   uint64   // descriptors a process; 0 = the node's default
	ReadOnly    bool     // root file system read-only; /tmp and /run stay writable
	Tmpfs       []string // directories to mount a tmpfs on, "path[:size=bytes]"
	Devices     []string // devices by CDI name, "vendor.com/class=name"

	// Mounts are directories of the node's machine to mount in the box.
	Mounts []Mount
}

// State is where a box is in its life.
type State string

// The states of a box.
const (
	StateCreating State = "creating"
	StateCreated  State = "created" // made, never started
	StateRunning  State = "running"
	StateStopping State = "stopping"
	StateStopped  State = "stopped"
	StateRemoving State = "removing"
	StateFailed   State = "failed" // see Info.Reason and Info.Error
)

// Info is what a node knows of a box.
type Info struct {
	ID          string
	ContainerID string // the driver's own name for it
	Image       string // as given
	ImageDigest string // of the manifest that was used; empty for hostfs
	Labels      map[string]string
	Isolation   Isolation
	Network     Network
	User        string // the default user of execs
	WorkDir     string // the default directory of execs
	// Entrypoint and Cmd are what ExecSpec.Entrypoint runs: the image's, or the spec's.
	Entrypoint, Cmd []string

	State     State
	Reason    string // why the box is in this state: "user", "oom", "bridge-lost", "machine-restarted", …
	Error     string // for StateFailed: what went wrong, for people
	CreatedAt time.Time
	StartedAt time.Time // zero if never
	StoppedAt time.Time // zero if running or never

	IP           string // address in the box's network; empty with none
	OOMKills     int64  // processes of the box that the kernel killed for memory
	RunningExecs int    // execs whose leader runs
	// LastExecAt is when an exec last began or ended, for the idle clock.
	LastExecAt time.Time

	// Effective limits.
	MemoryBytes int64
	CPUs        float64
	Pids        int64
	OpenFiles   uint64
	ReadOnly    bool
	Devices     []string
	Mounts      []Mount
	// Phases is where the time of the create went, in order.
	Phases []Phase
}

// Phase is one step of a create or start, with its duration.
type Phase struct {
	Name     string
	Duration time.Duration
}

// Filter selects boxes. Empty fields do not filter.
type Filter struct {
	Labels map[string]string // all must match
	States []State           // any
}

// Match reports whether info passes the filter.
func (f Filter) Match(info *Info) bool {
	for k, v := range f.Labels {
		if got, ok := info.Labels[k]; !ok || got != v {
			return false
		}
	}
	return len(f.States) == 0 || slices.Contains(f.States, info.State)
}

// EventType says what happened.
type EventType string

// The events of a node.
const (
	EventState   EventType = "state"   // a box changed state: Event.State, Event.Reason
	EventRemoved EventType = "removed" // a box is gone
	EventExec    EventType = "exec"    // an exec started or ended: Event.Exec
	EventOOM     EventType = "oom"     // the kernel killed a process of the box for memory
	EventGap     EventType = "gap"     // events were missed: list again
)

// Event is something that happened to a box.
type Event struct {
	Time   time.Time
	Type   EventType
	Box    string
	Labels map[string]string
	State  State
	Reason string
	Exec   *ExecInfo
}

// Stats is a measurement of a running box.
type Stats struct {
	Time            time.Time
	CPU             time.Duration // used since the box started
	MemoryBytes     int64         // charged to the box, without reclaimable page cache
	MemoryPeakBytes int64         // 0 where the kernel does not say
	MemoryLimit     int64         // bytes; 0 = none
	Pids            int64         // processes and threads, ours included
	ReadBytes       int64         // from block devices
	WriteBytes      int64
	NetRxBytes      int64 // received by the box
	NetTxBytes      int64
	OverheadBytes   int64 // resident memory of what Taibox itself runs for this box
}

// Port is something that listens in a box.
type Port struct {
	Network string // "tcp", "tcp6", "udp", "udp6"
	Address string // as bound, e.g. "0.0.0.0" or "127.0.0.1"
	Port    int
	PID     int    // inside the box; 0 if not known
	Process string // its command name; empty if not known
}
