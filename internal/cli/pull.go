package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func newImagePull(env *Env) *cobra.Command {
	var out format
	var user string
	var passwordStdin bool
	cmd := &cobra.Command{
		Use:   "pull [flags] IMAGE",
		Short: "Fetch an image from its registry",
		Long: `Fetch an image from its registry, and show how far each layer is. The name may
end in a tag or a digest; one without a registry is of docker.io. What fails is
tried again and goes on where it ended.

Credentials are those of --username and --password-stdin, else those that
docker login keeps: in ~/.docker/config.json, or with its credential helpers.`,
		Example: `  taibox image pull ghcr.io/acme/tools:1
  taibox image pull --username bot --password-stdin registry.example.com/a/b <token`,
		Args: wantArgs("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			auth, err := env.givenAuth(user, passwordStdin)
			if err != nil {
				return err
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			p := &pullProgress{env: env, on: !out.silent()}
			if err := env.pull(cmd.Context(), c, args[0], auth, p); err != nil {
				return err
			}
			i, err := c.GetImage(cmd.Context(), p.digest)
			if err != nil {
				return err
			}
			if out.json() {
				return printJSON(env.Out, i)
			}
			return printLine(env.Out, familiar(args[0]))
		},
	}
	cmd.Flags().StringVar(&user, "username", "", "log in to the registry by this `name`")
	cmd.Flags().BoolVar(&passwordStdin, "password-stdin", false, "read the password from stdin")
	out.addOutput(cmd)
	out.addQuiet(cmd, "the name")
	return cmd
}

// familiar is the name that an image has in lists.
func familiar(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	return reference.FamiliarString(reference.TagNameOnly(named))
}

// givenAuth reads the credentials of the command line; nil if it has none.
func (e *Env) givenAuth(user string, passwordStdin bool) (*rest.RegistryAuth, error) {
	if user == "" && !passwordStdin {
		return nil, nil //nolint:nilnil // see above
	}
	if user == "" || !passwordStdin {
		return nil, usage("--username and --password-stdin belong together")
	}
	line, err := bufio.NewReader(io.LimitReader(e.In, 1<<16)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the password: %w", err)
	}
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return nil, usage("--password-stdin: stdin has no password")
	}
	return &rest.RegistryAuth{Username: user, Password: line}, nil
}

// pull has the server pull an image. Without credentials given, those that
// Docker keeps for the registry are used.
func (e *Env) pull(ctx context.Context, c *client.Client, ref string, auth *rest.RegistryAuth, p *pullProgress) error {
	if auth == nil {
		var err error
		if auth, err = e.dockerAuth(ctx, ref); err != nil {
			return err
		}
	}
	err := c.PullImage(ctx, rest.PullImage{Image: ref, Auth: auth}, p.show)
	p.end()
	return err
}

// pullProgress shows a pull: a bar on a terminal, else a line for each thing
// that happens to a layer.
type pullProgress struct {
	env *Env
	on  bool

	digest string // of the image, at the end
	layers map[string]rest.PullEvent
	shown  time.Time
}

func (p *pullProgress) show(e rest.PullEvent) {
	if e.Status == taisandbox.PullComplete {
		p.digest = e.Digest
	}
	if p.layers == nil {
		p.layers = map[string]rest.PullEvent{}
	}
	before := p.layers[e.Layer]
	p.layers[e.Layer] = e
	switch _, tty := terminalOf(p.env.Err); {
	case !p.on:
	case tty:
		if time.Since(p.shown) > progressEvery {
			p.shown = time.Now()
			p.bar()
		}
	case e.Layer == "":
		fmt.Fprintln(p.env.Err, strings.TrimSpace(e.Status+" "+e.Digest)) //nolint:errcheck // nobody looks
	case e.Status != before.Status:
		fmt.Fprintf(p.env.Err, "%s: %s, %s of %s\n", shortDigest(e.Layer), e.Status, formatSize(e.Current), formatSize(e.Total)) //nolint:errcheck // nobody looks
	}
}

const barWidth = 30

// bar draws one line over all layers.
func (p *pullProgress) bar() {
	var current, total int64
	done, layers := 0, 0
	busy := ""
	for name, l := range p.layers {
		if name == "" {
			continue
		}
		layers++
		current, total = current+l.Current, total+l.Total
		if l.Status == taisandbox.PullDone {
			done++
		}
		if l.Status == taisandbox.PullExtracting {
			busy = ", extracting " + shortDigest(name)
		}
	}
	text := taisandbox.PullResolving
	if total > 0 {
		full := int(barWidth * current / total)
		text = fmt.Sprintf("[%s%s] %3d %%  %s of %s, layer %d of %d%s", strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
			100*current/total, formatSize(current), formatSize(total), min(done+1, layers), layers, busy)
	}
	if cols := int(p.env.terminalSize().Cols); cols > 0 && len(text) >= cols {
		text = text[:cols-1] // a second line would stay
	}
	fmt.Fprintf(p.env.Err, "\r\x1b[K%s", text) //nolint:errcheck // nobody looks
}

// end takes the bar away.
func (p *pullProgress) end() {
	if !p.shown.IsZero() {
		fmt.Fprint(p.env.Err, "\r\x1b[K") //nolint:errcheck // nobody looks
	}
}

// createBox makes a box, and fetches its image first where --pull says so.
func (e *Env) createBox(ctx context.Context, c *client.Client, req rest.CreateBox, f *boxFlags, quiet bool) (rest.Box, error) {
	fetch := func() error {
		return e.pull(ctx, c, req.Image, nil, &pullProgress{env: e, on: !quiet})
	}
	if f.pull == pullAlways && req.Image != taisandbox.HostFS {
		if err := fetch(); err != nil {
			return rest.Box{}, err
		}
	}
	box, err := c.CreateBox(ctx, req)
	if !errors.Is(err, taisandbox.ErrImageNotFound) || f.pull != pullMissing {
		return box, err
	}
	if !namesRegistry(req.Image) {
		if _, bad := reference.ParseNormalizedNamed(req.Image); bad != nil {
			return box, err
		}
		return box, withHint(err, "load it from an archive: taibox image load -i FILE; or fetch it from Docker Hub: taibox image pull %s", req.Image)
	}
	if err := fetch(); err != nil {
		return rest.Box{}, err
	}
	return c.CreateBox(ctx, req)
}

// The values of --pull.
const (
	pullMissing = "missing"
	pullAlways  = "always"
	pullNever   = "never"
)

// namesRegistry reports whether a reference says by itself where an image is.
// A short name, which may be a typing error, goes to nobody unasked.
func namesRegistry(ref string) bool {
	domain, _, ok := strings.Cut(ref, "/")
	return ok && (strings.ContainsAny(domain, ".:") || domain == "localhost")
}
