package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/tai/volume"
)

// file is how the JSON of a workspace's file looks: as in the API.
type file struct {
	Name    string    `json:"name"`
	NameB64 []byte    `json:"name_b64,omitempty"`
	Path    string    `json:"path"`
	PathB64 []byte    `json:"path_b64,omitempty"`
	Type    string    `json:"type"`
	Size    int64     `json:"size"`
	Mode    string    `json:"mode"`
	ModTime time.Time `json:"mod_time"`
	Link    string    `json:"link,omitempty"`
	LinkB64 []byte    `json:"link_b64,omitempty"`
	Version string    `json:"version,omitempty"`
}

func fileOf(i *volume.FileInfo) file {
	f := file{Type: fileType(i.Mode), Size: i.Size, Mode: fmt.Sprintf("%04o", i.Mode.Perm()), ModTime: i.ModTime, Version: i.Version}
	f.Name, f.NameB64 = textOrBytes(i.Name)
	f.Path, f.PathB64 = textOrBytes(i.Path)
	f.Link, f.LinkB64 = textOrBytes(i.Link)
	return f
}

func fileType(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "file"
	case m.IsDir():
		return "dir"
	case m&fs.ModeSymlink != 0:
		return "link"
	case m&fs.ModeNamedPipe != 0:
		return "pipe"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeCharDevice != 0:
		return "char"
	}
	return "block"
}

func newWorkspaceFiles(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "files [flags] WORKSPACE [PATH]",
		Short: "List what is in a directory of a workspace",
		Long: `List what is in a directory of a workspace, by name. PATH, here and everywhere, is
relative to the workspace's root.`,
		Args: wantArgs("WORKSPACE", "[PATH]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			list, err := c.Workspace(args[0]).List(cmd.Context(), optional(args, 1))
			if err != nil {
				return err
			}
			switch {
			case out.json():
				files := make([]file, len(list))
				for i := range list {
					files[i] = fileOf(&list[i])
				}
				return printList(env.Out, files)
			case out.quiet:
				return printIDs(env, list, func(i volume.FileInfo) string { return env.nameFor(i.Name) })
			}
			t := newTable("MODE", "SIZE", "CHANGED", "NAME")
			for _, i := range list {
				size, name := "", i.Name
				switch {
				case i.Mode.IsRegular():
					size = formatSize(i.Size)
				case i.Mode.IsDir():
					name += "/"
				case i.Link != "":
					name += " -> " + i.Link
				}
				t.add(i.Mode.String(), size, formatTime(i.ModTime), name)
			}
			return t.print(env.Out)
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "names")
	return cmd
}

// optional is an argument that may be missing.
func optional(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return ""
}

// nameFor is a file's name as it is, but on a terminal, which it could steer.
func (e *Env) nameFor(name string) string {
	if e.TTY {
		return oneLine(name)
	}
	return name
}

func newWorkspaceCat(env *Env) *cobra.Command {
	var quiet bool
	var o volume.OpenOptions
	cmd := &cobra.Command{
		Use:   "cat [flags] WORKSPACE PATH",
		Short: "Write a file of a workspace to stdout",
		Long:  "Write a file of a workspace to stdout as it is; files -o json tells what it is.",
		Args:  wantArgs("WORKSPACE", "PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Offset < 0 || o.Limit < 0 {
				return usage("--offset and --limit cannot be negative")
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			r, info, err := c.Workspace(args[0]).Open(cmd.Context(), args[1], o)
			if err != nil {
				return err
			}
			defer r.Close()
			total := max(info.Size-o.Offset, 0)
			if o.Limit > 0 {
				total = min(total, o.Limit)
			}
			p := &gauge{env: env, what: "read", total: total, on: !quiet && !env.TTY}
			defer p.end()
			_, err = io.Copy(env.Out, &gauged{r, p})
			return err
		},
	}
	cmd.Flags().Int64Var(&o.Offset, "offset", 0, "begin at this `byte`")
	cmd.Flags().Int64Var(&o.Limit, "limit", 0, "write this many `bytes` at most")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return cmd
}

func newWorkspacePut(env *Env) *cobra.Command {
	var out format
	var mode string
	var o volume.WriteOptions
	cmd := &cobra.Command{
		Use:   "put [flags] WORKSPACE PATH [FILE]",
		Short: "Write a file of a workspace from stdin, or from a file",
		Long: `Write a file of a workspace from stdin, or from FILE: whole or not at all. Missing
directories are made. A file that is there is replaced and keeps its mode. With
a PATH that ends in / FILE keeps its name.`,
		Example: `  taibox workspace put proj notes/today.txt < today.txt
  taibox workspace put proj data/ big.csv`,
		Args: wantArgs("WORKSPACE", "PATH", "[FILE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if mode != "" {
				m, err := strconv.ParseUint(mode, 8, 32)
				if err != nil || m > 0o777 || m == 0 {
					return usage("--mode %q: octal permissions are expected, as 0644", mode)
				}
				o.Mode = fs.FileMode(m)
			}
			src, total, err := env.putSource(optional(args, 2))
			if err != nil {
				return err
			}
			defer src.Close() //nolint:errcheck // only read
			name := args[1]
			if strings.HasSuffix(name, "/") {
				if len(args) < 3 || args[2] == "-" {
					return usage("path %q: the name of a file is expected", name)
				}
				name += filepath.Base(args[2])
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			o.Parents = true
			p := &gauge{env: env, what: "written", total: total, on: !out.silent()}
			info, err := c.Workspace(args[0]).Write(cmd.Context(), name, &gauged{src, p}, o)
			p.end()
			if err != nil || !out.json() {
				return err
			}
			return printJSON(env.Out, fileOf(&info))
		},
	}
	cmd.Flags().StringVar(&mode, "mode", "", "its `permissions`, octal (default those of the file that is there, else 0644)")
	cmd.Flags().BoolVar(&o.IfAbsent, "if-absent", false, "only where no file is yet")
	cmd.Flags().StringVar(&o.IfVersion, "if-version", "", "only over the file of this `version`, as the JSON of put and files tells it")
	out.addOutput(cmd)
	cmd.Flags().BoolVarP(&out.quiet, "quiet", "q", false, "show no progress")
	return cmd
}

