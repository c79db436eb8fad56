package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/internal/reason"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// execFlags are the flags that run and exec have in common.
type execFlags struct {
	interactive, tty, detach bool
	merge                    bool
	timeout                  time.Duration
	out                      format
}

func (f *execFlags) add(cmd *cobra.Command) {
	// What follows the first argument belongs to the command.
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVarP(&f.interactive, "interactive", "i", false, "hand our input to the command")
	cmd.Flags().BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "run it in the background and print the ID")
	cmd.Flags().BoolVar(&f.merge, "merge-output", false, "put both outputs into stdout, in exactly the order written")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "end the command after this long, with code 124")
	f.out.addOutput(cmd)
	f.out.addQuiet(cmd, "the command's output or, with -d, the ID")
}

func (f *execFlags) check(cmd *cobra.Command) error {
	switch {
	case cmd.Flags().Changed("timeout") && f.timeout < time.Millisecond:
		return usage("--timeout %v: a time of 1ms or more is expected", f.timeout)
	case f.detach && (f.interactive || f.tty):
		return usage("-d cannot be had together with -i or -t: nobody is there to type")
	case f.out.json() && f.tty:
		return usage("-o json cannot be had together with -t")
	}
	return nil
}

// request fills in what the flags say of the command.
func (f *execFlags) request(env *Env, req *rest.ExecRequest) {
	req.TimeoutMs = f.timeout.Milliseconds()
	req.OnDisconnect = string(taisandbox.OnDisconnectKill)
	if f.detach {
		req.OnDisconnect = string(taisandbox.OnDisconnectKeep)
	}
	req.Stdin, req.TTY, req.MergeOutput = f.interactive, f.tty, f.merge
	if !f.tty {
		return
	}
	size := env.terminalSize()
	req.Cols, req.Rows = size.Cols, size.Rows
	if t := env.Getenv("TERM"); t != "" && req.Env["TERM"] == "" {
		if req.Env == nil {
			req.Env = map[string]string{}
		}
		req.Env["TERM"] = t
	}
}

// command returns the command of a line: what follows the first argument,
// without the -- that may set it off.
func command(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}

func newExec(env *Env) *cobra.Command {
	var flags execFlags
	var req rest.ExecRequest
	var vars, files []string
	cmd := &cobra.Command{
		Use:     "exec [flags] BOX [--] COMMAND...",
		GroupID: groupRun,
		Short:   "Run a command in a box",
		Long: `Run a command in a box, and exit with its code: 124 if it ran past --timeout,
126 if it cannot be executed, 127 if it is not there, 128+n if signal n ended
it, 125 for every failure of Taibox itself.

INT and TERM go to the command; the third one gives up on it. If this program
goes away the command is killed, unless it has a terminal (-t) or runs in the
background (-d): then ps shows it and attach prints its output.`,
		Example: `  taibox exec work -- ls -l /usr
  echo hello | taibox exec -i work -- wc -c
  taibox exec -it work -- bash`,
		Args: wantArgs("BOX", "COMMAND..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			words := command(args[1:])
			if len(words) == 0 {
				return withHelpHint(cmd, usage("%s: COMMAND is missing", cmd.CommandPath()))
			}
			req.SetCmd(words)
			err := flags.check(cmd)
			if err == nil {
				req.Env, err = env.parseEnv(files, vars)
			}
			if err != nil {
				return err
			}
			return flags.failed(env, env.exec(cmd, args[0], req, &flags))
		},
	}
	flags.add(cmd)
	cmd.Flags().StringArrayVarP(&vars, "env", "e", nil, "set a variable, `K=V`; K alone takes ours")
	cmd.Flags().StringArrayVar(&files, "env-file", nil, "read variables from a `file`")
	cmd.Flags().StringVarP(&req.User, "user", "u", "", "run as `USER[:GROUP]` (default the box's)")
	cmd.Flags().StringVarP(&req.WorkDir, "workdir", "w", "", "run in this `directory` (default the box's)")
	cmd.Flags().StringVar(&req.ID, "id", "", "give the exec this `ID` (default a new one)")
	return cmd
}

// exec runs a command in a box.
func (e *Env) exec(cmd *cobra.Command, box string, req rest.ExecRequest, f *execFlags) error {
	f.request(e, &req)
	if f.tty {
		req.OnDisconnect = string(taisandbox.OnDisconnectKeep)
	}
	c, _, err := e.connect(cmd)
	if err != nil {
		return err
	}
	if !f.detach {
		return e.foreground(cmd.Context(), c, box, req, f)
	}
	rec, err := c.ExecDetached(cmd.Context(), box, req)
	if err == nil {
		err = e.neverRan(cmd.Context(), c, box, rec, f)
	}
	if err != nil {
		return err
	}
	if f.out.json() {
		return printJSON(e.Out, rec)
	}
	return printLine(e.Out, rec.ID)
}

