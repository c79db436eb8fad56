package sandbox

import (
	"context"
	"time"
)

// ProcessLister is implemented by nodes with [FeatureProcesses].
type ProcessLister interface {
	// Processes lists the processes of a running box, by PID.
	Processes(ctx context.Context, id string) ([]ProcessInfo, error)
}

// ProcessCounter is implemented by nodes that can count the processes of all
// boxes in little time.
type ProcessCounter interface {
	// ProcessCounts returns how many processes and threads run in each running
	// box, as Stats.Pids counts them, by its ID.
	ProcessCounts(ctx context.Context) (map[string]int, error)
}

// ProcessInfo is one process of a box. What it is called is the box's own
// text.
type ProcessInfo struct {
	PID       int // inside the box
	PPID      int // inside the box; 0 if its parent is outside
	UID       int // inside the box
	State     string
	CPU       time.Duration // used so far
	RSSBytes  int64
	StartedAt time.Time
	Command   string // with its arguments; its name in brackets if it has none
}

// Holder is implemented by nodes that can count what they hold on the machine.
type Holder interface {
	Holdings(ctx context.Context) (Holdings, error)
}

// Holdings is what a node holds on its machine for boxes, and ahead of them.
type Holdings struct {
	Cgroups    int
	Mounts     int
	Namespaces int
}
