package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/taibox/taibox/internal/boxcopy"
	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// copied is the JSON of cp.
type copied struct {
	Src string `json:"src"`
	Dst string `json:"dst"`
}

func newCp(env *Env) *cobra.Command {
	var o taisandbox.FileOptions
	var out format
	cmd := &cobra.Command{
		Use:     "cp [flags] SRC DST",
		GroupID: groupRun,
		Short:   "Copy files into or out of a box or a workspace",
		Long: `Copy a file or a tree between this machine, a box, which may be stopped, and a
workspace. One of SRC and DST, or both, is BOX:PATH or ws:WORKSPACE:PATH; the
other is a path of this machine, or - for a tar stream on stdin or stdout. A box
that is called ws is not reached: ws: always begins a workspace.

SRC is copied into DST if that is a directory, and takes its place otherwise.
Of a SRC that ends in /. only what is in it is copied. Links are copied as
links. Copied to this machine, links that could lead out of what is copied are
left out and told. -o json tells what was copied, but not beside a tar stream.`,
		Example: `  taibox cp report.txt b1:/workspace/
  taibox cp b1:/workspace/out ./out
  taibox cp b1:/etc - | tar t
  taibox cp ws:proj:src b1:/opt/`,
		Args: wantArgs("SRC", "DST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			src, dst := splitPath(args[0]), splitPath(args[1])
			switch {
			case src.local() && dst.local():
				return withHelpHint(cmd, usage("neither %q nor %q is BOX:PATH or ws:WORKSPACE:PATH", args[0], args[1]))
			case src.box == dst.box && src.workspace == dst.workspace:
				return withHint(usage("%q and %q are in the same place", args[0], args[1]), "in a box, exec runs cp; in a workspace, workspace mv moves")
			case !dst.local() && o.Follow && src.path == "-":
				return usage("-L and a tar stream exclude each other: it has the links that it has")
			case dst.local() && dst.path == "-" && out.json():
				return usage("-o json and a tar stream on stdout exclude each other")
			case src.workspace != "" && dst.local() && (o.User != "" || o.Owners), dst.workspace != "" && src.local() && (o.User != "" || o.Owners):
				return usage("-u and -a are for boxes: a workspace has no users of its own")
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			p := &gauge{env: env, what: "copied", on: !out.silent()}
			defer p.end()
			opts := boxcopy.Options{Follow: o.Follow, Moved: p.moved}
			switch from, to := src.end(c, o), dst.end(c, o); {
			case src.local():
				err = copyIn(cmd.Context(), env, to, src.path, dst.path, opts)
			case dst.local():
				err = copyOut(cmd.Context(), env, from, src.path, dst.path, opts)
			default:
				err = boxcopy.Between(cmd.Context(), from, src.path, to, dst.path, opts)
			}
			if err != nil || !out.json() {
				return err
			}
			return printJSON(env.Out, copied{args[0], args[1]})
		},
	}
	cmd.Flags().StringVarP(&o.User, "user", "u", "", "who reads or writes in the box, user[:group] (default the box's `user`)")
	cmd.Flags().BoolVarP(&o.Follow, "follow-link", "L", false, "copy what SRC leads to if it is a link")
	cmd.Flags().BoolVarP(&o.Owners, "archive", "a", false, "give files in the box the numeric owners that they have here; takes root there")
	out.addOutput(cmd)
	cmd.Flags().BoolVarP(&out.quiet, "quiet", "q", false, "show no progress")
	return cmd
}

// copyPath is one side of a copy: a path of a box, of a workspace or, with
// neither, of this machine.
type copyPath struct{ box, workspace, path string }

func (p copyPath) local() bool { return p.box == "" && p.workspace == "" }

// splitPath takes BOX:PATH or ws:WORKSPACE:PATH apart. A path of this machine,
// which may have a colon in it, begins with a dot or a slash, or has no box's
// name before it.
func splitPath(arg string) copyPath {
	if id, at, ok := splitWorkspacePath(arg); ok && id != "" {
		return copyPath{workspace: id, path: "/" + at}
	}
	box, path, found := strings.Cut(arg, ":")
	if !found || taisandbox.ValidateID(box) != nil {
		return copyPath{path: arg}
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return copyPath{box: box, path: path}
}

// end is the side as the copy wants it.
func (p copyPath) end(c *client.Client, o taisandbox.FileOptions) boxcopy.Box {
	if p.workspace != "" {
		return workspaceEnd{c.Workspace(p.workspace)}
	}
	return copyEnd{c: c, box: p.box, o: o}
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

// copyIn copies from this machine.
func copyIn(ctx context.Context, env *Env, e boxcopy.Box, src, dst string, o boxcopy.Options) error {
	if src != "-" {
		return localError(boxcopy.To(ctx, e, src, dst, o))
	}
	if _, tty := terminalOf(env.In); tty {
		return usage("stdin is a terminal: a tar stream is expected there")
	}
	return e.CopyTo(ctx, dst, env.In)
}

// copyOut copies to this machine.
func copyOut(ctx context.Context, env *Env, e boxcopy.Box, src, dst string, o boxcopy.Options) error {
	if dst != "-" {
		err := boxcopy.From(ctx, e, src, dst, o)
		if left, ok := errors.AsType[*boxcopy.LeftOutError](err); ok {
			return withHint(left, "-L copies what a link leads to there; with - as DST the tar stream has all links")
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
