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

// ImageList is the images of a node, the built-in one first.
type ImageList struct {
	Items []Image `json:"items"`
}
