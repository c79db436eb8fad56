package cli

import (
	"strconv"
	"time"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// policySettings say how long boxes stay, and what they may be at most. Zero
// is no limit.
type policySettings struct {
	IdleTimeout time.Duration // of a session box that says nothing of it
	OrphanAfter time.Duration // of a box whose server does not come back; 0 = never
	Pids        int64         // likewise, of any box

	MaxPerOwner, MaxPerImage, MaxPerNode int

	MaxMemory int64
	MaxCPUs   float64
	MaxPids   int64

	MaxWorkspacesPerOwner int
	MaxWorkspaceDisk      int64

	KeepExecs     int // finished ones of a box, with the output of all of them
	KeepExecBytes int64
}

// policyKeys are the settings of policies and limits.
var policyKeys = []key{
	{name: "sandbox_idle_timeout", env: "YAO_SANDBOX_IDLE_TIMEOUT", flag: "idle-timeout", def: "30m", set: setIdleTimeout},
	{name: "orphan_after", env: "TAIBOX_ORPHAN_AFTER", flag: "orphan-after", def: "0", set: setOrphanAfter},
	{name: "sandbox_pids", env: "TAIBOX_SANDBOX_PIDS", flag: "pids", def: "4096", set: func(s *settings, v string) error { return setCount(&s.Pids, v) }},
	{name: "sandbox_max_per_owner", env: "TAIBOX_SANDBOX_MAX_PER_OWNER", def: "0", set: func(s *settings, v string) error { return setCount(&s.MaxPerOwner, v) }},
	{name: "sandbox_max_per_image", env: "TAIBOX_SANDBOX_MAX_PER_IMAGE", def: "0", set: func(s *settings, v string) error { return setCount(&s.MaxPerImage, v) }},
	{name: "sandbox_max_per_node", env: "TAIBOX_SANDBOX_MAX_PER_NODE", def: "0", set: func(s *settings, v string) error { return setCount(&s.MaxPerNode, v) }},
	{name: "sandbox_max_memory", env: "TAIBOX_SANDBOX_MAX_MEMORY", def: "0", set: func(s *settings, v string) (err error) { s.MaxMemory, err = parseSize(v); return err }},
	{name: "sandbox_max_cpu", env: "TAIBOX_SANDBOX_MAX_CPU", def: "0", set: func(s *settings, v string) (err error) { s.MaxCPUs, err = parseCPUs(v); return err }},
	{name: "sandbox_max_pids", env: "TAIBOX_SANDBOX_MAX_PIDS", def: "0", set: func(s *settings, v string) error { return setCount(&s.MaxPids, v) }},
	{name: "workspace_max_per_owner", env: "TAIBOX_WORKSPACE_MAX_PER_OWNER", def: "0", set: func(s *settings, v string) error { return setCount(&s.MaxWorkspacesPerOwner, v) }},
	{name: "workspace_max_disk", env: "TAIBOX_WORKSPACE_MAX_DISK", def: "0", set: func(s *settings, v string) (err error) { s.MaxWorkspaceDisk, err = parseSize(v); return err }},
	{name: "exec_keep", env: "TAIBOX_EXEC_KEEP", def: "1000", set: setKeepExecs},
	{name: "exec_keep_bytes", env: "TAIBOX_EXEC_KEEP_BYTES", def: "1g", set: setKeepExecBytes},
}

func setIdleTimeout(s *settings, v string) error {
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 || d > 0 && d < time.Millisecond {
		return usage("idle timeout %q: 0 (none), or a duration such as 30m of at least 1ms, is expected", v)
	}
	s.IdleTimeout = d
	return nil
}

// minOrphanAfter is more than a restart of the server takes.
const minOrphanAfter = 10 * time.Second

func setOrphanAfter(s *settings, v string) error {
	d, err := time.ParseDuration(v)
	if err != nil || d != 0 && d < minOrphanAfter || d > taisandbox.MaxTimeout {
		return usage("time after which boxes are orphans %q: 0 (never), or a duration such as 24h of at least %v, is expected", v, minOrphanAfter)
	}
	s.OrphanAfter = d
	return nil
}

// setCount reads a number of which 0 means no limit.
func setCount[T int | int64](to *T, v string) error {
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n < 0 {
		return usage("number %q: 0 (no limit) or more is expected", v)
	}
	*to = T(n)
	return nil
}

func setKeepExecs(s *settings, v string) error {
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n < 1 {
		return usage("number of finished execs %q: 1 or more is expected", v)
	}
	s.KeepExecs = int(n)
	return nil
}

func setKeepExecBytes(s *settings, v string) error {
	n, err := parseSize(v)
	if err == nil && n < 1 {
		err = usage("output of finished execs %q: more than nothing is expected", v)
	}
	s.KeepExecBytes = n
	return err
}

// given returns v if its setting was given here, and nil where the server's
// own default is to hold.
func given[T any](s *settings, name string, v T) *T {
	for _, src := range s.sources {
		if src.Key == name && src.Origin != "default" {
			return &v
		}
	}
	return nil
}
