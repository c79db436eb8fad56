package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
)

func newImage(env *Env) *cobra.Command {
	cmd := group("image", "Look after the images that boxes are made of")
	cmd.GroupID = groupImage
	cmd.AddCommand(newImageLs(env), newImagePull(env), newImageLoad(env), newImageSave(env), newImageRm(env), newImagePrune(env), newImageInspect(env))
	return cmd
}

func newImageLs(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List images",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			images, err := c.ListImages(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			return printItems(env, out, images, []string{"NAME", "DIGEST", "PLATFORM", "SIZE", "AGE"}, func(i *rest.Image) []string {
				size := formatSize(i.SizeBytes)
				if i.BuiltIn {
					size = "built in"
				}
				return []string{i.Name, shortDigest(i.Digest), i.Platform, size, formatAge(i.CreatedAt, now)}
			})
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "names")
	return cmd
}

// shortDigest cuts a digest to what tells it apart.
func shortDigest(d string) string {
	_, hex, _ := strings.Cut(d, ":")
	return hex[:min(12, len(hex))]
}

func newImageLoad(env *Env) *cobra.Command {
	var out format
	var input, name string
	cmd := &cobra.Command{
		Use:   "load [flags]",
		Short: "Load the images of an OCI or Docker archive",
		Long: `Load the images of an archive, as docker save, skopeo and buildah write it,
plain or compressed. Without -i the archive is read from stdin.`,
		Example: `  taibox image load -i alpine.tar
  docker save alpine | taibox image load`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			archive, total, err := env.archive(input)
			if err != nil {
				return err
			}
			defer archive.Close() //nolint:errcheck // only read
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			p := &progress{r: archive, env: env, total: total, on: !out.silent()}
			images, err := c.LoadImage(cmd.Context(), p, name)
			p.end()
			switch {
			case err != nil:
				return fmt.Errorf("load %s: %w", archive.Name(), err)
			case out.json():
				return printList(env.Out, images)
			}
			return printIDs(env, images, func(i rest.Image) string { return i.Name })
		},
	}
	cmd.Flags().StringVarP(&input, "input", "i", "", "read the archive from a `file`")
	cmd.Flags().StringVar(&name, "name", "", "give the archive's only image this `name`")
	out.addOutput(cmd)
	out.addQuiet(cmd, "names")
	return cmd
}

// archive opens what image load reads, and says how long it is, if known.
func (e *Env) archive(input string) (f *os.File, size int64, err error) {
	if input == "" || input == "-" {
		in, ok := e.In.(*os.File)
		if _, tty := terminalOf(e.In); !ok || tty {
			return nil, 0, usage("no archive: give it with -i, or on stdin")
		}
		return in, 0, nil
	}
	f, err = os.Open(input)
	if os.IsNotExist(err) {
		return nil, 0, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = usage("%s is a directory: an archive is expected", input)
	}
	if err != nil {
		f.Close() //nolint:errcheck // only read
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// progress shows on a terminal how much has been read.
type progress struct {
	r     io.Reader
	env   *Env
	total int64
	on    bool

	done  int64
	shown time.Time
}

const progressEvery = 200 * time.Millisecond

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.done += int64(n)
	if _, tty := terminalOf(p.env.Err); p.on && tty && time.Since(p.shown) > progressEvery {
		p.shown = time.Now()
		text := formatSize(p.done)
		if p.total > 0 {
			text += fmt.Sprintf(" of %s, %d %%", formatSize(p.total), 100*p.done/p.total)
		}
		fmt.Fprintf(p.env.Err, "\r\x1b[Kloading: %s", text) //nolint:errcheck // nobody looks
	}
	return n, err
}

// end takes the line away.
func (p *progress) end() {
	if !p.shown.IsZero() {
		fmt.Fprint(p.env.Err, "\r\x1b[K") //nolint:errcheck // nobody looks
	}
}

func newImageRm(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "rm [flags] IMAGE...",
		Short: "Remove images",
		Args:  wantArgs("IMAGE..."),
		RunE: func(cmd *cobra.Command, refs []string) error {
			return env.each(cmd, &out, refs, func(ctx context.Context, c *client.Client, ref string) error {
				return c.RemoveImage(ctx, ref)
			})
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "names")
	return cmd
}

func newImageInspect(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "inspect [flags] IMAGE",
		Short: "Say all there is to know of an image",
		Args:  wantArgs("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			i, err := c.GetImage(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if out.json() {
				return printJSON(env.Out, i)
			}
			f := &fields{}
			f.add("Name", i.Name)
			f.add("Digest", i.Digest)
			f.add("Platform", i.Platform)
			f.add("Size", formatSize(i.SizeBytes))
			f.add("Created", formatTime(i.CreatedAt))
			f.add("Entrypoint", quoteArgs(i.Config.Entrypoint))
			f.add("Command", quoteArgs(i.Config.Cmd))
			f.add("User", i.Config.User)
			f.add("Directory", i.Config.WorkDir)
			f.add("Environment", strings.Join(i.Config.Env, ", "))
			f.add("Ports", strings.Join(i.Config.Ports, ", "))
			f.add("Labels", formatLabels(i.Config.Labels))
			return f.print(env.Out)
		},
	}
	out.addOutput(cmd)
	return cmd
}
