package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/probe"
)

func newPort(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "port [flags] BOX",
		GroupID: groupLook,
		Short:   "List what listens in a box",
		Args:    wantArgs("BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			ports, err := c.Ports(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			switch {
			case out.json():
				return printList(env.Out, ports)
			case out.quiet:
				return printIDs(env, ports, func(p rest.Port) string { return fmt.Sprint(p.Port) })
			}
			t := newTable("NETWORK", "ADDRESS", "PORT", "PID", "PROCESS")
			for _, p := range ports {
				pid := ""
				if p.PID > 0 {
					pid = fmt.Sprint(p.PID)
				}
				t.add(p.Network, p.Address, fmt.Sprint(p.Port), pid, p.Process)
			}
			return t.print(env.Out)
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "port numbers")
	return cmd
}

// versions is the JSON of version.
type versions struct {
	Version string        `json:"version"`
	Commit  string        `json:"commit"`
	Server  *rest.Version `json:"server"` // null: none answers
}

func newVersion(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "version",
		GroupID: groupOther,
		Short:   "Say which version this is, and which server answers",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := env.resolve(cmd)
			if err != nil {
				return err
			}
			v := versions{Version: env.Version, Commit: env.Commit}
			answer := "none answers at " + s.Host
			c, err := env.dial(s)
			if err != nil {
				return err
			}
			if server, err := c.Version(cmd.Context()); err == nil {
				v.Server = &server
				answer = fmt.Sprintf("%s (pid %d, %s, data in %s)", server.Version, server.PID, server.Host, server.DataDir)
			} else if !nobodyListens(err) {
				answer = err.Error()
			}
			if out.json() {
				return printJSON(env.Out, v)
			}
			f := &fields{}
			f.add("Version", v.Version)
			f.add("Commit", v.Commit)
			f.add("Server", answer)
			return f.print(env.Out)
		},
	}
	out.addOutput(cmd)
	return cmd
}

func newDoctor(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "doctor",
		GroupID: groupOther,
		Short:   "Check what this machine offers, and say what to do",
		Long: `Check what this machine offers for running boxes. Exits with 1 if something is
missing without which they do not run.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := env.resolve(cmd)
			if err != nil {
				return err
			}
			checks := env.Probe(cmd.Context(), probe.Config{
				DataDir:    s.DataDir,
				RuncPath:   FindProgram("taibox-runc", env.Libexec),
				BridgePath: FindProgram("taibox-bridge", env.Libexec),
			})
			if out.json() {
				err = printList(env.Out, checks)
			} else {
				err = env.printChecks(checks)
			}
			if err != nil {
				return err
			}
			for _, c := range checks {
				if c.Status == probe.Fail {
					return &exitError{code: exitFailed}
				}
			}
			return nil
		},
	}
	out.addOutput(cmd)
	return cmd
}

// printChecks prints what was found, and below each problem what to do.
func (e *Env) printChecks(checks []probe.Check) error {
	colours := map[probe.Status]string{probe.OK: "32", probe.Warn: "33", probe.Fail: "31"}
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Name))
	}
	var b strings.Builder
	for _, c := range checks {
		status := e.colour(colours[c.Status], fmt.Sprintf("%-4s", c.Status))
		fmt.Fprintf(&b, "%s  %-*s  %s\n", status, width, c.Name, oneLine(c.Detail))
		if c.Fix != "" && c.Status != probe.OK {
			fmt.Fprintf(&b, "%*s  → %s\n", width+len("fail  "), "", oneLine(c.Fix))
		}
	}
	_, err := fmt.Fprint(e.Out, b.String())
	return err
}
