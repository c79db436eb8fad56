package sandbox_test

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
)

// register enters a node of the fake driver; a program opens a real one with
// node.Open.
func register(reg *registry.Registry) {
	d := fake.New()
	n := registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: registry.Local, Runtime: "fake"}, Client: tai.NewClient(d, d)}
	if err := reg.Register(n); err != nil {
		panic(err)
	}
}

// newManager returns a started manager with one node.
func newManager() *sandbox.Manager {
	cfg := sandbox.DefaultConfig()
	cfg.Registry = registry.New()
	register(cfg.Registry)
	m, err := sandbox.New(cfg)
	if err != nil {
		panic(err)
	}
	if err := m.Start(context.Background()); err != nil {
		panic(err)
	}
	return m
}

func ExampleManager() {
	ctx := context.Background()
	m := newManager()
	defer m.Close()

	box, err := m.Create(ctx, sandbox.CreateOptions{
		ID: "demo", Owner: "user-123", NodeID: registry.Local, Image: "hostfs",
		Policy: sandbox.Session, Memory: 512 << 20, Labels: map[string]string{"project": "demo"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	boxes, err := m.List(ctx, sandbox.ListOptions{Owner: "user-123"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(boxes), "box,", box.Snapshot().Status)
	if err := m.Remove(ctx, "demo"); err != nil {
		fmt.Println(err)
		return
	}
	// Output: 1 box, running
}

func ExampleBox_Exec() {
	ctx := context.Background()
	m := newManager()
	defer m.Close()

	box, err := m.Create(ctx, sandbox.CreateOptions{NodeID: registry.Local, Image: "hostfs", Policy: sandbox.OneShot})
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := box.Exec(ctx, []string{"echo", "hello"},
		sandbox.WithWorkDir("/tmp"),
		sandbox.WithEnv(map[string]string{"LANG": "C.UTF-8"}),
		sandbox.WithTimeout(30*time.Second),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("exit=%d reason=%s stdout=%s", result.ExitCode, result.Reason, result.Stdout)
	// Output: exit=0 reason=exit stdout=hello
}

func ExampleBox_Stream() {
	ctx := context.Background()
	m := newManager()
	defer m.Close()

	box, err := m.Create(ctx, sandbox.CreateOptions{NodeID: registry.Local, Image: "hostfs"})
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, err := box.Stream(ctx, []string{"cat"})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		fmt.Fprintln(stream.Stdin, "echo hello")
		stream.Stdin.Close()
	}()
	out, err := io.ReadAll(stream.Stdout)
	if err != nil {
		fmt.Println(err)
		return
	}
	stream.Stderr.Close()
	code, err := stream.Wait()
	fmt.Printf("%s%d %v\n", out, code, err)
	// Output:
	// echo hello
	// 0 <nil>
}

func ExampleManager_Events() {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	m := newManager()
	defer m.Close()

	events, err := m.Events(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := m.Create(ctx, sandbox.CreateOptions{ID: "demo", NodeID: registry.Local, Image: "hostfs"}); err != nil {
		fmt.Println(err)
		return
	}
	for ev := range events {
		fmt.Println(ev.Box, ev.Type, ev.State, ev.Reason)
		if ev.State == "running" {
			break
		}
	}
	// Output:
	// demo state creating user
	// demo state created user
	// demo state running user
}

func ExampleInit() {
	register(registry.Global())
	sandbox.Init()
	m := sandbox.M()
	if err := m.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	for _, n := range m.Nodes() {
		fmt.Printf("tai_id=%s mode=%s addr=%s status=%s\n", n.TaiID, n.Mode, n.Addr, n.Status)
	}
	// Output: tai_id=local mode=local addr= status=online
}
