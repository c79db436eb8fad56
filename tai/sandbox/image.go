package sandbox

import (
	"context"
	"fmt"
	"io"
	"log/slog"
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
	// Exists reports whether the node has an image, by name or digest.
	Exists(ctx context.Context, ref string) (bool, error)
	// Pull fetches an image from its registry, and returns at once. The channel
	// says how far it is: what a layer's Current says never falls. Its last
	// element has the status [PullComplete], or Error and Err; then it is
	// closed. A pull that is there already for the same image is joined, and
	// goes on until the last context of those who wait for it has ended. The
	// name is looked up once; from there on digests decide, and the image
	// counts once all of it has been verified.
	Pull(ctx context.Context, ref string, opts PullOptions) (<-chan PullProgress, error)
	// Save writes images as one OCI archive, which Docker reads too.
	Save(ctx context.Context, refs []string, w io.Writer) error
	// Commit makes an image of a box: the image that it was made of, and what
	// has changed in it since as one more layer. Commands that run go on; what
	// they are just writing may be caught half written. The built-in image has
	// no layers to add to: [ErrUnsupported].
	Commit(ctx context.Context, box, name string, change ImageChange) (ImageInfo, error)
	// Prune removes images that no box is made of, and what is left of pulls
	// that failed: those without a name, or all of them. It returns what it
	// removed.
	Prune(ctx context.Context, all bool) ([]ImageInfo, error)
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

// What a pull does with a layer, or, where no layer is named, as a whole.
const (
	PullResolving   = "resolving"
	PullWaiting     = "waiting"
	PullDownloading = "downloading"
	PullDownloaded  = "downloaded"
	PullExtracting  = "extracting"
	PullDone        = "done"     // of a layer
	PullComplete    = "complete" // of the image
)

// PullProgress is one step of a pull.
type PullProgress struct {
	Status  string
	Layer   string // digest of the layer that it is about; "" for the image
	Current int64  // bytes that are there
	Total   int64
	Error   string // the pull has failed; what for people
	Err     error  // the same, for errors.Is
	Digest  string // of the image, with PullComplete
}

// PullOptions say how to pull.
type PullOptions struct {
	Auth *RegistryAuth // nil = anonymous
}

// RegistryAuth is who a registry is told we are. It prints as nothing.
type RegistryAuth struct {
	Username string // "" with a Password: that is an identity token
	Password string
	Server   string // "" = that of the image; else used there only
}

const redacted = "[redacted]"

// String hides the credentials.
func (RegistryAuth) String() string { return redacted }

// Format hides the credentials from every verb.
func (RegistryAuth) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) } //nolint:errcheck // as fmt does

// LogValue hides the credentials from logs.
func (RegistryAuth) LogValue() slog.Value { return slog.StringValue(redacted) }

// ImageChange is what Commit changes in an image's configuration. Nil keeps
// what is there; variables and labels are added to it.
type ImageChange struct {
	Entrypoint *[]string
	Cmd        *[]string
	Env        []string // K=V
	WorkDir    *string
	User       *string
	Labels     map[string]string
}
