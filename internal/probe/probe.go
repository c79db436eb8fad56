// Package probe looks at what this machine offers for running boxes.
//
// [Run] makes the list that the doctor command prints. The single questions
// are functions of their own, for those who must act on the answer or name
// the cause of a failure: [ReadCgroups], [Upstreams], [IDMapped], [Overlay],
// [ForwardDrops], [MissingCapabilities]. What can be tried is tried; nothing
// is changed by it, and nothing stays behind.
//
// Everything works without root as well, and says what it could not check.
package probe

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// Status is what a check came to.
type Status string

// The results of a check.
const (
	OK   Status = "ok"
	Warn Status = "warn" // boxes run; something works less well, or was not checked
	Fail Status = "fail" // boxes do not run
)

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // what to do about it
}

// Config says where things are, or will be. Zero fields mean the default in
// the comment.
type Config struct {
	DataDir      string // default /var/lib/taibox; need not exist
	RunDir       string // default /run/taibox; need not exist
	RuncPath     string // empty: not found
	BridgePath   string // empty: not found
	DockerSocket string // default /var/run/docker.sock
	Kubeconfig   string // default ~/.kube/config
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *string
		value string
	}{
		{&c.DataDir, "/var/lib/taibox"},
		{&c.RunDir, "/run/taibox"},
		{&c.DockerSocket, "/var/run/docker.sock"},
		{&c.Kubeconfig, defaultKubeconfig()},
	} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	return c
}

// Run makes all checks, in a fixed order. When ctx ends early, those that
// wait for other programs fail with its cause.
func Run(ctx context.Context, cfg Config) []Check {
	cfg = cfg.withDefaults()
	machine := os.DirFS("/")
	return []Check{
		checkRoot(machine),
		checkKernel(machine),
		checkUserNS(machine),
		checkIDMapped(cfg.DataDir),
		checkOverlay(cfg.DataDir),
		checkCgroups(machine),
		checkSeccomp(machine),
		checkNftables(machine),
		checkForwarding(machine),
		checkDNS(machine),
		checkProgram(ctx, "taibox-runc", cfg.RuncPath),
		checkProgram(ctx, "taibox-bridge", cfg.BridgePath),
		checkDisk(cfg.DataDir),
		checkInstances(cfg.DataDir, cfg.RunDir),
		checkKVM(),
		checkDocker(ctx, cfg.DockerSocket),
		checkKubernetes(cfg.Kubeconfig),
	}
}

// needsRoot turns a refusal that root would not have met into a check that
// says so.
func needsRoot(name string, err error) (Check, bool) {
	if os.Geteuid() != 0 && errors.Is(err, fs.ErrPermission) {
		return Check{name, Warn, "not checked: this needs root", "run the command as root"}, true
	}
	return Check{}, false
}
