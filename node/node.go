package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/taibox/taibox/internal/lifecycle"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
)

// DriverConfig is what a driver is opened with.
type DriverConfig struct {
	DataDir  string // absolute, private to this process
	Instance string // goes into machine-wide names
	Logger   *slog.Logger
}

// OpenDriver opens what a node runs boxes with. The node closes the sandbox.
type OpenDriver func(context.Context, DriverConfig) (taisandbox.Sandbox, taisandbox.Image, error)

// Config says what node to open.
type Config struct {
	DataDir string            // required; made if missing
	Driver  OpenDriver        // required
	Runtime string            // the driver's name, for the registry: "oci", "fake"
	Labels  map[string]string // of the node, for the registry
	Logger  *slog.Logger      // default none
}

// Validate reports all problems, joined.
func (c *Config) Validate() error {
	var errs []error
	if c.DataDir == "" {
		errs = append(errs, errors.New("a data directory is required"))
	}
	if c.Driver == nil {
		errs = append(errs, errors.New("a driver is required"))
	}
	return errors.Join(errs...)
}

// Node is a node that runs in this process.
type Node struct {
	cfg      Config
	dir      string
	instance string
	client   *tai.Client
	snapshot registry.NodeSnapshot

	mu     sync.Mutex
	closed bool
	undo   lifecycle.Stack
}

// Open takes a data directory and opens the driver on it.
func Open(ctx context.Context, cfg Config) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open node: %w", err), n.undo.Close(ctx))
		}
	}()

	dir, err := openDataDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	n.dir = dir
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	n.undo.Push(func(context.Context) error { return unlock() })
	if err := checkLayout(dir); err != nil {
		return nil, err
	}
	if n.instance, err = loadInstance(dir); err != nil {
		return nil, err
	}
	sb, image, err := cfg.Driver(ctx, DriverConfig{DataDir: dir, Instance: n.instance, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	vol, err := local.Open(ctx, local.Config{Dir: filepath.Join(dir, volumeDir), Logger: cfg.Logger})
	if err != nil {
		return nil, errors.Join(err, sb.Close())
	}
	n.client = tai.NewClient(sb, image, tai.WithVolume(vol))
	n.undo.Push(func(context.Context) error { return n.client.Close() })
	n.snapshot = registry.NodeSnapshot{
		TaiID: registry.Local, Mode: registry.ModeLocal, Addr: registry.Local, Status: registry.StatusOnline,
		Runtime: cfg.Runtime, Capabilities: capabilities(sb, vol), Labels: maps.Clone(cfg.Labels), System: system(),
	}
	return n, nil
}

func capabilities(sb taisandbox.Sandbox, vol volume.Volume) []string {
	var names []string
	for f, has := range vol.Features() {
		if has {
			names = append(names, string(f))
		}
	}
	for f, has := range sb.Features() {
		if has {
			names = append(names, string(f))
		}
	}
	slices.Sort(names)
	return names
}

// ID returns the node's TaiID.
func (n *Node) ID() string { return registry.Local }

// Instance returns what marks the node's machine-wide names.
func (n *Node) Instance() string { return n.instance }

// DataDir returns the node's data directory, absolute and without links.
func (n *Node) DataDir() string { return n.dir }

// Client returns the client of the node, which Close closes.
func (n *Node) Client() *tai.Client { return n.client }

// Register enters the node in a registry, until Close.
func (n *Node) Register(r *registry.Registry) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errors.New("register node: it is closed")
	}
	if err := r.Register(registry.TaiNode{NodeSnapshot: n.snapshot, Client: n.client}); err != nil {
		return err
	}
	n.undo.Push(func(context.Context) error { return r.Unregister(n.ID()) })
	return nil
}

// Close takes the node out of its registries, lets go of the driver and then
// of the data directory. Boxes go on. Repeated calls do nothing.
func (n *Node) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if err := n.undo.Close(context.Background()); err != nil {
		return fmt.Errorf("close node: %w", err)
	}
	return nil
}
