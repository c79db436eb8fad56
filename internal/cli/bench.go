package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/internal/bench"
	"github.com/taibox/taibox/internal/client"
)

// benchFlags say what is measured.
type benchFlags struct {
	n    int
	face string
	vs   string
	json bool
}

func newBench(env *Env) *cobra.Command {
	var flags benchFlags
	var out format
	cmd := &cobra.Command{
		Use:     "bench [flags]",
		GroupID: groupOther,
		Short:   "Measure how fast boxes are, also beside Docker",
		Long: `Measure how long it takes to make a box and run a first command in it, to run a
command in a box that is there, and to remove one; what an idle box costs in
memory; and how many boxes can be made in a second. With --vs docker the same is
measured with Docker, turn by turn in the same run and with the same image,
which is made of this machine's busybox.

By command line, create_to_first_exec is "run" and "docker run --rm" from start
to end, with all that the two programs do. With --face api the programs are left
out: both are measured through their APIs.`,
		Example: `  taibox bench -n 100
  taibox bench --vs docker --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case flags.n < 1:
				return usage("-n %d: 1 or more is expected", flags.n)
			case flags.face != "cli" && flags.face != "api":
				return usage("--face %q: cli and api are possible", flags.face)
			case flags.vs != "" && flags.vs != "docker":
				return usage("--vs %q: docker is possible", flags.vs)
			}
			if flags.vs != "" && flags.face == "api" && env.DockerAPI == nil {
				return env.handOver()
			}
			report, err := env.bench(cmd, &flags)
			if err != nil {
				return err
			}
			if flags.json || out.json() {
				return printJSON(env.Out, report)
			}
			return env.printReport(report)
		},
	}
	cmd.Flags().IntVarP(&flags.n, "rounds", "n", 20, "measure in this many `rounds`")
	cmd.Flags().StringVar(&flags.face, "face", "cli", "measure through the `face` cli or api")
	cmd.Flags().StringVar(&flags.vs, "vs", "", "measure this `peer` as well: docker")
	cmd.Flags().BoolVar(&flags.json, "json", false, "the same as -o json")
	out.addOutput(cmd)
	return cmd
}

// bench measures what the flags ask for.
func (e *Env) bench(cmd *cobra.Command, f *benchFlags) (bench.Report, error) {
	report := bench.Report{Face: f.face}
	c, s, err := e.connect(cmd)
	if err != nil {
		return report, err
	}
	peers, err := e.peers(cmd.Context(), c, s, f)
	if err != nil {
		return report, err
	}
	idle := func(ctx context.Context, id string) error {
		st, err := c.Stats(ctx, id)
		report.IdleBoxRSS = st.OverheadBytes
		return err
	}
	figures, err := bench.Measure(cmd.Context(), f.n, idle, peers...)
	if err != nil {
		return report, err
	}
	report.Figures = figures[0]
	if len(figures) > 1 {
		report.Docker = &figures[1]
	}
	return report, nil
}

// peers returns us, and who else is to be measured.
func (e *Env) peers(ctx context.Context, c *client.Client, s *settings, f *benchFlags) ([]bench.Peer, error) {
	if f.face == "cli" {
		program := FindProgram("taibox", e.Libexec)
		if program == "" {
			return nil, fmt.Errorf("taibox is not found beside %s", e.Executable)
		}
		peers := []bench.Peer{bench.TaiboxCLI(program, "--host", s.Host)}
		if f.vs != "" {
			peers = append(peers, bench.DockerCLI())
		}
		return peers, nil
	}
	peers := []bench.Peer{bench.API{Client: c}}
	if f.vs != "" {
		docker, err := e.DockerAPI(ctx)
		if err != nil {
			return nil, err
		}
		peers = append(peers, docker)
	}
	return peers, nil
}

// printReport prints a report for people.
func (e *Env) printReport(r bench.Report) error {
	head := []string{"", "N", "P50", "P99"}
	docker := bench.Figures{}
	if r.Docker != nil {
		docker = *r.Docker
		head = append(head, "DOCKER P50", "DOCKER P99", "RATIO P50")
	}
	t := newTable(head...)
	row := func(name string, us, them bench.Times) {
		cells := []string{name, fmt.Sprint(us.N), formatMs(us.P50), formatMs(us.P99)}
		if r.Docker != nil {
			cells = append(cells, formatMs(them.P50), formatMs(them.P99), fmt.Sprintf("%.3f", us.P50/them.P50))
		}
		t.add(cells...)
	}
	row("create to first exec", r.CreateToFirstExec, docker.CreateToFirstExec)
	row("exec", r.Exec, docker.Exec)
	row("remove", r.Remove, docker.Remove)
	if err := t.print(e.Out); err != nil {
		return err
	}
	f := &fields{}
	f.add("Face", r.Face)
	f.add("Idle box", formatSize(r.IdleBoxRSS)+" outside the user's processes")
	rate := fmt.Sprintf("%.1f boxes a second", r.ParallelCreate)
	if r.Docker != nil {
		rate += fmt.Sprintf(" (Docker %.1f)", docker.ParallelCreate)
	}
	f.add("Parallel create", rate)
	return f.print(e.Out)
}