// neverRan returns why a command could not be started that nobody is attached
// to, with its code; nil if it was. As JSON the record says so too.
func (e *Env) neverRan(ctx context.Context, c *client.Client, box string, rec rest.Exec, f *execFlags) error {
	if rec.Error == "" {
		return nil
	}
	if rec.ExitCode == nil { // it is known before the record is final
		var err error
		if rec, err = c.WaitExec(ctx, box, rec.ID); err != nil {
			return err
		}
	}
	err := fmt.Errorf("exec %s in box %s: %s", rec.ID, box, rec.Error)
	if rec.ExitCode == nil {
		return err
	}
	if f.out.json() {
		if err := printJSON(e.Out, rec); err != nil {
			return err
		}
	}
	return &exitError{*rec.ExitCode, err}
}

// failed prints a failure of ours as JSON, where that was asked for.
func (f *execFlags) failed(env *Env, err error) error {
	var done *exitError
	if err != nil && f.out.json() && !errors.As(err, &done) {
		printJSON(env.Out, rest.Failure(errorOf(err))) //nolint:errcheck // the failure at hand is the one to tell
	}
	return err
}

// foreground runs a command, attached to it, and returns the error with its code.
func (e *Env) foreground(ctx context.Context, c *client.Client, box string, req rest.ExecRequest, f *execFlags) error {
	stream, err := c.Exec(ctx, box, req)
	if err != nil {
		return err
	}
	s := &session{c: c, box: box, stream: stream, out: e.Out, err: e.Err}
	if f.interactive {
		s.in = e.In
	}
	if f.tty {
		stop := e.followSize(taisandbox.Size{Cols: req.Cols, Rows: req.Rows}, stream)
		defer stop()
		if f.interactive {
			restore, err := e.rawMode()
			if err != nil {
				s.hangup()
				return err
			}
			defer restore()
		}
	}
	var collected *taisandbox.Collector
	if f.out.json() {
		collected = taisandbox.NewCollector(taisandbox.DefaultMaxOutput)
		s.out, s.err = collecting(collected, taisandbox.Stdout), collecting(collected, taisandbox.Stderr)
	}
	rec, err := s.run(ctx, e)
	if err == nil && collected != nil {
		err = printJSON(e.Out, resultOf(rec, collected))
	}
	if err != nil {
		return err
	}
	return outcome{rec.ID, box, rec.ExitCode, rec.Reason}.err(e)
}

