package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// Dialer connects to a bridge. Descriptors can be passed when the connection
// is a *net.UnixConn.
type Dialer func(ctx context.Context) (net.Conn, error)

// Client calls one bridge.
type Client struct {
	dial Dialer

	mu     sync.Mutex
	closed bool
	conns  map[*wire.Conn]struct{}
}

// New returns a client. It connects when it is asked something.
func New(dial Dialer) *Client {
	return &Client{dial: dial, conns: map[*wire.Conn]struct{}{}}
}

var errClosed = fmt.Errorf("%w: the client was closed", sandbox.ErrBridgeLost)

// Close ends all calls, streams and watchers. Repeated calls do nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.conns {
		conn.Close() //nolint:errcheck // its reader ends by it
	}
	return nil
}

// open connects and sends a request.
func (c *Client) open(ctx context.Context, op wire.Op, body any, files []*os.File) (*wire.Conn, error) {
	raw, err := wire.Marshal(body)
	if err != nil {
		return nil, err
	}
	if len(raw) > wire.MaxJSON-requestHead {
		return nil, fmt.Errorf("%w: the command and its environment are too long; pass the data by input or file", sandbox.ErrInvalidSpec)
	}
	nc, err := c.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w: %w", sandbox.ErrBridgeLost, err)
	}
	conn := wire.NewConn(nc)
	if !c.keep(conn) {
		nc.Close() //nolint:errcheck // nothing was sent
		return nil, errClosed
	}
	stop := c.bound(ctx, conn)
	err = conn.WriteJSONWithFiles(wire.TypeRequest, wire.Request{Version: wire.Major, Op: op, Body: raw}, files)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.part(conn)
		return nil, lost(ctx, err)
	}
	return conn, nil
}

// requestHead is room for what a request adds to its body.
const requestHead = 256

func (c *Client) keep(conn *wire.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.conns[conn] = struct{}{}
	}
	return !c.closed
}

// part closes a connection.
func (c *Client) part(conn *wire.Conn) {
	c.mu.Lock()
	delete(c.conns, conn)
	c.mu.Unlock()
	conn.Close() //nolint:errcheck // all was said
}

// bound makes conn fail when ctx ends, until stop is called; that is false if
// it came too late.
func (c *Client) bound(ctx context.Context, conn *wire.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		conn.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // closed: it fails anyway
	})
}

// lost says that the link broke, or that ctx ended.
func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", sandbox.ErrBridgeLost, err)
}

// receive reads one reply into res.
func receive(ctx context.Context, conn *wire.Conn, res any) error {
	end, err := receiveNext(ctx, conn, res)
	if end {
		err = fmt.Errorf("%w: %w: an end instead of a reply", sandbox.ErrBridgeLost, wire.ErrProtocol)
	}
	return err
}

// receiveNext reads one reply of many into res, or their end.
func receiveNext(ctx context.Context, conn *wire.Conn, res any) (end bool, err error) {
	t, payload, err := conn.ReadFrame()
	switch {
	case err != nil:
		return false, lost(ctx, err)
	case t == wire.TypeError:
		return false, remoteError(payload)
	case t == wire.TypeEnd:
		return true, nil
	case t != wire.TypeReply:
		return false, fmt.Errorf("%w: %w: frame of type %d", sandbox.ErrBridgeLost, wire.ErrProtocol, t)
	}
	if err := json.Unmarshal(payload, res); err != nil {
		return false, fmt.Errorf("%w: %w: %w", sandbox.ErrBridgeLost, wire.ErrProtocol, err)
	}
	return false, nil
}

// call makes a request that has one reply.
func call[T any](ctx context.Context, c *Client, op wire.Op, body any, files ...*os.File) (T, error) {
	var res T
	conn, err := c.open(ctx, op, body, files)
	if err != nil {
		return res, err
	}
	defer c.part(conn)
	stop := c.bound(ctx, conn)
	defer stop()
	err = receive(ctx, conn, &res)
	return res, err
}

// Setup is what a bridge has to know of its box.
type Setup struct {
	// Box is the ID that its records carry.
	Box string
	// OOMEvents is memory.events of the box's cgroup, or memory.oom_control
	// with cgroup v1. Without it nothing is ever told as out of memory.
	OOMEvents *os.File

	// OrphanAfter is how long after its node's last connection the box ends by
	// itself; 0 = never. The last Setup counts.
	OrphanAfter time.Duration
	// Lifetime is after how long the box ends by itself while its node is not
	// connected, from the first Setup that has one; 0 = never.
	Lifetime time.Duration
	// End, if set, is a file into which the bridge writes why the box ended
	// itself: [EndOrphan] or [EndLifetime].
	End *os.File
}

