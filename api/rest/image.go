package rest

import "time"

// Image describes an image of a node.
type Image struct {
	Name      string      `json:"name"`
	Digest    string      `json:"digest,omitempty"`
	Platform  string      `json:"platform"`
	SizeBytes int64       `json:"size_bytes"`
	CreatedAt time.Time   `json:"created_at,omitzero"`
	BuiltIn   bool        `json:"built_in"`
	Config    ImageConfig `json:"config"`
}

// ImageConfig is what an image says about running it.
type ImageConfig struct {
	Env        []string          `json:"env,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	WorkDir    string            `json:"work_dir,omitempty"`
	User       string            `json:"user,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	StopSignal string            `json:"stop_signal,omitempty"`
	Ports      []string          `json:"ports,omitempty"`
}

// ImageList is images of a node, the built-in one first. A list is paged; what
// was loaded or pruned comes whole.
type ImageList struct {
	Items     []Image `json:"items"`
	NextToken string  `json:"next_token,omitempty" doc:"Ask with it for the next page"`
}

// RegistryAuth is who a registry is told we are.
type RegistryAuth struct {
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty" doc:"Or, without a user name, an identity token"`
	Server   string `json:"server,omitempty" doc:"Default: the image's registry"`
}

// PullImage asks for an image of a registry.
type PullImage struct {
	Image  string        `json:"image"`
	NodeID string        `json:"node_id,omitempty"`
	Auth   *RegistryAuth `json:"auth,omitempty"`
}

// PullEvent is a line of the answer: what happens to a layer, or to the image
// as a whole. The last one has the status "complete", or an error.
type PullEvent struct {
	Status  string `json:"status,omitempty"`
	Layer   string `json:"layer,omitempty"`
	Current int64  `json:"current,omitempty"`
	Total   int64  `json:"total,omitempty"`
	Digest  string `json:"digest,omitempty"`
	Error   *Error `json:"error,omitempty"`
}

// SaveImages asks for an archive of images.
type SaveImages struct {
	Images []string `json:"images"`
	NodeID string   `json:"node_id,omitempty"`
}

// PruneImages asks for the removal of images that no box is made of: of those
// without a name, or of all of them.
type PruneImages struct {
	NodeID string `json:"node_id,omitempty"`
	All    bool   `json:"all,omitempty"`
}

// CommitBox asks for an image of a box. Settings that are left out stay as the
// box's image has them; env and labels are added to it.
type CommitBox struct {
	Image      string            `json:"image" doc:"Name of the new image"`
	Entrypoint *[]string         `json:"entrypoint,omitempty"`
	Cmd        *[]string         `json:"cmd,omitempty"`
	Env        []string          `json:"env,omitempty" doc:"K=V"`
	WorkDir    *string           `json:"work_dir,omitempty"`
	User       *string           `json:"user,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}
