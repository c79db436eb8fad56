package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/tai/sandbox"
)

// execFile is an exec as the node keeps it: its record, and beside it the log
// that the bridge writes through a descriptor.
type execFile struct {
	info   sandbox.ExecInfo
	cgroup string // directory; empty once removed
	// logLimit is how much of its output is kept at most.
	logLimit int64
	// doubtful says that the bridge was asked for it, and that its answer never
	// came: the exec may have begun, may begin yet, or never will.
	doubtful bool
}

func (d *Driver) execPath(box, exec, ext string) string {
	return filepath.Join(d.boxDir(box), "execs", exec+ext)
}

// Exec implements [sandbox.Sandbox].
func (d *Driver) Exec(ctx context.Context, id string, spec sandbox.ExecSpec) (sandbox.ExecResult, error) {
	hasStdin := spec.Stdin || spec.StdinData != nil
	spec.Stdin = hasStdin
	spec.OnDisconnect = sandbox.OnDisconnectKill
	s, err := d.ExecStream(ctx, id, spec)
	if err != nil {
		return sandbox.ExecResult{}, err
	}
	defer s.Close()
	res, err := sandbox.Collect(ctx, s, spec.StdinData, hasStdin, spec.MaxOutput)
	if err != nil {
		return res, fmt.Errorf("exec %s in box %s: %w", s.ID(), id, err)
	}
	return res, nil
}

// ExecStream implements [sandbox.Sandbox].
func (d *Driver) ExecStream(ctx context.Context, id string, spec sandbox.ExecSpec) (sandbox.Stream, error) {
	if ctx.Err() != nil {
		return nil, wrapBox("exec in", id, context.Cause(ctx))
	}
	b, live, err := d.running("exec in", id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := answering(ctx)
	defer cancel()
	s, err := b.exec(ctx, live, spec)
	return s, wrapBox("exec in", id, b.fate(live, err))
}

var errBridgeSilent = fmt.Errorf("%w within %v", sandbox.ErrBridgeLost, bridgeTimeout)

// answering bounds a question that a bridge can answer at once: one that is
// frozen or starved holds up nobody but its own box, and not for ever.
func answering(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, bridgeTimeout, errBridgeSilent)
}

// exec starts a command in a live box.
func (b *box) exec(ctx context.Context, live *liveBox, spec sandbox.ExecSpec) (_ sandbox.Stream, err error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if spec.ID == "" {
		spec.ID = sandbox.NewID("e-")
	}
	if spec, err = b.resolve(spec); err != nil {
		return nil, err
	}
	e := &execFile{info: sandbox.ExecInfo{ID: spec.ID, Box: b.id, Args: spec.Args, State: sandbox.ExecStarting, Started: time.Now().UTC()}}
	e.info.Clip()
	b.mu.Lock()
	_, taken := b.execs[spec.ID]
	if !taken {
		e.logLimit = b.logLimitLocked(spec.MaxLog)
		b.execs[spec.ID] = e
	}
	b.mu.Unlock()
	if taken {
		return nil, fmt.Errorf("exec %s: %w", spec.ID, sandbox.ErrExecExists)
	}
	spec.MaxLog = e.logLimit
	asked := false
	defer func() {
		if err != nil && !(asked && b.mayHaveBegun(ctx, live, e, err)) {
			err = errors.Join(err, b.dropExec(e))
		}
	}()
	log, err := os.OpenFile(b.d.execPath(b.id, spec.ID, ".log"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		// A full disk must not keep anybody from running the command that
		// clears it: the bridge keeps what it can in memory.
		log, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("log of exec %s: %w", spec.ID, err)
	}
	if log != nil {
		defer log.Close()
	}
	files := bridge.Files{Log: log}
	cg, err := b.d.cgroups.newExecCgroup(b.id, spec.ID, b.d.slot.hostID(live.run.Index))
	if err != nil {
		return nil, err
	}
	if cg != nil {
		defer cg.closeFiles()
		b.mu.Lock()
		e.cgroup = cg.dir
		b.mu.Unlock()
		files.Cgroup, files.CgroupKill, files.CgroupEvents = cg.self, cg.kill, cg.events
	}
	asked = true
	s, err := live.bridge.StartExec(ctx, spec, files)
	if err != nil {
		return nil, err
	}
	return &execStream{Stream: s, box: b, live: live}, nil
}

// execStream sees to it that an OOM kill is on record before the client hears
// of it: should PID 1 die next, the two are told apart. And it says what became
// of the box where the bridge did not come to say anything more.
type execStream struct {
	sandbox.Stream
	box    *box
	live   *liveBox
	closed atomic.Bool
}

// Recv implements [sandbox.Stream].
func (s *execStream) Recv() (sandbox.Chunk, error) {
	c, err := s.Stream.Recv()
	if s.closed.Load() {
		return c, err
	}
	return c, s.box.fate(s.live, err)
}

// Hangup implements [sandbox.Stream].
func (s *execStream) Hangup() error {
	s.closed.Store(true)
	return s.Stream.Hangup()
}

// Close implements [sandbox.Stream].
func (s *execStream) Close() error {
	s.closed.Store(true)
	return s.Stream.Close()
}

// Wait implements [sandbox.Stream].
func (s *execStream) Wait(ctx context.Context) (sandbox.ExecInfo, error) {
	info, err := s.Stream.Wait(ctx)
	if err == nil && info.OOMKills > 0 {
		s.box.noteExec(info)
	}
	return info, s.box.fate(s.live, err)
}

// fate says why a bridge was lost, if its box has ended. More often than not
// it has just been stopped or removed.
func (b *box) fate(live *liveBox, err error) error {
	if !errors.Is(err, sandbox.ErrBridgeLost) {
		return err
	}
	select {
	case <-live.died:
	case <-b.d.ctx.Done():
		return err
	case <-time.After(drainTimeout):
		return err
	}
	return b.endOf(live)
}

// endOf says what became of a box whose run is over; nil if it goes on.
func (b *box) endOf(live *liveBox) error {
	select {
	case <-live.died:
	default:
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.gone:
		return sandbox.ErrNotFound
	case b.removal != nil:
		return sandbox.ErrRemoving
	}
	return sandbox.ErrNotRunning
}

// resolve settles what the spec leaves to the box and its image.
func (b *box) resolve(spec sandbox.ExecSpec) (sandbox.ExecSpec, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if spec.Entrypoint {
		args := spec.Args
		if len(args) == 0 {
			args = b.rec.command()
		}
		spec.Args = slices.Concat(b.rec.entrypoint(), args)
		if len(spec.Args) == 0 {
			return spec, fmt.Errorf("image %s has no command of its own, so one is required: %w", b.rec.Spec.Image, sandbox.ErrInvalidSpec)
		}
	}
	env := map[string]string{}
	given := b.rec.Config.Env
	if b.rec.Run != nil {
		given = slices.Concat(given, b.rec.Run.Env)
	}
	for _, kv := range given {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			env[k] = v
		}
	}
	maps.Copy(env, b.rec.Spec.Env)
	maps.Copy(env, spec.Env)
	spec.Env = env
	if spec.WorkDir == "" {
		spec.WorkDir = b.rec.workDir()
	}
	if spec.User == "" {
		spec.User = b.rec.user()
	}
	return spec, nil
}

