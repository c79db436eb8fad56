package wire

import (
	"encoding/json"
	"errors"
	"syscall"
	"time"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

// Op names what a request asks for.
type Op string

// The operations. All but the streams and lists are answered by one TypeReply.
const (
	OpSetup   Op = "setup"   // Setup → Hello
	OpExec    Op = "exec"    // Exec → ExecInfo, then a stream
	OpMerged  Op = "merged"  // as OpExec, with one pipe for both outputs
	OpAttach  Op = "attach"  // Attach → ExecInfo, then a stream
	OpExecs   Op = "execs"   // → ExecInfo of each, then a TypeEnd
	OpSettle  Op = "settle"  // → {}, once each exec asked for before is listed or refused
	OpList    Op = "list"    // → []ExecInfo; what older nodes ask for, and older bridges know
	OpInspect Op = "inspect" // ID → ExecInfo
	OpWait    Op = "wait"    // ID → ExecInfo, once it is final
	OpKill    Op = "kill"    // Kill → {}
	OpForget  Op = "forget"  // ID → {}
	OpWatch   Op = "watch"   // → ExecInfo, again and again
	OpStop    Op = "stop"    // Stop → {}, when nothing runs any more
	OpPorts   Op = "ports"   // → []Port
	OpStats   Op = "stats"   // → Stats
	OpDial    Op = "dial"    // Dial → {} and the connected socket
	OpFile    Op = "file"    // File → as FileKind says
)

// Request is the first frame of a connection.
type Request struct {
	Version int             `json:"v"`
	Op      Op              `json:"op"`
	Body    json.RawMessage `json:"body,omitempty"`
}

// The names of descriptors, in the order in which they were sent.
const (
	FileCgroup       = "cgroup"
	FileCgroupKill   = "cgroup.kill"
	FileCgroupEvents = "cgroup.events"
	FileLog          = "log"
	FileOOM          = "oom"
	FileEnd          = "end"
)

// Setup tells a bridge which box it is in. It may come again.
type Setup struct {
	Box   string   `json:"box"`
	Files []string `json:"files,omitempty"`
	// OrphanAfter and Lifetime end the box while no node is connected: so long
	// after the last one left, and so long after the first Setup that has it.
	OrphanAfter time.Duration `json:"orphan_after,omitempty"`
	Lifetime    time.Duration `json:"lifetime,omitempty"`
}

// Hello says who answers.
type Hello struct {
	Protocol int       `json:"protocol"`
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
}

// Exec asks for a command. Arguments, environment and directory are bytes, not
// text, and so they travel.
type Exec struct {
	ID           string               `json:"id"`
	Args         [][]byte             `json:"args"`
	Env          [][]byte             `json:"env,omitempty"` // K=V
	Dir          []byte               `json:"dir,omitempty"`
	User         string               `json:"user,omitempty"`
	Stdin        bool                 `json:"stdin,omitempty"`
	TTY          bool                 `json:"tty,omitempty"`
	Size         sandbox.Size         `json:"size,omitzero"`
	Timeout      time.Duration        `json:"timeout,omitempty"`
	KillGrace    time.Duration        `json:"kill_grace,omitempty"`
	OnDisconnect sandbox.OnDisconnect `json:"on_disconnect,omitempty"`
	Lease        time.Duration        `json:"lease,omitempty"`
	MaxLog       int64                `json:"max_log,omitempty"`
	Files        []string             `json:"files,omitempty"`

	Merged bool `json:"-"` // said by OpMerged
}

// Attach asks for another reader.
type Attach struct {
	ID       string `json:"id"`
	Since    int64  `json:"since,omitempty"`
	Hold     bool   `json:"hold,omitempty"`
	Takeover bool   `json:"takeover,omitempty"`
	NoFollow bool   `json:"no_follow,omitempty"`
}

// ID names an exec.
type ID struct {
	ID string `json:"id"`
}

// Kill asks for a signal.
type Kill struct {
	ID     string `json:"id"`
	Signal int    `json:"signal,omitempty"`
	Tree   bool   `json:"tree,omitempty"`
	Group  bool   `json:"group,omitempty"`
}

// Stop asks for the end of the box.
type Stop struct {
	Grace time.Duration `json:"grace"`
}

// Dial asks for a connection to a port on the box's loopback.
type Dial struct {
	Port int `json:"port"`
}

// Port is something that listens in the box.
type Port struct {
	Network string `json:"network"`
	Address string `json:"address"`
	Port    int    `json:"port"`
	PID     int    `json:"pid,omitempty"`
	Process string `json:"process,omitempty"`
}

// Stats is what a bridge knows of itself and the box.
type Stats struct {
	RSSBytes  int64 `json:"rss_bytes"`
	Processes int   `json:"processes"`
	Execs     int   `json:"execs"` // whose leader runs
}

// FileKind is what to do with a file.
type FileKind string

// The kinds. Each is answered by one TypeReply with a FileInfo, and:
const (
	FileRead    FileKind = "read"    // then TypeOutput frames and a TypeEnd
	FileWrite   FileKind = "write"   // with nothing in it; then TypeStdin frames and a TypeEOF come, and a second reply goes
	FileReplace FileKind = "replace" // as FileWrite, if the file is as IfAbsent or IfVersion says
	FileWatch   FileKind = "watch"   // a directory and below; then TypeReply frames with lists of FileChange until the link ends
	FileStat    FileKind = "stat"    // of a link itself, or with Follow of what it leads to
	FileList    FileKind = "list"    // then replies with lists of FileInfo, and a TypeEnd
	FileMkdir   FileKind = "mkdir"   // All: parents too; one that is there is fine then
	FileRemove  FileKind = "remove"  // All: with all that is in it; one that is not there is fine then
	FileRename  FileKind = "rename"
	FilePack    FileKind = "pack"   // then TypeOutput frames with a tar stream and a TypeEnd
	FileUnpack  FileKind = "unpack" // with nothing in it; then a tar stream comes as with FileWrite, and a second reply goes
)

// File asks for something to be done with a file, as a user of the box.
type File struct {
	Kind   FileKind `json:"kind"`
	User   string   `json:"user,omitempty"`
	Path   []byte   `json:"path"`
	To     []byte   `json:"to,omitempty"`
	Mode   uint32   `json:"mode,omitempty"` // permission bits
	Offset int64    `json:"offset,omitempty"`
	Limit  int64    `json:"limit,omitempty"` // bytes; 0 = none
	All    bool     `json:"all,omitempty"`
	Follow bool     `json:"follow,omitempty"` // stat and pack what a link leads to
	Owners bool     `json:"owners,omitempty"` // unpack with the owners of the archive

	IfAbsent  bool   `json:"if_absent,omitempty"`
	IfVersion string `json:"if_version,omitempty"`
}

// FileChange is a change of a file below a directory that is watched.
type FileChange struct {
	Kind string `json:"kind"`           // created, modified, removed or gap
	Path []byte `json:"path,omitempty"` // relative to the directory
	Dir  bool   `json:"dir,omitempty"`
}

// FileInfo describes a file. Names are bytes.
type FileInfo struct {
	Name    []byte    `json:"name,omitempty"`
	Size    int64     `json:"size,omitempty"`
	Mode    uint32    `json:"mode,omitempty"` // as st_mode
	UID     uint32    `json:"uid,omitempty"`
	GID     uint32    `json:"gid,omitempty"`
	ModTime time.Time `json:"mod_time,omitzero"`
	Link    []byte    `json:"link,omitempty"`    // where a symbolic link leads
	Version string    `json:"version,omitempty"` // of a regular file
}

// Error is the payload of a TypeError frame.
type Error struct {
	Reason  string        `json:"reason,omitempty"`
	Errno   syscall.Errno `json:"errno,omitempty"`
	Message string        `json:"message"`
}

// NewError prepares err for the wire. What it quotes may be as long as what was
// asked for.
func NewError(err error) Error {
	e := Error{Reason: reason.Of(err), Message: sandbox.ClipText(err.Error())}
	errors.As(err, &e.Errno)
	return e
}
