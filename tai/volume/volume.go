package volume

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"iter"
	"time"
)

// Volume is where a node keeps workspaces.
type Volume interface {
	Workspaces
	Snapshots
	Files
	Archiver
	Syncer

	// Features says which optional abilities work here. Calls that need an
	// absent one return [ErrUnsupported].
	Features() Features
	// Close lets go of the volume: workspaces and their mounts stay. Repeated
	// calls do nothing.
	Close() error
}

// Workspaces makes and ends workspaces.
type Workspaces interface {
	// Create makes an empty workspace. A taken id is [ErrAlreadyExists]. A
	// quota that cannot be enforced here is [ErrUnsupported]: nothing is made.
	Create(ctx context.Context, id string, o Options) (Info, error)
	// Get returns a workspace, or [ErrNotFound].
	Get(ctx context.Context, id string) (Info, error)
	// List returns all workspaces, ordered by id.
	List(ctx context.Context) ([]Info, error)
	// Update changes what is set in u, all of it or nothing.
	Update(ctx context.Context, id string, u Update) (Info, error)
	// Delete deletes a workspace with its files and snapshots. Once it has
	// begun the workspace is gone for every other call, also after a crash.
	Delete(ctx context.Context, id string) error
	// Usage measures a workspace.
	Usage(ctx context.Context, id string) (Usage, error)
	// MountPath returns the directory of the node that has the files, to be
	// mounted in boxes. It is for drivers on the same node alone. Where a quota
	// is not enforced any more it is [ErrUnsupported].
	MountPath(ctx context.Context, id string) (string, error)
	// Pin returns the volume for whoever may use one workspace, which is told
	// from others that had or will have its id by [Info].CreatedAt. Calls that
	// name another id, and all once it is deleted, are [ErrNotFound], whoever
	// has the id by then. Closing it does nothing.
	Pin(ctx context.Context, id string, created time.Time) (Volume, error)
}

// Options are what a workspace is made with.
type Options struct {
	// Meta is what its manager knows of it: a JSON object that the volume
	// keeps and does not read. Default {}.
	Meta  json.RawMessage
	Quota Quota
}

// Update is a change of a workspace. What is nil stays.
type Update struct {
	Meta  json.RawMessage
	Quota *Quota
}

// Quota bounds what a workspace holds, its snapshots included. The file system
// enforces it: whoever writes too much is told that there is no space.
type Quota struct {
	Bytes int64 `json:"bytes,omitempty"` // 0 = no limit
	Files int64 `json:"files,omitempty"` // files, directories and links; 0 = no limit
}

// Info is what a volume knows of a workspace.
type Info struct {
	ID        string
	Meta      json.RawMessage
	Quota     Quota
	CreatedAt time.Time
}

// Usage is what a workspace takes on disk.
type Usage struct {
	Bytes int64 `json:"bytes"` // blocks that are in use, not apparent sizes
	Files int64 `json:"files"`
}

// Feature is an optional ability of a volume.
type Feature string

// The abilities a volume may have.
const (
	FeatureQuota   Feature = "workspace_quota"   // Quota is enforced
	FeatureReflink Feature = "workspace_reflink" // snapshots share blocks with the files
	FeatureMount   Feature = "workspace_mount"   // MountPath
)

// Features is the set of abilities of a volume.
type Features map[Feature]bool

// Has reports whether f is in the set.
func (s Features) Has(f Feature) bool { return s[f] }

// Snapshots keeps states of a workspace.
type Snapshots interface {
	// CreateSnapshot keeps the workspace as it is now. Files that change
	// meanwhile are kept as they were at some moment of the call. A taken name
	// is [ErrSnapshotExists].
	CreateSnapshot(ctx context.Context, id, name string) (Snapshot, error)
	// ListSnapshots returns them, oldest first.
	ListSnapshots(ctx context.Context, id string) ([]Snapshot, error)
	// RestoreSnapshot makes the workspace what it was. What is mounted sees it.
	// After a failure the workspace is a mixture, and a repeat finishes it.
	RestoreSnapshot(ctx context.Context, id, name string) error
	// RemoveSnapshot deletes one, or returns [ErrSnapshotNotFound].
	RemoveSnapshot(ctx context.Context, id, name string) error
	// Diff tells what leads from one state to the other, ordered by path. An
	// empty name is the workspace as it is.
	Diff(ctx context.Context, id, from, to string) ([]Change, error)
}

// Snapshot is a kept state of a workspace.
type Snapshot struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	Bytes     int64     `json:"bytes"` // apparent size of what it holds
	Files     int64     `json:"files"`
}

// ChangeKind says how a path differs between two states.
type ChangeKind string

// The kinds of changes.
const (
	Added    ChangeKind = "added"
	Removed  ChangeKind = "removed"
	Modified ChangeKind = "modified" // content, kind, mode or link
)

// Change is a path that differs between two states.
type Change struct {
	Path string
	Kind ChangeKind
	Dir  bool
}

