package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
)

func newEvents(env *Env) *cobra.Command {
	var (
		out    format
		watch  rest.WatchEvents
		labels []string
	)
	cmd := &cobra.Command{
		Use:     "events [flags]",
		GroupID: groupLook,
		Short:   "Print what happens to boxes, as it happens",
		Long: `Print what happens to boxes, as it happens, until you interrupt it: one line an
event; with -o json one JSON object a line. If the server goes away in between
nothing is missed, or a gap says that something was.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if watch.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			for e, err := range c.Events(cmd.Context(), watch) {
				if err != nil {
					return err
				}
				if err := printEvent(env, &out, &e); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&watch.Boxes, "box", nil, "only of this `box`; may be repeated")
	f.StringArrayVar(&watch.Owners, "owner", nil, "only of boxes of this `owner`; may be repeated")
	f.StringArrayVar(&watch.Types, "type", nil, "only of this `type`: state, removed, exec or oom; may be repeated")
	f.StringArrayVarP(&labels, "label", "l", nil, "only of boxes with this label, `K=V`; may be repeated")
	f.StringVar(&watch.Since, "since", "", "begin after the event with this `id`")
	out.addOutput(cmd)
	out.addQuiet(cmd, "the boxes' IDs")
	return cmd
}

// printEvent writes one line.
func printEvent(env *Env, out *format, e *rest.Event) error {
	switch {
	case out.json():
		enc := json.NewEncoder(env.Out)
		enc.SetEscapeHTML(false)
		return enc.Encode(e)
	case out.quiet && e.Type == rest.EventGap: // of no box
		env.note("%s", eventText(e))
		return nil
	case out.quiet:
		return printLine(env.Out, e.Box)
	}
	return printLine(env.Out, oneLine(e.Time.Local().Format(time.RFC3339)+"  "+eventText(e)))
}

// eventText says what happened, for people.
func eventText(e *rest.Event) string {
	if e.Type == rest.EventGap {
		return "events were missed"
	}
	text := fmt.Sprintf("%-24s  ", e.Box)
	switch e.Type {
	case rest.EventState:
		text += e.State
	case rest.EventExec:
		if e.Exec == nil {
			break
		}
		text += "exec " + e.Exec.ID + " " + e.Exec.State
		if e.Exec.ExitCode != nil {
			text += fmt.Sprintf(" %d", *e.Exec.ExitCode)
		}
		if e.Exec.Reason != "" {
			text += " (" + e.Exec.Reason + ")"
		}
		text += ": " + strings.Join(e.Exec.Args, " ")
	default:
		text += e.Type
	}
	if e.Reason != "" {
		text += " (" + e.Reason + ")"
	}
	return text
}
