package client

import (
	"context"
	"net/http"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// ExecDetached starts a command that nobody is attached to.
func (c *Client) ExecDetached(ctx context.Context, box string, req rest.ExecRequest) (rest.Exec, error) {
	req.Detach = true
	return onBox[rest.Exec](ctx, c, http.MethodPost, box, req, "exec")
}

// ListExecs returns the execs of a box that are kept, oldest first.
func (c *Client) ListExecs(ctx context.Context, box string) ([]rest.Exec, error) {
	l, err := onBox[rest.ExecList](ctx, c, http.MethodGet, box, nil, "execs")
	return l.Items, err
}

// GetExec returns the record of an exec.
func (c *Client) GetExec(ctx context.Context, box, exec string) (rest.Exec, error) {
	return c.execRecord(ctx, box, exec)
}

// WaitExec blocks until the record of an exec is final, and returns it.
func (c *Client) WaitExec(ctx context.Context, box, exec string) (rest.Exec, error) {
	return c.execRecord(ctx, box, exec, "wait")
}

func (c *Client) execRecord(ctx context.Context, box, exec string, segments ...string) (rest.Exec, error) {
	u, err := c.exec(box, exec, segments...)
	if err != nil {
		return rest.Exec{}, err
	}
	return call[rest.Exec](ctx, c, http.MethodGet, u, nil)
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
		OutputIncomplete: e.OutputIncomplete, Leftover: e.Leftover, OOMKills: e.OOMKills,
	}
}
