package workspace_test

import (
	"context"
	"fmt"
	"os"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	"github.com/taibox/taibox/tai/volume/local"
	"github.com/taibox/taibox/workspace"
)

// exampleManager returns a manager with one node, as node.Open makes it.
func exampleManager(ctx context.Context) (*workspace.Manager, func()) {
	dir, err := os.MkdirTemp("", "workspaces")
	if err != nil {
		panic(err)
	}
	vol, err := local.Open(ctx, local.Config{Dir: dir})
	if err != nil {
		panic(err)
	}
	d, reg := fake.New(), registry.New()
	c := tai.NewClient(d, d, tai.WithVolume(vol))
	if err := reg.Register(registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: registry.Local}, Client: c}); err != nil {
		panic(err)
	}
	m, err := workspace.New(workspace.Config{Registry: reg})
	if err != nil {
		panic(err)
	}
	return m, func() {
		c.Close()
		os.RemoveAll(dir)
	}
}

func ExampleManager() {
	ctx := context.Background()
	m, end := exampleManager(ctx)
	defer end()
	ws, err := m.Create(ctx, workspace.CreateOptions{ID: "ws-abc", Name: "project", Owner: "user-123"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := m.WriteFile(ctx, ws.ID, "src/main.go", []byte("package main\n"), 0); err != nil {
		fmt.Println(err)
		return
	}
	data, err := m.ReadFile(ctx, ws.ID, "src/main.go")
	fmt.Printf("%s on %s has %q, %v\n", ws.Name, ws.Node, data, err)
	// Output: project on local has "package main\n", <nil>
}

func ExampleWorkspace() {
	ctx := context.Background()
	m, end := exampleManager(ctx)
	defer end()
	for _, owner := range []string{"user-1", "user-2"} {
		if _, err := m.Create(ctx, workspace.CreateOptions{ID: "of-" + owner, Owner: owner}); err != nil {
			fmt.Println(err)
			return
		}
	}
	list, err := m.List(ctx, workspace.ListOptions{Owner: "user-2"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, ws := range list {
		fmt.Println(ws.ID)
	}
	// Output: of-user-2
}
