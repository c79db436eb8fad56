package sandbox_test

import (
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func TestCreate(t *testing.T) {
	r := newRig(t)
	entrypoint := []string{"sleep", "infinity"}
	b := r.create(sandbox.CreateOptions{
		ID: "b1", Owner: "ann", Labels: map[string]string{"team": "x"}, Memory: 64 << 20, CPUs: 0.5, Pids: 30,
		Policy: sandbox.LongRunning, StopTimeout: 5 * time.Second, Entrypoint: &entrypoint, Network: taisandbox.NetworkNone,
	})
	if b.ID() != "b1" || b.Owner() != "ann" || b.NodeID() != node || b.ContainerID() != "fake-b1" {
		t.Errorf("got %s %s %s %s", b.ID(), b.Owner(), b.NodeID(), b.ContainerID())
	}
	info, err := b.Info(t.Context())
	must(t, err)
	want := &sandbox.BoxInfo{
		ID: "b1", ContainerID: "fake-b1", NodeID: node, Owner: "ann", Status: "running", Policy: sandbox.LongRunning,
		Labels: map[string]string{"team": "x"}, Image: "hostfs", Isolation: "container", Network: "none",
		Entrypoint: entrypoint, WorkDir: "/workspace", User: "root", Memory: 64 << 20, CPUs: 0.5, Pids: 30,
		RunningExecs: 1, StopTimeout: 5 * time.Second,
	}
	ignored := cmp.FilterPath(func(p cmp.Path) bool {
		switch p.Last().String() {
		case ".CreatedAt", ".StartedAt", ".LastActive", ".Phases", ".ProcessCount":
			return true
		}
		return false
	}, cmp.Ignore())
	if d := cmp.Diff(want, info, ignored); d != "" {
		t.Errorf("info (-want +got):\n%s", d)
	}
	if info.ProcessCount == 0 || info.StartedAt.IsZero() || info.LastActive.Before(info.CreatedAt) || len(info.Phases) == 0 {
		t.Errorf("not measured: %+v", info)
	}
	r.want("b1")

	must(t, b.Remove(t.Context()))
	r.want()
	_, err = b.Info(t.Context())
	wantErr(t, err, sandbox.ErrNotFound)
	wantErr(t, b.Remove(t.Context()), sandbox.ErrNotFound)
	_, err = r.m.Get(t.Context(), "b1")
	wantErr(t, err, sandbox.ErrNotFound)
	wantErr(t, r.m.Remove(t.Context(), "b1"), sandbox.ErrNotFound)
}

func TestListFilters(t *testing.T) {
	r := newRig(t)
	r.create(sandbox.CreateOptions{ID: "a", Owner: "ann", Labels: map[string]string{"team": "x"}})
	r.create(sandbox.CreateOptions{ID: "b", Owner: "bob", Labels: map[string]string{"team": "x", "v": ""}})
	for _, c := range []struct {
		name string
		opts sandbox.ListOptions
		want string
	}{
		{"all", sandbox.ListOptions{}, "a b"},
		{"owner", sandbox.ListOptions{Owner: "ann"}, "a"},
		{"node", sandbox.ListOptions{NodeID: node}, "a b"},
		{"other_node", sandbox.ListOptions{NodeID: "tai-000000"}, ""},
		{"label", sandbox.ListOptions{Labels: map[string]string{"team": "x"}}, "a b"},
		{"labels", sandbox.ListOptions{Labels: map[string]string{"team": "x", "v": ""}}, "b"},
		{"ours", sandbox.ListOptions{Labels: map[string]string{"sandbox-id": "a"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			boxes, err := r.m.List(t.Context(), c.opts)
			must(t, err)
			var got []string
			for _, b := range boxes {
				got = append(got, b.ID())
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("got %q, want %q", s, c.want)
			}
		})
	}
}

// What cannot be is refused before the node hears of it.
func TestI01InvalidCreate(t *testing.T) {
	var calls atomic.Int32
	r := newRig(t, fake.WithFault(func(op, _ string) error {
		if op != "list" {
			calls.Add(1)
		}
		return nil
	}))
	bad := map[string]sandbox.CreateOptions{
		"slash": {ID: "../x"}, "space": {ID: "a b"}, "long": {ID: strings.Repeat("x", 300)}, "newline": {ID: "a\nb"},
		"upper": {ID: "A"}, "underscore": {ID: "a_b"}, "leading": {ID: "-a"}, "trailing": {ID: "a-"}, "nul": {ID: "a\x00"}, "unicode": {ID: "ä"},
		"memory": {Memory: -1}, "tiny_memory": {Memory: 1}, "cpus": {CPUs: -1}, "nan_cpus": {CPUs: math.NaN()}, "inf_cpus": {CPUs: math.Inf(1), IdempotencyKey: "k"},
		"pids": {Pids: -1}, "files": {OpenFiles: 1 << 40}, "dir": {WorkDir: "tmp"}, "user": {User: "a b"}, "env": {Env: map[string]string{"A=B": "c"}},
		"policy": {Policy: "forever"}, "stop_timeout": {StopTimeout: -1}, "owner": {Owner: "a\nb"}, "long_owner": {Owner: strings.Repeat("x", 1000)},
		"key": {IdempotencyKey: strings.Repeat("k", 257)}, "our_label": {Labels: map[string]string{"sandbox-owner": "bob"}},
		"our_prefix": {Labels: map[string]string{"taibox-x": ""}}, "label": {Labels: map[string]string{"a b": ""}}, "isolation": {Isolation: "paper"},
		"network": {Network: "all"}, "hostname": {Hostname: "a b"}, "tmpfs": {Tmpfs: []string{"x"}}, "host": {ExtraHosts: []string{"x"}},
	}
	for name, o := range bad {
		t.Run(name, func(t *testing.T) {
			_, err := r.m.Create(t.Context(), with(o))
			wantErr(t, err, sandbox.ErrInvalidSpec)
			wantErr(t, err, errdefs.ErrInvalidArgument)
		})
	}
	_, err := r.m.Create(t.Context(), sandbox.CreateOptions{NodeID: node})
	wantErr(t, err, sandbox.ErrInvalidSpec)
	_, err = r.m.Get(t.Context(), "../x")
	wantErr(t, err, sandbox.ErrInvalidSpec)
	if n := calls.Load(); n > 0 {
		t.Errorf("the node was asked %d times", n)
	}
	r.want()
}

func TestG20MissingNode(t *testing.T) {
	cfg := sandbox.DefaultConfig()
	cfg.Registry = registry.New()
	m, err := sandbox.New(cfg)
	must(t, err)
	defer m.Close()
	_, err = m.Create(t.Context(), sandbox.CreateOptions{Image: "hostfs"})
	wantErr(t, err, sandbox.ErrNotAvailable)
	_, err = m.Create(t.Context(), sandbox.CreateOptions{Image: "hostfs", NodeID: node})
	wantErr(t, err, sandbox.ErrNotAvailable)

	r := newRig(t)
	_, err = r.m.Create(t.Context(), sandbox.CreateOptions{Image: "hostfs"})
	wantErr(t, err, sandbox.ErrNodeMissing)
	_, err = r.m.Create(t.Context(), sandbox.CreateOptions{Image: "hostfs", NodeID: "tai-000000"})
	wantErr(t, err, sandbox.ErrNodeNotFound)
	_, err = r.m.Images("tai-000000")
	wantErr(t, err, sandbox.ErrNodeNotFound)
	_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "x", Image: "none:1"}))
	wantErr(t, err, sandbox.ErrImageNotFound)
	r.want()
	r.create(sandbox.CreateOptions{ID: "x"})
	if nodes := r.m.Nodes(); len(nodes) != 1 || nodes[0].TaiID != node || nodes[0].Status != "online" {
		t.Errorf("nodes are %+v", nodes)
	}
}

