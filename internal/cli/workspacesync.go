package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/tai/volume"
)

// workspacePrefix begins what names a place in a workspace: ws:ID[:PATH].
const workspacePrefix = "ws:"

// splitWorkspacePath takes ws:ID[:PATH] apart. A path may begin with a slash,
// and is relative to the workspace's root with or without it.
func splitWorkspacePath(arg string) (id, path string, ok bool) {
	rest, ok := strings.CutPrefix(arg, workspacePrefix)
	if !ok {
		return "", "", false
	}
	id, path, _ = strings.Cut(rest, ":")
	return id, strings.TrimLeft(path, "/"), true
}

// syncSide is one of the two arguments of sync.
type syncSide struct {
	end   volume.SyncEnd
	check func(context.Context) error // that it is a directory
}

func syncSideOf(c *client.Client, arg string) syncSide {
	id, at, ok := splitWorkspacePath(arg)
	if !ok {
		return syncSide{treesync.Dir(arg), func(context.Context) error {
			info, err := os.Stat(arg)
			if err == nil && !info.IsDir() {
				err = fmt.Errorf("%s: %w: it is no directory", arg, errdefs.ErrInvalidArgument)
			}
			return localError(err)
		}}
	}
	w := c.Workspace(id)
	at = strings.TrimRight(at, "/")
	return syncSide{w.SyncEnd(at), func(ctx context.Context) error {
		_, err := w.List(ctx, at) // which follows links, as the sync does
		return err
	}}
}

// syncReport is the JSON of a sync.
type syncReport struct {
	volume.SyncResult
	DryRun bool `json:"dry_run"`
}

func newWorkspaceSync(env *Env) *cobra.Command {
	var out format
	var o volume.SyncOptions
	cmd := &cobra.Command{
		Use:   "sync [flags] SRC DST",
		Short: "Make a tree of a workspace what one of this machine is, or the other way round",
		Long: `Make the directory DST what the directory SRC is, and send only what differs. One of
them is ws:ID[:PATH], a directory of a workspace, or both are; the other is one of
this machine. DST is made if it is missing.

A file counts as the same if size and time are, or else if its contents are.
Permissions, links that stay inside and empty directories are kept; links that
lead out are left out and told. A sync that was cut off goes on when repeated.`,
		Example: `  taibox workspace sync ./src ws:proj:src --delete --gitignore
  taibox workspace sync ws:proj:out ./out`,
		Args: wantArgs("SRC", "DST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !strings.HasPrefix(args[0], workspacePrefix) && !strings.HasPrefix(args[1], workspacePrefix) {
				return withHelpHint(cmd, usage("neither %q nor %q is ws:ID[:PATH]", args[0], args[1]))
			}
			ctx := cmd.Context()
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			src, dst := syncSideOf(c, args[0]), syncSideOf(c, args[1])
			// A tree that is not there would be an empty one, and with --delete
			// all that the other has would go.
			if err := src.check(ctx); err != nil {
				return err
			}
			if id, _, ok := splitWorkspacePath(args[1]); ok {
				if _, err := c.Workspace(id).Get(ctx); err != nil {
					return err
				}
			}
			p := &gauge{env: env, what: "synced", on: !out.silent()}
			o.Progress = func(r volume.SyncResult) { p.moved(r.BytesSynced) }
			res, err := treesync.Sync(ctx, src.end, dst.end, o)
			p.end()
			if err != nil {
				return localError(err)
			}
			return printSync(env, &out, &syncReport{res, o.DryRun})
		},
	}
	cmd.Flags().BoolVar(&o.Delete, "delete", false, "remove from DST what SRC does not have; what is excluded stays")
	cmd.Flags().BoolVarP(&o.DryRun, "dry-run", "n", false, "only tell what would be done")
	cmd.Flags().BoolVar(&o.Checksum, "checksum", false, "compare the contents of files even if size and time are the same")
	cmd.Flags().StringArrayVar(&o.Exclude, "exclude", nil, "leave out what matches this `pattern`, as in .gitignore")
	cmd.Flags().BoolVar(&o.GitIgnore, "gitignore", false, "leave out what the .gitignore files of SRC name, and .git")
	out.addOutput(cmd)
	cmd.Flags().BoolVarP(&out.quiet, "quiet", "q", false, "show no progress, and nothing at the end")
	return cmd
}

func printSync(env *Env, out *format, r *syncReport) error {
	for _, link := range r.LeftOut {
		env.note("left out, since it leads out of the tree: %q", link)
	}
	switch {
	case out.json():
		return printJSON(env.Out, r)
	case out.quiet:
		return nil
	}
	verb := "sent"
	if r.DryRun {
		verb = "would send"
	}
	return printLine(env.Out, fmt.Sprintf("%s %d of %d files, %s (%s on the wire), removed %d",
		verb, r.FilesSynced, r.FilesTotal, formatSize(r.BytesSynced), formatSize(r.BytesSent), r.FilesRemoved))
}

