package volume

import (
	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/reason"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Failures callers test for with errors.Is.
var (
	// ErrNotFound reports a workspace that is not there.
	ErrNotFound = &reason.Error{Reason: "WORKSPACE_NOT_FOUND", Msg: "workspace not found", Class: errdefs.ErrNotFound}
	// ErrAlreadyExists reports an id that is taken.
	ErrAlreadyExists = &reason.Error{Reason: "WORKSPACE_EXISTS", Msg: "workspace already exists", Class: errdefs.ErrAlreadyExists}
	// ErrInvalid reports an id, name, quota or other setting that cannot be.
	ErrInvalid = &reason.Error{Reason: "INVALID_WORKSPACE", Msg: "invalid workspace setting", Class: errdefs.ErrInvalidArgument}
	// ErrUnsupported reports what the volume cannot do on this machine.
	ErrUnsupported = &reason.Error{Reason: "WORKSPACE_UNSUPPORTED", Msg: "not supported by this node's volume", Class: errdefs.ErrNotImplemented}
	// ErrSnapshotNotFound reports a snapshot that is not there.
	ErrSnapshotNotFound = &reason.Error{Reason: "SNAPSHOT_NOT_FOUND", Msg: "snapshot not found", Class: errdefs.ErrNotFound}
	// ErrSnapshotExists reports a name of a snapshot that is taken.
	ErrSnapshotExists = &reason.Error{Reason: "SNAPSHOT_EXISTS", Msg: "snapshot already exists", Class: errdefs.ErrAlreadyExists}
	// ErrPath reports a path that names nothing in a workspace: absolute, with
	// "..", with a NUL or too long.
	ErrPath = &reason.Error{Reason: "INVALID_PATH", Msg: "invalid path", Class: errdefs.ErrInvalidArgument}
	// ErrTooLarge reports a file that is not returned in one piece.
	ErrTooLarge = &reason.Error{Reason: "FILE_TOO_LARGE", Msg: "file too large", Class: errdefs.ErrOutOfRange}
)

// What goes wrong with a file is the same in a workspace and in a box.
var (
	ErrFileNotFound = taisandbox.ErrFileNotFound
	ErrFileExists   = taisandbox.ErrFileExists
	ErrFileDenied   = taisandbox.ErrFileDenied
	ErrFileKind     = taisandbox.ErrFileKind
	ErrFileBusy     = taisandbox.ErrFileBusy
	ErrNoSpace      = taisandbox.ErrNoSpace
	// ErrVersion reports a file that changed since it was looked at.
	ErrVersion = taisandbox.ErrFileChanged
	ErrArchive = taisandbox.ErrArchive
)

// Reasons lists every sentinel of this package, for a [reason.Table].
func Reasons() []*reason.Error {
	return []*reason.Error{
		ErrNotFound, ErrAlreadyExists, ErrInvalid, ErrUnsupported, ErrSnapshotNotFound, ErrSnapshotExists, ErrPath, ErrTooLarge,
	}
}
