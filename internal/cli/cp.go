package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/taibox/taibox/internal/boxcopy"
	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func newCp(env *Env) *cobra.Command {
	var o taisandbox.FileOptions
	var quiet bool
	cmd := &cobra.Command{
		Use:     "cp [flags] SRC DST",
		GroupID: groupRun,
		Short:   "Copy files into a box or out of it",
		Long: `Copy a file or a tree between this machine and a box, which may be stopped. One
of SRC and DST is BOX:PATH; the other is a path of this machine, or - for a tar
stream on stdin or stdout.

SRC is copied into DST if that is a directory, and takes its place otherwise.
Of a SRC that ends in /. only what is in it is copied. Links are copied as
links. Copied out of a box, links that could lead out of what is copied are left
out and told.`,
		Example: `  taibox cp report.txt b1:/workspace/
  taibox cp b1:/workspace/out ./out
  taibox cp b1:/etc - | tar t`,
		Args: wantArgs("SRC", "DST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			srcBox, src := splitBoxPath(args[0])
			dstBox, dst := splitBoxPath(args[1])
			switch {
			case srcBox == "" && dstBox == "":
				return withHelpHint(cmd, usage("neither %q nor %q is BOX:PATH", args[0], args[1]))
			case srcBox != "" && dstBox != "":
				return withHelpHint(cmd, usage("both sides are boxes: copy out of one first, or pipe one tar stream into the other"))
			case dstBox != "" && o.Follow && src == "-":
				return usage("-L and a tar stream exclude each other: it has the links that it has")
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			end := copyEnd{c: c, box: srcBox + dstBox, o: o}
			p := &copyProgress{env: env, on: !quiet}
			defer p.end()
			opts := boxcopy.Options{Follow: o.Follow, Moved: p.moved}
			if dstBox != "" {
				return end.in(cmd.Context(), env, src, dst, opts)
			}
			return end.out(cmd.Context(), env, src, dst, opts)
		},
	}
	cmd.Flags().StringVarP(&o.User, "user", "u", "", "who reads or writes in the box, user[:group] (default the box's `user`)")
	cmd.Flags().BoolVarP(&o.Follow, "follow-link", "L", false, "copy what SRC leads to if it is a link")
	cmd.Flags().BoolVarP(&o.Owners, "archive", "a", false, "give files in the box the numeric owners that they have here; takes root there")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return cmd
}

// splitBoxPath takes BOX:PATH apart. A path of this machine, which may have a
// colon in it, begins with a dot or a slash, or has no box's name before it.
func splitBoxPath(arg string) (box, path string) {
	box, path, found := strings.Cut(arg, ":")
	if !found || taisandbox.ValidateID(box) != nil {
		return "", arg
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return box, path
}

// copyEnd is a box at one end of a copy.
type copyEnd struct {
	c   *client.Client
	box string
	o   taisandbox.FileOptions
}

func (e copyEnd) options(follow bool) taisandbox.FileOptions {
	o := e.o
	o.Follow = follow
	return o
}

// Stat implements [boxcopy.Box].
func (e copyEnd) Stat(ctx context.Context, path string, follow bool) (taisandbox.FileInfo, error) {
	return e.c.StatFile(ctx, e.box, path, e.options(follow))
}

// CopyTo implements [boxcopy.Box].
func (e copyEnd) CopyTo(ctx context.Context, dir string, archive io.Reader) error {
	return e.c.CopyTo(ctx, e.box, dir, archive, e.options(false))
}

// CopyFrom implements [boxcopy.Box].
func (e copyEnd) CopyFrom(ctx context.Context, path string, follow bool) (io.ReadCloser, error) {
	return e.c.CopyFrom(ctx, e.box, path, e.options(follow))
}

// in copies into the box.
func (e copyEnd) in(ctx context.Context, env *Env, src, dst string, o boxcopy.Options) error {
	if src != "-" {
		return localError(boxcopy.To(ctx, e, src, dst, o))
	}
	if _, tty := terminalOf(env.In); tty {
		return usage("stdin is a terminal: a tar stream is expected there")
	}
	return e.CopyTo(ctx, dst, env.In)
}

// out copies out of the box.
func (e copyEnd) out(ctx context.Context, env *Env, src, dst string, o boxcopy.Options) error {
	if dst != "-" {
		err := boxcopy.From(ctx, e, src, dst, o)
		if left, ok := errors.AsType[*boxcopy.LeftOutError](err); ok {
			return withHint(left, "-L copies what a link leads to in the box; with - as DST the tar stream has all links")
		}
		return localError(err)
	}
	if _, tty := terminalOf(env.Out); tty {
		return usage("stdout is a terminal: a tar stream is no text")
	}
	r, err := e.CopyFrom(ctx, src, o.Follow)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(env.Out, r)
	return err
}

// localError gives what is wrong with a file of this machine its class.
func localError(err error) error {
	switch {
	case err == nil || !errdefs.IsUnknown(errdefs.Resolve(err)):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
	}
	return err
}

// copyProgress shows on a terminal how much was copied, once it takes long.
type copyProgress struct {
	env   *Env
	on    bool
	began time.Time
	shown time.Time
}

const progressAfter = time.Second

func (p *copyProgress) moved(total int64) {
	now := time.Now()
	if p.began.IsZero() {
		p.began = now
	}
	if _, tty := terminalOf(p.env.Err); p.on && tty && now.Sub(p.began) > progressAfter && now.Sub(p.shown) > progressEvery {
		p.shown = now
		fmt.Fprintf(p.env.Err, "\r\x1b[Kcopied: %s", formatSize(total)) //nolint:errcheck // nobody looks
	}
}

// end takes the line away.
func (p *copyProgress) end() {
	if !p.shown.IsZero() {
		fmt.Fprint(p.env.Err, "\r\x1b[K") //nolint:errcheck // nobody looks
	}
}
