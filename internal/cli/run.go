package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

const removeLimit = 30 * time.Second // for the removal of a box that did not work out

var errRemoveLimit = errors.New("the box was not removed in time")

func newRun(env *Env) *cobra.Command {
	var flags execFlags
	var box boxFlags
	cmd := &cobra.Command{
		Use:     "run [flags] IMAGE [--] [COMMAND...]",
		GroupID: groupRun,
		Short:   "Run a command in a new box, and remove the box",
		Long: `Make a box, run a command in it, print what it prints, and remove the box. If
the image has an entrypoint, it gets COMMAND as its arguments; without COMMAND
the image's own command runs. The exit code is the command's: 124 if it ran
past --timeout, 126 if it cannot be executed, 127 if it is not there, 128+n if
signal n ended it, 125 for every failure of Taibox itself.

With -d the box stays: the command runs in the background, the box's ID is
printed, and logs shows the output. A command that cannot be started leaves no
box.`,
		Example: `  taibox run hostfs -- python3 -c 'print(6*7)'
  tar c . | taibox run -i --memory 512m hostfs -- sh -c 'tar x && make'
  taibox run -it hostfs -- bash`,
		Args: wantArgs("IMAGE", "[COMMAND]..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.check(cmd); err != nil {
				return err
			}
			s, err := env.resolve(cmd)
			if err != nil {
				return err
			}
			req, err := box.request(cmd, env, s, args[0])
			if err != nil {
				return err
			}
			req.NoStart = true
			if req.Policy == "" {
				if req.Policy = "oneshot"; flags.detach {
					req.Policy = "session"
				}
			}
			return flags.failed(env, env.run(cmd, req, command(args[1:]), &flags, &box))
		},
	}
	flags.add(cmd)
	box.add(cmd)
	return cmd
}

// run makes a box and runs a command in it.
func (e *Env) run(cmd *cobra.Command, req rest.CreateBox, args []string, f *execFlags, b *boxFlags) error {
	x := rest.ExecRequest{Entrypoint: true}
	x.SetCmd(args)
	f.request(e, &x)
	c, _, err := e.connect(cmd)
	if err != nil {
		return err
	}
	if f.detach {
		return e.runDetached(cmd.Context(), c, req, x, f, b)
	}
	return e.runOnce(cmd.Context(), c, req, x, f, b)
}

// runOnce makes a box for one command and sees to it that it goes afterwards.
func (e *Env) runOnce(ctx context.Context, c *client.Client, req rest.CreateBox, x rest.ExecRequest, f *execFlags, b *boxFlags) error {
	ours := req.ID == ""
	if ours {
		req.ID = taisandbox.NewID("box-")
	}
	box, err := e.createBox(ctx, c, req, b, f.out.silent())
	if err != nil {
		if ours && ctx.Err() != nil { // it may have come into being all the same
			e.discard(ctx, c, req.ID)
		}
		return err
	}
	err = e.foreground(ctx, c, box.ID, x, f)
	var done *exitError
	if ended := err == nil || errors.As(err, &done) && done.code != exitPipe; !ended && req.Policy == "oneshot" {
		e.discard(ctx, c, box.ID)
	}
	return err
}

// runDetached makes a box that stays, with the command as its entrypoint.
func (e *Env) runDetached(ctx context.Context, c *client.Client, req rest.CreateBox, x rest.ExecRequest, f *execFlags, b *boxFlags) error {
	box, err := e.createBox(ctx, c, req, b, f.out.silent())
	if err != nil {
		return err
	}
	x.ID = taisandbox.EntrypointExec
	rec, err := c.ExecDetached(ctx, box.ID, x)
	if err == nil {
		err = e.neverRan(ctx, c, box.ID, rec, f)
	}
	if err != nil {
		e.discard(ctx, c, box.ID)
		return err
	}
	if f.out.json() {
		return printJSON(e.Out, box)
	}
	return printLine(e.Out, box.ID)
}

// discard removes a box, also when ctx has ended.
func (e *Env) discard(ctx context.Context, c *client.Client, id string) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), removeLimit, errRemoveLimit)
	defer cancel()
	if err := c.RemoveBox(ctx, id); err != nil && !errors.Is(err, taisandbox.ErrNotFound) {
		tell(e, err)
	}
}
