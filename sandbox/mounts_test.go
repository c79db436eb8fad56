package sandbox_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
	"github.com/taibox/taibox/workspace"
)

const otherNode = "10.0.0.7-19100"

// studio is a rig whose nodes keep workspaces.
type studio struct {
	*rig
	ws *workspace.Manager
}

func newStudio(t *testing.T, opts ...fake.Option) *studio {
	t.Helper()
	s := &studio{rig: &rig{t: t, d: fake.New(opts...), reg: registry.New(), cfg: sandbox.DefaultConfig()}}
	s.addNode(node, s.d)
	s.addNode(otherNode, fake.New())
	var err error
	s.ws, err = workspace.New(workspace.Config{Registry: s.reg})
	must(t, err)
	s.cfg.Workspaces = s.ws
	s.m = s.manager()
	return s
}

func (s *studio) addNode(id string, d *fake.Driver) {
	s.t.Helper()
	vol, err := local.Open(s.t.Context(), local.Config{Dir: s.t.TempDir()})
	must(s.t, err)
	client := tai.NewClient(d, d, tai.WithVolume(vol))
	must(s.t, s.reg.Register(registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: id, Runtime: "fake"}, Client: client}))
	s.t.Cleanup(func() { must(s.t, client.Close()) })
}

func (s *studio) workspace(o workspace.CreateOptions) {
	s.t.Helper()
	_, err := s.ws.Create(s.t.Context(), o)
	must(s.t, err)
}

// in is a box in a workspace, and on no node in particular.
func in(ws string) sandbox.CreateOptions {
	return sandbox.CreateOptions{Image: taisandbox.HostFS, WorkspaceID: ws}
}

func TestWorkspaceInBox(t *testing.T) {
	s := newStudio(t)
	ctx := t.Context()
	s.workspace(workspace.CreateOptions{ID: "ws-a", Node: node})
	must(t, s.ws.WriteFile(ctx, "ws-a", "in.txt", []byte("from outside\n"), 0))
	b, err := s.m.Create(ctx, in("ws-a"))
	must(t, err)
	if b.WorkspaceID() != "ws-a" || b.NodeID() != node {
		t.Errorf("it is in %q on %s", b.WorkspaceID(), b.NodeID())
	}
	info, err := b.Info(ctx)
	must(t, err)
	want := []sandbox.Mount{{WorkspaceID: "ws-a", Target: "/workspace"}}
	if diff := cmp.Diff(want, info.Mounts); diff != "" || info.WorkspaceID != "ws-a" || info.WorkDir != "/workspace" {
		t.Errorf("it is in %q at %s, its mounts are (-want +got):\n%s", info.WorkspaceID, info.WorkDir, diff)
	}
	res, err := b.Exec(ctx, []string{"cat", "/workspace/in.txt"})
	if err != nil || res.Stdout != "from outside\n" {
		t.Errorf("inside there is %+v, %v", res, err)
	}
	_, err = b.Exec(ctx, []string{"write", "/workspace/out.txt", "from inside"})
	must(t, err)

	fsys := b.Workspace()
	defer fsys.Close()
	data, err := fsys.ReadFile("out.txt")
	if err != nil || strings.TrimSpace(string(data)) != "from inside" {
		t.Errorf("outside there is %q, %v", data, err)
	}
	must(t, fsys.WriteFile("new.txt", []byte("new\n"), 0o644))
	if res, err := b.Exec(ctx, []string{"cat", "/workspace/new.txt"}); err != nil || res.Stdout != "new\n" {
		t.Errorf("inside there is %+v, %v", res, err)
	}

	// While there is the box, stopped too, the workspace stays.
	must(t, b.Stop(ctx))
	if _, err := fsys.ReadFile("out.txt"); err != nil {
		t.Errorf("of a stopped box: %v", err)
	}
	if err := s.ws.Delete(ctx, "ws-a"); !errors.Is(err, workspace.ErrHasMounts) || !strings.Contains(err.Error(), b.ID()) {
		t.Errorf("delete: %v", err)
	}
	must(t, b.Remove(ctx))
	must(t, s.ws.Delete(ctx, "ws-a"))
}

