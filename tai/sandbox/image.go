package sandbox

import (
	"context"
	"io"
	"time"
)

// HostFS is the built-in image: the machine's own tools, read-only, with an
// /etc of its own and everything else empty and writable.
const HostFS = "hostfs"

// Image keeps the images of one node.
type Image interface {
	// Load reads an OCI or Docker archive, plain or compressed, verifies every
	// blob, and keeps its images under their names. A cut or corrupted archive
	// is [ErrImageCorrupt], one without a manifest for this platform
	// [ErrImagePlatform]; nothing of either is kept. name, if not empty, is
	// given to the archive's only image, and to one that has none.
	Load(ctx context.Context, archive io.Reader, name string) ([]ImageInfo, error)
	// InspectImage returns an image by name or digest, or [ErrImageNotFound].
	InspectImage(ctx context.Context, ref string) (ImageInfo, error)
	// ListImages returns all images, the built-in one first, then by name.
	ListImages(ctx context.Context) ([]ImageInfo, error)
	// RemoveImage removes a name, and what no other name or box needs.
	// [ErrImageInUse] names the boxes that are made of it.
	RemoveImage(ctx context.Context, ref string) error
}

// ImageInfo describes an image.
type ImageInfo struct {
	Name      string // normalised reference; "hostfs" for the built-in one
	Digest    string // of the platform's manifest; empty for hostfs
	Platform  string // "linux/amd64"
	SizeBytes int64  // of the blobs, as stored
	CreatedAt time.Time
	Config    ImageConfig
	BuiltIn   bool
}

// ImageConfig is what an image says about running it.
type ImageConfig struct {
	Env        []string          `json:"env,omitempty"` // K=V
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	WorkDir    string            `json:"work_dir,omitempty"`
	User       string            `json:"user,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	StopSignal string            `json:"stop_signal,omitempty"`
	Ports      []string          `json:"ports,omitempty"` // "8080/tcp"
}
