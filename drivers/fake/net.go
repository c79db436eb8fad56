package fake

import (
	"context"
	"fmt"
	"net"
	"path"
	"sync"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// listener is a port of a box.
type listener struct {
	p     *Proc
	port  int
	conns chan net.Conn
	once  sync.Once
	down  chan struct{}
}

func newListener(p *Proc, port int) *listener {
	return &listener{p: p, port: port, conns: make(chan net.Conn), down: make(chan struct{})}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.down:
		return nil, net.ErrClosed
	case <-l.p.ctx.Done():
		return nil, context.Cause(l.p.ctx)
	}
}

func (l *listener) shut() { l.once.Do(func() { close(l.down) }) }

func (l *listener) Close() error {
	b := l.p.e.b
	b.mu.Lock()
	if b.ports[l.port] == l {
		delete(b.ports, l.port)
	}
	b.mu.Unlock()
	l.shut()
	return nil
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero, Port: l.port} }

// running finds a running box.
func (d *Driver) running(ctx context.Context, op, id string) (*box, error) {
	if err := d.step(ctx, op, id); err != nil {
		return nil, err
	}
	b, err := d.box(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b, b.usableLocked()
}

// Ports lists what listens inside the box.
func (d *Driver) Ports(ctx context.Context, id string) ([]sandbox.Port, error) {
	err := d.need(sandbox.FeaturePorts)
	var b *box
	if err == nil {
		b, err = d.running(ctx, "ports", id)
	}
	if err != nil {
		return nil, fmt.Errorf("ports of box %.64q: %w", id, err)
	}
	var ports []sandbox.Port
	for _, l := range b.listeners() {
		ports = append(ports, sandbox.Port{
			Network: "tcp", Address: "0.0.0.0", Port: l.port, PID: l.p.PID, Process: path.Base(l.p.Args[0]),
		})
	}
	return ports, nil
}

// Dial connects to a port of the box.
func (d *Driver) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	c, err := d.dial(ctx, id, port)
	if err != nil {
		return nil, fmt.Errorf("dial port %d of box %.64q: %w", port, id, err)
	}
	return c, nil
}

func (d *Driver) dial(ctx context.Context, id string, port int) (net.Conn, error) {
	if err := d.need(sandbox.FeaturePorts); err != nil {
		return nil, err
	}
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("%w: from 1 to 65535 are possible", sandbox.ErrInvalidSpec)
	}
	b, err := d.running(ctx, "dial", id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	l := b.ports[port]
	b.mu.Unlock()
	if l == nil {
		return nil, sandbox.ErrPortRefused
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.down:
		return nil, sandbox.ErrPortRefused
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Stats invents figures that fit what runs.
func (d *Driver) Stats(ctx context.Context, id string) (sandbox.Stats, error) {
	err := d.need(sandbox.FeatureStats)
	var b *box
	if err == nil {
		b, err = d.running(ctx, "stats", id)
	}
	if err != nil {
		return sandbox.Stats{}, fmt.Errorf("stats of box %.64q: %w", id, err)
	}
	const each = 1 << 20
	b.mu.Lock()
	defer b.mu.Unlock()
	n := int64(len(b.procs)) + 1 // and the bridge
	return sandbox.Stats{
		Time: time.Now(), CPU: time.Since(b.info.StartedAt) / 100,
		MemoryBytes: n * each, MemoryPeakBytes: n * each, MemoryLimit: b.info.MemoryBytes,
		Pids: n, OverheadBytes: each,
	}, nil
}

// ProcessCounts counts what [Driver.Stats] does.
func (d *Driver) ProcessCounts(ctx context.Context) (map[string]int, error) {
	infos, err := d.List(ctx, sandbox.Filter{States: []sandbox.State{sandbox.StateRunning}})
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for i := range infos {
		if s, err := d.Stats(ctx, infos[i].ID); err == nil {
			counts[infos[i].ID] = int(s.Pids)
		}
	}
	return counts, nil
}
