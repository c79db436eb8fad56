package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// boxFlags are the flags that say what a box is to be.
type boxFlags struct {
	id, owner, node, policy string
	labels                  []string

	env, envFiles      []string
	user, workDir      string
	hostname           string
	addHosts           []string
	entrypoint         string
	isolation, network string
	memory, cpus       string
	pids               int64
	openFiles          uint64
	readOnly           bool
	tmpfs              []string
	pull               string
	stopTimeout        time.Duration
}

func (f *boxFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.id, "id", "", "give the box this `ID`: a-z, 0-9 and - (default a new one)")
	fs.StringVar(&f.owner, "owner", "", "the `owner` of the box")
	fs.StringVar(&f.node, "node", "", "make it on this `node` (default local)")
	fs.StringVar(&f.policy, "policy", "", "when the box goes, a `policy`: session, oneshot, longrunning or persistent")
	fs.StringArrayVarP(&f.labels, "label", "l", nil, "label the box with `K=V`")
	fs.StringArrayVarP(&f.env, "env", "e", nil, "set a variable, `K=V`; K alone takes ours")
	fs.StringArrayVar(&f.envFiles, "env-file", nil, "read variables from a `file`")
	fs.StringVarP(&f.user, "user", "u", "", "run as `USER[:GROUP]`, by name or number")
	fs.StringVarP(&f.workDir, "workdir", "w", "", "run in this `directory`")
	fs.StringVar(&f.hostname, "hostname", "", "the box's host `name` (default its ID)")
	fs.StringArrayVar(&f.addHosts, "add-host", nil, "a line of /etc/hosts, `NAME:ADDRESS`")
	fs.StringVar(&f.entrypoint, "entrypoint", "", "replace the image's entrypoint by this `program`; empty for none")
	fs.StringVar(&f.isolation, "isolation", "", "wall the box off by this `kind`: container")
	fs.StringVar(&f.network, "network", "", "what the box may reach, a `network`: internet or none")
	fs.StringVar(&f.memory, "memory", "", "at most this much `memory`, e.g. 512m; 0 for no limit (default 2g)")
	fs.StringVar(&f.cpus, "cpus", "", "at most this `number` of cores, e.g. 1.5; 0 for no limit (default 1.0)")
	fs.Int64Var(&f.pids, "pids", 0, "at most this `number` of processes and threads")
	fs.Uint64Var(&f.openFiles, "open-files", 0, "at most this `number` of open files in a process")
	fs.BoolVar(&f.readOnly, "read-only", false, "make the root file system read-only")
	fs.StringArrayVar(&f.tmpfs, "tmpfs", nil, "put memory at `PATH[:size=SIZE]`")
	fs.StringVar(&f.pull, "pull", "missing", "`when` to fetch the image: missing or never")
	fs.DurationVar(&f.stopTimeout, "stop-timeout", 0, "between TERM and KILL when the box is stopped (default 2s)")
}

// request turns the flags into what the server is asked for.
func (f *boxFlags) request(cmd *cobra.Command, env *Env, s *settings, image string) (rest.CreateBox, error) {
	req := rest.CreateBox{
		ID: f.id, Owner: f.owner, NodeID: f.node, Policy: f.policy, Image: image,
		User: f.user, WorkDir: f.workDir, Hostname: f.hostname, ExtraHosts: f.addHosts,
		Isolation: f.isolation, Network: f.network, MemoryBytes: &s.Memory, CPUs: &s.CPUs,
		Pids: f.pids, OpenFiles: f.openFiles, ReadOnly: f.readOnly,
		StopTimeoutMs:  f.stopTimeout.Milliseconds(),
		IdempotencyKey: taisandbox.NewID("cli-"),
	}
	if cmd.Flags().Changed("id") {
		if err := taisandbox.ValidateID(f.id); err != nil {
			return req, err
		}
	}
	if cmd.Flags().Changed("entrypoint") {
		req.Entrypoint = &[]string{}
		if f.entrypoint != "" {
			req.Entrypoint = &[]string{f.entrypoint}
		}
	}
	var err error
	if req.Labels, err = parseLabels(f.labels); err != nil {
		return req, err
	}
	if req.Env, err = env.parseEnv(f.envFiles, f.env); err != nil {
		return req, err
	}
	for _, t := range f.tmpfs {
		t, err := parseTmpfs(t)
		if err != nil {
			return req, err
		}
		req.Tmpfs = append(req.Tmpfs, t)
	}
	return req, f.check()
}

// check refuses what no server could make sense of.
func (f *boxFlags) check() error {
	switch f.pull {
	case "missing", "never":
	case "always":
		return withHint(usage("--pull always: there is no registry to pull from"), "load the image with: taibox image load -i ARCHIVE")
	default:
		return usage("--pull %q: missing and never are possible", f.pull)
	}
	if f.pids < 0 {
		return usage("--pids %d: it cannot be negative", f.pids)
	}
	if f.stopTimeout < 0 {
		return usage("--stop-timeout %v: it cannot be negative", f.stopTimeout)
	}
	return nil
}