// collecting returns the writer that collects what is written as source's.
func collecting(c *taisandbox.Collector, source taisandbox.Source) writerFunc {
	return func(p []byte) (int, error) {
		c.Add(taisandbox.Chunk{Source: source, Data: p})
		return len(p), nil
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// resultOf makes the JSON of a command that has ended.
func resultOf(rec taisandbox.ExecInfo, collected *taisandbox.Collector) rest.ExecResult {
	var res taisandbox.ExecResult
	collected.Fill(&res)
	r := rest.ExecResult{
		ExecID: rec.ID, Source: rest.SourceCommand, State: string(rec.State), ExitCode: rec.ExitCode, Signal: rec.Signal,
		Reason: string(rec.Reason), Error: rec.Error, DurationMs: rec.Ended.Sub(rec.Started).Milliseconds(),
		Truncated: res.OutputTruncated, Bytes: rec.Bytes, OutputIncomplete: rec.OutputIncomplete,
		StdoutOmitted: rest.OmissionOf(res.StdoutOmitted.At, res.StdoutOmitted.Bytes),
		StderrOmitted: rest.OmissionOf(res.StderrOmitted.At, res.StderrOmitted.Bytes),
	}
	r.SetOutput(res.Stdout, res.Stderr)
	return r
}

// errorOf makes the JSON of a failure of ours.
func errorOf(err error) rest.Error {
	if remote, ok := errors.AsType[*client.Error](err); ok {
		return remote.Body
	}
	code := reason.Of(err)
	if code == "" {
		code = rest.ErrInternal.Reason
	}
	return rest.Error{Code: code, Message: oneLine(err.Error()), Details: map[string]any{}, Hint: reason.Hint(err)}
}

func newAttach(env *Env) *cobra.Command {
	var since int64
	cmd := &cobra.Command{
		Use:     "attach [flags] BOX EXEC",
		GroupID: groupRun,
		Short:   "Print the output of a command that runs, or ran",
		Long: `Print the output of a command, from now on or from an offset, until it ends; the
exit code is then the command's. Attach only looks on: it hands no input and no
signal to the command, and Ctrl-C leaves it with code 130. The output is printed as
it is; wait -o json has the command's record.`,
		Args: wantArgs("BOX", "EXEC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if since < -1 {
				return usage("--since %d: an offset in bytes is expected", since)
			}
			rec, err := env.view(cmd, args[0], args[1], taisandbox.AttachOptions{Since: since})
			if err != nil {
				return err
			}
			return outcome{rec.ID, args[0], rec.ExitCode, rec.Reason}.err(env)
		},
	}
	cmd.Flags().Int64Var(&since, "since", -1, "begin at this `offset` in bytes; -1 is the present end")
	return cmd
}

// view prints the output of an exec without touching it. With NoFollow there is
// no record to return.
func (e *Env) view(cmd *cobra.Command, box, exec string, opts taisandbox.AttachOptions) (taisandbox.ExecInfo, error) {
	c, _, err := e.connect(cmd)
	if err != nil {
		return taisandbox.ExecInfo{}, err
	}
	stream, err := c.Attach(cmd.Context(), box, exec, opts)
	if err != nil {
		return taisandbox.ExecInfo{}, err
	}
	s := &session{c: c, box: box, stream: stream, out: e.Out, err: e.Err, viewer: true, noEnd: opts.NoFollow}
	return s.run(cmd.Context(), e)
}

func newLogs(env *Env) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:     "logs [flags] BOX",
		GroupID: groupLook,
		Short:   "Print the output of a box's entrypoint",
		Long:    `Print the output of a box's entrypoint as it is; ps -o json has its record.`,
		Args:    wantArgs("BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := env.view(cmd, args[0], taisandbox.EntrypointExec, taisandbox.AttachOptions{NoFollow: !follow})
			if errors.Is(err, taisandbox.ErrExecNotFound) {
				return withHint(fmt.Errorf("box %s has no entrypoint that ran: %w", args[0], err), "taibox ps %s lists its commands; taibox attach prints the output of one", args[0])
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes, until the entrypoint ends")
	return cmd
}

func newPs(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "ps [flags] BOX",
		GroupID: groupLook,
		Short:   "List the commands of a box, also those that ended",
		Args:    wantArgs("BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			execs, err := c.ListExecs(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			now := time.Now()
			heads := []string{"ID", "STATE", "CODE", "REASON", "AGE", "TIME", "OUTPUT", "OOM", "COMMAND"}
			return printItems(env, out, execs, heads, func(x *rest.Exec) []string {
				code := ""
				if x.ExitCode != nil {
					code = fmt.Sprint(*x.ExitCode)
				}
				took := time.Duration(x.DurationMs) * time.Millisecond
				return []string{
					x.ID, x.State, code, x.Reason, formatAge(x.Started, now), took.Round(10 * time.Millisecond).String(),
					formatSize(x.Bytes), fmt.Sprint(x.OOMKills), shorten(quoteArgs(x.Args), 60),
				}
			})
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "IDs")
	return cmd
}

// shorten cuts text for a table.
func shorten(s string, most int) string {
	s = strings.ReplaceAll(s, "\n", " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// killed is the JSON of kill.
type killed struct {
	ID  string `json:"id"`
	Box string `json:"box"`
}

func newKill(env *Env) *cobra.Command {
	var out format
	var opts taisandbox.KillOptions
	var name string
	cmd := &cobra.Command{
		Use:     "kill [flags] BOX EXEC",
		GroupID: groupRun,
		Short:   "Send a signal to a command in a box",
		Args:    wantArgs("BOX", "EXEC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if opts.Signal, err = parseSignal(name); err != nil {
				return err
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			if err := c.KillExec(cmd.Context(), args[0], args[1], opts); err != nil {
				return err
			}
			if out.json() {
				return printJSON(env.Out, killed{ID: args[1], Box: args[0]})
			}
			return printLine(env.Out, args[1])
		},
	}
	cmd.Flags().StringVarP(&name, "signal", "s", "TERM", "the `signal`, by name or number")
	cmd.Flags().BoolVar(&opts.Tree, "tree", false, "send it to all that the command has started too")
	out.addOutput(cmd)
	out.addQuiet(cmd, "the exec's ID")
	return cmd
}