func newWorkspaceArchive(env *Env) *cobra.Command {
	var out format
	var kind string
	cmd := &cobra.Command{
		Use:   "archive [flags] WORKSPACE pack|extract SRC DST",
		Short: "Pack or unpack an archive within a workspace",
		Long: `Pack the file or directory SRC of a workspace into the archive DST of it, or unpack
the archive SRC into the directory DST, which is made if missing. The format is
zip, tar, tgz or gzip: by DST's name to pack; to unpack, by how SRC begins.

Archives with names or links that lead out, with devices, or that unpack to more
than anybody means are refused, and leave nothing behind.`,
		Example: `  taibox workspace archive proj pack src src.tgz
  taibox workspace archive proj extract data.zip data`,
		Args: wantArgs("WORKSPACE", "pack|extract", "SRC", "DST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] != "pack" && args[1] != "extract" {
				return withHelpHint(cmd, usage("%q: pack and extract are possible", args[1]))
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			w := c.Workspace(args[0])
			var res rest.ArchiveResult
			if args[1] == "pack" {
				res, err = w.Pack(cmd.Context(), args[2], args[3], kind)
			} else {
				res, err = w.Extract(cmd.Context(), args[2], args[3], kind, volume.ArchiveOptions{})
			}
			switch {
			case err != nil:
				return err
			case out.json():
				return printJSON(env.Out, res)
			case out.quiet:
				return nil
			}
			return printLine(env.Out, fmt.Sprintf("%s: %d entries, %s", res.Format, res.Entries, formatSize(res.Bytes)))
		},
	}
	cmd.Flags().StringVar(&kind, "format", "", "the `format`: zip, tar, tgz or gzip")
	out.addOutput(cmd)
	cmd.Flags().BoolVarP(&out.quiet, "quiet", "q", false, "print nothing")
	return cmd
}

func newWorkspaceSnapshot(env *Env) *cobra.Command {
	var out format
	var remove bool
	cmd := &cobra.Command{
		Use:   "snapshot [flags] WORKSPACE [NAME]",
		Short: "Keep a workspace as it is now, or with --rm forget that",
		Long: `Keep a workspace as it is now, under a name, and print that. Files that have not
changed since the newest snapshot take no space again. Without NAME the name is
made of the time.`,
		Example: `  taibox workspace snapshot proj before
  taibox workspace diff proj before
  taibox workspace restore proj before`,
		Args: wantArgs("WORKSPACE", "[NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if remove && len(args) < 2 {
				return withHelpHint(cmd, usage("NAME is missing"))
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			w := c.Workspace(args[0])
			if remove {
				if err := w.RemoveSnapshot(cmd.Context(), args[1]); err != nil {
					return err
				}
				return printSnapshotName(env, &out, args[1])
			}
			s, err := w.CreateSnapshot(cmd.Context(), optional(args, 1))
			if err != nil {
				return err
			}
			if out.json() {
				return printJSON(env.Out, s)
			}
			return printLine(env.Out, s.Name)
		},
	}
	cmd.Flags().BoolVar(&remove, "rm", false, "delete the snapshot NAME")
	out.addOutput(cmd)
	out.addQuiet(cmd, "the name")
	return cmd
}

// printSnapshotName tells which snapshot something was done with.
func printSnapshotName(env *Env, out *format, name string) error {
	if !out.json() {
		return printLine(env.Out, name)
	}
	return printJSON(env.Out, struct {
		Name string `json:"name"`
	}{name})
}

func newWorkspaceSnapshots(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "snapshots [flags] WORKSPACE",
		Short: "List the snapshots of a workspace, oldest first",
		Args:  wantArgs("WORKSPACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			list, err := c.Workspace(args[0]).ListSnapshots(cmd.Context())
			if err != nil {
				return err
			}
			return printItems(env, out, list, []string{"NAME", "CREATED", "FILES", "SIZE"}, func(s *rest.Snapshot) []string {
				return []string{s.Name, formatTime(s.CreatedAt), fmt.Sprint(s.Files), formatSize(s.Bytes)}
			})
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "names")
	return cmd
}

func newWorkspaceRestore(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "restore [flags] WORKSPACE SNAPSHOT",
		Short: "Make a workspace what it was",
		Long: `Make a workspace what it was when the snapshot was made. What is not in the snapshot
is deleted: make another one first to keep it. Boxes that have the workspace
mounted see it change.`,
		Args: wantArgs("WORKSPACE", "SNAPSHOT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			if err := c.Workspace(args[0]).RestoreSnapshot(cmd.Context(), args[1]); err != nil {
				return err
			}
			return printSnapshotName(env, &out, args[1])
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "the snapshot's name")
	return cmd
}

func newWorkspaceDiff(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "diff [flags] WORKSPACE FROM [TO]",
		Short: "Tell what changed in a workspace since a snapshot",
		Long: `Tell which paths were added, removed or modified between the snapshots FROM and TO;
without TO, up to now.`,
		Args: wantArgs("WORKSPACE", "FROM", "[TO]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			changes, err := c.Workspace(args[0]).Diff(cmd.Context(), args[1], optional(args, 2))
			if err != nil {
				return err
			}
			if out.json() {
				items := make([]rest.Change, len(changes))
				for i, c := range changes {
					items[i] = changeOf(string(c.Kind), c.Path, c.Dir)
				}
				return printList(env.Out, items)
			}
			for _, c := range changes {
				if err := printChange(env, &out, string(c.Kind), c.Path, c.Dir); err != nil {
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

func changeOf(kind, path string, dir bool) rest.Change {
	c := rest.Change{Kind: kind, Dir: dir}
	c.Path, c.PathB64 = textOrBytes(path)
	return c
}

// printChange prints one change, as a line.
func printChange(env *Env, out *format, kind, path string, dir bool) error {
	switch {
	case out.json():
		return json.NewEncoder(env.Out).Encode(changeOf(kind, path, dir))
	case out.quiet:
		return printLine(env.Out, env.nameFor(path))
	}
	if dir {
		path += "/"
	}
	return printLine(env.Out, fmt.Sprintf("%-8s  %s", kind, oneLine(path)))
}

// textOrBytes returns text that can be shown, and the bytes if that is not them.
func textOrBytes(s string) (string, []byte) {
	if utf8.ValidString(s) {
		return s, nil
	}
	return strings.ToValidUTF8(s, "\uFFFD"), []byte(s)
}
