package workspace

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"
	"unicode"
	"unicode/utf8"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

// Bounds of what callers choose freely.
const (
	maxNameLen  = 256
	maxLabels   = 64
	maxLabelLen = 4096
)

// Workspace is what there is to know of a workspace.
type Workspace struct {
	ID        string
	Name      string
	Owner     string
	Node      string // TaiID of the node that keeps it
	Labels    map[string]string
	Quota     volume.Quota
	CreatedAt time.Time
	UpdatedAt time.Time // when what is above was last changed
}

// MountMode says what a box may do with a workspace.
type MountMode string

// The modes of a mount.
const (
	MountRW MountMode = "rw"
	MountRO MountMode = "ro"
)

// CreateOptions are the settings of a workspace. Zero fields mean the default
// in the comment.
type CreateOptions struct {
	ID     string // as of a box; default a new one
	Name   string // for people; default the ID
	Owner  string
	Node   string // TaiID; default the local node, else the only one that has a volume
	Labels map[string]string
	Quota  volume.Quota // default none
}

// ListOptions selects workspaces. Empty fields do not filter.
type ListOptions struct {
	Owner  string
	Node   string
	Labels map[string]string // all must match
}

// UpdateOptions is a change of a workspace. What is nil stays.
type UpdateOptions struct {
	Name   *string
	Labels map[string]string // replaces all
	Quota  *volume.Quota
}

// NodeInfo is a node that can keep workspaces.
type NodeInfo struct {
	TaiID      string
	Online     bool
	Workspaces int // that are known to be there
	Features   volume.Features
}

// meta is what the manager keeps in a workspace's record.
type meta struct {
	Name      string            `json:"name,omitempty"`
	Owner     string            `json:"owner,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	UpdatedAt time.Time         `json:"updated_at,omitzero"`
}

func (w *Workspace) meta() (json.RawMessage, error) {
	b, err := json.Marshal(meta{Name: w.Name, Owner: w.Owner, Labels: w.Labels, UpdatedAt: w.UpdatedAt})
	if err != nil {
		return nil, fmt.Errorf("workspace %s: %w", w.ID, err)
	}
	return b, nil
}

// decode reads a workspace from its record. One whose meta is not ours, or
// damaged, is nobody's: an admin can still see and delete it.
func decode(node string, info *volume.Info) *Workspace {
	var m meta
	if json.Unmarshal(info.Meta, &m) != nil {
		m = meta{}
	}
	w := &Workspace{
		ID: info.ID, Name: m.Name, Owner: m.Owner, Node: node, Labels: m.Labels,
		Quota: info.Quota, CreatedAt: info.CreatedAt, UpdatedAt: m.UpdatedAt,
	}
	if w.Name == "" {
		w.Name = w.ID
	}
	if w.UpdatedAt.IsZero() {
		w.UpdatedAt = w.CreatedAt
	}
	if w.Labels == nil {
		w.Labels = map[string]string{}
	}
	return w
}

func (w *Workspace) clone() *Workspace {
	c := *w
	c.Labels = maps.Clone(w.Labels)
	return &c
}

func (w *Workspace) matches(o *ListOptions) bool {
	if o.Owner != "" && o.Owner != w.Owner || o.Node != "" && o.Node != w.Node {
		return false
	}
	for k, v := range o.Labels {
		if got, ok := w.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// ValidateID reports whether a workspace can have that ID: the rules are those
// of boxes.
func ValidateID(id string) error {
	if err := taisandbox.ValidateID(id); err != nil {
		return fmt.Errorf("%w: id %.64q: %w", ErrInvalid, id, err)
	}
	return nil
}

func checkName(what, s string) error {
	if len(s) > maxNameLen || !plainText(s) {
		return fmt.Errorf("%w: %s %.64q: up to %d bytes of text are possible", ErrInvalid, what, s, maxNameLen)
	}
	return nil
}

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("%w: %d labels: up to %d are possible", ErrInvalid, len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > maxNameLen || len(v) > maxLabelLen || !plainText(k) || !utf8.ValidString(v) {
			return fmt.Errorf("%w: label %.64q: a name of up to %d bytes of text and a value of up to %d are possible", ErrInvalid, k, maxNameLen, maxLabelLen)
		}
	}
	return nil
}

func checkQuota(q volume.Quota) error {
	if q.Bytes < 0 || q.Files < 0 {
		return fmt.Errorf("%w: quota of %d bytes and %d files: it cannot be negative", ErrInvalid, q.Bytes, q.Files)
	}
	return nil
}

func plainText(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return false
		}
	}
	return true
}
