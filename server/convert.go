package server

import (
	"fmt"
	"maps"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func boxOf(i *sandbox.BoxInfo) rest.Box {
	b := rest.Box{
		ID: i.ID, ContainerID: i.ContainerID, NodeID: i.NodeID, Owner: i.Owner, Status: i.Status, Policy: string(i.Policy),
		Image: i.Image, ImageDigest: i.ImageDigest, Isolation: string(i.Isolation), Labels: maps.Clone(i.Labels),
		CreatedAt: i.CreatedAt, LastActive: i.LastActive, StartedAt: i.StartedAt, StoppedAt: i.StoppedAt,
		StopReason: i.StopReason, Error: i.Error, OOMKills: i.OOMKills, Network: string(i.Network), IP: i.IP,
		WorkDir: i.WorkDir, User: i.User,
		ProcessCount: i.ProcessCount, RunningExecs: i.RunningExecs,
		MemoryBytes: i.Memory, CPUs: i.CPUs, Pids: i.Pids, OpenFiles: i.OpenFiles, ReadOnly: i.ReadOnly, Devices: list(i.Devices),
		WorkspaceID: i.WorkspaceID, Mounts: make([]rest.Mount, 0, len(i.Mounts)),
		IdleTimeoutMs: i.IdleTimeout.Milliseconds(), KeepAlive: i.KeepAlive, MaxLifetimeMs: i.MaxLifetime.Milliseconds(),
		StopTimeoutMs: i.StopTimeout.Milliseconds(), Busy: list(i.Busy), Phases: make([]rest.Phase, 0, len(i.Phases)),
	}
	if b.Labels == nil {
		b.Labels = map[string]string{}
	}
	b.Entrypoint, b.EntrypointB64 = rest.Words(list(i.Entrypoint))
	b.Cmd, b.CmdB64 = rest.Words(list(i.Cmd))
	for _, m := range i.Mounts {
		b.Mounts = append(b.Mounts, rest.Mount(m))
	}
	for _, p := range i.Phases {
		b.Phases = append(b.Phases, rest.Phase{Name: p.Name, DurationMs: millis(p.Duration)})
	}
	return b
}

// list is s, as a JSON array even if it is empty.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func execOf(e *taisandbox.ExecInfo) rest.Exec {
	end := e.Ended
	if end.IsZero() && !e.Done() {
		end = time.Now()
	}
	var duration int64
	if !end.IsZero() {
		duration = max(0, end.Sub(e.Started).Milliseconds())
	}
	args, raw := rest.Words(list(e.Args))
	return rest.Exec{
		ID: e.ID, Box: e.Box, Args: args, ArgsB64: raw, EnvNames: e.EnvNames, User: e.User, WorkDir: e.WorkDir, TTY: e.TTY, PID: e.PID,
		Started: e.Started, Ended: e.Ended, DurationMs: duration, State: string(e.State), ExitCode: e.ExitCode, Signal: e.Signal,
		Reason: string(e.Reason), Error: e.Error, Bytes: e.Bytes, FirstOffset: e.FirstOffset, Truncated: e.Truncated,
		InputOpen: e.InputOpen, InputBytes: e.InputBytes,
		OutputIncomplete: e.OutputIncomplete, Leftover: e.Leftover, OOMKills: e.OOMKills,
	}
}

func resultOf(r *taisandbox.ExecResult) rest.ExecResult {
	e := execOf(&r.ExecInfo)
	res := rest.ExecResult{
		ExecID: e.ID, Source: rest.SourceCommand, State: e.State, ExitCode: e.ExitCode, Signal: e.Signal, Reason: e.Reason,
		Error: e.Error, DurationMs: e.DurationMs, Truncated: r.OutputTruncated, Bytes: e.Bytes, OutputIncomplete: e.OutputIncomplete,
	}
	res.SetOutput(r.Stdout, r.Stderr)
	res.StdoutOmitted = rest.OmissionOf(r.StdoutOmitted.At, r.StdoutOmitted.Bytes)
	res.StderrOmitted = rest.OmissionOf(r.StderrOmitted.At, r.StderrOmitted.Bytes)
	return res
}

// entrypointOf returns the entrypoint that a create asks for; nil for the image's.
func entrypointOf(r *rest.CreateBox) (*[]string, error) {
	if r.EntrypointB64 == nil {
		return r.Entrypoint, nil
	}
	var text []string
	if r.Entrypoint != nil {
		text = list(*r.Entrypoint)
	}
	words, err := rest.WordsOf("entrypoint", text, r.EntrypointB64)
	return &words, err
}

