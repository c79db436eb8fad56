package bench_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/taibox/taibox/internal/bench"
)

// peer counts calls and keeps the boxes that are there.
type peer struct {
	leaves bool // Run leaves its box
	fail   string

	mu    sync.Mutex
	calls map[string]int
	boxes map[string]bool
}

func newPeer() *peer { return &peer{calls: map[string]int{}, boxes: map[string]bool{}} }

var errFail = errors.New("no")

func (p *peer) call(name, id string, there bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[name]++
	if p.fail == name && p.calls[name] > 2 {
		return errFail
	}
	if id != "" {
		if p.boxes[id] = there; !there {
			delete(p.boxes, id)
		}
	}
	return nil
}

func (p *peer) Prepare(_ context.Context, archive []byte) error {
	r := tar.NewReader(bytes.NewReader(archive))
	var names []string
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		names = append(names, h.Name)
	}
	if len(names) != 3 || names[2] != "manifest.json" {
		return fmt.Errorf("archive has %v", names)
	}
	return p.call("prepare", "", false)
}

func (p *peer) Run(_ context.Context, id string) (bool, error) {
	return p.leaves, p.call("run", id, p.leaves)
}
func (p *peer) Create(_ context.Context, id string) error { return p.call("create", id, true) }
func (p *peer) Exec(_ context.Context, _ string) error    { return p.call("exec", "", false) }
func (p *peer) Remove(_ context.Context, id string) error { return p.call("remove", id, false) }

func needBusybox(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/bin/busybox"); err != nil {
		t.Skip("no busybox: ", err)
	}
}

func TestMeasure(t *testing.T) {
	needBusybox(t)
	us, them := newPeer(), newPeer()
	them.leaves = true
	asked := ""
	figures, err := bench.Measure(t.Context(), 5, func(_ context.Context, id string) error {
		asked = id
		if !us.boxes[id] {
			return fmt.Errorf("box %s is not there", id)
		}
		return nil
	}, us, them)
	if err != nil {
		t.Fatal(err)
	}
	if len(figures) != 2 || asked == "" {
		t.Fatalf("%d figures, asked for %q", len(figures), asked)
	}
	for _, f := range figures {
		for name, x := range map[string]bench.Times{"run": f.CreateToFirstExec, "exec": f.Exec, "remove": f.Remove} {
			if x.N != 5 || x.P50 > x.P99 {
				t.Errorf("%s: %+v", name, x)
			}
		}
		if f.ParallelCreate <= 0 {
			t.Errorf("parallel creates: %v a second", f.ParallelCreate)
		}
	}
	for _, p := range []*peer{us, them} {
		if len(p.boxes) > 0 {
			t.Errorf("boxes left: %v", p.boxes)
		}
	}
}

func TestMeasureFails(t *testing.T) {
	needBusybox(t)
	for _, call := range []string{"run", "exec", "create"} {
		t.Run(call, func(t *testing.T) {
			p := newPeer()
			p.fail = call
			if _, err := bench.Measure(t.Context(), 5, nil, p); !errors.Is(err, errFail) {
				t.Errorf("got %v", err)
			}
			if len(p.boxes) > 0 {
				t.Errorf("boxes left: %v", p.boxes)
			}
		})
	}
}

func TestCLI(t *testing.T) {
	c := &bench.CLI{Program: []string{"sh", "-c", `echo "$0 $*"; exit 3`}, RemoveArgs: []string{"rm", bench.ID}}
	err := c.Remove(t.Context(), "b1")
	if err == nil || !strings.Contains(err.Error(), "rm b1") {
		t.Errorf("got %v; want the line and its output", err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errFail)
	defer cancel()
	c = &bench.CLI{Program: []string{"sleep"}, ExecArgs: []string{"60"}}
	if err := c.Exec(ctx, "b1"); err == nil {
		t.Error("a call went on after its context had ended")
	}
}
