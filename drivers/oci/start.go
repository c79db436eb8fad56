package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/go-runc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/internal/durable"
	"github.com/taibox/taibox/internal/lifecycle"
	"github.com/taibox/taibox/tai/sandbox"
)

// start brings a box up. The caller holds its turn.
func (b *box) start(ctx context.Context) (err error) {
	d := b.d
	trace := newTrace(ctx)
	var undo lifecycle.Stack
	defer func() {
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			err = errors.Join(err, undo.Close(ctx))
		}
	}()
	live, err := b.launch(ctx, trace, &undo)
	if err != nil {
		return err
	}
	if err := d.step("start", "record", b.id); err != nil {
		return err
	}
	err = b.update(func(rec *record) {
		if rec.StartedAt.IsZero() { // a later start is no part of the create
			rec.Phases = slices.Concat(rec.Phases, trace.phases)
		}
		rec.State, rec.Reason, rec.Error, rec.StartedAt, rec.StoppedAt = sandbox.StateRunning, "", "", time.Now().UTC(), time.Time{}
	})
	if err != nil {
		live.letGo(err)
		return err
	}
	undo.Release()
	b.follow(live)
	return b.startEntrypoint(ctx)
}

// launch makes a run of the box: namespaces, root file system and the bridge.
// Whatever is made goes again by undo, and the record says so. What is left of
// a run that could not be cleared up goes first.
func (b *box) launch(ctx context.Context, trace *trace, undo *lifecycle.Stack) (*liveBox, error) {
	d := b.d
	b.mu.Lock()
	before := b.rec
	b.mu.Unlock()
	if before.Run != nil {
		if err := b.clearUp(ctx, before.Run); err != nil {
			return nil, err
		}
	}
	var r *run
	undo.Push(func(ctx context.Context) error {
		if r != nil {
			if err := d.teardown(ctx, b.id, r); err != nil {
				return err // the record keeps the run, so that removing can try again
			}
		}
		return b.dropRun(func(rec *record) { rec.State, rec.Reason = before.State, before.Reason })
	})
	if err := d.step("start", "namespaces", b.id); err != nil {
		return nil, err
	}
	p, err := d.pool.take(ctx, d.runDir(b.id), func(index int) error {
		r = &run{BootID: d.bootID, Index: index}
		return b.update(func(rec *record) { rec.Run = r })
	})
	if err != nil {
		r = nil
		return nil, err
	}
	trace.done("namespaces")
	if err := b.startRun(ctx, p, r, trace); err != nil {
		return nil, err
	}
	live, err := b.connect(ctx, *r)
	if err != nil {
		return nil, err
	}
	trace.done("bridge")
	return live, nil
}

// startRun makes the run on the machine: network, root file system, process.
func (b *box) startRun(ctx context.Context, p pair, r *run, trace *trace) error {
	d := b.d
	spec := &b.rec.Spec
	if spec.Network == sandbox.NetworkNone {
		if err := d.network.detach(p.index); err != nil {
			return err
		}
	} else if err := d.firewall.ensure(); err != nil {
		return err
	}
	if err := d.step("start", "rootfs", b.id); err != nil {
		return err
	}
	base, err := b.base(ctx)
	if err != nil {
		return err
	}
	defer base.release()
	b.mu.Lock()
	r.HostFS = base.hostFS
	b.mu.Unlock()
	dir := d.runDir(b.id)
	root := filepath.Join(dir, "rootfs")
	if err := b.mountRoot(p, base.lowers, root); err != nil {
		return err
	}
	trace.done("rootfs")
	if err := d.step("start", "mounts", b.id); err != nil {
		return err
	}
	binds, err := b.stageMounts(p, root)
	if err != nil {
		return err
	}
	if len(binds) > 0 {
		trace.done("mounts")
	}
	if err := d.step("start", "runtime", b.id); err != nil {
		return err
	}
	bridge, err := d.bridge.verified()
	if err != nil {
		return err
	}
	bundle := &bundle{
		spec: spec, rootfs: root, bridge: bridge, userNS: p.userNS(), netNS: p.netNS(),
		cgroup: d.cgroups.boxPath(b.id), hostname: b.hostname(), mounts: base.mounts, binds: binds, nofile: spec.OpenFiles, cgroups: d.cgroups,
	}
	oci, err := bundle.build()
	if err != nil {
		return err
	}
	b.mu.Lock()
	r.Env = oci.Process.Env
	b.mu.Unlock()
	oci.Process.Env = []string{} // PID 1 has none
	if err := durable.NoteJSON(filepath.Join(dir, "config.json"), oci); err != nil {
		return err
	}
	if err := b.runBridge(ctx, dir); err != nil {
		return err
	}
	if err := b.unstageMounts(p); err != nil {
		return err
	}
	pid, start, err := readPid(filepath.Join(dir, "pid"))
	if err != nil {
		return err
	}
	b.mu.Lock()
	r.PID, r.PIDStart = pid, start
	b.mu.Unlock()
	trace.done("runtime")
	if err := d.cgroups.allowExecs(b.id, d.slot.hostID(p.index)); err != nil {
		return fmt.Errorf("give the box its cgroup: %w", err)
	}
	return nil
}

