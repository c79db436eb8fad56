package volume

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"time"
)

// Syncer makes one tree what another is.
type Syncer interface {
	// SyncEnd returns a directory of a workspace as a side of a sync. It need
	// not be there yet.
	SyncEnd(ctx context.Context, id, path string) (SyncEnd, error)
	// SyncPush makes path of the workspace what from is.
	SyncPush(ctx context.Context, id, path string, from SyncEnd, o SyncOptions) (SyncResult, error)
	// SyncPull makes to what path of the workspace is.
	SyncPull(ctx context.Context, id, path string, to SyncEnd, o SyncOptions) (SyncResult, error)
}

// SyncEnd is one side of a sync: a tree that can say what it has, hand it out
// and take in what another has. A side may be on another machine, and is
// hostile to the other.
type SyncEnd interface {
	// Index lists the tree without its root, parents first, by name within a
	// directory. A tree that is not there is empty.
	Index(ctx context.Context, o IndexOptions) iter.Seq2[SyncEntry, error]
	// Hashes returns the hash of each named file, in order; it is empty for
	// one that is no regular file any more.
	Hashes(ctx context.Context, names []string) ([]string, error)
	// Fetch writes the named entries as a stream for Apply.
	Fetch(ctx context.Context, names []string, w io.Writer) error
	// Apply removes the named entries, then makes those of the stream, each
	// file whole or not at all. A stream that breaks off leaves what is whole,
	// so that a repeat goes on from there.
	Apply(ctx context.Context, remove []string, r io.Reader) error
}

// SyncEntry is a file, directory or symbolic link of a tree.
type SyncEntry struct {
	Path    string // relative to the tree
	Mode    fs.FileMode
	Size    int64 // of a regular file
	ModTime time.Time
	Link    string // where a symbolic link leads
}

// IndexOptions say what of a tree counts.
type IndexOptions struct {
	// Exclude are patterns as in .gitignore, relative to the tree.
	Exclude []string
	// GitIgnore leaves out what the .gitignore files of the tree name, and .git.
	GitIgnore bool
}

// SyncOptions say what to sync and how. Zero fields mean the default in the
// comment.
type SyncOptions struct {
	IndexOptions
	// Delete removes what the source does not have; what is excluded stays.
	Delete bool
	// DryRun only tells what would be done.
	DryRun bool
	// Checksum compares all files of the same size by their hash, not only
	// those whose times differ.
	Checksum bool
	// Progress is told of what was done so far, now and then. Default nobody.
	Progress func(SyncResult)
}

// SyncResult says what a sync did.
type SyncResult struct {
	FilesTotal   int64 `json:"files_total"`  // entries that were compared
	FilesSynced  int64 `json:"files_synced"` // entries that were sent
	FilesRemoved int64 `json:"files_removed"`
	BytesTotal   int64 `json:"bytes_total"`  // of the source's files
	BytesSynced  int64 `json:"bytes_synced"` // of the files that were sent
	BytesSent    int64 `json:"bytes_sent"`   // compressed, with all that goes with it
	// LeftOut are the source's links that lead out of the tree, at most 100 of
	// them. They were not made.
	LeftOut []string `json:"left_out,omitempty"`
}
