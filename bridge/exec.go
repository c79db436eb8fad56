package bridge

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// Files are descriptors for one exec. The bridge gets copies: the caller still
// closes its own. Any may be nil.
type Files struct {
	// Cgroup is the directory of an empty cgroup (version 2) of the exec's own,
	// CgroupKill its cgroup.kill, opened to write, and CgroupEvents its
	// cgroup.events. Without them the tree is looked for in /proc.
	Cgroup, CgroupKill, CgroupEvents *os.File
	// Log is an empty file, opened to read and write, for the output. Without
	// it the last megabyte is kept in the bridge's memory.
	Log *os.File
}

// StartExec starts a command and returns the attached stream. Everything in
// spec that names something of the box is final: Args with the entrypoint,
// Env with the image's, WorkDir and User with their defaults. ctx bounds the
// start only.
func (c *Client) StartExec(ctx context.Context, spec sandbox.ExecSpec, files Files) (sandbox.Stream, error) {
	body := wire.Exec{
		ID: spec.ID, Dir: []byte(spec.WorkDir), User: spec.User,
		Stdin: spec.Stdin || len(spec.StdinData) > 0, TTY: spec.TTY, Size: spec.Size,
		Timeout: spec.Timeout, KillGrace: spec.KillGrace, OnDisconnect: spec.OnDisconnect, Lease: spec.Lease, MaxLog: spec.MaxLog,
	}
	if body.ID == "" {
		body.ID = sandbox.NewID("x")
	}
	for _, a := range spec.Args {
		body.Args = append(body.Args, []byte(a))
	}
	for _, k := range slices.Sorted(maps.Keys(spec.Env)) {
		body.Env = append(body.Env, []byte(k+"="+spec.Env[k]))
	}
	var send []*os.File
	for _, f := range []struct {
		name string
		file *os.File
	}{
		{wire.FileCgroup, files.Cgroup},
		{wire.FileCgroupKill, files.CgroupKill},
		{wire.FileCgroupEvents, files.CgroupEvents},
		{wire.FileLog, files.Log},
	} {
		if f.file != nil {
			body.Files, send = append(body.Files, f.name), append(send, f.file)
		}
	}
	op := wire.OpExec
	if spec.MergeOutput {
		op = wire.OpMerged // which an older bridge refuses
	}
	conn, err := c.open(ctx, op, body, send)
	if err != nil {
		return nil, fmt.Errorf("start exec %s: %w", body.ID, err)
	}
	s, err := c.stream(ctx, conn, wire.Attach{ID: body.ID, Hold: true})
	if err != nil {
		return nil, err
	}
	if !body.Stdin {
		s.refuseInput()
	}
	return s, nil
}

// AttachExec opens another reader of an exec, also of one that has ended.
func (c *Client) AttachExec(ctx context.Context, id string, opts sandbox.AttachOptions) (sandbox.Stream, error) {
	if opts.Since < -1 {
		return nil, fmt.Errorf("attach to exec %s: offset %d: %w", id, opts.Since, sandbox.ErrInvalidSpec)
	}
	body := wire.Attach{ID: id, Since: opts.Since, Hold: opts.Hold, Takeover: opts.Takeover, NoFollow: opts.NoFollow}
	conn, err := c.open(ctx, wire.OpAttach, body, nil)
	if err != nil {
		return nil, fmt.Errorf("attach to exec %s: %w", id, err)
	}
	s, err := c.stream(ctx, conn, body)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// stream reads the first answer and makes a stream of the connection.
func (c *Client) stream(ctx context.Context, conn *wire.Conn, opts wire.Attach) (*execStream, error) {
	var info sandbox.ExecInfo
	stop := c.bound(ctx, conn)
	err := receive(ctx, conn, &info)
	if !stop() && err == nil {
		err = lost(ctx, context.Cause(ctx))
	}
	if err == nil {
		err = checkRecord(&info, opts.ID)
	}
	if err != nil {
		if ctx.Err() != nil {
			c.hangUp(conn) //nolint:errcheck // the context's error is the one to tell
		}
		c.part(conn)
		return nil, err
	}
	if opts.Since < 0 {
		opts.Since = info.Bytes
	}
	return newStream(c, conn, opts, info.TTY), nil
}
