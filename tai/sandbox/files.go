package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/taibox/taibox/internal/reason"
)

// Files is implemented by drivers with [FeatureFiles]: the files of a box, by
// absolute path, as a user of the box. What runs inside resolves each path, so
// that no link and no race leads out of the box. A stopped box has its files
// too; nothing of its own is started for them, and it stays as it is.
//
// Errors are [ErrFileNotFound], [ErrFileExists], [ErrFileDenied],
// [ErrFileKind], [ErrFileBusy] and [ErrNoSpace]; they wrap the error number.
type Files interface {
	// ReadFile opens a regular file. The reader ends at the file's end, or with
	// an error; ctx bounds it to its end. The caller closes it.
	ReadFile(ctx context.Context, id, path string, o FileOptions) (io.ReadCloser, FileInfo, error)
	// WriteFile writes all of r to a file, whole or not at all. A file that is
	// there keeps its mode.
	WriteFile(ctx context.Context, id, path string, r io.Reader, o FileOptions) (FileInfo, error)
	// Stat describes a file; of a symbolic link the link itself, or with
	// o.Follow what it leads to.
	Stat(ctx context.Context, id, path string, o FileOptions) (FileInfo, error)
	// ListDir describes what is in a directory, ordered by name.
	ListDir(ctx context.Context, id, path string, o FileOptions) ([]FileInfo, error)
	// MkDir makes a directory, with o.All its parents too.
	MkDir(ctx context.Context, id, path string, o FileOptions) error
	// RemoveFile removes a file or an empty directory, with o.All all that is in it.
	RemoveFile(ctx context.Context, id, path string, o FileOptions) error
	// Rename moves a file or directory, over what is there.
	Rename(ctx context.Context, id, from, to string, o FileOptions) error
	// CopyTo unpacks a tar stream into a directory. Links are made as links;
	// devices, pipes, names that lead out and writes through links that lead out
	// are [ErrArchive]. What was made before an error is removed again.
	CopyTo(ctx context.Context, id, dir string, archive io.Reader, o FileOptions) error
	// CopyFrom packs a file or a tree. Its names begin with the last element of
	// path, or with "." if that is "." or the root. Sockets, pipes and devices
	// in the tree are left out. The reader ends after the archive's end, or with
	// an error; ctx bounds it to its end. The caller closes it.
	CopyFrom(ctx context.Context, id, path string, o FileOptions) (io.ReadCloser, error)
}

// FileWatcher is implemented by drivers with [FeatureFileWatch].
type FileWatcher interface {
	// WatchFiles tells what changes at path and below in a running box, as far
	// as the user may look, until ctx ends; then the channel is closed. A reader
	// that falls behind misses events, and is told by a [FileGap]; so is one to
	// whom more changes at once than are worth telling. A gap is also the last
	// event before the channel is closed because the box ends, or because what
	// is there has outgrown what can be watched.
	WatchFiles(ctx context.Context, id, path string, o FileOptions) (<-chan FileEvent, error)
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

// FileEvent is a change of a file of a box.
type FileEvent struct {
	Kind FileEventKind
	Path string // absolute, below the path that was given
	Dir  bool
}

// FileInfo describes a file of a box. Names are bytes, and as hostile as all
// that comes from there; a name is never more than one element of a path.
type FileInfo struct {
	Name     string
	Size     int64
	Mode     fs.FileMode
	UID, GID uint32
	ModTime  time.Time
	Link     string // where a symbolic link leads
	// Version changes whenever a regular file is replaced or written to. It is
	// for comparing alone, as an ETag, and empty where it is not known.
	Version string
}

// FileOptions are the settings of the calls for files. Zero fields mean the
// default in the comment.
type FileOptions struct {
	User   string      // who does it: user[:group]; default the box's
	Mode   fs.FileMode // permissions of what is made; default 0644 for files, 0755 for directories
	Offset int64       // where to begin to read
	Limit  int64       // bytes to read at most; default all
	// All makes missing parents, or removes what is in a directory; what is
	// there already, or not there any more, is no error then.
	All bool
	// Follow makes Stat and CopyFrom go where a symbolic link leads.
	Follow bool
	// IfAbsent makes WriteFile write only where no file is, else [ErrFileExists];
	// IfVersion only over the file that has this [FileInfo.Version], else
	// [ErrFileChanged].
	IfAbsent  bool
	IfVersion string
	// Owners makes CopyTo give files the numeric owners of the archive, which
	// takes root. Otherwise they are the user's.
	Owners bool
}

// FileError gives an error number of a file its sentinel. Other errors are
// returned as they are.
func FileError(err error) error {
	var no syscall.Errno
	if err == nil || !errors.As(err, &no) {
		return err
	}
	for _, s := range fileReasons() {
		if errors.Is(err, s) {
			return err // it has been told already
		}
	}
	sentinel := ErrFileBusy
	switch no {
	case syscall.ENOENT:
		sentinel = ErrFileNotFound
	case syscall.EEXIST:
		sentinel = ErrFileExists
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		sentinel = ErrFileDenied
	case syscall.EISDIR, syscall.ENOTDIR, syscall.EINVAL, syscall.ELOOP, syscall.ENAMETOOLONG:
		sentinel = ErrFileKind
	case syscall.ENOSPC, syscall.EDQUOT:
		sentinel = ErrNoSpace
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}

// fileReasons lists the sentinels of files that stand for an error number.
func fileReasons() []*reason.Error {
	return []*reason.Error{ErrFileNotFound, ErrFileExists, ErrFileDenied, ErrFileKind, ErrFileBusy, ErrNoSpace}
}
