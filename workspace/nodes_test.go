package workspace_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	"github.com/taibox/taibox/workspace"
)

// TestNoScan: a node is read once, however often it is asked about.
func TestNoScan(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.ok(w.m.Start(ctx))
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			ws, err := w.m.Create(ctx, workspace.CreateOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			for range 10 {
				if _, err := w.m.Get(ctx, ws.ID); err != nil {
					t.Error(err)
				}
				if _, err := w.m.List(ctx, workspace.ListOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := w.volumes[registry.Local].lists.Load(); n != 1 {
		t.Errorf("the volume was listed %d times", n)
	}
}

func TestFirstUsesJoin(t *testing.T) {
	w := newWorld(t)
	w.create(workspace.CreateOptions{ID: "a"})
	m := w.manager()
	before := w.volumes[registry.Local].lists.Load()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := m.Get(t.Context(), "a"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := w.volumes[registry.Local].lists.Load() - before; n != 1 {
		t.Errorf("the volume was listed %d times", n)
	}
}

func TestNodeAway(t *testing.T) {
	w := newWorld(t, registry.Local, remote)
	ctx := t.Context()
	w.create(workspace.CreateOptions{ID: "here"})
	w.create(workspace.CreateOptions{ID: "there", Node: remote})
	w.ok(w.reg.Unregister(remote))
	if ws, err := w.m.Get(ctx, "there"); err != nil || ws.Node != remote {
		t.Errorf("of a node that is away it is %+v, %v", ws, err)
	}
	_, err := w.m.ReadFile(ctx, "there", "f")
	w.wantErr(err, workspace.ErrNodeOffline)
	w.wantErr(w.m.Delete(ctx, "there"), workspace.ErrNodeOffline)
	w.ok(w.m.WriteFile(ctx, "here", "f", []byte("x"), 0))
	_, err = w.m.Create(ctx, workspace.CreateOptions{ID: "there"})
	w.wantErr(err, workspace.ErrAlreadyExists)

	// Meanwhile somebody else was at it.
	other, err := workspace.New(workspace.Config{Registry: registry.New()})
	w.ok(err)
	n := w.node(remote)
	w.ok(other.AddPool(n))
	w.ok(other.Delete(ctx, "there"))
	_, err = other.Create(ctx, workspace.CreateOptions{ID: "new", Node: remote})
	w.ok(err)
	w.ok(w.m.AddPool(n))
	_, err = w.m.Get(ctx, "there")
	w.wantErr(err, workspace.ErrNotFound)
	if _, err := w.m.Get(ctx, "new"); err != nil {
		t.Error(err)
	}
}

func TestNodeThatDoesNotAnswer(t *testing.T) {
	w := newWorld(t, registry.Local, remote)
	ctx := t.Context()
	w.create(workspace.CreateOptions{ID: "here"})
	w.volumes[remote].broken.Store(true)
	m := w.manager()
	w.ok(m.Start(ctx)) // no error
	if _, err := m.Get(ctx, "here"); err != nil {
		t.Error(err)
	}
	_, err := m.Get(ctx, "there")
	w.wantErr(err, workspace.ErrNodeOffline) // it may be there
	w.wantErr(m.Absent("there"), workspace.ErrNodeOffline)
	if n := w.volumes[remote].lists.Load(); n != 2 {
		t.Errorf("it was asked %d times", n)
	}
}

func TestPools(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.dirs[remote] = t.TempDir()
	n := w.node(remote)
	w.ok(w.m.AddPool(n))
	w.wantErr(w.m.AddPool(n), registry.ErrAlreadyExists)
	w.create(workspace.CreateOptions{ID: "a", Node: remote})
	nodes := w.m.Nodes()
	if len(nodes) != 2 || nodes[0].TaiID != remote || nodes[0].Workspaces != 1 || !nodes[0].Online || nodes[1].TaiID != registry.Local {
		t.Errorf("the nodes are %+v", nodes)
	}
	w.ok(w.m.RemovePool(remote))
	w.wantErr(w.m.RemovePool(remote), workspace.ErrNodeNotFound)
	_, err := w.m.Get(ctx, "a")
	w.wantErr(err, workspace.ErrNotFound)
	w.ok(w.m.AddPool(n)) // its workspaces stayed on it
	if _, err := w.m.Get(ctx, "a"); err != nil {
		t.Error(err)
	}

	d := fake.New()
	defer d.Close()
	bare := registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: "10.0.0.9-19100"}, Client: tai.NewClient(d, d)}
	w.wantErr(w.m.AddPool(bare), workspace.ErrUnsupported)
	w.ok(w.reg.Register(bare)) // one that runs boxes alone
	_, err = w.m.Create(ctx, workspace.CreateOptions{Node: bare.TaiID})
	w.wantErr(err, workspace.ErrUnsupported)
	if slices.ContainsFunc(w.m.Nodes(), func(n workspace.NodeInfo) bool { return n.TaiID == bare.TaiID }) {
		t.Error("it is listed among those that keep workspaces")
	}
}
