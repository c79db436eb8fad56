package sandbox

import (
	"context"
	"fmt"
	"slices"

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
	var held []*holding
	release = func() {
		for _, h := range held {
			h.release()
		}
	}
	var ids []string
	for i := range p.spec.Mounts {
		if id := p.spec.Mounts[i].Workspace; id != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids) // of two creates none waits for what the other holds
	for _, id := range slices.Compact(ids) {
		h, err := m.hold(ctx, id, p.workspaces)
		if err != nil {
			return release, err
		}
		held = append(held, h)
		if err := m.mount(ctx, p, h.w); err != nil {
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

// holding is a workspace that is not deleted before its release.
type holding struct {
	w       *workspace.Workspace
	release func()
}

// hold keeps the workspace that a request means by an ID: the one that it
// names among those, else whichever has the ID.
func (m *Manager) hold(ctx context.Context, id string, those []*workspace.Workspace) (*holding, error) {
	ws := m.cfg.Workspaces
	if i := slices.IndexFunc(those, func(w *workspace.Workspace) bool { return w.ID == id }); i >= 0 {
		release, err := ws.HoldThis(ctx, those[i])
		return &holding{those[i], release}, err
	}
	release, err := ws.Hold(ctx, id)
	if err != nil {
		return nil, err
	}
	w, err := ws.Get(ctx, id)
	if err != nil {
		release()
		return nil, err
	}
	return &holding{w, release}, nil
}

// mount notes where the node has the files of that very workspace.
func (m *Manager) mount(ctx context.Context, p *blueprint, w *workspace.Workspace) error {
	if err := p.route(w); err != nil {
		return err
	}
	vol, err := m.cfg.Workspaces.Volume(ctx, w)
	if err != nil {
		return err
	}
	dir, err := vol.MountPath(ctx, w.ID)
	if err != nil {
		return err
	}
	for i := range p.spec.Mounts {
		if mt := &p.spec.Mounts[i]; mt.Workspace == w.ID {
			mt.Source = dir
		}
	}
	if w.ID == p.workspaceID {
		p.workspaceMade = w.CreatedAt
	}
	return nil
}

// route sends a box to the node of a workspace.
func (p *blueprint) route(w *workspace.Workspace) error {
	switch p.nodeID {
	case "":
		p.nodeID = w.Node
	case w.Node:
	default:
		return reason.WithHint(fmt.Errorf("%w: workspace %s is on node %s, and the box is to be on %s", ErrInvalidSpec, w.ID, w.Node, p.nodeID),
			"leave the node out")
	}
	return nil
}

// WorkspaceID returns the workspace that the box works in; empty if it has none.
func (b *Box) WorkspaceID() string { return b.workspaceID }

// Workspace returns the files of the workspace that the box works in, and of
// no later one with its ID, whatever state the box is in. Without one each call
// fails with [ErrNoWorkspace]: the box's own files are reached by
// [Box.OpenFile] and its neighbours. The caller closes it.
func (b *Box) Workspace() taiworkspace.FS {
	if b.workspaceID == "" {
		return taiworkspace.Broken(b.failed("workspace of", ErrNoWorkspace))
	}
	if b.workspaceMade.IsZero() { // of a version that did not note it
		fsys, err := b.m.cfg.Workspaces.FS(b.m.life, b.workspaceID)
		if err != nil {
			return taiworkspace.Broken(b.failed("workspace of", err))
		}
		return fsys
	}
	return b.filesOf("workspace of", &workspace.Workspace{ID: b.workspaceID, Node: b.nodeID, CreatedAt: b.workspaceMade})
}

// filesOf returns the files of that very workspace.
func (b *Box) filesOf(verb string, w *workspace.Workspace) taiworkspace.FS {
	vol, err := b.m.cfg.Workspaces.Volume(b.m.life, w)
	if err != nil {
		return taiworkspace.Broken(b.failed(verb, err))
	}
	return taiworkspace.New(vol, w.ID)
}

// BindWorkplace makes a workspace, of any node, the one that [Box.Workplace]
// returns, until this manager ends; no later one with its ID takes its place.
// Nothing is mounted by it. An empty ID is the box's own again.
func (b *Box) BindWorkplace(ctx context.Context, workspaceID string) error {
	var w *workspace.Workspace
	if workspaceID != "" {
		var err error
		if w, err = b.m.cfg.Workspaces.Get(ctx, workspaceID); err != nil {
			return b.failed("bind workplace of", err)
		}
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	b.workplace = w
	return nil
}

// Workplace returns the files of the workspace that was bound last, else of
// the box's own, as [Box.Workspace]. The caller closes it.
func (b *Box) Workplace() taiworkspace.FS {
	b.m.mu.Lock()
	bound := b.workplace
	b.m.mu.Unlock()
	if bound == nil {
		return b.Workspace()
	}
	return b.filesOf("workplace of", bound)
}
