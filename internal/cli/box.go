package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func newCreate(env *Env) *cobra.Command {
	var flags boxFlags
	var out format
	cmd := &cobra.Command{
		Use:     "create [flags] [IMAGE]",
		GroupID: groupRun,
		Short:   "Make a box and start it",
		Long: `Make a box and start it. It stays until rm. If the image has an entrypoint, it
runs in the box from now on; logs shows its output. Prints the box's ID.`,
		Example: `  taibox create --id work --memory 512m hostfs
  taibox exec work -- uname -a
  taibox rm -f work`,
		Args: wantArgs("[IMAGE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := env.resolve(cmd)
			if err != nil {
				return err
			}
			image := s.Image
			if len(args) > 0 {
				image = args[0]
			}
			req, err := flags.request(cmd, env, s, image)
			if err != nil {
				return err
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			box, err := env.createBox(cmd.Context(), c, req, &flags, out.silent())
			if err != nil {
				return err
			}
			if out.json() {
				return printJSON(env.Out, box)
			}
			return printLine(env.Out, box.ID)
		},
	}
	flags.add(cmd)
	out.addOutput(cmd)
	out.addQuiet(cmd, "the ID")
	return cmd
}

func newStart(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "start [flags] BOX...",
		GroupID: groupRun,
		Short:   "Start stopped boxes",
		Args:    wantArgs("BOX..."),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return env.each(cmd, &out, ids, func(ctx context.Context, c *client.Client, id string) error {
				return c.StartBox(ctx, id)
			})
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "IDs")
	return cmd
}

func newStop(env *Env) *cobra.Command {
	var out format
	var grace time.Duration
	cmd := &cobra.Command{
		Use:     "stop [flags] BOX...",
		GroupID: groupRun,
		Short:   "Stop running boxes",
		Long: `Stop running boxes: every command in them gets TERM, and after the grace KILL.
Files stay; start starts the box again.`,
		Args: wantArgs("BOX..."),
		RunE: func(cmd *cobra.Command, ids []string) error {
			var g *time.Duration
			if cmd.Flags().Changed("stop-timeout") {
				if g = &grace; grace < 0 {
					return usage("--stop-timeout %v: it cannot be negative", grace)
				}
			}
			return env.each(cmd, &out, ids, func(ctx context.Context, c *client.Client, id string) error {
				return c.StopBox(ctx, id, g)
			})
		},
	}
	cmd.Flags().DurationVar(&grace, "stop-timeout", 0, "between TERM and KILL (default the box's own)")
	out.addOutput(cmd)
	out.addQuiet(cmd, "IDs")
	return cmd
}

func newRm(env *Env) *cobra.Command {
	var out format
	var force bool
	cmd := &cobra.Command{
		Use:     "rm [flags] BOX...",
		GroupID: groupRun,
		Short:   "Remove boxes, with their files",
		Args:    wantArgs("BOX..."),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return env.each(cmd, &out, ids, func(ctx context.Context, c *client.Client, id string) error {
				if !force {
					if err := notRunning(ctx, c, id); err != nil {
						return err
					}
				}
				return c.RemoveBox(ctx, id)
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove running boxes too")
	out.addOutput(cmd)
	out.addQuiet(cmd, "IDs")
	return cmd
}

// notRunning refuses a box that runs.
func notRunning(ctx context.Context, c *client.Client, id string) error {
	box, err := c.GetBox(ctx, id)
	if err != nil {
		return err
	}
	if box.Status == string(taisandbox.StateRunning) {
		return withHint(fmt.Errorf("remove box %s: it is running: %w", id, errdefs.ErrFailedPrecondition), "stop it first, or use rm -f")
	}
	return nil
}

// done is what the JSON of start, stop and rm lists: the boxes it was done to.
type done struct {
	ID string `json:"id"`
}

// each does one thing to several boxes and prints those that it was done to.
func (e *Env) each(cmd *cobra.Command, out *format, ids []string, do func(context.Context, *client.Client, string) error) error {
	c, _, err := e.connect(cmd)
	if err != nil {
		return err
	}
	var did []done
	err = e.forAll(cmd, ids, func(id string) error {
		if err := do(cmd.Context(), c, id); err != nil {
			return err
		}
		did = append(did, done{id})
		if out.json() {
			return nil
		}
		return printLine(e.Out, id)
	})
	if out.json() {
		if err := printList(e.Out, did); err != nil {
			return err
		}
	}
	return err
}

// forAll does one thing to all that are named. An error does not keep it from
// the rest; the worst one decides the code. An interruption does, unless
// nothing was left to do.
func (e *Env) forAll(cmd *cobra.Command, names []string, do func(string) error) error {
	ctx := cmd.Context()
	code := exitOK
	for i, name := range names {
		err := do(name)
		if ctx.Err() != nil && (err != nil || i < len(names)-1) {
			return context.Cause(ctx)
		}
		if err != nil {
			tell(e, err)
			code = max(code, exitCode(verbOf(cmd), err))
		}
	}
	if code != exitOK {
		return &exitError{code: code}
	}
	return nil
}

func newLs(env *Env) *cobra.Command {
	var out format
	var list rest.ListBoxes
	var labels []string
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		GroupID: groupLook,
		Short:   "List boxes",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if list.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			boxes, err := c.ListBoxes(cmd.Context(), list)
			if err != nil {
				return err
			}
			now := time.Now()
			return printItems(env, out, boxes, []string{"ID", "OWNER", "STATUS", "POLICY", "IMAGE", "NODE", "AGE"}, func(b *rest.Box) []string {
				return []string{b.ID, b.Owner, b.Status, b.Policy, b.Image, b.NodeID, formatAge(b.CreatedAt, now)}
			})
		},
	}
	cmd.Flags().StringVar(&list.Owner, "owner", "", "only those of this `owner`")
	cmd.Flags().StringVar(&list.Node, "node", "", "only those on this `node`")
	cmd.Flags().StringVar(&list.Status, "status", "", "only those in this `state`, e.g. running")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "only those with this label, `K=V`")
	out.addOutput(cmd)
	out.addQuiet(cmd, "IDs")
	return cmd
}