// base is what a box's root file system stands on.
type base struct {
	lowers  []string
	mounts  []specs.Mount // of the machine, on top
	hostFS  string        // the layer of the built-in image
	release func()
}

func (b *box) base(ctx context.Context) (base, error) {
	if b.rec.ImageDigest != "" {
		img, err := b.d.images.ResolveDigest(ctx, b.rec.ImageDigest)
		if err != nil {
			return base{}, err
		}
		return base{lowers: img.Lowers, release: img.Release}, nil
	}
	view, err := b.d.hostfs.Use(ctx)
	if err != nil {
		return base{}, err
	}
	out := base{lowers: []string{view.Root}, hostFS: view.ID, release: view.Release}
	for _, m := range view.Mounts {
		out.mounts = append(out.mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: []string{"bind", "ro", "nosuid", "nodev"}})
	}
	return out, nil
}

// mountRoot mounts the box's root file system at root.
func (b *box) mountRoot(p pair, lowers []string, root string) error {
	d := b.d
	staging := filepath.Join(p.dir, "staging")
	if err := mkdirs(0o711, root, staging); err != nil {
		return err
	}
	userNS, err := os.Open(p.userNS())
	if err != nil {
		return err
	}
	defer userNS.Close()
	dirs := []string{b.rec.workDir()}
	for _, t := range b.rec.Spec.Tmpfs {
		dir, _, _ := sandbox.ParseTmpfs(t) // the spec has been validated
		dirs = append(dirs, dir)
	}
	for _, m := range b.rec.Spec.Mounts {
		dirs = append(dirs, m.Target)
	}
	r := &rootfs{
		dataDir: d.cfg.DataDir, lowers: lowers, fsDir: filepath.Join(d.boxDir(b.id), "fs"), staging: staging, target: root,
		userNS: userNS, hostID: d.slot.hostID(p.index), files: b.etcFiles(p), dirs: dirs,
	}
	if err := r.mount(); err != nil {
		return fmt.Errorf("root file system: %w", noSpace(err))
	}
	return nil
}

func (b *box) hostname() string {
	if b.rec.Spec.Hostname != "" {
		return b.rec.Spec.Hostname
	}
	return b.id
}

// etcFiles are the files of /etc that belong to the box rather than its image.
func (b *box) etcFiles(p pair) []rootFile {
	d := b.d
	host := b.hostname()
	var hosts, resolv strings.Builder
	hosts.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\thost.docker.internal\n")
	own := "127.0.0.1"
	if b.rec.Spec.Network == sandbox.NetworkInternet {
		own = d.slot.addr(p.index).String()
		for _, ns := range d.firewall.nameservers() {
			fmt.Fprintf(&resolv, "nameserver %s\n", ns)
		}
	}
	fmt.Fprintf(&hosts, "%s\t%s\n", own, host)
	for _, h := range b.rec.Spec.ExtraHosts {
		name, addr, _ := strings.Cut(h, ":")
		fmt.Fprintf(&hosts, "%s\t%s\n", addr, name)
	}
	return []rootFile{{"etc/hosts", hosts.String()}, {"etc/hostname", host + "\n"}, {"etc/resolv.conf", resolv.String()}}
}

// runBridge starts the box's PID 1 with a listening socket. The socket is of
// this machine, below the box's run directory, and only root gets there.
func (b *box) runBridge(ctx context.Context, dir string) error {
	path := b.d.bridgeSocket(b.id)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen for the bridge: %w", err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close()
	io, err := runc.NewNullIO()
	if err != nil {
		return err
	}
	defer io.Close()
	rt := *b.d.runc
	rt.Log, rt.LogFormat = filepath.Join(dir, "runtime.log"), runc.JSON
	_, err = rt.Run(ctx, b.d.containerID(b.id), dir, &runc.CreateOpts{
		IO: io, Detach: true, PidFile: filepath.Join(dir, "pid"), NoNewKeyring: true, ExtraFiles: []*os.File{f},
	})
	if err != nil {
		return runtimeError(b.d.cfg.RuncPath, err, lastWords(rt.Log))
	}
	return nil
}

