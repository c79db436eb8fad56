package registry_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
)

func entry(t *testing.T, id string) registry.TaiNode {
	t.Helper()
	d := fake.New()
	c := tai.NewClient(d, d)
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), c.Close()); err != nil {
			t.Error(err)
		}
	})
	if c.Sandbox() != d || c.Image() != d {
		t.Error("the client is not the driver's")
	}
	return registry.TaiNode{
		NodeSnapshot: registry.NodeSnapshot{TaiID: id, Capabilities: []string{"tty"}, Labels: map[string]string{"zone": "a"}},
		Client:       c,
	}
}

func TestTaiID(t *testing.T) {
	for id, mode := range map[string]string{
		"local": "local", "10.0.0.1-19100": "direct", "192.168.1.10-1": "direct", "--1-19100": "direct", "fe80--1-65535": "direct", "tai-0a1b2c": "tunnel",
	} {
		if err := registry.ValidateTaiID(id); err != nil {
			t.Error(err)
		}
		r := registry.New()
		if err := r.Register(entry(t, id)); err != nil {
			t.Error(err)
		} else if n, err := r.Get(id); err != nil || n.Mode != mode || n.Status != registry.StatusOnline {
			t.Errorf("%s: got %+v, %v", id, n.NodeSnapshot, err)
		}
	}
	for _, id := range []string{
		"", "Local", "local ", "10.0.0.1", "10.0.0.1-0", "10.0.0.1-65536", "10.0.0.1-080", "010.0.0.1-80", "10.0.0-80", "host-80", "-80",
		"::1-80", "0-0-0-0-0-0-0-1-80", "fe80--1%eth0-80", "tai-", "tai-abc", "tai-ABCDEF", "tai-abc/../def", "tai-" + strings.Repeat("a", 100), "../local", "local\n",
	} {
		if err := registry.ValidateTaiID(id); !errors.Is(err, registry.ErrInvalidID) {
			t.Errorf("%q: got %v", id, err)
		}
		if err := registry.New().Register(entry(t, id)); !errors.Is(err, registry.ErrInvalidID) {
			t.Errorf("register %q: got %v", id, err)
		}
	}
}

func TestRegister(t *testing.T) {
	r := registry.New()
	n := entry(t, "local")
	changed := r.Changed()
	if err := r.Register(n); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody was told")
	}
	if err := r.Register(n); !errors.Is(err, registry.ErrAlreadyExists) {
		t.Errorf("registered twice: %v", err)
	}
	tunnel := entry(t, "tai-000000")
	tunnel.Mode = registry.ModeDirect
	if err := r.Register(tunnel); !errors.Is(err, registry.ErrInvalidID) {
		t.Errorf("registered with another mode: %v", err)
	}
	if err := r.Register(registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: "tai-000000"}}); err == nil {
		t.Error("registered without a client")
	}

	// What the registry returns, and was given, is its own.
	n.Labels["zone"] = "b"
	got, err := r.Get("local")
	if err != nil {
		t.Fatal(err)
	}
	got.Labels["zone"], got.Capabilities[0] = "c", "none"
	if l := r.List(); len(l) != 1 || l[0].Labels["zone"] != "a" || l[0].Capabilities[0] != "tty" {
		t.Errorf("list is %+v", l)
	}

	changed = r.Changed()
	if err := r.Unregister("local"); err != nil {
		t.Error(err)
	}
	<-changed
	if err := r.Unregister("local"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("unregistered twice: %v", err)
	}
	if _, err := r.Get("local"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestParallelUse(t *testing.T) {
	r := registry.New()
	var wg sync.WaitGroup
	for i := range 20 {
		n := entry(t, fmt.Sprintf("10.0.0.%d-80", i%10))
		wg.Go(func() {
			for range 50 {
				err := r.Register(n)
				if err != nil && !errors.Is(err, registry.ErrAlreadyExists) {
					t.Error(err)
				}
				if !slices.IsSortedFunc(r.List(), func(a, b registry.NodeSnapshot) int { return strings.Compare(a.TaiID, b.TaiID) }) {
					t.Error("the list is not in order")
				}
				if err == nil {
					err = r.Unregister(n.TaiID)
				}
				if err != nil && !errors.Is(err, registry.ErrAlreadyExists) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func ExampleRegistry() {
	d := fake.New()
	r := registry.New()
	err := r.Register(registry.TaiNode{
		NodeSnapshot: registry.NodeSnapshot{TaiID: registry.Local, Runtime: "fake"},
		Client:       tai.NewClient(d, d),
	})
	fmt.Println(err)
	for _, n := range r.List() {
		fmt.Println(n.TaiID, n.Mode, n.Status, n.Runtime)
	}
	// Output:
	// <nil>
	// local local online fake
}
