package workspace

import (
	"bytes"
	"context"
	"io/fs"

	"github.com/taibox/taibox/tai/volume"
	taiworkspace "github.com/taibox/taibox/tai/workspace"
)

// NodeForWorkspace returns the TaiID of the node that keeps a workspace.
func (m *Manager) NodeForWorkspace(ctx context.Context, id string) (string, error) {
	w, err := m.Get(ctx, id)
	if err != nil {
		return "", err
	}
	return w.Node, nil
}

// MountPath returns the directory of the node that has the files of a
// workspace, for a mount in a box of that node.
func (m *Manager) MountPath(ctx context.Context, id string) (string, error) {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return "", err
	}
	return vol.MountPath(ctx, id)
}

// FS returns the files of a workspace, and of no later one with its ID. The
// caller closes it.
func (m *Manager) FS(ctx context.Context, id string) (taiworkspace.FS, error) {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return taiworkspace.New(vol, id), nil
}

// ReadFile returns a file of at most [volume.MaxReadFile] bytes.
func (m *Manager) ReadFile(ctx context.Context, id, path string) ([]byte, error) {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return vol.ReadFile(ctx, id, path)
}

// WriteFile writes a file, whole or not at all, and makes missing parents. The
// mode of a file that is there stays if mode is 0.
func (m *Manager) WriteFile(ctx context.Context, id, path string, data []byte, mode fs.FileMode) error {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return err
	}
	_, err = vol.WriteFile(ctx, id, path, bytes.NewReader(data), volume.WriteOptions{Mode: mode, Parents: true})
	return err
}

// ListDir describes what is in a directory, ordered by name.
func (m *Manager) ListDir(ctx context.Context, id, path string) ([]volume.FileInfo, error) {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return vol.ListDir(ctx, id, path)
}

// Remove removes a file, or a directory with all that is in it.
func (m *Manager) Remove(ctx context.Context, id, path string) error {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return err
	}
	return vol.Remove(ctx, id, path, volume.RemoveOptions{All: true})
}

// Usage measures a workspace.
func (m *Manager) Usage(ctx context.Context, id string) (volume.Usage, error) {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return volume.Usage{}, err
	}
	return vol.Usage(ctx, id)
}

// CreateSnapshot keeps a workspace as it is now. A taken name is
// [ErrSnapshotExists].
func (m *Manager) CreateSnapshot(ctx context.Context, id, name string) (volume.Snapshot, error) {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return volume.Snapshot{}, err
	}
	return vol.CreateSnapshot(ctx, id, name)
}

// ListSnapshots returns the kept states of a workspace, oldest first.
func (m *Manager) ListSnapshots(ctx context.Context, id string) ([]volume.Snapshot, error) {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return vol.ListSnapshots(ctx, id)
}

// RestoreSnapshot makes a workspace what it was; boxes that have it mounted
// see it.
func (m *Manager) RestoreSnapshot(ctx context.Context, id, name string) error {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return err
	}
	return vol.RestoreSnapshot(ctx, id, name)
}

// RemoveSnapshot deletes one kept state.
func (m *Manager) RemoveSnapshot(ctx context.Context, id, name string) error {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return err
	}
	return vol.RemoveSnapshot(ctx, id, name)
}

// Diff tells what leads from one state to the other, ordered by path. An empty
// name is the workspace as it is.
func (m *Manager) Diff(ctx context.Context, id, from, to string) ([]volume.Change, error) {
	_, vol, err := m.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return vol.Diff(ctx, id, from, to)
}
