package rest

import "time"

// CreateBox asks for a box. Absent fields mean the default in the comment.
type CreateBox struct {
	ID     string            `json:"id,omitempty" doc:"A DNS label of at most 50 bytes; a new one if absent"`
	Owner  string            `json:"owner,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	NodeID string            `json:"node_id,omitempty" doc:"TaiID of the node; the local one if absent"`
	Policy string            `json:"policy,omitempty" doc:"session (default), oneshot, longrunning or persistent"`

	Image      string            `json:"image,omitempty" doc:"A reference or hostfs; the server's default if absent"`
	User       string            `json:"user,omitempty"`
	WorkDir    string            `json:"work_dir,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Entrypoint *[]string         `json:"entrypoint,omitempty" doc:"Replaces the image's; an empty list means none"`
	// EntrypointB64 is in place of Entrypoint.
	EntrypointB64 [][]byte `json:"entrypoint_b64,omitempty" doc:"In place of entrypoint, for words that are not UTF-8"`
	NoStart       bool     `json:"no_start,omitempty" doc:"Leave the entrypoint to an exec that asks for it"`
	Hostname      string   `json:"hostname,omitempty"`
	ExtraHosts    []string `json:"extra_hosts,omitempty" doc:"name:address"`

	Isolation   string   `json:"isolation,omitempty"`
	Network     string   `json:"network,omitempty" doc:"internet (default) or none"`
	MemoryBytes *int64   `json:"memory_bytes,omitempty" doc:"0 means no limit; the server's default if absent"`
	CPUs        *float64 `json:"cpus,omitempty" doc:"0 means no limit; the server's default if absent"`
	Pids        *int64   `json:"pids,omitempty" doc:"0 means no limit; the server's default if absent"`
	OpenFiles   uint64   `json:"open_files,omitempty"`
	ReadOnly    bool     `json:"read_only,omitempty"`
	Tmpfs       []string `json:"tmpfs,omitempty" doc:"path[:size=bytes]"`
	Devices     []string `json:"devices,omitempty" doc:"CDI names"`

	WorkspaceID string  `json:"workspace_id,omitempty" doc:"The workspace that the box works in; it decides the node"`
	MountMode   string  `json:"mount_mode,omitempty" doc:"rw (default) or ro"`
	MountPath   string  `json:"mount_path,omitempty" doc:"Where the workspace is in the box; default /workspace"`
	Mounts      []Mount `json:"mounts,omitempty" doc:"Further workspaces of the same node, and, for admins, directories of its machine"`

	IdleTimeoutMs *int64 `json:"idle_timeout_ms,omitempty" doc:"How long a session or longrunning box may be idle; 0 means for ever; the server's default for a session box if absent"`
	KeepAlive     bool   `json:"keep_alive,omitempty" doc:"The box is not idle either while its entrypoint runs, or what an ended exec left behind"`
	MaxLifetimeMs int64  `json:"max_lifetime_ms,omitempty" doc:"How long after its creation a box is removed, unless it is persistent; 0 means never"`
	StopTimeoutMs int64  `json:"stop_timeout_ms,omitempty" doc:"Grace between TERM and KILL on stop, at most an hour; default 2000"`

	// IdempotencyKey travels as a header: a create that is repeated with the
	// same key and the same body is the same box.
	IdempotencyKey string `json:"-"`
}

// Mount is a directory from outside in a box: a workspace, or a directory of
// the node's machine.
type Mount struct {
	WorkspaceID string `json:"workspace_id,omitempty"`
	Source      string `json:"source,omitempty" doc:"A directory of the machine, if it is no workspace"`
	Target      string `json:"target" doc:"An absolute path in the box; made if missing"`
	ReadOnly    bool   `json:"read_only,omitempty"`
}

