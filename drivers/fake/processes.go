package fake

import (
	"context"
	"fmt"
	"strings"

	"github.com/taibox/taibox/tai/sandbox"
)

// Processes implements [sandbox.ProcessLister].
func (d *Driver) Processes(ctx context.Context, id string) ([]sandbox.ProcessInfo, error) {
	err := d.need(sandbox.FeatureProcesses)
	var b *box
	if err == nil {
		b, err = d.running(ctx, "list processes of", id)
	}
	if err != nil {
		return nil, fmt.Errorf("processes of box %.64q: %w", id, err)
	}
	const each = 1 << 20
	b.mu.Lock()
	started := b.info.StartedAt
	b.mu.Unlock()
	list := []sandbox.ProcessInfo{{PID: 1, State: "sleeping", RSSBytes: each, StartedAt: started, Command: "taibox-bridge"}}
	for _, p := range b.processes() {
		list = append(list, sandbox.ProcessInfo{
			PID: p.PID, PPID: 1, UID: p.UID, State: "running", RSSBytes: each, StartedAt: started, Command: strings.Join(p.Args, " "),
		})
	}
	return list, nil
}

// Holdings implements [sandbox.Holder]: a cgroup and two namespaces a box.
func (d *Driver) Holdings(ctx context.Context) (sandbox.Holdings, error) {
	boxes, err := d.List(ctx, sandbox.Filter{})
	return sandbox.Holdings{Cgroups: len(boxes), Namespaces: 2 * len(boxes)}, err
}