// startEntrypoint runs the box's entrypoint once, if it has one.
func (b *box) startEntrypoint(ctx context.Context) error {
	b.mu.Lock()
	live, entrypoint := b.live, b.rec.entrypoint()
	wanted := !b.rec.Spec.NoStart && len(entrypoint) > 0
	old := b.execs[sandbox.EntrypointExec]
	b.mu.Unlock()
	if !wanted || live == nil {
		return nil
	}
	if old != nil {
		b.forgetExec(old)
	}
	s, err := b.exec(ctx, live, sandbox.ExecSpec{ID: sandbox.EntrypointExec, Args: slices.Concat(entrypoint, []string{bridgePath, "hold"})})
	if err != nil {
		return fmt.Errorf("start the entrypoint: %w", err)
	}
	return s.Close()
}

// AttachExec implements [sandbox.Sandbox].
func (d *Driver) AttachExec(ctx context.Context, id, execID string, opts sandbox.AttachOptions) (sandbox.Stream, error) {
	b, err := d.lookup("attach in", id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	live, e := b.live, b.execs[execID]
	b.mu.Unlock()
	if live != nil {
		ctx, cancel := answering(ctx)
		defer cancel()
		s, err := live.bridge.AttachExec(ctx, execID, opts)
		if err == nil {
			return &execStream{Stream: s, box: b, live: live}, nil
		}
		doubtful := errors.Is(err, sandbox.ErrExecNotFound) && b.inDoubt(execID)
		if doubtful {
			if err = b.settleExecs(ctx, live); err == nil {
				return d.AttachExec(ctx, id, execID, opts)
			}
		}
		if doubtful || !errors.Is(err, sandbox.ErrExecNotFound) {
			return nil, wrapExec("attach to", execID, id, b.fate(live, err))
		}
	}
	if e == nil {
		return nil, wrapExec("attach to", execID, id, sandbox.ErrExecNotFound)
	}
	// The bridge that ran it is gone: the log on disk is what there is.
	b.mu.Lock()
	info := e.info
	b.mu.Unlock()
	log, err := os.Open(d.execPath(id, execID, ".log"))
	if errors.Is(err, fs.ErrNotExist) { // the disk was full when it began
		var fd int
		fd, err = unix.MemfdCreate("no-log", unix.MFD_CLOEXEC)
		log = os.NewFile(uintptr(fd), "no-log")
	}
	if err != nil {
		return nil, wrapExec("read the log of", execID, id, err)
	}
	s, err := bridge.OpenLog(log, info, opts)
	return s, wrapExec("read the log of", execID, id, err)
}

func wrapExec(verb, execID, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s exec %s in box %s: %w", verb, shown(execID), shown(id), err)
}

// ListExecs implements [sandbox.Sandbox].
func (d *Driver) ListExecs(ctx context.Context, id string) ([]sandbox.ExecInfo, error) {
	b, err := d.lookup("list execs of", id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	live := b.live
	known := map[string]sandbox.ExecInfo{}
	for eid, e := range b.execs {
		known[eid] = ofEarlierRun(e.info)
	}
	b.mu.Unlock()
	if live != nil {
		ctx, cancel := answering(ctx)
		defer cancel()
		fresh, err := live.bridge.ListExecs(ctx)
		if err != nil {
			return nil, wrapBox("list execs of", id, b.fate(live, err))
		}
		for _, info := range fresh {
			info.Box = id
			known[info.ID] = info
		}
	}
	infos := slices.Collect(maps.Values(known))
	slices.SortFunc(infos, func(a, b sandbox.ExecInfo) int {
		if c := a.Started.Compare(b.Started); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return infos, nil
}

// InspectExec implements [sandbox.Sandbox].
func (d *Driver) InspectExec(ctx context.Context, id, execID string) (sandbox.ExecInfo, error) {
	ctx, cancel := answering(ctx)
	defer cancel()
	return d.execInfo(ctx, "inspect", id, execID, (*bridge.Client).InspectExec)
}

// WaitExec implements [sandbox.Sandbox].
func (d *Driver) WaitExec(ctx context.Context, id, execID string) (sandbox.ExecInfo, error) {
	for {
		info, err := d.execInfo(ctx, "wait for", id, execID, (*bridge.Client).WaitExec)
		switch {
		case err == nil && info.Done():
			return info, nil
		case err != nil && (ctx.Err() != nil || !errors.Is(err, sandbox.ErrBridgeLost)):
			return info, err
		}
		// The bridge ended under the call: the record says how, in a moment.
		select {
		case <-ctx.Done():
			return info, wrapExec("wait for", execID, id, context.Cause(ctx))
		case <-time.After(execSettle):
		}
	}
}

// execInfo asks the bridge for a record, or takes the kept one.
func (d *Driver) execInfo(ctx context.Context, verb, id, execID string, ask func(*bridge.Client, context.Context, string) (sandbox.ExecInfo, error)) (sandbox.ExecInfo, error) {
	b, err := d.lookup(verb+" exec "+shown(execID)+" in", id)
	if err != nil {
		return sandbox.ExecInfo{}, err
	}
	b.mu.Lock()
	live, e := b.live, b.execs[execID]
	var info sandbox.ExecInfo
	if e != nil {
		info = e.info
	}
	b.mu.Unlock()
	if live != nil && (e == nil || !info.Done() || verb == "inspect") {
		fresh, err := ask(live.bridge, ctx, execID)
		if err == nil {
			fresh.Box = id
			return fresh, nil
		}
		if e == nil || !errors.Is(err, sandbox.ErrExecNotFound) {
			return info, wrapExec(verb, execID, id, err)
		}
		info = ofEarlierRun(info)
	}
	switch {
	case e == nil:
		return info, wrapExec(verb, execID, id, sandbox.ErrExecNotFound)
	case live == nil:
		info = ofEarlierRun(info)
	}
	return info, nil
}

// ofEarlierRun is the record of an exec that no bridge knows: what it left
// behind has ended with its box.
func ofEarlierRun(info sandbox.ExecInfo) sandbox.ExecInfo {
	if info.Done() {
		info.Leftover = 0
	}
	return info
}

// KillExec implements [sandbox.Sandbox].
func (d *Driver) KillExec(ctx context.Context, id, execID string, opts sandbox.KillOptions) error {
	if opts.Signal < 0 || opts.Signal > 64 {
		return wrapExec("kill", execID, id, fmt.Errorf("signal %d: %w", opts.Signal, sandbox.ErrInvalidSpec))
	}
	b, live, err := d.running("kill in", id)
	if err != nil {
		return err
	}
	ctx, cancel := answering(ctx)
	defer cancel()
	err = live.bridge.KillExec(ctx, execID, opts)
	if errors.Is(err, sandbox.ErrExecNotFound) {
		b.mu.Lock()
		if e := b.execs[execID]; e != nil && !e.doubtful {
			err = sandbox.ErrExecEnded
		}
		b.mu.Unlock()
	}
	return wrapExec("kill", execID, id, b.fate(live, err))
}
