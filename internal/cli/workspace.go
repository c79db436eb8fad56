package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
)

func newWorkspace(env *Env) *cobra.Command {
	cmd := group("workspace", "Look after workspaces, whose files outlive boxes")
	cmd.GroupID = groupWorkspace
	cmd.Aliases = []string{"ws"}
	cmd.AddGroup(
		&cobra.Group{ID: groupWorkspace, Title: "Workspaces:"},
		&cobra.Group{ID: groupFiles, Title: "Files in them:"},
		&cobra.Group{ID: groupSnapshots, Title: "Snapshots of them:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
		}
		cmd.AddCommand(cmds...)
	}
	add(groupWorkspace, newWorkspaceCreate(env), newWorkspaceLs(env), newWorkspaceInspect(env), newWorkspaceUpdate(env), newWorkspaceUsage(env), newWorkspaceRm(env))
	add(groupFiles, newWorkspaceFiles(env), newWorkspaceCat(env), newWorkspacePut(env), newWorkspaceMkdir(env), newWorkspaceMv(env), newWorkspaceDel(env),
		newWorkspaceSync(env), newWorkspaceArchive(env), newWorkspaceWatch(env))
	add(groupSnapshots, newWorkspaceSnapshot(env), newWorkspaceSnapshots(env), newWorkspaceRestore(env), newWorkspaceDiff(env))
	return cmd
}

// quotaFlags are the flags of what a workspace may hold.
type quotaFlags struct {
	disk  string
	files int64
}

func (q *quotaFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&q.disk, "disk", "", "what it may take on disk, snapshots included, as a `size` (default no limit)")
	cmd.Flags().Int64Var(&q.files, "files", 0, "how many files, directories and links it may have (default no limit)")
}

// bytes reads --disk; 0 is no limit.
func (q *quotaFlags) bytes() (int64, error) {
	if q.files < 0 {
		return 0, usage("--files %d: it cannot be negative", q.files)
	}
	if q.disk == "" {
		return 0, nil
	}
	return parseSize(q.disk)
}

func newWorkspaceCreate(env *Env) *cobra.Command {
	var out format
	var req rest.CreateWorkspace
	var quota quotaFlags
	var labels []string
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Make a workspace and print its ID",
		Long: `Make an empty workspace and print its ID. It stays until workspace rm, whatever
boxes mount it: taibox run -v ws:ID hostfs.

A limit that the node's file system cannot enforce is refused.`,
		Example: `  taibox workspace create --id proj --disk 2g
  taibox run -v ws:proj hostfs -- sh -c 'date >> /workspace/log'
  taibox workspace cat proj log`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if req.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			if req.QuotaBytes, err = quota.bytes(); err != nil {
				return err
			}
			req.QuotaFiles = quota.files
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			w, err := c.CreateWorkspace(cmd.Context(), req)
			if err != nil {
				return err
			}
			if out.json() {
				return printJSON(env.Out, w)
			}
			return printLine(env.Out, w.ID)
		},
	}
	cmd.Flags().StringVar(&req.ID, "id", "", "its `ID`, a DNS label of at most 50 bytes (default a new one)")
	cmd.Flags().StringVar(&req.Name, "name", "", "a `name` for people (default the ID)")
	cmd.Flags().StringVar(&req.Owner, "owner", "", "whose it is")
	cmd.Flags().StringVar(&req.NodeID, "node", "", "the `node` that keeps it")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "a label, `K=V`")
	quota.add(cmd)
	out.addOutput(cmd)
	out.addQuiet(cmd, "the ID")
	return cmd
}

func newWorkspaceLs(env *Env) *cobra.Command {
	var out format
	var list rest.ListWorkspaces
	var labels []string
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List workspaces",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if list.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			all, err := c.ListWorkspaces(cmd.Context(), list)
			if err != nil {
				return err
			}
			now := time.Now()
			return printItems(env, out, all, []string{"ID", "NAME", "OWNER", "NODE", "LIMIT", "AGE"}, func(w *rest.Workspace) []string {
				return []string{w.ID, w.Name, w.Owner, w.NodeID, formatQuota(w.QuotaBytes, w.QuotaFiles), formatAge(w.CreatedAt, now)}
			})
		},
	}
	cmd.Flags().StringVar(&list.Owner, "owner", "", "only those of this `owner`")
	cmd.Flags().StringVar(&list.Node, "node", "", "only those on this `node`")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "only those with this label, `K=V`")
	out.addOutput(cmd)
	out.addQuiet(cmd, "IDs")
	return cmd
}

