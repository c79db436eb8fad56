package sandbox

import (
	"context"
	"errors"
	"fmt"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// RegistryAuth is who a registry is told we are.
type RegistryAuth = taisandbox.RegistryAuth

// ImagePullOptions say how to pull an image.
type ImagePullOptions struct {
	Auth *RegistryAuth // nil = anonymous
}

// ImageExists reports whether a node has an image. A node without an image
// service, which fetches images itself, has every one.
func (m *Manager) ImageExists(ctx context.Context, nodeID, ref string) (bool, error) {
	images, err := m.Images(nodeID)
	if err != nil || images == nil {
		return err == nil, err
	}
	return images.Exists(ctx, ref)
}

// PullImage fetches an image to a node. The channel's last element says how it
// ended, see [taisandbox.Image]. For a node without an image service it is nil.
func (m *Manager) PullImage(ctx context.Context, nodeID, ref string, opts ImagePullOptions) (<-chan taisandbox.PullProgress, error) {
	images, err := m.Images(nodeID)
	if err != nil || images == nil {
		return nil, err
	}
	return images.Pull(ctx, ref, taisandbox.PullOptions{Auth: opts.Auth})
}

var errPullCut = errors.New("the pull ended without a result")

// EnsureImage fetches an image to a node unless it is there, and waits for it.
func (m *Manager) EnsureImage(ctx context.Context, nodeID, ref string, opts ImagePullOptions) error {
	if there, err := m.ImageExists(ctx, nodeID, ref); there || err != nil {
		return err
	}
	progress, err := m.PullImage(ctx, nodeID, ref, opts)
	if err != nil {
		return err
	}
	var last taisandbox.PullProgress
	for p := range progress {
		last = p
	}
	switch {
	case last.Err != nil:
		return last.Err
	case last.Status != taisandbox.PullComplete:
		return fmt.Errorf("pull image %s: %w", ref, errPullCut)
	}
	images, err := m.Images(nodeID)
	if err != nil {
		return err
	}
	_, err = images.InspectImage(ctx, last.Digest)
	return err
}
