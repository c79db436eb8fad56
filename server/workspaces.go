package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/workspace"
)

func (s *Server) workspaceRoutes() {
	const all, one = "/v1/workspaces", "/v1/workspaces/{id}"
	handle(s, http.MethodPost, all, "Create a workspace", s.createWorkspace)
	handle(s, http.MethodGet, all, "Workspaces, oldest first", s.listWorkspaces)
	handle(s, http.MethodGet, one, "One workspace", s.getWorkspace)
	handle(s, http.MethodPatch, one, "Change a workspace's name, labels or quota", s.updateWorkspace)
	handle(s, http.MethodDelete, one, "Delete a workspace with its files and snapshots, unless boxes have it mounted", s.deleteWorkspace)
	handle(s, http.MethodGet, one+"/usage", "What a workspace takes on disk, and which boxes have it mounted", s.workspaceUsage)
	handle(s, http.MethodPost, one+"/pack", "Make an archive of a file or tree, as a file of the workspace", s.packFiles)
	handle(s, http.MethodPost, one+"/extract", "Unpack an archive that is a file of the workspace", s.extractFiles)
	handle(s, http.MethodPost, one+"/snapshots", "Keep the workspace as it is now", s.createSnapshot)
	handle(s, http.MethodGet, one+"/snapshots", "Snapshots of a workspace, oldest first", s.listSnapshots)
	handle(s, http.MethodDelete, one+"/snapshots/{name}", "Delete a snapshot", s.removeSnapshot)
	handle(s, http.MethodPost, one+"/snapshots/{name}/restore", "Make the workspace what it was", s.restoreSnapshot)
	handle(s, http.MethodGet, one+"/diff", "What leads from one state of a workspace to another", s.diffWorkspace)
	s.workspaceFileRoutes()
	s.workspaceSyncRoutes()
}

// workspacePath is the input of a route about one workspace.
type workspacePath struct {
	ID string `path:"id"`
}

type createWorkspaceInput struct {
	Key  string `header:"Idempotency-Key" maxLength:"256" doc:"The same key with the same body is the same workspace"`
	Body rest.CreateWorkspace
}

func (s *Server) createWorkspace(ctx context.Context, in *createWorkspaceInput) (*output[rest.Workspace], error) {
	r := &in.Body
	o := workspace.CreateOptions{
		ID: r.ID, Name: r.Name, Owner: r.Owner, Node: r.NodeID, Labels: r.Labels,
		Quota: volume.Quota{Bytes: cmp.Or(r.QuotaBytes, s.cfg.Max.Disk), Files: r.QuotaFiles},
	}
	if o.Owner == "" {
		o.Owner = owner(ctx)
	}
	if err := s.allow(ctx, VerbCreate, Object{Kind: KindWorkspace, ID: o.ID, Owner: o.Owner, Node: o.Node}); err != nil {
		return nil, err
	}
	if err := s.cfg.Max.quota(o.Quota); err != nil {
		return nil, fmt.Errorf("create workspace: %w", err)
	}
	if in.Key != "" && o.ID == "" {
		// The key makes the ID: a repeat finds what the first one made, also
		// after a restart.
		h := sha256.Sum256([]byte(o.Owner + "\x00" + in.Key))
		o.ID = "ws-" + hex.EncodeToString(h[:12])
	}
	w, err := s.cfg.Workspaces.Create(ctx, o)
	if errors.Is(err, workspace.ErrAlreadyExists) {
		asked := o
		asked.Quota.Bytes = r.QuotaBytes
		w, err = s.createdBefore(ctx, &asked, in.Key, err)
	}
	if err != nil {
		return nil, err
	}
	s.noteID(ctx, w.ID)
	return &output[rest.Workspace]{Status: http.StatusCreated, Body: workspaceOf(w)}, nil
}

// createdBefore finds what a create that is repeated with its key made, by what
// was asked for: what the server fills in may have changed meanwhile. It keeps
// what there is of others from a caller that may not know of it.
func (s *Server) createdBefore(ctx context.Context, o *workspace.CreateOptions, key string, exists error) (*workspace.Workspace, error) {
	w, err := s.cfg.Workspaces.Get(ctx, o.ID)
	if err == nil && key != "" && w.Owner == o.Owner {
		quota := o.Quota
		quota.Bytes = cmp.Or(quota.Bytes, w.Quota.Bytes)
		if (o.Name == "" && w.Name == w.ID || o.Name == w.Name) && (o.Node == "" || o.Node == w.Node) && maps.Equal(o.Labels, w.Labels) && quota == w.Quota {
			return w, nil
		}
		return nil, fmt.Errorf("%w: for workspace %s, which is not what is asked for", sandbox.ErrIdempotencyKey, w.ID)
	}
	if caller, _ := ctx.Value(callerKey).(Caller); !caller.Admin && (err != nil || w.Owner != o.Owner) {
		exists = fmt.Errorf("create workspace %s: %w", o.ID, workspace.ErrAlreadyExists)
	}
	return nil, reason.WithHint(exists, "choose another id")
}