// formatQuota writes what a workspace may hold; "" is no limit.
func formatQuota(bytes, files int64) string {
	var parts []string
	if bytes > 0 {
		parts = append(parts, formatSize(bytes))
	}
	if files > 0 {
		parts = append(parts, fmt.Sprintf("%d files", files))
	}
	return strings.Join(parts, ", ")
}

func newWorkspaceInspect(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "inspect [flags] WORKSPACE",
		Short: "Say all there is to know of a workspace",
		Args:  wantArgs("WORKSPACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			w, err := c.Workspace(args[0]).Get(cmd.Context())
			if err != nil {
				return err
			}
			return printWorkspace(env, &out, &w)
		},
	}
	out.addOutput(cmd)
	return cmd
}

func printWorkspace(env *Env, out *format, w *rest.Workspace) error {
	if out.json() {
		return printJSON(env.Out, w)
	}
	f := &fields{}
	f.add("ID", w.ID)
	f.add("Name", w.Name)
	f.add("Owner", w.Owner)
	f.add("Node", w.NodeID)
	f.add("Labels", formatLabels(w.Labels))
	quota := formatQuota(w.QuotaBytes, w.QuotaFiles)
	f.add("Limit", limit(quota != "", quota))
	f.add("Created", formatTime(w.CreatedAt))
	f.add("Changed", formatTime(w.UpdatedAt))
	return f.print(env.Out)
}

func newWorkspaceUpdate(env *Env) *cobra.Command {
	var out format
	var quota quotaFlags
	var name string
	var labels []string
	cmd := &cobra.Command{
		Use:   "update [flags] WORKSPACE",
		Short: "Change a workspace's name, labels or limits",
		Long: `Change what the flags say, all of it or nothing. The labels given replace all
that there are; -l "" takes them away. A limit of 0 is none.`,
		Args: wantArgs("WORKSPACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var req rest.UpdateWorkspace
			changed := false
			set := func(flag string) bool {
				is := cmd.Flags().Changed(flag)
				changed = changed || is
				return is
			}
			if set("name") {
				req.Name = &name
			}
			if set("label") {
				if len(labels) == 1 && labels[0] == "" {
					labels = nil
				}
				l, err := parseLabels(labels)
				if err != nil {
					return err
				}
				if l == nil {
					l = map[string]string{}
				}
				req.Labels = &l
			}
			bytes, err := quota.bytes()
			if err != nil {
				return err
			}
			if set("disk") {
				req.QuotaBytes = &bytes
			}
			if set("files") {
				req.QuotaFiles = &quota.files
			}
			if !changed {
				return withHelpHint(cmd, usage("nothing to change"))
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			w, err := c.Workspace(args[0]).Update(cmd.Context(), req)
			if err != nil {
				return err
			}
			return printWorkspace(env, &out, &w)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "a `name` for people; \"\" is the ID")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "a label, `K=V`")
	quota.add(cmd)
	out.addOutput(cmd)
	return cmd
}

func newWorkspaceUsage(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "usage [flags] WORKSPACE",
		Short: "Measure a workspace, and say which boxes have it mounted",
		Args:  wantArgs("WORKSPACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			u, err := c.Workspace(args[0]).Usage(cmd.Context())
			if err != nil {
				return err
			}
			if out.json() {
				return printJSON(env.Out, u)
			}
			f := &fields{}
			f.add("Disk", fmt.Sprintf("%s (%s)", formatSize(u.Bytes), limit(u.QuotaBytes > 0, "at most "+formatSize(u.QuotaBytes))))
			f.add("Files", fmt.Sprintf("%d (%s)", u.Files, limit(u.QuotaFiles > 0, fmt.Sprintf("at most %d", u.QuotaFiles))))
			f.add("Mounted in", strings.Join(u.Boxes, ", "))
			return f.print(env.Out)
		},
	}
	out.addOutput(cmd)
	return cmd
}

func newWorkspaceRm(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "rm [flags] WORKSPACE...",
		Short: "Delete workspaces, with their files and snapshots",
		Long: `Delete workspaces, with their files and snapshots. One that a box has mounted,
running or not, is refused: remove the box first.`,
		Args: wantArgs("WORKSPACE..."),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return env.each(cmd, &out, ids, func(ctx context.Context, c *client.Client, id string) error {
				return c.Workspace(id).Delete(ctx)
			})
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "IDs")
	return cmd
}