// Box is what there is to know of a box.
type Box struct {
	ID          string            `json:"id"`
	ContainerID string            `json:"container_id"`
	NodeID      string            `json:"node_id"`
	Owner       string            `json:"owner"`
	Status      string            `json:"status"`
	Policy      string            `json:"policy"`
	Image       string            `json:"image"`
	ImageDigest string            `json:"image_digest,omitempty"`
	Isolation   string            `json:"isolation"`
	Labels      map[string]string `json:"labels"`
	CreatedAt   time.Time         `json:"created_at"`
	LastActive  time.Time         `json:"last_active"`
	StartedAt   time.Time         `json:"started_at,omitzero"`
	StoppedAt   time.Time         `json:"stopped_at,omitzero"`

	StopReason string `json:"stop_reason,omitempty" doc:"Why the box is in its state: user, oom, machine-restarted, …"`
	Error      string `json:"error,omitempty" doc:"What went wrong, for status failed"`
	OOMKills   int64  `json:"oom_kills"`

	Network       string   `json:"network"`
	IP            string   `json:"ip,omitempty"`
	Entrypoint    []string `json:"entrypoint"`
	Cmd           []string `json:"cmd"`
	EntrypointB64 [][]byte `json:"entrypoint_b64,omitempty" doc:"The bytes of entrypoint, if they are not all UTF-8"`
	CmdB64        [][]byte `json:"cmd_b64,omitempty" doc:"The bytes of cmd, if they are not all UTF-8"`
	WorkDir       string   `json:"work_dir"`
	User          string   `json:"user"`
	ProcessCount  int      `json:"process_count"`
	RunningExecs  int      `json:"running_execs"`

	MemoryBytes int64    `json:"memory_bytes" doc:"0 means no limit"`
	CPUs        float64  `json:"cpus" doc:"0 means no limit"`
	Pids        int64    `json:"pids" doc:"0 means no limit"`
	OpenFiles   uint64   `json:"open_files"`
	ReadOnly    bool     `json:"read_only"`
	Devices     []string `json:"devices"`

	WorkspaceID string  `json:"workspace_id,omitempty"`
	Mounts      []Mount `json:"mounts" doc:"All, that of workspace_id too"`

	IdleTimeoutMs int64    `json:"idle_timeout_ms" doc:"0 means none"`
	KeepAlive     bool     `json:"keep_alive"`
	MaxLifetimeMs int64    `json:"max_lifetime_ms" doc:"0 means none"`
	StopTimeoutMs int64    `json:"stop_timeout_ms"`
	Busy          []string `json:"busy" doc:"What keeps the box from being idle: exec ID, stream of exec ID, heartbeat, lease, or a call under way; with keep_alive left by exec ID, too"`

	Phases []Phase `json:"phases" doc:"Where the time of the create went"`
}

// Phase is one step of a create or start.
type Phase struct {
	Name       string  `json:"name"`
	DurationMs float64 `json:"duration_ms"`
}

// BoxList is one page of boxes.
type BoxList struct {
	Items     []Box  `json:"items"`
	NextToken string `json:"next_token,omitempty" doc:"Ask with it for the next page"`
}

// ListBoxes selects boxes. Empty fields do not filter.
type ListBoxes struct {
	Owner  string
	Node   string
	Labels map[string]string
	Status string
	// PageSize is how many boxes are asked for at a time; default and most 1000.
	PageSize int
}

// StartBox is the body that a start may have.
type StartBox struct{}

// StopBox says how to stop a box.
type StopBox struct {
	GraceMs *int64 `json:"grace_ms,omitempty" doc:"Grace between TERM and KILL; the box's own if absent"`
}

// Port is something that listens in a box.
type Port struct {
	Network    string `json:"network" doc:"tcp, tcp6, udp or udp6"`
	Address    string `json:"address"`
	Port       int    `json:"port"`
	PID        int    `json:"pid,omitempty" doc:"Inside the box"`
	Process    string `json:"process,omitempty"`
	ProcessB64 []byte `json:"process_b64,omitempty" doc:"Its bytes, if they are not UTF-8"`
}

// PortList is all that listens in a box.
type PortList struct {
	Items []Port `json:"items"`
}

// Stats is a measurement of a running box.
type Stats struct {
	Time             time.Time `json:"time"`
	CPUMs            float64   `json:"cpu_ms" doc:"Processor time used since the box started"`
	MemoryBytes      int64     `json:"memory_bytes"`
	MemoryPeakBytes  int64     `json:"memory_peak_bytes"`
	MemoryLimitBytes int64     `json:"memory_limit_bytes" doc:"0 means no limit"`
	Pids             int64     `json:"pids"`
	ReadBytes        int64     `json:"read_bytes"`
	WriteBytes       int64     `json:"write_bytes"`
	NetRxBytes       int64     `json:"net_rx_bytes"`
	NetTxBytes       int64     `json:"net_tx_bytes"`
	OverheadBytes    int64     `json:"overhead_bytes" doc:"Memory of what the node itself runs for the box"`
}