type listWorkspacesInput struct {
	Owner string   `query:"owner"`
	Node  string   `query:"node"`
	Label []string `query:"label,explode" doc:"key=value; all must match"`
	Paging
}

func (s *Server) listWorkspaces(ctx context.Context, in *listWorkspacesInput) (*output[rest.WorkspaceList], error) {
	if err := s.allow(ctx, VerbList, Object{Kind: KindWorkspace, Owner: in.Owner, Node: in.Node}); err != nil {
		return nil, err
	}
	labels, err := parseLabels(in.Label)
	if err != nil {
		return nil, err
	}
	list, err := s.cfg.Workspaces.List(ctx, workspace.ListOptions{Owner: in.Owner, Node: in.Node, Labels: labels})
	if err != nil {
		return nil, err
	}
	made := func(w **workspace.Workspace) cursor { return cursor{(*w).CreatedAt.UnixNano(), (*w).ID} }
	show := func(w **workspace.Workspace) (rest.Workspace, bool) {
		object := Object{Kind: KindWorkspace, ID: (*w).ID, Owner: (*w).Owner, Node: (*w).Node}
		return workspaceOf(*w), s.allow(ctx, VerbGet, object) == nil
	}
	items, next, err := page(in.Paging, inOrder(list, made), made, show)
	if err != nil {
		return nil, err
	}
	return ok(rest.WorkspaceList{Items: items, NextToken: next}), nil
}

func (s *Server) getWorkspace(ctx context.Context, in *workspacePath) (*output[rest.Workspace], error) {
	w, err := s.workspace(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	return ok(workspaceOf(w)), nil
}

type updateWorkspaceInput struct {
	ID   string `path:"id"`
	Body rest.UpdateWorkspace
}

func (s *Server) updateWorkspace(ctx context.Context, in *updateWorkspaceInput) (*output[rest.Workspace], error) {
	w, err := s.workspace(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	o := workspace.UpdateOptions{Name: in.Body.Name}
	if l := in.Body.Labels; l != nil {
		if o.Labels = *l; o.Labels == nil {
			o.Labels = map[string]string{}
		}
	}
	if b, f := in.Body.QuotaBytes, in.Body.QuotaFiles; b != nil || f != nil {
		quota := w.Quota
		if b != nil {
			quota.Bytes = *b
		}
		if f != nil {
			quota.Files = *f
		}
		if err := s.cfg.Max.quota(quota); err != nil {
			return nil, fmt.Errorf("update workspace %s: %w", w.ID, err)
		}
		o.Quota = &quota
	}
	if w, err = s.cfg.Workspaces.UpdateThis(ctx, w, o); err != nil {
		return nil, err
	}
	return ok(workspaceOf(w)), nil
}

func (s *Server) deleteWorkspace(ctx context.Context, in *workspacePath) (*nothing, error) {
	w, err := s.workspace(ctx, VerbRemove, in.ID)
	if err != nil {
		return nil, err
	}
	err = s.cfg.Workspaces.DeleteThis(ctx, w)
	if mounted, ok := errors.AsType[*workspace.MountedError](err); ok {
		boxes := s.knownBoxes(ctx, mounted.Boxes)
		others := len(mounted.Boxes) - len(boxes) + mounted.Others
		err = fmt.Errorf("delete workspace %s: %w", in.ID, &workspace.MountedError{Boxes: boxes, Others: others})
	}
	return nil, err
}

// knownBoxes returns those of some boxes that the caller may know of.
func (s *Server) knownBoxes(ctx context.Context, ids []string) []string {
	known := []string{}
	for _, id := range ids {
		object := Object{Kind: KindBox, ID: id}
		if b, err := s.cfg.Manager.Get(ctx, id); err == nil {
			object.Owner, object.Node = b.Owner(), b.NodeID()
		}
		if s.allow(ctx, VerbGet, object) == nil {
			known = append(known, id)
		}
	}
	return known
}

func (s *Server) workspaceUsage(ctx context.Context, in *workspacePath) (*output[rest.Usage], error) {
	w, err := s.workspace(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	vol, err := s.cfg.Workspaces.Volume(ctx, w)
	if err != nil {
		return nil, err
	}
	u, err := vol.Usage(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	mounts, err := s.cfg.Workspaces.Mounts(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return ok(rest.Usage{
		Bytes: u.Bytes, Files: u.Files, QuotaBytes: w.Quota.Bytes, QuotaFiles: w.Quota.Files, Boxes: s.knownBoxes(ctx, mounts),
	}), nil
}

func workspaceOf(w *workspace.Workspace) rest.Workspace {
	out := rest.Workspace{
		ID: w.ID, Name: w.Name, Owner: w.Owner, NodeID: w.Node, Labels: w.Labels,
		QuotaBytes: w.Quota.Bytes, QuotaFiles: w.Quota.Files, CreatedAt: w.CreatedAt, UpdatedAt: w.UpdatedAt,
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	return out
}