func TestWorkspaceRouting(t *testing.T) {
	s := newStudio(t)
	ctx := t.Context()
	s.workspace(workspace.CreateOptions{ID: "here", Node: node})
	s.workspace(workspace.CreateOptions{ID: "there", Node: otherNode})
	b, err := s.m.Create(ctx, in("there"))
	must(t, err)
	if b.NodeID() != otherNode {
		t.Errorf("it is on %s", b.NodeID())
	}
	for name, mod := range map[string]func(*sandbox.CreateOptions){
		"node":  func(o *sandbox.CreateOptions) { o.NodeID = node },
		"other": func(o *sandbox.CreateOptions) { o.Mounts = []sandbox.Mount{{WorkspaceID: "here", Target: "/here"}} },
	} {
		o := in("there")
		mod(&o)
		if _, err := s.m.Create(ctx, o); !errors.Is(err, sandbox.ErrInvalidSpec) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := in("there")
	o.NodeID = otherNode
	_, err = s.m.Create(ctx, o)
	must(t, err)
	// A mount alone decides too.
	b, err = s.m.Create(ctx, sandbox.CreateOptions{Image: taisandbox.HostFS, Mounts: []sandbox.Mount{{WorkspaceID: "there", Target: "/data"}}})
	must(t, err)
	if b.NodeID() != otherNode || b.WorkspaceID() != "" {
		t.Errorf("it is on %s, in %q", b.NodeID(), b.WorkspaceID())
	}
}

func TestMountOptions(t *testing.T) {
	s := newStudio(t)
	ctx := t.Context()
	s.workspace(workspace.CreateOptions{ID: "ws-a", Node: node})
	s.workspace(workspace.CreateOptions{ID: "ws-b", Node: node})
	dir := t.TempDir()
	o := in("ws-a")
	o.MountMode, o.MountPath = "ro", "/data"
	o.Mounts = []sandbox.Mount{{WorkspaceID: "ws-b", Target: "/b"}, {Source: dir, Target: "/machine", ReadOnly: true}}
	b, err := s.m.Create(ctx, o)
	must(t, err)
	want := []sandbox.Mount{
		{WorkspaceID: "ws-a", Target: "/data", ReadOnly: true},
		{WorkspaceID: "ws-b", Target: "/b"},
		{Source: dir, Target: "/machine", ReadOnly: true},
	}
	info := b.Snapshot()
	if diff := cmp.Diff(want, info.Mounts); diff != "" || info.WorkDir != "/data" {
		t.Errorf("it begins in %s, its mounts are (-want +got):\n%s", info.WorkDir, diff)
	}
	if res, err := b.Exec(ctx, []string{"write", "/data/f", "x"}); err != nil || res.ExitCode == 0 {
		t.Errorf("a read-only workspace was written: %+v, %v", res, err)
	}
	if res, err := b.Exec(ctx, []string{"write", "/b/f", "x"}); err != nil || res.ExitCode != 0 {
		t.Errorf("the other one was not: %+v, %v", res, err)
	}
	o = in("ws-a")
	o.WorkDir = "/tmp"
	if b, err = s.m.Create(ctx, o); err != nil || b.Snapshot().WorkDir != "/tmp" {
		t.Errorf("a directory of its own: %+v, %v", b.Snapshot(), err)
	}
}

// Everything is checked before anything is made.
func TestBadMounts(t *testing.T) {
	s := newStudio(t)
	ctx := t.Context()
	s.workspace(workspace.CreateOptions{ID: "ws-a", Node: node})
	for name, c := range map[string]struct {
		mod  func(*sandbox.CreateOptions)
		want error
	}{
		"unknown":       {func(o *sandbox.CreateOptions) { o.WorkspaceID = "nosuch" }, workspace.ErrNotFound},
		"unknown-mount": {func(o *sandbox.CreateOptions) { o.Mounts = []sandbox.Mount{{WorkspaceID: "nosuch", Target: "/x"}} }, workspace.ErrNotFound},
		"bad-id":        {func(o *sandbox.CreateOptions) { o.WorkspaceID = "../x" }, sandbox.ErrInvalidSpec},
		"mode":          {func(o *sandbox.CreateOptions) { o.MountMode = "rx" }, sandbox.ErrInvalidSpec},
		"path":          {func(o *sandbox.CreateOptions) { o.MountPath = "/proc/x" }, sandbox.ErrInvalidSpec},
		"relative":      {func(o *sandbox.CreateOptions) { o.MountPath = "x" }, sandbox.ErrInvalidSpec},
		"mode-alone":    {func(o *sandbox.CreateOptions) { o.WorkspaceID, o.MountMode = "", "ro" }, sandbox.ErrInvalidSpec},
		"path-alone":    {func(o *sandbox.CreateOptions) { o.WorkspaceID, o.MountPath = "", "/x" }, sandbox.ErrInvalidSpec},
		"twice": {func(o *sandbox.CreateOptions) {
			o.Mounts = []sandbox.Mount{{WorkspaceID: "ws-a", Target: "/workspace"}}
		}, sandbox.ErrInvalidSpec},
		"neither": {func(o *sandbox.CreateOptions) { o.Mounts = []sandbox.Mount{{Target: "/x"}} }, sandbox.ErrInvalidSpec},
		"both": {func(o *sandbox.CreateOptions) {
			o.Mounts = []sandbox.Mount{{WorkspaceID: "ws-a", Source: "/srv", Target: "/x"}}
		}, sandbox.ErrInvalidSpec},
		"missing-source": {func(o *sandbox.CreateOptions) { o.Mounts = []sandbox.Mount{{Source: "/no/such", Target: "/x"}} }, sandbox.ErrMountSource},
		"reserved-label": {func(o *sandbox.CreateOptions) { o.Labels = map[string]string{"workspace-id": "x"} }, sandbox.ErrInvalidSpec},
	} {
		o := in("ws-a")
		o.ID = "x"
		c.mod(&o)
		if o.WorkspaceID == "" {
			o.NodeID = node
		}
		if _, err := s.m.Create(ctx, o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v; wanted is %v", name, err, c.want)
		}
		s.want()
	}
	must(t, s.ws.Delete(ctx, "ws-a")) // nothing holds it

	r := newRig(t)
	if _, err := r.m.Create(ctx, in("ws-a")); !errors.Is(err, workspace.ErrNotFound) {
		t.Errorf("on nodes that keep no workspaces: %v", err)
	}
}

// A workspace is held from the check to the box.
func TestDeleteWhileCreating(t *testing.T) {
	deleted := make(chan error, 1)
	var s *studio
	s = newStudio(t, fake.WithFault(func(op, _ string) error {
		if op == "create.image" { // the workspace was found, and the box is not there yet
			ctx, cancel := context.WithCancelCause(context.Background())
			go func() { deleted <- s.ws.Delete(ctx, "ws-a") }()
			t.Cleanup(func() { cancel(nil) })
		}
		return nil
	}))
	s.workspace(workspace.CreateOptions{ID: "ws-a", Node: node})
	b, err := s.m.Create(t.Context(), in("ws-a"))
	must(t, err)
	if err := <-deleted; !errors.Is(err, workspace.ErrHasMounts) {
		t.Errorf("delete: %v", err)
	}
	if _, err := b.Workspace().ReadDir("."); err != nil {
		t.Errorf("the workspace: %v", err)
	}
}

// A request stays with the workspaces that it means: not with later ones that
// have their IDs, however long it waited for its turn.
func TestJ05WorkspacesOfARequest(t *testing.T) {
	at(t, func(t *testing.T) {
		s := newStudio(t)
		ctx := t.Context()
		s.workspace(workspace.CreateOptions{ID: "busy", Node: node})
		s.workspace(workspace.CreateOptions{ID: "proj", Node: node, Owner: "u1"})
		o := in("")
		for _, id := range []string{"busy", "proj"} {
			w, err := s.ws.Get(ctx, id)
			must(t, err)
			o.Mounts = append(o.Mounts, sandbox.Mount{WorkspaceID: id, Target: "/" + id})
			o.Workspaces = append(o.Workspaces, w)
		}
		release, err := s.ws.Hold(ctx, "busy")
		must(t, err)
		deleting, cancel := context.WithCancelCause(ctx)
		go s.ws.Delete(deleting, "busy")
		synctest.Wait()
		created := make(chan error, 1)
		go func() {
			_, err := s.m.Create(ctx, o)
			created <- err
		}()
		synctest.Wait() // for the delete, which waits for the hold
		must(t, s.ws.Delete(ctx, "proj"))
		time.Sleep(time.Second)
		s.workspace(workspace.CreateOptions{ID: "proj", Node: node, Owner: "u2"})
		cancel(nil)
		synctest.Wait()
		release()
		wantErr(t, <-created, workspace.ErrNotFound)
		s.want()

		o.Workspaces[1], err = s.ws.Get(ctx, "proj")
		must(t, err)
		_, err = s.m.Create(ctx, o)
		must(t, err)
	})
}

// pinHook stands between the manager and its node's volume.
type pinHook struct {
	volume.Volume
	pin func()
}

func (h *pinHook) Pin(ctx context.Context, id string, created time.Time) (volume.Volume, error) {
	h.pin()
	return h.Volume.Pin(ctx, id, created)
}

// Creates that mount the same workspaces in another order, and deletes of
// these, do not wait for each other for ever.
func TestMountsInAnyOrder(t *testing.T) {
	at(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, context.DeadlineExceeded)
		defer cancel()
		vol, err := local.Open(ctx, local.Config{Dir: t.TempDir()})
		must(t, err)
		open := make(chan struct{})
		close(open)
		gate := open // closed: whoever holds a workspace goes on
		d := fake.New()
		client := tai.NewClient(d, d, tai.WithVolume(&pinHook{vol, func() { <-gate }}))
		t.Cleanup(func() { must(t, client.Close()) })
		s := &studio{rig: &rig{t: t, d: d, reg: registry.New(), cfg: sandbox.DefaultConfig()}}
		must(t, s.reg.Register(registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: node, Runtime: "fake"}, Client: client}))
		s.ws, err = workspace.New(workspace.Config{Registry: s.reg})
		must(t, err)
		s.cfg.Workspaces = s.ws
		s.m = s.manager()
		for _, id := range []string{"a", "b"} {
			s.workspace(workspace.CreateOptions{ID: id, Node: node})
		}
		gate = make(chan struct{})
		ended := make(chan error, 4)
		for _, ids := range [][]string{{"a", "b"}, {"b", "a"}} {
			o := in("")
			for _, id := range ids {
				o.Mounts = append(o.Mounts, sandbox.Mount{WorkspaceID: id, Target: "/" + id})
			}
			go func() {
				_, err := s.m.Create(ctx, o)
				ended <- err
			}()
		}
		synctest.Wait() // each holds its first
		for _, id := range []string{"a", "b"} {
			go func() { ended <- s.ws.Delete(ctx, id) }()
		}
		synctest.Wait()
		close(gate)
		for range cap(ended) {
			if err := <-ended; err != nil && !errors.Is(err, workspace.ErrNotFound) {
				t.Error(err)
			}
		}
	})
}

