package rest

import "time"

// CreateWorkspace asks for a workspace. Absent fields mean the default in the
// comment.
type CreateWorkspace struct {
	ID     string            `json:"id,omitempty" doc:"A DNS label of at most 50 bytes; a new one if absent"`
	Name   string            `json:"name,omitempty" doc:"For people; the ID if absent"`
	Owner  string            `json:"owner,omitempty"`
	NodeID string            `json:"node_id,omitempty" doc:"TaiID of the node that keeps it; the local one if absent"`
	Labels map[string]string `json:"labels,omitempty"`

	QuotaBytes int64 `json:"quota_bytes,omitempty" doc:"What it may take on disk, snapshots included; 0 means no limit"`
	QuotaFiles int64 `json:"quota_files,omitempty" doc:"How many files, directories and links, snapshots included; 0 means no limit"`

	// IdempotencyKey travels as a header: a create that is repeated with the
	// same key and the same body is the same workspace.
	IdempotencyKey string `json:"-"`
}

// UpdateWorkspace changes a workspace: what is there, all of it or nothing.
type UpdateWorkspace struct {
	Name       *string            `json:"name,omitempty"`
	Labels     *map[string]string `json:"labels,omitempty" doc:"Replace all that there are"`
	QuotaBytes *int64             `json:"quota_bytes,omitempty" doc:"0 means no limit"`
	QuotaFiles *int64             `json:"quota_files,omitempty" doc:"0 means no limit"`
}

// Workspace is what there is to know of a workspace.
type Workspace struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Owner      string            `json:"owner"`
	NodeID     string            `json:"node_id"`
	Labels     map[string]string `json:"labels"`
	QuotaBytes int64             `json:"quota_bytes" doc:"0 means no limit"`
	QuotaFiles int64             `json:"quota_files" doc:"0 means no limit"`
	CreatedAt  time.Time         `json:"created_at"`
	UpdatedAt  time.Time         `json:"updated_at" doc:"When what is above was last changed"`
}

// WorkspaceList is one page of workspaces.
type WorkspaceList struct {
	Items     []Workspace `json:"items"`
	NextToken string      `json:"next_token,omitempty" doc:"Ask with it for the next page"`
}

// ListWorkspaces selects workspaces. Empty fields do not filter.
type ListWorkspaces struct {
	Owner  string
	Node   string
	Labels map[string]string
	// PageSize is how many are asked for at a time; default and most 1000.
	PageSize int
}

// Usage is what a workspace takes on disk, and the boxes that have it mounted.
type Usage struct {
	Bytes      int64    `json:"bytes" doc:"Blocks that are in use, not apparent sizes; snapshots included"`
	Files      int64    `json:"files" doc:"Files, directories and links; snapshots included"`
	QuotaBytes int64    `json:"quota_bytes" doc:"0 means no limit"`
	QuotaFiles int64    `json:"quota_files" doc:"0 means no limit"`
	Boxes      []string `json:"boxes" doc:"IDs of the boxes that have it mounted, running or not, as far as the caller may know of them"`
}

// MakeWorkspaceDir asks for a directory and its parents.
type MakeWorkspaceDir struct {
	Path    string `json:"path,omitempty"`
	PathB64 []byte `json:"path_b64,omitempty"`
	Mode    string `json:"mode,omitempty" doc:"Octal; default 0755"`
}

// MoveFile asks for another name, or a copy, of a file or directory of a
// workspace.
type MoveFile struct {
	Path    string `json:"path,omitempty"`
	PathB64 []byte `json:"path_b64,omitempty"`
	To      string `json:"to,omitempty"`
	ToB64   []byte `json:"to_b64,omitempty"`
}

// PackFiles asks for an archive of a file or tree, as a file of the workspace.
type PackFiles struct {
	MoveFile
	Format string `json:"format,omitempty" doc:"zip, tar, tgz or gzip; by the name of the archive if absent"`
}

// ExtractFiles asks for the contents of an archive that is a file of the
// workspace.
type ExtractFiles struct {
	MoveFile
	Format     string `json:"format,omitempty" doc:"zip, tar, tgz or gzip; by how the archive begins, and by its name, if absent"`
	MaxEntries int64  `json:"max_entries,omitempty" minimum:"0" doc:"Default 1,000,000"`
	MaxBytes   int64  `json:"max_bytes,omitempty" minimum:"0" doc:"Unpacked; default 64 GiB"`
	MaxRatio   int64  `json:"max_ratio,omitempty" minimum:"0" doc:"Unpacked bytes for each packed one, beyond the first 64 MiB; default 200"`
	MaxDepth   int    `json:"max_depth,omitempty" minimum:"0" doc:"Elements of a path; default 100"`
}

// The formats of archives.
const (
	FormatZip  = "zip"
	FormatTar  = "tar"
	FormatTgz  = "tgz"
	FormatGzip = "gzip"
)

// ArchiveResult says what was packed or unpacked.
type ArchiveResult struct {
	Format  string `json:"format"`
	Entries int64  `json:"entries"`
	Bytes   int64  `json:"bytes" doc:"Of the files' contents"`
}

// CreateSnapshot asks for a snapshot of a workspace.
type CreateSnapshot struct {
	Name string `json:"name,omitempty" doc:"A DNS label; one made of the time if absent"`
}

// Snapshot is a kept state of a workspace.
type Snapshot struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	Bytes     int64     `json:"bytes" doc:"Apparent size of what it holds"`
	Files     int64     `json:"files"`
}

// SnapshotList is one page of the snapshots of a workspace, oldest first.
type SnapshotList struct {
	Items     []Snapshot `json:"items"`
	NextToken string     `json:"next_token,omitempty" doc:"Ask with it for the next page"`
}

// Change is a path that differs between two states of a workspace.
type Change struct {
	Path    string `json:"path"`
	PathB64 []byte `json:"path_b64,omitempty" doc:"The path's bytes, if they are not UTF-8"`
	Kind    string `json:"kind" doc:"added, removed or modified"`
	Dir     bool   `json:"dir"`
}

// ChangeList is one page of what leads from one state of a workspace to
// another, by path.
type ChangeList struct {
	Items     []Change `json:"items"`
	NextToken string   `json:"next_token,omitempty" doc:"Ask with it for the next page"`
}

// SyncIndex says what of a tree counts in a sync.
type SyncIndex struct {
	Exclude   []string `json:"exclude,omitempty" doc:"Patterns as in .gitignore, relative to the tree"`
	GitIgnore bool     `json:"gitignore,omitempty" doc:"Leave out what the .gitignore files of the tree name, and .git"`
}