// specOf checks what only the API can: the contract checks the rest.
func specOf(r *rest.ExecRequest) (taisandbox.ExecSpec, error) {
	args, err := rest.WordsOf("cmd", r.Cmd, r.CmdB64)
	if err != nil {
		return taisandbox.ExecSpec{}, err
	}
	spec := taisandbox.ExecSpec{
		ID: r.ID, Args: args, Entrypoint: r.Entrypoint, Env: r.Env, WorkDir: r.WorkDir, User: r.User,
		Stdin: r.Stdin, TTY: r.TTY, MergeOutput: r.MergeOutput, OnDisconnect: taisandbox.OnDisconnect(r.OnDisconnect), MaxLog: r.MaxLog, MaxOutput: r.MaxOutput,
	}
	if r.Cols != 0 || r.Rows != 0 {
		spec.Size = taisandbox.Size{Cols: r.Cols, Rows: r.Rows}
	}
	for _, d := range []struct {
		name string
		ms   int64
		to   *time.Duration
	}{
		{"timeout_ms", r.TimeoutMs, &spec.Timeout}, {"kill_grace_ms", r.KillGraceMs, &spec.KillGrace}, {"lease_ms", r.LeaseMs, &spec.Lease},
	} {
		var err error
		if *d.to, err = duration(d.name, d.ms); err != nil {
			return spec, err
		}
	}
	return spec, spec.Validate()
}

// duration turns milliseconds into a time, which has less room.
func duration(name string, ms int64) (time.Duration, error) {
	if ms < 0 || ms > taisandbox.MaxTimeout.Milliseconds() {
		return 0, fmt.Errorf("%w: %s of %d: from 0 to %d are possible", taisandbox.ErrInvalidSpec, name, ms, taisandbox.MaxTimeout.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func imageOf(i *taisandbox.ImageInfo) rest.Image {
	c := i.Config
	return rest.Image{
		Name: i.Name, Digest: i.Digest, Platform: i.Platform, SizeBytes: i.SizeBytes, CreatedAt: i.CreatedAt, BuiltIn: i.BuiltIn,
		Config: rest.ImageConfig{
			Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd, WorkDir: c.WorkDir, User: c.User,
			Labels: c.Labels, StopSignal: c.StopSignal, Ports: c.Ports,
		},
	}
}

func imagesOf(infos []taisandbox.ImageInfo) rest.ImageList {
	l := rest.ImageList{Items: make([]rest.Image, 0, len(infos))}
	for i := range infos {
		l.Items = append(l.Items, imageOf(&infos[i]))
	}
	return l
}

func nodeOf(n registry.NodeSnapshot) rest.Node {
	node := rest.Node{
		TaiID: n.TaiID, Mode: n.Mode, Addr: n.Addr, Status: n.Status, Runtime: n.Runtime,
		Capabilities: list(n.Capabilities), Labels: maps.Clone(n.Labels),
		System: rest.System{
			OS: n.System.OS, Arch: n.System.Arch, Kernel: n.System.Kernel, Hostname: n.System.Hostname,
			CPUs: n.System.CPUs, MemoryBytes: n.System.MemoryBytes,
		},
	}
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	return node
}

func portsOf(ports []taisandbox.Port) rest.PortList {
	l := rest.PortList{Items: make([]rest.Port, 0, len(ports))}
	for _, p := range ports {
		port := rest.Port{Network: p.Network, Address: p.Address, Port: p.Port, PID: p.PID}
		port.Process, port.ProcessB64 = shownBytes(p.Process)
		l.Items = append(l.Items, port)
	}
	return l
}

func statsOf(s *taisandbox.Stats) rest.Stats {
	return rest.Stats{
		Time: s.Time, CPUMs: millis(s.CPU), MemoryBytes: s.MemoryBytes, MemoryPeakBytes: s.MemoryPeakBytes, MemoryLimitBytes: s.MemoryLimit,
		Pids: s.Pids, ReadBytes: s.ReadBytes, WriteBytes: s.WriteBytes, NetRxBytes: s.NetRxBytes, NetTxBytes: s.NetTxBytes,
		OverheadBytes: s.OverheadBytes,
	}
}
