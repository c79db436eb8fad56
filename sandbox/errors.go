package sandbox

import (
	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Failures of the manager itself.
var (
	// ErrNotAvailable reports that there is no node to run boxes on.
	ErrNotAvailable = &reason.Error{Reason: "NOT_AVAILABLE", Msg: "no nodes are registered", Class: errdefs.ErrUnavailable}
	// ErrNodeMissing reports a call that does not say on which node.
	ErrNodeMissing = &reason.Error{Reason: "NODE_MISSING", Msg: "node ID is required", Class: errdefs.ErrInvalidArgument}
	// ErrNodeUnreachable reports that a node did not answer.
	ErrNodeUnreachable = &reason.Error{Reason: "NODE_UNREACHABLE", Msg: "node does not answer", Class: errdefs.ErrUnavailable}
	// ErrTooManyContainers reports that a limit on the number of boxes is
	// reached. The text says who holds them.
	ErrTooManyContainers = &reason.Error{Reason: "TOO_MANY_CONTAINERS", Msg: "too many boxes", Class: errdefs.ErrResourceExhausted}
	// ErrIdempotencyKey reports an idempotency key that was used for another
	// request, or whose box was removed.
	ErrIdempotencyKey = &reason.Error{Reason: "IDEMPOTENCY_KEY_USED", Msg: "idempotency key was used before", Class: errdefs.ErrConflict}
	// ErrLost reports a call on a box that vanished from its node.
	ErrLost = &reason.Error{Reason: "BOX_LOST", Msg: "box is lost", Class: errdefs.ErrFailedPrecondition}
	// ErrStopping reports a call on a box that is being stopped since it was
	// idle. Once it is stopped it can be started again.
	ErrStopping = &reason.Error{Reason: "BOX_STOPPING", Msg: "box is being stopped", Class: errdefs.ErrFailedPrecondition}
	// ErrExecLost reports a command whose end nobody saw: it has no exit code.
	ErrExecLost = &reason.Error{Reason: "EXEC_LOST", Msg: "the end of the command is unknown", Class: errdefs.ErrAborted}
	// ErrOutputLost reports, once, that output is missing at this place: the
	// reader was too slow for what is kept. Reading goes on behind it.
	ErrOutputLost = &reason.Error{Reason: "OUTPUT_LOST", Msg: "output is no longer kept", Class: errdefs.ErrDataLoss}
	// ErrNoWorkspace reports a call for the workspace of a box that has none.
	ErrNoWorkspace = &reason.Error{Reason: "NO_WORKSPACE", Msg: "box has no workspace", Class: errdefs.ErrFailedPrecondition}
	// ErrClosed reports a call on a closed manager.
	ErrClosed = &reason.Error{Reason: "MANAGER_CLOSED", Msg: "manager is closed", Class: errdefs.ErrUnavailable}
)

// Failures of boxes, execs, images and nodes, the values of the packages below.
var (
	ErrNodeNotFound = registry.ErrNotFound

	ErrNotFound      = taisandbox.ErrNotFound
	ErrAlreadyExists = taisandbox.ErrAlreadyExists
	ErrNotRunning    = taisandbox.ErrNotRunning
	ErrRemoving      = taisandbox.ErrRemoving
	ErrExecNotFound  = taisandbox.ErrExecNotFound
	ErrExecExists    = taisandbox.ErrExecExists
	ErrExecEnded     = taisandbox.ErrExecEnded
	ErrExecBusy      = taisandbox.ErrExecBusy
	ErrInvalidSpec   = taisandbox.ErrInvalidSpec
	ErrUserNotFound  = taisandbox.ErrUserNotFound
	ErrDirNotFound   = taisandbox.ErrDirNotFound
	ErrUnsupported   = taisandbox.ErrUnsupported
	ErrBridgeLost    = taisandbox.ErrBridgeLost
	ErrNoSpace       = taisandbox.ErrNoSpace
	ErrPortRefused   = taisandbox.ErrPortRefused
	ErrMountSource   = taisandbox.ErrMountSource

	ErrFileNotFound = taisandbox.ErrFileNotFound
	ErrFileExists   = taisandbox.ErrFileExists
	ErrFileDenied   = taisandbox.ErrFileDenied
	ErrFileKind     = taisandbox.ErrFileKind
	ErrFileBusy     = taisandbox.ErrFileBusy
	ErrArchive      = taisandbox.ErrArchive

	ErrImageNotFound = taisandbox.ErrImageNotFound
	ErrImageInUse    = taisandbox.ErrImageInUse
	ErrImageCorrupt  = taisandbox.ErrImageCorrupt
	ErrImagePlatform = taisandbox.ErrImagePlatform
	ErrImageRef      = taisandbox.ErrImageRef

	ErrRegistryAuth        = taisandbox.ErrRegistryAuth
	ErrRegistryNotFound    = taisandbox.ErrRegistryNotFound
	ErrRegistryLimit       = taisandbox.ErrRegistryLimit
	ErrRegistryUnavailable = taisandbox.ErrRegistryUnavailable
	ErrRegistryInsecure    = taisandbox.ErrRegistryInsecure
)

// Reasons lists the sentinels that this package declares, for a
// [reason.Table].
func Reasons() []*reason.Error {
	return []*reason.Error{
		ErrNotAvailable, ErrNodeMissing, ErrNodeUnreachable, ErrTooManyContainers, ErrIdempotencyKey,
		ErrLost, ErrStopping, ErrExecLost, ErrOutputLost, ErrNoWorkspace, ErrClosed,
	}
}
