package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// ExecDetached starts a command that nobody is attached to.
func (c *Client) ExecDetached(ctx context.Context, box string, req rest.ExecRequest) (rest.Exec, error) {
	req.Detach = true
	u, err := c.box(box, "exec")
	if err != nil {
		return rest.Exec{}, err
	}
	return call[rest.Exec](ctx, c, http.MethodPost, u, req, idempotent(req.IdempotencyKey)...)
}

// ListExecs returns the execs of a box that are kept, oldest first.
func (c *Client) ListExecs(ctx context.Context, box string) ([]rest.Exec, error) {
	u, err := c.box(box, "execs")
	if err != nil {
		return nil, err
	}
	return list[rest.Exec](ctx, c, u, url.Values{})
}

// GetExec returns the record of an exec.
func (c *Client) GetExec(ctx context.Context, box, exec string) (rest.Exec, error) {
	u, err := c.exec(box, exec)
	if err != nil {
		return rest.Exec{}, err
	}
	return call[rest.Exec](ctx, c, http.MethodGet, u, nil)
}

// WaitExec blocks until the record of an exec is final, and returns it. It
// outlasts restarts of the server.
func (c *Client) WaitExec(ctx context.Context, box, exec string) (rest.Exec, error) {
	u, err := c.exec(box, exec, "wait")
	if err != nil {
		return rest.Exec{}, err
	}
	return await[rest.Exec](ctx, c, u)
}

// KillExec sends a signal to an exec.
func (c *Client) KillExec(ctx context.Context, box, exec string, opts taisandbox.KillOptions) error {
	u, err := c.exec(box, exec, "kill")
	if err != nil {
		return err
	}
	req := rest.KillExec{Signal: opts.Signal, Tree: opts.Tree, Group: opts.Group}
	_, err = call[none](ctx, c, http.MethodPost, u, req)
	return err
}

// execInfo is the record as the contract has it.
func execInfo(e rest.Exec) taisandbox.ExecInfo {
	return taisandbox.ExecInfo{
		ID: e.ID, Box: e.Box, Args: e.Args, EnvNames: e.EnvNames, User: e.User, WorkDir: e.WorkDir, TTY: e.TTY, PID: e.PID,
		Started: e.Started, Ended: e.Ended, State: taisandbox.ExecState(e.State), ExitCode: e.ExitCode, Signal: e.Signal,
		Reason: taisandbox.ExecReason(e.Reason), Error: e.Error, Bytes: e.Bytes, FirstOffset: e.FirstOffset, Truncated: e.Truncated,
		InputOpen: e.InputOpen, InputBytes: e.InputBytes, OutputIncomplete: e.OutputIncomplete, Leftover: e.Leftover, OOMKills: e.OOMKills,
	}
}