// Files is the files of a workspace. A path is slash-separated and relative to
// the root of the workspace; "" and "." are the root itself. A path that is
// absolute, has ".." in it, or would leave the workspace by a link is
// [ErrPath] or [ErrFileDenied], whatever the box does with links meanwhile.
// Symbolic links that stay inside are followed, but for the last element where
// a method says so. Other kinds than files, directories and links are listed,
// moved and removed, and never opened ([ErrFileKind]).
type Files interface {
	// ReadFile returns a whole file of at most [MaxReadFile] bytes; a larger
	// one is [ErrTooLarge]: use Open.
	ReadFile(ctx context.Context, id, path string) ([]byte, error)
	// Open opens a regular file to be read. The reader ends where the file
	// ended when it was opened, or with an error. The caller closes it.
	Open(ctx context.Context, id, path string, o OpenOptions) (io.ReadCloser, FileInfo, error)
	// WriteFile writes all of r to a file: whole and on the disk when it
	// returns, or not at all. A file that is there keeps its mode unless
	// o.Mode is set; one that others read meanwhile stays as it was for them.
	// A symbolic link is written through if it stays inside.
	WriteFile(ctx context.Context, id, path string, r io.Reader, o WriteOptions) (FileInfo, error)
	// Stat describes a file; of a symbolic link the link itself.
	Stat(ctx context.Context, id, path string) (FileInfo, error)
	// ListDir describes what is in a directory, ordered by name.
	ListDir(ctx context.Context, id, path string) ([]FileInfo, error)
	// Walk describes path and all that is below it, parents first, by name
	// within a directory. It follows no link. What vanishes meanwhile is left out.
	Walk(ctx context.Context, id, path string) iter.Seq2[FileInfo, error]
	// Remove removes a file, a link or an empty directory. The root itself
	// cannot be removed.
	Remove(ctx context.Context, id, path string, o RemoveOptions) error
	// Rename moves a file, link or directory, over a file that is there.
	Rename(ctx context.Context, id, from, to string) error
	// MkdirAll makes a directory and its parents; mode 0 means 0755. One that
	// is there stays as it is.
	MkdirAll(ctx context.Context, id, path string, mode fs.FileMode) error
	// Copy copies a file or tree to a path that is not there yet
	// ([ErrFileExists]), sharing blocks where the file system can. Holes stay
	// holes; links are copied as links.
	Copy(ctx context.Context, id, from, to string) error
	// Watch tells what changes at path and below, by the API and by boxes,
	// until ctx ends; then the channel is closed. A reader that falls behind
	// misses events, and is told by one [FileGap].
	Watch(ctx context.Context, id, path string) (<-chan FileEvent, error)
	// CopyTo unpacks a tar stream into a directory, which is made if missing.
	// It is checked as [Archiver] says.
	CopyTo(ctx context.Context, id, dir string, archive io.Reader, o ArchiveOptions) error
	// CopyFrom packs a file or tree as a tar stream. Its names begin with the
	// last element of path, or "." for the root. The caller closes the reader.
	CopyFrom(ctx context.Context, id, path string) (io.ReadCloser, error)
}

// MaxReadFile is the most bytes that [Files.ReadFile] returns.
const MaxReadFile = 64 << 20

// FileInfo describes a file of a workspace. Names are bytes.
type FileInfo struct {
	Name    string // the last element of Path
	Path    string // relative to the workspace's root; "." is the root
	Size    int64
	Mode    fs.FileMode
	ModTime time.Time
	Link    string // where a symbolic link leads
	// Version changes whenever the file is replaced or its content changes. It
	// is for comparing alone, as an ETag.
	Version string
}

// OpenOptions say what of a file to read.
type OpenOptions struct {
	Offset int64 // where to begin; behind the end there is nothing to read
	Limit  int64 // bytes at most; 0 = to the end
}

// WriteOptions say how to write a file. Zero fields mean the default in the
// comment.
type WriteOptions struct {
	Mode    fs.FileMode // permissions; default those of the file that is there, else 0644
	Parents bool        // make missing parents
	// IfVersion writes only over the file that has this [FileInfo.Version],
	// else [ErrVersion]. Default any.
	IfVersion string
	// IfAbsent writes only where there is no file yet, else [ErrFileExists].
	IfAbsent bool
	// Numbered writes under the first of a, a (1), a (2)… that is free, as
	// [NumberedName] says. A symbolic link takes its name, wherever it leads.
	Numbered bool
}

// RemoveOptions say how to remove a file. Zero fields mean the default in the
// comment.
type RemoveOptions struct {
	// All removes all that is in a directory too; one that is not there is no
	// error then.
	All bool
	// IfVersion removes only the file that has this [FileInfo.Version], else
	// [ErrVersion]. Default any.
	IfVersion string
}

// FileEventKind says what happened to a file.
type FileEventKind string

// What can happen to a file.
const (
	FileCreated  FileEventKind = "created"
	FileModified FileEventKind = "modified" // content or mode
	FileRemoved  FileEventKind = "removed"  // deleted or moved away
	FileGap      FileEventKind = "gap"      // events were missed: look again
)

// FileEvent is a change of a file.
type FileEvent struct {
	Kind FileEventKind
	Path string // relative to the workspace's root
	Dir  bool
}
