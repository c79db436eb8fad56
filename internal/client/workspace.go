package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/tai/volume"
)

// CreateWorkspace creates a workspace.
func (c *Client) CreateWorkspace(ctx context.Context, req rest.CreateWorkspace) (rest.Workspace, error) {
	return call[rest.Workspace](ctx, c, http.MethodPost, c.at("v1", "workspaces"), req, idempotent(req.IdempotencyKey)...)
}

// ListWorkspaces returns all workspaces that match, page by page.
func (c *Client) ListWorkspaces(ctx context.Context, l rest.ListWorkspaces) ([]rest.Workspace, error) {
	q := url.Values{}
	for k, v := range map[string]string{"owner": l.Owner, "node": l.Node} {
		if v != "" {
			q.Set(k, v)
		}
	}
	for k, v := range l.Labels {
		q.Add("label", k+"="+v)
	}
	if l.PageSize > 0 {
		q.Set("limit", strconv.Itoa(l.PageSize))
	}
	return list[rest.Workspace](ctx, c, c.at("v1", "workspaces"), q)
}

// Workspace is the calls for one workspace. Make it with [Client.Workspace].
type Workspace struct {
	c  *Client
	id string
}

// Workspace returns the calls for a workspace. It asks nothing.
func (c *Client) Workspace(id string) *Workspace { return &Workspace{c, id} }

// at returns the address of a path below the workspace. An id or name that
// none can have is refused here: as a part of a path it could mean another.
func (w *Workspace) at(segments ...string) (url.URL, error) {
	for _, s := range append([]string{w.id}, segments...) {
		if s == "" || s == "." || s == ".." {
			return url.URL{}, fmt.Errorf("%w: %q is no name", volume.ErrInvalid, s)
		}
	}
	return w.c.at(append([]string{"v1", "workspaces", w.id}, segments...)...), nil
}

// onWorkspace calls a path below a workspace.
func onWorkspace[T any](ctx context.Context, w *Workspace, method string, in any, segments ...string) (T, error) {
	u, err := w.at(segments...)
	if err != nil {
		var zero T
		return zero, err
	}
	return call[T](ctx, w.c, method, u, in)
}

// Get returns what there is to know of the workspace.
func (w *Workspace) Get(ctx context.Context) (rest.Workspace, error) {
	return onWorkspace[rest.Workspace](ctx, w, http.MethodGet, nil)
}

// Update changes what is set in req.
func (w *Workspace) Update(ctx context.Context, req rest.UpdateWorkspace) (rest.Workspace, error) {
	return onWorkspace[rest.Workspace](ctx, w, http.MethodPatch, req)
}

// Delete deletes the workspace with all that is in it.
func (w *Workspace) Delete(ctx context.Context) error {
	_, err := onWorkspace[none](ctx, w, http.MethodDelete, nil)
	return err
}

// Usage measures the workspace.
func (w *Workspace) Usage(ctx context.Context) (rest.Usage, error) {
	return onWorkspace[rest.Usage](ctx, w, http.MethodGet, nil, "usage")
}

// CreateSnapshot keeps the workspace as it is now. No name means one made of
// the time.
func (w *Workspace) CreateSnapshot(ctx context.Context, name string) (rest.Snapshot, error) {
	return onWorkspace[rest.Snapshot](ctx, w, http.MethodPost, rest.CreateSnapshot{Name: name}, "snapshots")
}

// ListSnapshots returns the snapshots, oldest first.
func (w *Workspace) ListSnapshots(ctx context.Context) ([]rest.Snapshot, error) {
	u, err := w.at("snapshots")
	if err != nil {
		return nil, err
	}
	return list[rest.Snapshot](ctx, w.c, u, url.Values{})
}

// RemoveSnapshot deletes a snapshot.
func (w *Workspace) RemoveSnapshot(ctx context.Context, name string) error {
	_, err := onWorkspace[none](ctx, w, http.MethodDelete, nil, "snapshots", name)
	return err
}

// RestoreSnapshot makes the workspace what it was.
func (w *Workspace) RestoreSnapshot(ctx context.Context, name string) error {
	_, err := onWorkspace[none](ctx, w, http.MethodPost, nil, "snapshots", name, "restore")
	return err
}

// Diff tells what leads from one state to the other; "" is the workspace as it
// is.
func (w *Workspace) Diff(ctx context.Context, from, to string) ([]volume.Change, error) {
	u, err := w.at("diff")
	if err != nil {
		return nil, err
	}
	found, err := list[rest.Change](ctx, w.c, u, url.Values{"from": {from}, "to": {to}})
	changes := make([]volume.Change, len(found))
	for i, c := range found {
		changes[i] = volume.Change{Path: bytesOr(c.PathB64, c.Path), Kind: volume.ChangeKind(c.Kind), Dir: c.Dir}
	}
	return changes, err
}

// Pack makes an archive of a file or tree, as a file of the workspace. No
// format means the one that its name tells.
func (w *Workspace) Pack(ctx context.Context, src, dst, format string) (rest.ArchiveResult, error) {
	return onWorkspace[rest.ArchiveResult](ctx, w, http.MethodPost, rest.PackFiles{MoveFile: moveFile(src, dst), Format: format}, "pack")
}

// Extract unpacks an archive that is a file of the workspace. No format means
// that the archive tells it.
func (w *Workspace) Extract(ctx context.Context, src, dst, format string, o volume.ArchiveOptions) (rest.ArchiveResult, error) {
	return onWorkspace[rest.ArchiveResult](ctx, w, http.MethodPost, rest.ExtractFiles{
		MoveFile: moveFile(src, dst), Format: format,
		MaxEntries: o.MaxEntries, MaxBytes: o.MaxBytes, MaxRatio: o.MaxRatio, MaxDepth: o.MaxDepth,
	}, "extract")
}

func moveFile(from, to string) rest.MoveFile {
	return rest.MoveFile{PathB64: []byte(from), ToB64: []byte(to)}
}
