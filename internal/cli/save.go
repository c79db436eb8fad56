package cli

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
)

func newImageSave(env *Env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "save [flags] IMAGE...",
		Short: "Write images to an OCI archive",
		Long: `Write images, with their names, to one archive that image load, docker load,
skopeo and others read. The archive is all the output: there is no -o json.`,
		Example: `  taibox image save -o tools.tar tools:1
  taibox image save tools:1 | ssh other taibox image load`,
		Args: wantArgs("IMAGE..."),
		RunE: func(cmd *cobra.Command, refs []string) error {
			if _, tty := terminalOf(env.Out); tty && (output == "" || output == "-") {
				return usage("an archive is not for a terminal: give it a file with -o, or another program")
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			write := func(w io.Writer) error { return c.SaveImages(cmd.Context(), refs, w) }
			if output == "" || output == "-" {
				return write(env.Out)
			}
			return writeFile(output, write)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "write the archive to a `file`; - is stdout")
	return cmd
}

// writeFile makes or replaces a file once all of it is there.
func writeFile(name string, write func(io.Writer) error) (err error) {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	if err := errors.Join(write(tmp), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

func newImagePrune(env *Env) *cobra.Command {
	var out format
	var all bool
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove images that nothing needs",
		Long: `Remove images that have no name and that no box is made of, and what pulls left
that failed. With -a, named images go too.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			removed, err := c.PruneImages(cmd.Context(), all)
			if err != nil {
				return err
			}
			if out.json() {
				return printList(env.Out, removed)
			}
			return printIDs(env, removed, func(i rest.Image) string { return i.Name })
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "remove every image that no box is made of")
	out.addOutput(cmd)
	out.addQuiet(cmd, "names")
	return cmd
}

func newCommit(env *Env) *cobra.Command {
	var out format
	var cmdline, entrypoint, workDir, user string
	var vars, labels []string
	cmd := &cobra.Command{
		Use:     "commit [flags] BOX IMAGE",
		GroupID: groupImage,
		Short:   "Make an image of a box",
		Long: `Make an image of a box: of the image that it was made of, and what has changed
in it since. The box may run; what its commands are just writing may be caught
half written. Mounted directories are left out. A box made of hostfs cannot
become an image.

--cmd and --entrypoint take a JSON list of words, or else one word; an empty
value takes away what the image has.`,
		Example: `  taibox commit work tools:2
  taibox commit --cmd '["python3","-m","app"]' -e MODE=fast -w /app work app:1`,
		Args: wantArgs("BOX", "IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := rest.CommitBox{Image: args[1]}
			var err error
			if cmd.Flag("cmd").Changed {
				if req.Cmd, err = parseWords("--cmd", cmdline); err != nil {
					return err
				}
			}
			if cmd.Flag("entrypoint").Changed {
				if req.Entrypoint, err = parseWords("--entrypoint", entrypoint); err != nil {
					return err
				}
			}
			if cmd.Flag("workdir").Changed {
				req.WorkDir = &workDir
			}
			if cmd.Flag("user").Changed {
				req.User = &user
			}
			if req.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			set, err := env.parseEnv(nil, vars)
			if err != nil {
				return err
			}
			for _, name := range slices.Sorted(maps.Keys(set)) {
				req.Env = append(req.Env, name+"="+set[name])
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			i, err := c.CommitBox(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			if out.json() {
				return printJSON(env.Out, i)
			}
			return printLine(env.Out, i.Digest)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cmdline, "cmd", "", "the image's `command`")
	fs.StringVar(&entrypoint, "entrypoint", "", "the image's entrypoint, a `command`")
	fs.StringArrayVarP(&vars, "env", "e", nil, "set a variable, `K=V`; K alone takes ours")
	fs.StringVarP(&workDir, "workdir", "w", "", "commands run in this `directory`")
	fs.StringVarP(&user, "user", "u", "", "commands run as `USER[:GROUP]`")
	fs.StringArrayVarP(&labels, "label", "l", nil, "label the image with `K=V`")
	out.addOutput(cmd)
	out.addQuiet(cmd, "the digest")
	return cmd
}

// parseWords reads a command line: a JSON list of words, or one word.
func parseWords(flag, value string) (*[]string, error) {
	words := []string{}
	switch {
	case strings.HasPrefix(value, "["):
		if err := json.Unmarshal([]byte(value), &words); err != nil {
			return nil, usage("%s %q: a JSON list of words is expected", flag, value)
		}
	case value != "":
		words = append(words, value)
	}
	return &words, nil
}
