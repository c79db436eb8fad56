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
	openFiles          uint64
	readOnly           bool
	tmpfs, volumes     []string
	pull               string
	maxLifetime        time.Duration
	stopTimeout        time.Duration
	keepAlive          bool
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
	fs.Int64("pids", 0, "at most this `number` of processes and threads")
	fs.Uint64Var(&f.openFiles, "open-files", 0, "at most this `number` of open files in a process")
	fs.BoolVar(&f.readOnly, "read-only", false, "make the root file system read-only")
	fs.StringArrayVar(&f.tmpfs, "tmpfs", nil, "put memory at `PATH[:size=SIZE]`")
	fs.StringArrayVarP(&f.volumes, "volume", "v", nil, "a `mount`, ws:ID[:PATH][:ro], or for admins /DIR:PATH[:ro]")
	fs.StringVar(&f.pull, "pull", pullMissing, "`when` to fetch the image: missing, always or never")
	fs.Duration("idle-timeout", 0, "stop it when idle for so long; a session goes then (default 30m for session)")
	fs.BoolVar(&f.keepAlive, "keep-alive", false, "not idle while its entrypoint runs, or what an ended command left behind")
	fs.DurationVar(&f.maxLifetime, "max-lifetime", 0, "remove it after so long, busy or not, unless it is persistent")
	fs.DurationVar(&f.stopTimeout, "stop-timeout", 0, "between TERM and KILL when the box is stopped (default 2s)")
}

// request turns the flags into what the server is asked for.
func (f *boxFlags) request(cmd *cobra.Command, env *Env, s *settings, image string) (rest.CreateBox, error) {
	req := rest.CreateBox{
		ID: f.id, Owner: f.owner, NodeID: f.node, Policy: f.policy, Image: image,
		User: f.user, WorkDir: f.workDir, Hostname: f.hostname, ExtraHosts: f.addHosts,
		Isolation: f.isolation, Network: f.network, MemoryBytes: given(s, "sandbox_memory", s.Memory), CPUs: given(s, "sandbox_cpu", s.CPUs),
		Pids: given(s, "sandbox_pids", s.Pids), OpenFiles: f.openFiles, ReadOnly: f.readOnly,
		KeepAlive:      f.keepAlive,
		MaxLifetimeMs:  f.maxLifetime.Milliseconds(),
		StopTimeoutMs:  f.stopTimeout.Milliseconds(),
		IdempotencyKey: taisandbox.NewID("cli-"),
	}
	if cmd.Flags().Changed("id") {
		if err := taisandbox.ValidateID(f.id); err != nil {
			return req, err
		}
	}
	if cmd.Flags().Changed("entrypoint") {
		req.SetEntrypoint([]string{})
		if f.entrypoint != "" {
			req.SetEntrypoint([]string{f.entrypoint})
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
	if err := mountVolumes(&req, f.volumes); err != nil {
		return req, err
	}
	f.idle(cmd, s, &req)
	return req, f.check()
}

// idle fills in how long a box may be idle. What is set once for all is meant
// for sessions.
func (f *boxFlags) idle(cmd *cobra.Command, s *settings, req *rest.CreateBox) {
	if cmd.Flags().Changed("idle-timeout") || req.Policy == "session" || req.Policy == "" {
		req.IdleTimeoutMs = given(s, "sandbox_idle_timeout", s.IdleTimeout.Milliseconds())
	}
}

// check refuses what no server could make sense of.
func (f *boxFlags) check() error {
	switch f.pull {
	case pullMissing, pullAlways, pullNever:
	default:
		return usage("--pull %q: missing, always and never are possible", f.pull)
	}
	if f.maxLifetime < 0 || f.maxLifetime > 0 && f.maxLifetime < time.Millisecond {
		return usage("--max-lifetime %v: 0 (none) or at least 1ms is expected", f.maxLifetime)
	}
	if f.stopTimeout < 0 {
		return usage("--stop-timeout %v: it cannot be negative", f.stopTimeout)
	}
	return nil
}