// lastWords is the last message in the log of the OCI runtime.
func lastWords(log string) string {
	data, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	var entry struct{ Msg string }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &entry); err != nil || entry.Msg == "" {
		return lines[len(lines)-1]
	}
	return entry.Msg
}

func (d *Driver) bridgeSocket(id string) string { return filepath.Join(d.runDir(id), "bridge.sock") }

// connect reaches the bridge of a run and waits until it answers.
func (b *box) connect(ctx context.Context, r run) (*liveBox, error) {
	d := b.d
	oom, err := d.cgroups.oomCounter(b.id)
	if err != nil {
		return nil, fmt.Errorf("OOM counter: %w", err)
	}
	if oom != nil {
		defer oom.Close()
	}
	note, err := d.makeEndNote(b.id)
	if err != nil {
		return nil, err
	}
	defer note.Close()
	b.mu.Lock()
	setup := bridge.Setup{Box: b.id, OOMEvents: oom, OrphanAfter: d.cfg.OrphanAfter, Lifetime: b.rec.left(), End: note}
	b.mu.Unlock()
	client := bridge.New(d.dialBridge(b.id))
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("%w within %v", sandbox.ErrBridgeLost, startTimeout))
	defer cancel()
	if _, err := client.Setup(ctx, setup); err != nil {
		client.Close() //nolint:errcheck // the failure to set up is what counts
		return nil, fmt.Errorf("set up the bridge: %w", err)
	}
	return newLiveBox(r, client), nil
}

func newLiveBox(r run, client *bridge.Client) *liveBox {
	return &liveBox{run: r, bridge: client, died: make(chan struct{}), doubt: make(chan struct{}, 1), letGo: func(error) {}}
}

// dialBridge reaches a box's bridge by its socket on this machine.
func (d *Driver) dialBridge(id string) bridge.Dialer {
	path := d.bridgeSocket(id)
	return func(ctx context.Context) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", path)
	}
}

// follow makes a live run the box's, and watches its end and its execs. The
// jobs are done beside it.
func (b *box) follow(live *liveBox, jobs ...func(context.Context, *liveBox)) {
	d := b.d
	ctx, letGo := context.WithCancelCause(d.ctx)
	live.letGo = letGo
	b.mu.Lock()
	b.live, b.kills = live, 0
	b.mu.Unlock()
	live.jobs.Go(func() { b.watchExecs(ctx, live) })
	live.jobs.Go(func() { b.watchDoubts(ctx, live) })
	for _, job := range jobs {
		live.jobs.Go(func() { job(ctx, live) })
	}
	d.wg.Go(func() {
		if err := waitProcess(ctx, live.run.PID); err != nil && live.run.alive(d.bootID) {
			return // let go
		}
		close(live.died)
		if b.acquire(d.ctx) != nil {
			return
		}
		defer b.release()
		b.bridgeEnded(live)
	})
}

// bridgeEnded handles the end of a bridge that nobody asked for.
func (b *box) bridgeEnded(live *liveBox) {
	b.mu.Lock()
	current, kills := b.live == live && b.removal == nil, b.kills
	b.mu.Unlock()
	if !current {
		return
	}
	state, reason, text := sandbox.StateFailed, "bridge-lost", "the bridge, PID 1 of the box, ended"
	if own := b.d.ownEnd(b.id); own != "" { // just as we came
		state, reason, text = sandbox.StateStopped, own, ""
	} else if b.d.cgroups.oomKills(b.id) > kills {
		reason, text = "oom", "the box ran out of memory and its PID 1 was killed"
	}
	if err := b.endRun(b.d.ctx, live, state, reason, text); err != nil {
		b.d.log.Error("box failed and could not be cleared up", slog.String("box", b.id), slog.Any("err", err))
	}
}

// readPid reads the pid file of runc.
func readPid(path string) (pid int, start uint64, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, fmt.Errorf("pid of the box: %w", err)
	}
	if _, err := fmt.Sscan(string(data), &pid); err != nil {
		return 0, 0, fmt.Errorf("pid of the box %q: %w", data, err)
	}
	start, err = pidStart(pid)
	return pid, start, err
}

// waitProcess blocks until a process has ended, or returns why it does not wait.
func waitProcess(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) }) //nolint:errcheck // the file is pollable
	defer stop()
	err = raw.Read(func(fd uintptr) bool {
		// A pidfd is readable once the process has ended.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