// What a bridge writes into [Setup.End].
const (
	EndOrphan   = "orphan"
	EndLifetime = "max-lifetime"
)

// Hello says who answers.
type Hello struct {
	Protocol int
	Version  string
	PID      int
	Started  time.Time
}

// Waits between attempts to reach a bridge that is starting.
const (
	setupLeast = 500 * time.Microsecond
	setupMost  = 50 * time.Millisecond
)

// Setup waits until the bridge answers, and sets it up. It may be repeated.
func (c *Client) Setup(ctx context.Context, s Setup) (Hello, error) {
	body := wire.Setup{Box: s.Box, OrphanAfter: s.OrphanAfter, Lifetime: s.Lifetime}
	var files []*os.File
	for name, f := range map[string]*os.File{wire.FileOOM: s.OOMEvents, wire.FileEnd: s.End} {
		if f != nil {
			body.Files, files = append(body.Files, name), append(files, f)
		}
	}
	for wait := setupLeast; ; wait = min(2*wait, setupMost) {
		h, err := call[wire.Hello](ctx, c, wire.OpSetup, body, files...)
		if err == nil || !errors.Is(err, sandbox.ErrBridgeLost) || ctx.Err() != nil || errors.Is(err, errClosed) {
			return Hello(h), err
		}
		select {
		case <-ctx.Done():
			return Hello{}, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

// ListExecs returns the execs that the bridge keeps, oldest first.
func (c *Client) ListExecs(ctx context.Context) ([]sandbox.ExecInfo, error) {
	infos, err := c.listEach(ctx)
	if !errors.Is(err, sandbox.ErrUnsupported) {
		return infos, err
	}
	// A bridge of an older release tells all in one frame.
	infos, err = call[[]sandbox.ExecInfo](ctx, c, wire.OpList, nil)
	if err != nil {
		return nil, err
	}
	for i := range infos {
		if err := checkRecord(&infos[i], infos[i].ID); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// Settle returns when each exec that was asked for before, and whose answer was
// not waited for, is on the list or has been refused.
func (c *Client) Settle(ctx context.Context) error {
	_, err := call[struct{}](ctx, c, wire.OpSettle, nil)
	if errors.Is(err, sandbox.ErrUnsupported) {
		// A bridge of an older release shows by any answer that it is awake, and
		// has most likely read what came before the next question.
		_, err = c.ListExecs(ctx)
	}
	return err
}

// Bounds of a list: more than a node lets any box keep.
const (
	maxRecords     = 1 << 14
	maxRecordBytes = 128 << 20
)

func (c *Client) listEach(ctx context.Context) ([]sandbox.ExecInfo, error) {
	conn, err := c.open(ctx, wire.OpExecs, nil, nil)
	if err != nil {
		return nil, err
	}
	defer c.part(conn)
	stop := c.bound(ctx, conn)
	defer stop()
	var infos []sandbox.ExecInfo
	for size := 0; ; {
		var info sandbox.ExecInfo
		switch end, err := receiveNext(ctx, conn, &info); {
		case err != nil:
			return nil, err
		case end:
			return infos, nil
		}
		if err := checkRecord(&info, info.ID); err != nil {
			return nil, err
		}
		size += info.TextBytes()
		if len(infos) == maxRecords || size > maxRecordBytes {
			return nil, fmt.Errorf("%w: %w: an endless list of execs", sandbox.ErrBridgeLost, wire.ErrProtocol)
		}
		infos = append(infos, info)
	}
}

// InspectExec returns an exec's record, or [sandbox.ErrExecNotFound].
func (c *Client) InspectExec(ctx context.Context, id string) (sandbox.ExecInfo, error) {
	return c.record(ctx, wire.OpInspect, id)
}

// WaitExec blocks until the exec's record is final, and returns it.
func (c *Client) WaitExec(ctx context.Context, id string) (sandbox.ExecInfo, error) {
	info, err := c.record(ctx, wire.OpWait, id)
	if err == nil && !info.Done() {
		err = fmt.Errorf("%w: wait for exec %s: it has not ended", sandbox.ErrBridgeLost, id)
	}
	return info, err
}

func (c *Client) record(ctx context.Context, op wire.Op, id string) (sandbox.ExecInfo, error) {
	info, err := call[sandbox.ExecInfo](ctx, c, op, wire.ID{ID: id})
	if err != nil {
		return sandbox.ExecInfo{}, err
	}
	return info, checkRecord(&info, id)
}

// KillExec signals an exec. [sandbox.ErrExecEnded] if nothing of it runs.
func (c *Client) KillExec(ctx context.Context, id string, opts sandbox.KillOptions) error {
	_, err := call[struct{}](ctx, c, wire.OpKill, wire.Kill{ID: id, Signal: opts.Signal, Tree: opts.Tree, Group: opts.Group})
	return err
}

// ForgetExec drops the record and the log of an exec that has ended.
func (c *Client) ForgetExec(ctx context.Context, id string) error {
	_, err := call[struct{}](ctx, c, wire.OpForget, wire.ID{ID: id})
	return err
}

// Stop ends everything in the box: TERM to every command's group, after grace
// KILL to all that is left. Then PID 1 exits.
func (c *Client) Stop(ctx context.Context, grace time.Duration) error {
	_, err := call[struct{}](ctx, c, wire.OpStop, wire.Stop{Grace: grace})
	return err
}

// maxPorts bounds what a bridge may report.
const maxPorts = 4096

// Ports lists what listens in the box.
func (c *Client) Ports(ctx context.Context) ([]sandbox.Port, error) {
	got, err := call[[]wire.Port](ctx, c, wire.OpPorts, nil)
	if err != nil {
		return nil, err
	}
	ports := make([]sandbox.Port, 0, len(got))
	for _, p := range got[:min(len(got), maxPorts)] {
		if p.Port < 1 || p.Port > 65535 || !slices.Contains([]string{"tcp", "tcp6", "udp", "udp6"}, p.Network) {
			continue
		}
		p.Address, p.Process = clean(p.Address, maxName), clean(p.Process, maxName)
		ports = append(ports, sandbox.Port(p))
	}
	return ports, nil
}

// Stats is what a bridge says of itself and its box.
type Stats struct {
	RSSBytes  int64 // resident memory of the bridge
	Processes int   // in the box, the bridge included
	Execs     int   // whose leader runs
}

// Stats measures the bridge.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	s, err := call[wire.Stats](ctx, c, wire.OpStats, nil)
	return Stats(s), err
}

// Dial connects to a TCP port of the box as from its own loopback. The
// connection is the socket inside itself. [sandbox.ErrPortRefused] if nothing
// listens there.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	conn, err := c.open(ctx, wire.OpDial, wire.Dial{Port: port}, nil)
	if err != nil {
		return nil, err
	}
	defer c.part(conn)
	stop := c.bound(ctx, conn)
	defer stop()
	conn.WantFiles()
	err = receive(ctx, conn, &struct{}{})
	files := conn.TakeFiles()
	for _, f := range files {
		defer f.Close() //nolint:errcheck // FileConn makes its own copy
	}
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		return nil, fmt.Errorf("%w: %w: %d sockets instead of one", sandbox.ErrBridgeLost, wire.ErrProtocol, len(files))
	}
	return socketOf(files[0])
}

// Watcher delivers records as they change.
type Watcher struct {
	c    *Client
	ctx  context.Context //nolint:containedctx // it is the watcher's whole life
	conn *wire.Conn
	stop func() bool
}

// Watch delivers the record of each exec there is, and then of each that
// starts or ends, until ctx ends or the watcher is closed.
func (c *Client) Watch(ctx context.Context) (*Watcher, error) {
	conn, err := c.open(ctx, wire.OpWatch, nil, nil)
	if err != nil {
		return nil, err
	}
	return &Watcher{c: c, ctx: ctx, conn: conn, stop: context.AfterFunc(ctx, func() { c.part(conn) })}, nil
}

// Recv returns the next record. An error means that the bridge is gone, or
// the watcher has ended.
func (w *Watcher) Recv() (sandbox.ExecInfo, error) {
	var info sandbox.ExecInfo
	if err := receive(w.ctx, w.conn, &info); err != nil {
		return sandbox.ExecInfo{}, err
	}
	return info, checkRecord(&info, info.ID)
}

// Close ends the watcher, and a Recv that waits.
func (w *Watcher) Close() error {
	w.stop()
	w.c.part(w.conn)
	return nil
}