// A box's files stay with the workspace that they were of.
func TestJ05WorkspacesOfABox(t *testing.T) {
	s := newStudio(t)
	ctx := t.Context()
	for _, id := range []string{"own", "bound"} {
		s.workspace(workspace.CreateOptions{ID: id, Node: node})
	}
	b, err := s.m.Create(ctx, in("own"))
	must(t, err)
	s.restart()
	recovered, err := s.m.Get(ctx, b.ID())
	must(t, err)
	b, err = s.m.Create(ctx, in("own"))
	must(t, err)
	must(t, b.BindWorkplace(ctx, "bound"))
	must(t, recovered.Remove(ctx))
	must(t, b.Remove(ctx))
	for _, id := range []string{"own", "bound"} {
		must(t, s.ws.Delete(ctx, id))
		s.workspace(workspace.CreateOptions{ID: id, Node: node})
		must(t, s.ws.WriteFile(ctx, id, "f", []byte("theirs"), 0))
	}
	for name, fsys := range map[string]fs.ReadFileFS{"own": b.Workspace(), "recovered": recovered.Workspace(), "bound": b.Workplace()} {
		if data, err := fsys.ReadFile("f"); !errors.Is(err, workspace.ErrNotFound) {
			t.Errorf("%s: there is %q, %v", name, data, err)
		}
	}
}