func newInspect(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "inspect [flags] BOX",
		GroupID: groupLook,
		Short:   "Say all there is to know of a box",
		Args:    wantArgs("BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			box, err := c.GetBox(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if out.json() {
				return printJSON(env.Out, box)
			}
			return describe(box).print(env.Out)
		},
	}
	out.addOutput(cmd)
	return cmd
}

// describe lists what is known of a box, for people.
func describe(b rest.Box) *fields {
	f := &fields{}
	status := b.Status
	if b.StopReason != "" {
		status += " (" + b.StopReason + ")"
	}
	f.add("ID", b.ID)
	f.add("Status", status)
	f.add("Error", b.Error)
	f.add("Owner", b.Owner)
	f.add("Policy", b.Policy)
	f.add("Node", b.NodeID)
	f.add("Container", b.ContainerID)
	f.add("Image", b.Image)
	f.add("Digest", b.ImageDigest)
	f.add("Isolation", b.Isolation)
	f.add("Network", b.Network)
	f.add("Address", b.IP)
	f.add("Entrypoint", quoteArgs(b.Entrypoint))
	f.add("Command", quoteArgs(b.Cmd))
	f.add("User", b.User)
	f.add("Directory", b.WorkDir)
	f.add("Workspace", b.WorkspaceID)
	f.add("Mounts", formatMounts(b.Mounts))
	f.add("Labels", formatLabels(b.Labels))
	f.add("Memory", limit(b.MemoryBytes > 0, formatSize(b.MemoryBytes)))
	f.add("CPUs", limit(b.CPUs > 0, fmt.Sprint(b.CPUs)))
	f.add("Processes", fmt.Sprintf("%d (%s)", b.ProcessCount, limit(b.Pids > 0, fmt.Sprintf("at most %d", b.Pids))))
	f.add("Commands", fmt.Sprintf("%d running", b.RunningExecs))
	f.add("Out of memory", fmt.Sprintf("%d killed", b.OOMKills))
	f.add("Busy", strings.Join(b.Busy, ", "))
	f.add("Idle timeout", limit(b.IdleTimeoutMs > 0, ms(b.IdleTimeoutMs).String()))
	f.add("Max lifetime", limit(b.MaxLifetimeMs > 0, ms(b.MaxLifetimeMs).String()))
	f.add("Stop timeout", ms(b.StopTimeoutMs).String())
	f.add("Created", formatTime(b.CreatedAt))
	f.add("Started", formatTime(b.StartedAt))
	f.add("Stopped", formatTime(b.StoppedAt))
	f.add("Last active", formatTime(b.LastActive))
	var phases []string
	for _, p := range b.Phases {
		phases = append(phases, p.Name+" "+formatMs(p.DurationMs))
	}
	f.add("Phases", strings.Join(phases, ", "))
	return f
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func limit(is bool, text string) string {
	if !is {
		return "no limit"
	}
	return text
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.RFC3339)
}

func formatLabels(labels map[string]string) string {
	var pairs []string
	for k, v := range labels {
		pairs = append(pairs, k+"="+v)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ", ")
}

// quoteArgs writes a command so that its arguments can be told apart.
func quoteArgs(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		if quoted[i] = a; a == "" || strings.ContainsAny(a, " \t\n'\"\\$`") {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

func newWait(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "wait [flags] BOX [EXEC]",
		GroupID: groupRun,
		Short:   "Wait until a command ends, or a box stops",
		Long: `Wait until a command ends, and exit with its code. Without EXEC, wait until the
box does not run any more.`,
		Args: wantArgs("BOX", "[EXEC]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			if len(args) == 2 {
				rec, err := c.WaitExec(cmd.Context(), args[0], args[1])
				if err == nil && out.json() {
					err = printJSON(env.Out, rec)
				}
				if err != nil {
					return err
				}
				return outcome{rec.ID, args[0], rec.ExitCode, taisandbox.ExecReason(rec.Reason)}.err(env)
			}
			box, err := c.WaitBox(cmd.Context(), args[0])
			if err == nil && out.json() {
				err = printJSON(env.Out, box)
			}
			if err == nil && box.Status == string(taisandbox.StateFailed) {
				err = fmt.Errorf("box %s failed (%s): %s", box.ID, box.StopReason, box.Error)
			}
			return err
		},
	}
	out.addOutput(cmd)
	return cmd
}
