package workspace

import (
	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/registry"
	"github.com/taibox/taibox/tai/volume"
)

// Failures of the manager itself.
var (
	// ErrNodeMissing reports a create that does not say on which node, where
	// several have a volume, or none.
	ErrNodeMissing = &reason.Error{Reason: "WORKSPACE_NODE_MISSING", Msg: "no node to keep the workspace on", Class: errdefs.ErrInvalidArgument}
	// ErrNodeOffline reports that the node of a workspace is away.
	ErrNodeOffline = &reason.Error{Reason: "NODE_OFFLINE", Msg: "node is offline", Class: errdefs.ErrUnavailable}
	// ErrHasMounts reports a workspace that boxes have mounted. The text names
	// them.
	ErrHasMounts = &reason.Error{Reason: "WORKSPACE_MOUNTED", Msg: "workspace is mounted", Class: errdefs.ErrConflict}
)

// Failures of workspaces and nodes, the values of the packages below.
var (
	ErrNodeNotFound = registry.ErrNotFound

	ErrNotFound         = volume.ErrNotFound
	ErrAlreadyExists    = volume.ErrAlreadyExists
	ErrInvalid          = volume.ErrInvalid
	ErrUnsupported      = volume.ErrUnsupported
	ErrSnapshotNotFound = volume.ErrSnapshotNotFound
	ErrSnapshotExists   = volume.ErrSnapshotExists
)

// Reasons lists the sentinels that this package declares, for a
// [reason.Table].
func Reasons() []*reason.Error {
	return []*reason.Error{ErrNodeMissing, ErrNodeOffline, ErrHasMounts}
}
