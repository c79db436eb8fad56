package workspace_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
	"github.com/taibox/taibox/workspace"
)

const remote = "10.0.0.1-19100"

// world is a manager with nodes that have real volumes and fake boxes.
type world struct {
	*testing.T
	reg     *registry.Registry
	m       *workspace.Manager
	drivers map[string]*fake.Driver
	volumes map[string]*watched
	dirs    map[string]string
}

// watched counts how often a volume is listed, and can refuse.
type watched struct {
	volume.Volume
	lists   atomic.Int64
	broken  atomic.Bool
	deleted func()       // called before a delete
	created func() error // called before a create
}

var errBroken = errors.New("the volume is broken")

func (w *watched) List(ctx context.Context) ([]volume.Info, error) {
	w.lists.Add(1)
	if w.broken.Load() {
		return nil, errBroken
	}
	return w.Volume.List(ctx)
}

func (w *watched) Create(ctx context.Context, id string, o volume.Options) (volume.Info, error) {
	if w.created != nil {
		if err := w.created(); err != nil {
			return volume.Info{}, err
		}
	}
	return w.Volume.Create(ctx, id, o)
}

// Pin pins the volume below.
func (w *watched) Pin(ctx context.Context, id string, created time.Time) (volume.Volume, error) {
	v, err := w.Volume.Pin(ctx, id, created)
	if err != nil {
		return nil, err
	}
	return &watched{Volume: v, deleted: w.deleted}, nil
}

func (w *watched) Delete(ctx context.Context, id string) error {
	if w.deleted != nil {
		w.deleted()
	}
	return w.Volume.Delete(ctx, id)
}

func newWorld(t *testing.T, nodes ...string) *world {
	t.Helper()
	w := &world{
		T: t, reg: registry.New(),
		drivers: map[string]*fake.Driver{}, volumes: map[string]*watched{}, dirs: map[string]string{},
	}
	if len(nodes) == 0 {
		nodes = []string{registry.Local}
	}
	for _, id := range nodes {
		w.dirs[id] = t.TempDir()
		w.add(id)
	}
	w.m = w.manager()
	return w
}

func (w *world) manager() *workspace.Manager {
	w.Helper()
	m, err := workspace.New(workspace.Config{Registry: w.reg})
	w.ok(err)
	return m
}

// node opens the node of a directory.
func (w *world) node(id string) registry.TaiNode {
	w.Helper()
	v, err := local.Open(w.Context(), local.Config{Dir: w.dirs[id]})
	w.ok(err)
	vol, d := &watched{Volume: v}, fake.New()
	c := tai.NewClient(d, d, tai.WithVolume(vol))
	w.Cleanup(func() { c.Close() })
	w.drivers[id], w.volumes[id] = d, vol
	return registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: id, Runtime: "fake"}, Client: c}
}

func (w *world) add(id string) {
	w.Helper()
	w.ok(w.reg.Register(w.node(id)))
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) wantErr(err, target error) {
	w.Helper()
	if !errors.Is(err, target) {
		w.Errorf("the error is %v; wanted is %v", err, target)
	}
}

func (w *world) create(o workspace.CreateOptions) *workspace.Workspace {
	w.Helper()
	ws, err := w.m.Create(w.Context(), o)
	w.ok(err)
	return ws
}

// mount makes a box with a workspace on its node.
func (w *world) mount(box string, ws *workspace.Workspace) {
	w.Helper()
	dir, err := w.m.MountPath(w.Context(), ws.ID)
	w.ok(err)
	_, err = w.drivers[ws.Node].Create(w.Context(), taisandbox.Spec{
		ID: box, Image: taisandbox.HostFS,
		Mounts: []taisandbox.Mount{{Source: dir, Target: "/workspace", Workspace: ws.ID}},
	})
	w.ok(err)
}

func ids(list []*workspace.Workspace) []string {
	var out []string
	for _, ws := range list {
		out = append(out, ws.ID)
	}
	return out
}
