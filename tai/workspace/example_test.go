package workspace_test

import (
	"context"
	"fmt"
	"os"

	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
	"github.com/taibox/taibox/tai/workspace"
)

func ExampleFS() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "workspaces")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	vol, err := local.Open(ctx, local.Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer vol.Close()
	if _, err := vol.Create(ctx, "ws-abc", volume.Options{}); err != nil {
		fmt.Println(err)
		return
	}

	ws := workspace.New(vol, "ws-abc")
	defer ws.Close()
	if err := ws.MkdirAll("src/pkg", 0o755); err != nil {
		fmt.Println(err)
		return
	}
	if err := ws.WriteFile("src/main.py", []byte("print(42)\n"), 0o644); err != nil {
		fmt.Println(err)
		return
	}
	entries, err := ws.ReadDir("src")
	for _, e := range entries {
		fmt.Println(e.Name(), e.IsDir())
	}
	fmt.Println(err)
	// Output:
	// main.py false
	// pkg true
	// <nil>
}