func TestWorkspaceAfterRestart(t *testing.T) {
	s := newStudio(t)
	ctx := t.Context()
	s.workspace(workspace.CreateOptions{ID: "ws-a", Node: node})
	b, err := s.m.Create(ctx, in("ws-a"))
	must(t, err)
	s.restart()
	again, err := s.m.Get(ctx, b.ID())
	must(t, err)
	if again.WorkspaceID() != "ws-a" {
		t.Errorf("it is in %q", again.WorkspaceID())
	}
	if info := again.Snapshot(); len(info.Mounts) != 1 || info.WorkspaceID != "ws-a" || len(info.Labels) > 0 {
		t.Errorf("it is %+v", info)
	}
	if _, err := again.Workspace().ReadDir("."); err != nil {
		t.Error(err)
	}
}

func TestIdempotentWorkspace(t *testing.T) {
	s := newStudio(t)
	ctx := t.Context()
	s.workspace(workspace.CreateOptions{ID: "ws-a", Node: node})
	o := in("ws-a")
	o.IdempotencyKey = "k"
	one, err := s.m.Create(ctx, o)
	must(t, err)
	two, err := s.m.Create(ctx, o)
	if err != nil || one != two {
		t.Errorf("the same request made another box: %v", err)
	}
	o.MountMode = "ro"
	if _, err := s.m.Create(ctx, o); !errors.Is(err, sandbox.ErrIdempotencyKey) {
		t.Errorf("another mode: %v", err)
	}
}