func TestLimits(t *testing.T) {
	cfg := sandbox.DefaultConfig()
	cfg.MaxTotal, cfg.MaxPerOwner = 3, 2
	r := newRigOn(t, fake.New(), nil, cfg)
	r.create(sandbox.CreateOptions{ID: "a1", Owner: "ann"})
	r.create(sandbox.CreateOptions{ID: "a2", Owner: "ann"})
	_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{Owner: "ann"}))
	wantErr(t, err, sandbox.ErrTooManyContainers)
	if !strings.Contains(err.Error(), "a1, a2") {
		t.Errorf("%v does not say which", err)
	}
	// What fails gives back what it took.
	for range 5 {
		_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{Owner: "bob", Image: "none:1"}))
		wantErr(t, err, sandbox.ErrImageNotFound)
	}
	b := r.create(sandbox.CreateOptions{ID: "b1", Owner: "bob"})
	_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{Owner: "bob"}))
	wantErr(t, err, sandbox.ErrTooManyContainers)
	if !strings.Contains(err.Error(), `"ann" has 2`) {
		t.Errorf("%v does not say who", err)
	}
	must(t, b.Remove(t.Context()))
	r.create(sandbox.CreateOptions{Owner: "bob"})

	errs := parallel(20, func(int) error {
		_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{Owner: "cy"}))
		return err
	})
	for _, err := range errs {
		wantErr(t, err, sandbox.ErrTooManyContainers)
	}
	r.restart()
	_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{}))
	wantErr(t, err, sandbox.ErrTooManyContainers)
}

func TestClosed(t *testing.T) {
	r := newRig(t)
	b := r.create(sandbox.CreateOptions{ID: "x"})
	must(t, r.m.Close())
	must(t, r.m.Close())
	wantErr(t, r.m.Start(t.Context()), sandbox.ErrClosed)
	_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{}))
	wantErr(t, err, sandbox.ErrClosed)
	wantErr(t, b.Remove(t.Context()), sandbox.ErrClosed)
	_, err = b.Stream(t.Context(), []string{"true"})
	wantErr(t, err, sandbox.ErrClosed)
	_, err = r.m.Events(t.Context())
	wantErr(t, err, sandbox.ErrClosed)
	r.want("x")
}

func TestConfig(t *testing.T) {
	for _, cfg := range []sandbox.Config{{}, {Instance: "A"}, {Instance: "a", MaxTotal: -1}, {Instance: "a", MaxPerOwner: -1}} {
		_, err := sandbox.New(cfg)
		wantErr(t, err, sandbox.ErrInvalidSpec)
	}
}
