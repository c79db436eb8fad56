package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/internal/reason"
)

// The groups of commands in the help.
const (
	groupRun   = "run"
	groupLook  = "look"
	groupImage = "image"
	groupOther = "other"

	groupWorkspace = "workspace"
	groupFiles     = "files"
	groupSnapshots = "snapshots"
)

// newRoot builds the tree of commands.
func newRoot(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "taibox",
		Short: "Isolated boxes for programs and agents",
		Long: `Taibox runs commands in isolated boxes on this machine.

  taibox run hostfs -- python3 -c 'print(6*7)'

makes a box, runs a command in it, and removes it. A box made with create stays
until rm; exec runs commands in it.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownVerb,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(newHelp())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return withHelpHint(cmd, usage("%v", err))
	})
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.SetUsageTemplate(usageTemplate)
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Boxes and commands in them:"},
		&cobra.Group{ID: groupLook, Title: "Look at them:"},
		&cobra.Group{ID: groupImage, Title: "Images:"},
		&cobra.Group{ID: groupWorkspace, Title: "Workspaces:"},
		&cobra.Group{ID: groupOther, Title: "The rest:"},
	)
	flags := root.PersistentFlags()
	flags.String("host", "", "talk to the server at this `address` (default "+defaultHost+")")
	flags.String("data-dir", "", "the server's data `directory` (default "+defaultDataDir+")")
	flags.String("config", "", "read settings from this `file` only")

	root.AddCommand(
		newRun(env), newCreate(env), newStart(env), newStop(env), newRm(env),
		newExec(env), newAttach(env), newKill(env), newWait(env), newCp(env),
		newLs(env), newInspect(env), newPs(env), newLogs(env), newStats(env), newTop(env), newEvents(env), newPort(env),
		newImage(env), newCommit(env), newWorkspace(env),
		newServe(env), newKey(env), newDoctor(env), newBench(env), newConfig(env), newVersion(env), newCompletion(env),
	)
	return root
}

// usageTemplate is cobra's, without what this program never has.
const usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{if .Groups}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if (and (eq .GroupID $group.ID) .IsAvailableCommand)}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{else}}

Commands:{{range $cmds}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Flags of every command:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableSubCommands}}

"{{.CommandPath}} COMMAND --help" says more about a command.{{end}}
`

// verbOf returns the name of a command below the root: "run", "image ls".
func verbOf(cmd *cobra.Command) string {
	if cmd == nil {
		return ""
	}
	_, verb, _ := strings.Cut(cmd.CommandPath(), " ")
	return verb
}

// group returns a command that only has commands below it.
func group(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		Args: knownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

// knownVerb refuses what no command below cmd is called.
func knownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := usage("%s has no command %q", cmd.CommandPath(), args[0])
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return withHint(err, "did you mean %s?", strings.Join(like, " or "))
	}
	return withHelpHint(cmd, err)
}

// newHelp returns the help command.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:    "help [COMMAND]",
		Short:  "Say more about a command",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			target, rest, err := cmd.Root().Find(args)
			if err != nil {
				return usage("%v", err)
			}
			if len(rest) > 0 && target.HasSubCommands() {
				return knownVerb(target, rest)
			}
			target.InitDefaultHelpFlag()
			return target.Help()
		},
	}
}

// Checks of the number of arguments.

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return withHelpHint(cmd, usage("%s takes no argument, but got %q", cmd.CommandPath(), args[0]))
	}
	return nil
}

// wantArgs wants the arguments named, of which the last may be missing if it
// is in brackets, and may be there several times if it ends in "...".
func wantArgs(names ...string) cobra.PositionalArgs {
	least, most := len(names), len(names)
	if last := names[len(names)-1]; strings.HasPrefix(last, "[") {
		least--
	}
	if strings.HasSuffix(names[len(names)-1], "...") {
		most = -1
	}
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return withHelpHint(cmd, usage("%s: %s is missing", cmd.CommandPath(), strings.TrimSuffix(names[len(args)], "...")))
		case most >= 0 && len(args) > most:
			return withHelpHint(cmd, usage("%s: %q is one argument too many", cmd.CommandPath(), args[most]))
		}
		if i := slices.Index(args[:least], ""); i >= 0 {
			return withHelpHint(cmd, usage("%s: %s is empty", cmd.CommandPath(), strings.TrimSuffix(names[i], "...")))
		}
		return nil
	}
}

func withHelpHint(cmd *cobra.Command, err error) error {
	return withHint(err, "%s --help says what there is", cmd.CommandPath())
}

// newCompletion returns the command that writes completion scripts.
func newCompletion(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:     "completion bash|zsh|fish",
		GroupID: groupOther,
		Short:   "Write the completion script of a shell",
		Example: `  source <(taibox completion bash)
  taibox completion zsh > "${fpath[1]}/_taibox"
  taibox completion fish > ~/.config/fish/completions/taibox.fish`,
		Args:      wantArgs("SHELL"),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root := cmd.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(env.Out, true)
			case "zsh":
				return root.GenZshCompletion(env.Out)
			case "fish":
				return root.GenFishCompletion(env.Out, true)
			}
			return usage("shell %q: bash, zsh and fish are possible", args[0])
		},
	}
}

// withHint adds advice to err.
func withHint(err error, format string, args ...any) error {
	return reason.WithHint(err, fmt.Sprintf(format, args...))
}