func TestWorkplace(t *testing.T) {
	s := newStudio(t)
	ctx := t.Context()
	s.workspace(workspace.CreateOptions{ID: "own", Node: node})
	s.workspace(workspace.CreateOptions{ID: "bound", Node: otherNode})
	must(t, s.ws.WriteFile(ctx, "own", "main.go", []byte("own"), 0))
	must(t, s.ws.WriteFile(ctx, "bound", "main.go", []byte("bound"), 0))
	b, err := s.m.Create(ctx, in("own"))
	must(t, err)
	wantFile := func(fsys fs.ReadFileFS, want string) {
		t.Helper()
		if data, err := fsys.ReadFile("main.go"); err != nil || string(data) != want {
			t.Errorf("there is %q, %v; wanted is %q", data, err, want)
		}
	}
	wantFile(b.Workplace(), "own")
	must(t, b.BindWorkplace(ctx, "bound"))
	wantFile(b.Workplace(), "bound")
	wantFile(b.Workspace(), "own")
	if err := b.BindWorkplace(ctx, "nosuch"); !errors.Is(err, workspace.ErrNotFound) {
		t.Errorf("bind: %v", err)
	}
	wantFile(b.Workplace(), "bound")
	must(t, b.BindWorkplace(ctx, ""))
	wantFile(b.Workplace(), "own")

	bare := s.create(sandbox.CreateOptions{})
	if _, err := bare.Workspace().ReadFile("main.go"); !errors.Is(err, sandbox.ErrNoWorkspace) {
		t.Errorf("without a workspace: %v", err)
	}
	must(t, bare.BindWorkplace(ctx, "bound"))
	wantFile(bare.Workplace(), "bound")
}
