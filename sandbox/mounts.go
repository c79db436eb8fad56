package sandbox

import (
	"context"
	"fmt"

	"github.com/taibox/taibox/internal/reason"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	taiworkspace "github.com/taibox/taibox/tai/workspace"
	"github.com/taibox/taibox/workspace"
)

// DefaultMountPath is where a box has its workspace.
const DefaultMountPath = "/workspace"

// Mount is a directory from outside in a box: a workspace, or a directory of
// the node's machine. See [taisandbox.Mount].
type Mount struct {
	WorkspaceID string
	Source      string // on the machine, if it is no workspace
	Target      string // in the box
	ReadOnly    bool
}

// unresolved stands for the directory of a workspace until it is known.
const unresolved = "/"

// specMounts are the mounts of a request, that of the box's workspace first.
func specMounts(o *CreateOptions, invalid func(string, ...any)) []taisandbox.Mount {
	all := o.Mounts
	mode := workspace.MountMode(o.MountMode)
	switch {
	case mode != "" && mode != workspace.MountRW && mode != workspace.MountRO:
		invalid("mount mode %.32q: possible are %s and %s", mode, workspace.MountRW, workspace.MountRO)
	case o.WorkspaceID == "" && (o.MountMode != "" || o.MountPath != ""):
		invalid("a mount mode or path without a workspace")
	}
	if o.WorkspaceID != "" {
		own := Mount{WorkspaceID: o.WorkspaceID, Target: o.MountPath, ReadOnly: mode == workspace.MountRO}
		if own.Target == "" {
			own.Target = DefaultMountPath
		}
		all = append([]Mount{own}, all...)
	}
	var mounts []taisandbox.Mount
	for _, m := range all {
		if (m.WorkspaceID == "") == (m.Source == "") {
			invalid("mount on %.64q: either a workspace or a directory of the machine is expected", m.Target)
		}
		if m.WorkspaceID != "" {
			m.Source = unresolved
		}
		mounts = append(mounts, taisandbox.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly, Workspace: m.WorkspaceID})
	}
	return mounts
}

// mountsOf tells a node's mounts. Where a workspace lies on the machine is for
// nobody to know.
func mountsOf(mounts []taisandbox.Mount) []Mount {
	var all []Mount
	for _, m := range mounts {
		if m.Workspace != "" {
			m.Source = ""
		}
		all = append(all, Mount{WorkspaceID: m.Workspace, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return all
}

// place finds the node of a box, and on it the workspaces that are mounted.
// They are not deleted before release is called, which is never nil.
func (m *Manager) place(ctx context.Context, p *blueprint) (release func(), err error) {
	held := map[string]func(){}
	release = func() {
		for _, r := range held {
			r()
		}
	}
	for i := range p.spec.Mounts {
		mt := &p.spec.Mounts[i]
		if mt.Workspace == "" {
			continue
		}
		ws := m.cfg.Workspaces
		if held[mt.Workspace] == nil {
			r, err := ws.Hold(ctx, mt.Workspace)
			if err != nil {
				return release, err
			}
			held[mt.Workspace] = r
		}
		if err := p.route(ctx, ws, mt.Workspace); err != nil {
			return release, err
		}
		if mt.Source, err = ws.MountPath(ctx, mt.Workspace); err != nil {
			return release, err
		}
	}
	n, err := m.node(p.nodeID)
	if err != nil {
		return release, err
	}
	p.node = n.Client.Sandbox()
	p.spec.Labels = p.encode(m.cfg.Instance)
	return release, nil
}

// route sends a box to the node of a workspace.
func (p *blueprint) route(ctx context.Context, ws *workspace.Manager, id string) error {
	node, err := ws.NodeForWorkspace(ctx, id)
	switch {
	case err != nil:
		return err
	case p.nodeID == "":
		p.nodeID = node
	case p.nodeID != node:
		return reason.WithHint(fmt.Errorf("%w: workspace %s is on node %s, and the box is to be on %s", ErrInvalidSpec, id, node, p.nodeID),
			"leave the node out")
	}
	return nil
}

// WorkspaceID returns the workspace that the box works in; empty if it has none.
func (b *Box) WorkspaceID() string { return b.workspaceID }

// Workspace returns the files of the workspace that the box works in, whatever
// state the box is in. Without one each call fails with [ErrNoWorkspace]: the
// box's own files are reached by [Box.OpenFile] and its neighbours. The caller
// closes it.
func (b *Box) Workspace() taiworkspace.FS {
	if b.workspaceID == "" {
		return taiworkspace.Broken(b.failed("workspace of", ErrNoWorkspace))
	}
	n, err := b.m.node(b.nodeID)
	if err != nil {
		return taiworkspace.Broken(b.failed("workspace of", err))
	}
	return n.Client.Workspace(b.workspaceID)
}

// BindWorkplace makes a workspace, of any node, the one that [Box.Workplace]
// returns, until this manager ends. Nothing is mounted by it. An empty ID is
// the box's own again.
func (b *Box) BindWorkplace(ctx context.Context, workspaceID string) error {
	if workspaceID != "" {
		if _, err := b.m.cfg.Workspaces.Get(ctx, workspaceID); err != nil {
			return b.failed("bind workplace of", err)
		}
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	b.workplace = workspaceID
	return nil
}

// Workplace returns the files of the workspace that was bound last, else of
// the box's own, as [Box.Workspace]. The caller closes it.
func (b *Box) Workplace() taiworkspace.FS {
	b.m.mu.Lock()
	bound := b.workplace
	b.m.mu.Unlock()
	if bound == "" {
		return b.Workspace()
	}
	fsys, err := b.m.cfg.Workspaces.FS(b.m.life, bound)
	if err != nil {
		return taiworkspace.Broken(b.failed("workplace of", err))
	}
	return fsys
}
