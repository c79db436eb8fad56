package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai"
)

// Failures callers test for with errors.Is.
var (
	// ErrNotFound reports a TaiID that is not registered.
	ErrNotFound = &reason.Error{Reason: "NODE_NOT_FOUND", Msg: "node not found", Class: errdefs.ErrNotFound}
	// ErrAlreadyExists reports a TaiID that is taken.
	ErrAlreadyExists = &reason.Error{Reason: "NODE_EXISTS", Msg: "node already registered", Class: errdefs.ErrAlreadyExists}
	// ErrInvalidID reports a string that is no TaiID.
	ErrInvalidID = &reason.Error{Reason: "INVALID_NODE_ID", Msg: "invalid node id", Class: errdefs.ErrInvalidArgument}
)

// Reasons lists every sentinel of this package, for a [reason.Table].
func Reasons() []*reason.Error { return []*reason.Error{ErrNotFound, ErrAlreadyExists, ErrInvalidID} }

// What [NodeSnapshot.Status] can be.
const (
	StatusOnline  = "online"
	StatusOffline = "offline"
)

// System describes the machine of a node.
type System struct {
	OS          string `json:"os"`
	Arch        string `json:"arch"`
	Kernel      string `json:"kernel,omitempty"`
	Hostname    string `json:"hostname,omitempty"`
	CPUs        int    `json:"cpus"`
	MemoryBytes int64  `json:"memory_bytes"`
}

// NodeSnapshot is what is known of a node at one moment.
type NodeSnapshot struct {
	TaiID        string            `json:"tai_id"`
	Mode         string            `json:"mode"` // [ModeLocal], [ModeDirect] or [ModeTunnel]
	Addr         string            `json:"addr"`
	Status       string            `json:"status"`  // [StatusOnline] or [StatusOffline]
	Runtime      string            `json:"runtime"` // what it runs boxes with: "oci", "docker", "k8s", "fake"
	Capabilities []string          `json:"capabilities"`
	Labels       map[string]string `json:"labels,omitempty"`
	System       System            `json:"system"`
}

// TaiNode is a registered node: what is known of it, and the way to it.
type TaiNode struct {
	NodeSnapshot
	Client *tai.Client
}

// Registry is a set of nodes.
type Registry struct {
	mu      sync.RWMutex
	nodes   map[string]TaiNode
	changed chan struct{}
}

// New returns an empty registry.
func New() *Registry {
	return &Registry{nodes: map[string]TaiNode{}, changed: make(chan struct{})}
}

var global = New()

// Global returns the registry of this process.
func Global() *Registry { return global }

// Register enters a node. An empty Mode is taken from the form of the TaiID,
// an empty Status is [StatusOnline]. A taken TaiID is [ErrAlreadyExists]. The
// client stays with the caller, who closes it after Unregister.
func (r *Registry) Register(n TaiNode) error {
	mode, err := modeOf(n.TaiID)
	switch {
	case err != nil:
		return fmt.Errorf("register node: %w", err)
	case n.Mode != "" && n.Mode != mode:
		return fmt.Errorf("register node: %w: %s is the name of a %s node, not of a %s one", ErrInvalidID, n.TaiID, mode, n.Mode)
	case n.Client == nil:
		return fmt.Errorf("register node %s: %w: it has no client", n.TaiID, errdefs.ErrInvalidArgument)
	}
	n.NodeSnapshot = n.clone()
	n.Mode = mode
	if n.Status == "" {
		n.Status = StatusOnline
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.nodes[n.TaiID]; ok {
		return fmt.Errorf("register node %s: %w", n.TaiID, ErrAlreadyExists)
	}
	r.nodes[n.TaiID] = n
	r.notifyLocked()
	return nil
}

// Unregister takes a node out, or returns [ErrNotFound].
func (r *Registry) Unregister(taiID string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.nodes[taiID]; !ok {
		return fmt.Errorf("unregister node %s: %w", taiID, ErrNotFound)
	}
	delete(r.nodes, taiID)
	r.notifyLocked()
	return nil
}

// Get returns a node, or [ErrNotFound].
func (r *Registry) Get(taiID string) (TaiNode, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n, ok := r.nodes[taiID]
	if !ok {
		return TaiNode{}, fmt.Errorf("node %.64q: %w", taiID, ErrNotFound)
	}
	n.NodeSnapshot = n.clone()
	return n, nil
}

// List returns all nodes, ordered by TaiID.
func (r *Registry) List() []NodeSnapshot {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]NodeSnapshot, 0, len(r.nodes))
	for _, n := range r.nodes {
		list = append(list, n.clone())
	}
	slices.SortFunc(list, func(a, b NodeSnapshot) int { return strings.Compare(a.TaiID, b.TaiID) })
	return list
}

// Changed returns a channel that is closed at the next Register or
// Unregister. Take it before List, so that nothing is missed in between.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.changed
}

func (r *Registry) notifyLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// clone returns a copy that shares nothing with s.
func (s *NodeSnapshot) clone() NodeSnapshot {
	c := *s
	c.Capabilities = slices.Clone(s.Capabilities)
	c.Labels = maps.Clone(s.Labels)
	return c
}
