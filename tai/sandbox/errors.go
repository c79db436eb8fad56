package sandbox

import (
	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/reason"
)

// Failures callers test for with errors.Is. Each driver returns these, wrapped
// with the verb and the object; the remote client returns the same values.
var (
	// ErrNotFound reports that the node knows no box with the given ID.
	ErrNotFound = &reason.Error{Reason: "BOX_NOT_FOUND", Msg: "box not found", Class: errdefs.ErrNotFound}
	// ErrAlreadyExists reports a Create of an ID that is taken.
	ErrAlreadyExists = &reason.Error{Reason: "BOX_EXISTS", Msg: "box already exists", Class: errdefs.ErrAlreadyExists}
	// ErrNotRunning reports a call that needs a running box on one that is not.
	ErrNotRunning = &reason.Error{Reason: "BOX_NOT_RUNNING", Msg: "box not running", Class: errdefs.ErrFailedPrecondition}
	// ErrRemoving reports a call on a box that is being removed.
	ErrRemoving = &reason.Error{Reason: "BOX_REMOVING", Msg: "box is being removed", Class: errdefs.ErrFailedPrecondition}
	// ErrExecNotFound reports that the box knows no exec with the given ID, or no longer.
	ErrExecNotFound = &reason.Error{Reason: "EXEC_NOT_FOUND", Msg: "exec not found", Class: errdefs.ErrNotFound}
	// ErrExecExists reports an exec ID that is taken.
	ErrExecExists = &reason.Error{Reason: "EXEC_EXISTS", Msg: "exec already exists", Class: errdefs.ErrAlreadyExists}
	// ErrExecEnded reports input, a signal or a resize for an exec that has ended.
	ErrExecEnded = &reason.Error{Reason: "EXEC_ENDED", Msg: "exec has ended", Class: errdefs.ErrFailedPrecondition}
	// ErrExecBusy reports that another client holds the exec's terminal or input.
	ErrExecBusy = &reason.Error{Reason: "EXEC_BUSY", Msg: "exec is held by another client", Class: errdefs.ErrConflict}
	// ErrInvalidSpec reports a value that no box or exec can have. It is found
	// before anything is touched.
	ErrInvalidSpec = &reason.Error{Reason: "INVALID_SPEC", Msg: "invalid value", Class: errdefs.ErrInvalidArgument}
	// ErrUserNotFound reports a user or group that the box's own files do not name.
	ErrUserNotFound = &reason.Error{Reason: "USER_NOT_FOUND", Msg: "user not found in the box", Class: errdefs.ErrInvalidArgument}
	// ErrDirNotFound reports a working directory that is not a directory of the box.
	ErrDirNotFound = &reason.Error{Reason: "DIR_NOT_FOUND", Msg: "working directory not found in the box", Class: errdefs.ErrInvalidArgument}
	// ErrUnsupported reports an ability that this node, or this machine, lacks.
	// The text names it.
	ErrUnsupported = &reason.Error{Reason: "UNSUPPORTED", Msg: "not supported", Class: errdefs.ErrNotImplemented}
	// ErrBridgeLost reports that the program inside the box that carries out
	// requests did not answer. The outcome of the call is unknown.
	ErrBridgeLost = &reason.Error{Reason: "BRIDGE_LOST", Msg: "box does not answer", Class: errdefs.ErrUnavailable}
	// ErrProcessLimit reports a box that has no room for another process, by
	// its limit of processes or of memory.
	ErrProcessLimit = &reason.Error{Reason: "PROCESS_LIMIT", Msg: "the box has no room for another process", Class: errdefs.ErrResourceExhausted}
	// ErrMountSource reports a directory that cannot be mounted in a box: it is
	// not there any more, is no directory, or a link leads to it.
	ErrMountSource = &reason.Error{Reason: "MOUNT_SOURCE", Msg: "what is to be mounted cannot be used", Class: errdefs.ErrFailedPrecondition}
	// ErrNoSpace reports a full disk.
	ErrNoSpace = &reason.Error{Reason: "NO_SPACE", Msg: "no space left on the node", Class: errdefs.ErrResourceExhausted}
	// ErrPortRefused reports that nothing in the box listens on a port.
	ErrPortRefused = &reason.Error{Reason: "PORT_REFUSED", Msg: "nothing listens on the port", Class: errdefs.ErrUnavailable}

	// ErrFileNotFound reports a path of a box or workspace where nothing is.
	ErrFileNotFound = &reason.Error{Reason: "FILE_NOT_FOUND", Msg: "no such file", Class: errdefs.ErrNotFound}
	// ErrFileExists reports a path of a box or workspace that is taken.
	ErrFileExists = &reason.Error{Reason: "FILE_EXISTS", Msg: "file exists", Class: errdefs.ErrAlreadyExists}
	// ErrFileDenied reports a file that the user in the box may not touch, or
	// that is not in the workspace.
	ErrFileDenied = &reason.Error{Reason: "FILE_DENIED", Msg: "access to the file is denied", Class: errdefs.ErrPermissionDenied}
	// ErrFileKind reports a file that is not of the kind that the call needs, or
	// whose kind no call can carry: a device, a pipe, a file of /proc.
	ErrFileKind = &reason.Error{Reason: "FILE_KIND", Msg: "wrong kind of file", Class: errdefs.ErrInvalidArgument}
	// ErrFileBusy reports a file that does not allow the call now. The text says why.
	ErrFileBusy = &reason.Error{Reason: "FILE_BUSY", Msg: "file does not allow it", Class: errdefs.ErrFailedPrecondition}
	// ErrFileChanged reports a file that changed since it was looked at.
	ErrFileChanged = &reason.Error{Reason: "FILE_CHANGED", Msg: "file has changed", Class: errdefs.ErrFailedPrecondition}
	// ErrArchive reports a tar stream that is cut, or has what none may have.
	ErrArchive = &reason.Error{Reason: "ARCHIVE_INVALID", Msg: "invalid archive", Class: errdefs.ErrInvalidArgument}

	// ErrImageNotFound reports an image that the node does not have.
	ErrImageNotFound = &reason.Error{Reason: "IMAGE_NOT_FOUND", Msg: "image not found", Class: errdefs.ErrNotFound}
	// ErrImageInUse reports the removal of an image that a box is made of.
	ErrImageInUse = &reason.Error{Reason: "IMAGE_IN_USE", Msg: "image is in use", Class: errdefs.ErrConflict}
	// ErrImageCorrupt reports an archive or layer that is cut, or whose
	// contents do not match their digest. Nothing of it is kept as good.
	ErrImageCorrupt = &reason.Error{Reason: "IMAGE_CORRUPT", Msg: "image is corrupt", Class: errdefs.ErrDataLoss}
	// ErrImagePlatform reports an image for another platform.
	ErrImagePlatform = &reason.Error{Reason: "IMAGE_PLATFORM", Msg: "image is for another platform", Class: errdefs.ErrFailedPrecondition}
	// ErrImageRef reports a name that is not an image reference.
	ErrImageRef = &reason.Error{Reason: "IMAGE_REF", Msg: "invalid image reference", Class: errdefs.ErrInvalidArgument}

	// ErrRegistryAuth reports that a registry refuses credentials, or wants some.
	ErrRegistryAuth = &reason.Error{Reason: "REGISTRY_AUTH", Msg: "the registry denies access", Class: errdefs.ErrPermissionDenied}
	// ErrRegistryNotFound reports an image that its registry does not have, or
	// does not show to us.
	ErrRegistryNotFound = &reason.Error{Reason: "REGISTRY_NOT_FOUND", Msg: "the registry has no such image, or it is private", Class: errdefs.ErrNotFound}
	// ErrRegistryLimit reports a registry that wants fewer requests. The text
	// says from when on it takes some, if it said so.
	ErrRegistryLimit = &reason.Error{Reason: "REGISTRY_RATE_LIMITED", Msg: "the registry limits the rate of requests", Class: errdefs.ErrResourceExhausted}
	// ErrRegistryUnavailable reports a registry that cannot be reached, fails, or
	// stalls.
	ErrRegistryUnavailable = &reason.Error{Reason: "REGISTRY_UNAVAILABLE", Msg: "the registry does not serve", Class: errdefs.ErrUnavailable}
	// ErrRegistryInsecure reports a registry that would have us speak plain HTTP,
	// or send credentials to somebody else.
	ErrRegistryInsecure = &reason.Error{Reason: "REGISTRY_INSECURE", Msg: "the registry is not safe to talk to", Class: errdefs.ErrFailedPrecondition}
)

// Reasons lists every sentinel of this package, for a [reason.Table].
func Reasons() []*reason.Error {
	return []*reason.Error{
		ErrNotFound, ErrAlreadyExists, ErrNotRunning, ErrRemoving, ErrExecNotFound, ErrExecExists, ErrExecEnded,
		ErrExecBusy, ErrInvalidSpec, ErrUserNotFound, ErrDirNotFound, ErrUnsupported, ErrBridgeLost, ErrProcessLimit, ErrMountSource, ErrNoSpace,
		ErrPortRefused, ErrFileNotFound, ErrFileExists, ErrFileDenied, ErrFileKind, ErrFileBusy, ErrFileChanged, ErrArchive,
		ErrImageNotFound, ErrImageInUse, ErrImageCorrupt, ErrImagePlatform, ErrImageRef,
		ErrRegistryAuth, ErrRegistryNotFound, ErrRegistryLimit, ErrRegistryUnavailable, ErrRegistryInsecure,
	}
}
