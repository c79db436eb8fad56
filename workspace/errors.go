package workspace

import (
	"fmt"
	"strings"

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
	// ErrTooMany reports an owner that has as many workspaces as it may.
	ErrTooMany = &reason.Error{Reason: "TOO_MANY_WORKSPACES", Msg: "too many workspaces", Class: errdefs.ErrResourceExhausted}
	// ErrHasMounts reports a workspace that boxes have mounted. It comes as a
	// [MountedError], which names them.
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

// MountedError is [ErrHasMounts] with the boxes.
type MountedError struct {
	Boxes  []string // IDs
	Others int      // boxes that are not named
}

// maxNamed is how many boxes an error names.
const maxNamed = 10

func (e *MountedError) Error() string {
	names := e.Boxes[:min(len(e.Boxes), maxNamed)]
	text := "box"
	if len(e.Boxes)+e.Others > 1 {
		text = "boxes"
	}
	if len(names) > 0 {
		text += " " + strings.Join(names, ", ")
	}
	switch rest := len(e.Boxes) - len(names) + e.Others; {
	case len(names) == 0:
		text = fmt.Sprintf("%d %s of others", rest, text)
	case rest > 0:
		text += fmt.Sprintf(" and %d more", rest)
	}
	return fmt.Sprintf("%v in %s", ErrHasMounts, text)
}

// Unwrap returns [ErrHasMounts].
func (e *MountedError) Unwrap() error { return ErrHasMounts }

// Reasons lists the sentinels that this package declares, for a
// [reason.Table].
func Reasons() []*reason.Error {
	return []*reason.Error{ErrNodeMissing, ErrNodeOffline, ErrTooMany, ErrHasMounts}
}