// putSource opens what put reads, and says how long it is, if known.
func (e *Env) putSource(name string) (io.ReadCloser, int64, error) {
	if name != "" && name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, 0, localError(err)
		}
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			err = withHint(usage("%s is a directory", name), "workspace sync and cp take trees")
		}
		if err != nil {
			return nil, 0, errors.Join(err, f.Close())
		}
		return f, regularSize(info), nil
	}
	if _, tty := terminalOf(e.In); tty {
		return nil, 0, usage("stdin is a terminal: give a FILE, or another program's output")
	}
	if f, ok := e.In.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			return io.NopCloser(f), regularSize(info), nil
		}
	}
	return io.NopCloser(e.In), 0, nil
}

func regularSize(info fs.FileInfo) int64 {
	if info.Mode().IsRegular() {
		return info.Size()
	}
	return 0
}

// pathDone is what the JSON of mkdir, mv and del names: a path that it was done
// to.
type pathDone struct {
	Path    string `json:"path"`
	PathB64 []byte `json:"path_b64,omitempty"`
}

func doneTo(path string) (d pathDone) {
	d.Path, d.PathB64 = textOrBytes(path)
	return d
}

func newWorkspaceMkdir(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "mkdir [flags] WORKSPACE PATH...",
		Short: "Make directories in a workspace, with their parents",
		Args:  wantArgs("WORKSPACE", "PATH..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.eachPath(cmd, &out, args, func(ctx context.Context, w *client.Workspace, name string) error {
				return w.MkdirAll(ctx, name, 0)
			})
		},
	}
	out.addOutput(cmd)
	return cmd
}

func newWorkspaceMv(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "mv [flags] WORKSPACE FROM TO",
		Short: "Move a file or directory of a workspace",
		Long: `Move a file or directory of a workspace, into TO if that is a directory or a link to
one, else over a file or link that is there. -o json tells where it is then.`,
		Args: wantArgs("WORKSPACE", "FROM", "TO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			w := c.Workspace(args[0])
			from, to := args[1], args[2]
			into, err := leadsToDir(cmd.Context(), w, strings.TrimRight(to, "/"))
			if err != nil {
				return err
			}
			if into {
				to = strings.TrimRight(to, "/") + "/" + path.Base(from)
			}
			if err := w.Rename(cmd.Context(), from, to); err != nil || !out.json() {
				return err
			}
			return printJSON(env.Out, doneTo(to))
		},
	}
	out.addOutput(cmd)
	return cmd
}

// leadsToDir reports whether a name is that of a directory, or of a link to one
// in the workspace.
func leadsToDir(ctx context.Context, w *client.Workspace, name string) (bool, error) {
	info, err := w.Stat(ctx, name)
	switch {
	case errors.Is(err, volume.ErrFileNotFound), errors.Is(err, volume.ErrFileKind):
		return false, nil
	case err != nil || info.Mode&fs.ModeSymlink == 0:
		return info.Mode.IsDir(), err
	}
	_, err = w.List(ctx, name)
	for _, is := range []error{volume.ErrFileNotFound, volume.ErrFileKind, volume.ErrFileDenied} { // nowhere, to a file, or out
		if errors.Is(err, is) {
			return false, nil
		}
	}
	return err == nil, err
}

func newWorkspaceDel(env *Env) *cobra.Command {
	var out format
	var all bool
	cmd := &cobra.Command{
		Use:   "del [flags] WORKSPACE PATH...",
		Short: "Delete files of a workspace",
		Args:  wantArgs("WORKSPACE", "PATH..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.eachPath(cmd, &out, args, func(ctx context.Context, w *client.Workspace, name string) error {
				return w.Remove(ctx, name, all)
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "recursive", "r", false, "delete directories with all that is in them; what is not there is no error")
	out.addOutput(cmd)
	return cmd
}

// eachPath does one thing to several paths of a workspace, and lists as JSON
// those that it was done to. An error does not keep it from the rest; the worst
// one decides the code.
func (e *Env) eachPath(cmd *cobra.Command, out *format, args []string, do func(context.Context, *client.Workspace, string) error) error {
	c, _, err := e.connect(cmd)
	if err != nil {
		return err
	}
	var did []pathDone
	err = e.forAll(cmd, args[1:], func(name string) error {
		err := do(cmd.Context(), c.Workspace(args[0]), name)
		if err == nil {
			did = append(did, doneTo(name))
		}
		return err
	})
	if out.json() {
		if err := printList(e.Out, did); err != nil {
			return err
		}
	}
	return err
}

func newWorkspaceWatch(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "watch [flags] WORKSPACE [PATH]",
		Short: "Tell what changes in a workspace, until interrupted",
		Long: `Tell what changes at PATH and below, by whomever, until interrupted. With -o json
each line is one change.`,
		Args: wantArgs("WORKSPACE", "[PATH]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			for e, err := range c.Workspace(args[0]).Watch(cmd.Context(), optional(args, 1), nil) {
				if err != nil {
					return err
				}
				if err := printChange(env, &out, string(e.Kind), e.Path, e.Dir); err != nil {
					return err
				}
			}
			return nil
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "paths")
	return cmd
}
