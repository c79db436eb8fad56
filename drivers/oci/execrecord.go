package oci

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/durable"
	"github.com/taibox/taibox/tai/sandbox"
)

// leastLog is what is kept of an exec's output however many others there are.
const leastLog = 1 << 20

// watchExecs keeps the records of a live box's execs until its bridge is gone.
func (b *box) watchExecs(ctx context.Context, live *liveBox) {
	for wait := execSettle; ctx.Err() == nil; wait = min(2*wait, execSettleMost) {
		begun := time.Now()
		w, err := live.bridge.Watch(ctx)
		if err == nil {
			for {
				var info sandbox.ExecInfo
				if info, err = w.Recv(); err != nil {
					break
				}
				b.noteExec(info)
			}
			w.Close() //nolint:errcheck // it has ended
		}
		if time.Since(begun) > execSettleMost {
			wait = execSettle
		}
		select {
		case <-live.died:
			return
		case <-ctx.Done():
			return
		case <-time.After(wait):
			b.d.log.Debug("watching execs again", slog.String("box", b.id), slog.Any("err", err))
		}
	}
}

// noteExec takes in what the bridge says of an exec.
func (b *box) noteExec(info sandbox.ExecInfo) {
	if sandbox.ValidateID(info.ID) != nil {
		return // a bridge is believed in nothing that names files
	}
	info.Box = b.id
	b.mu.Lock()
	e := b.execs[info.ID]
	// Only what the node itself started is kept, and an end is the end,
	// whatever the bridge says of it later.
	if e == nil || e.info.Done() {
		b.mu.Unlock()
		return
	}
	if e.info.Args != nil {
		info.Args = e.info.Args
	}
	news := e.info.State != info.State
	e.info, e.doubtful = info, false
	labels := b.rec.Spec.Labels
	b.mu.Unlock()
	if !news {
		return
	}
	b.keepExec(info)
	b.d.events.publish(sandbox.Event{Type: sandbox.EventExec, Box: b.id, Labels: labels, Exec: &info})
	if info.OOMKills > 0 {
		kills := b.d.cgroups.oomKills(b.id)
		b.mu.Lock()
		b.kills = kills
		b.mu.Unlock()
		b.d.events.publish(sandbox.Event{Type: sandbox.EventOOM, Box: b.id, Labels: labels, Exec: &info})
	}
	if info.Done() {
		b.touch(info.Ended)
		b.returnCgroups()
		b.trimExecs()
	}
}

// execKills counts the OOM kills that befell execs since a moment. Each exec
// has all those of the box in its time, so that of execs that ran at once those
// count that one of them has, or that ended them.
func (b *box) execKills(since time.Time) int64 {
	var hit []sandbox.ExecInfo
	b.mu.Lock()
	for _, e := range b.execs {
		if !e.info.Started.Before(since) && e.info.OOMKills > 0 {
			hit = append(hit, e.info)
		}
	}
	b.mu.Unlock()
	slices.SortFunc(hit, func(x, y sandbox.ExecInfo) int { return x.Started.Compare(y.Started) })
	var kills, most, ended int64
	var until time.Time
	for _, e := range hit {
		if e.Started.After(until) {
			kills, most, ended = kills+max(most, ended), 0, 0
		}
		if e.Ended.After(until) {
			until = e.Ended
		}
		most = max(most, e.OOMKills)
		if e.Reason == sandbox.ReasonOOM {
			ended++
		}
	}
	return kills + max(most, ended)
}

// keepExec writes a record, so that the exec is known after the box is gone. A power cut ends the box too, so the disk is
// not waited for. On a full disk it stays in memory, and in
// the bridge's for as long as the box runs.
func (b *box) keepExec(info sandbox.ExecInfo) {
	if err := durable.NoteJSON(b.d.execPath(b.id, info.ID, ".json"), info); err != nil {
		b.d.log.Warn("record of exec is kept in memory only", slog.String("box", b.id), slog.String("exec", info.ID), slog.Any("err", err))
	}
}

// returnCgroups removes the cgroups of ended execs of which nothing runs. One
// with children that live on is tried again when the next exec ends, and goes
// with the box at last.
func (b *box) returnCgroups() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.execs {
		if e.cgroup == "" || !e.info.Done() {
			continue
		}
		if err := unix.Rmdir(e.cgroup); err == nil || errors.Is(err, unix.ENOENT) {
			e.cgroup = ""
		}
	}
}

// loadExecs reads the kept records.
func (b *box) loadExecs() {
	dir := filepath.Join(b.d.boxDir(b.id), "execs")
	b.d.sweepTemporary(dir)
	for _, name := range list(dir) {
		id, isLog := strings.CutSuffix(name, ".log")
		var info sandbox.ExecInfo
		if isLog {
			if _, known := b.execs[id]; !known && sandbox.ValidateID(id) == nil {
				// The earlier process may have ended before it told the bridge.
				b.execs[id] = &execFile{
					info: sandbox.ExecInfo{ID: id, Box: b.id, State: sandbox.ExecStarting}, cgroup: b.d.cgroups.execDir(b.id, id), doubtful: true,
					logLimit: sandbox.DefaultMaxLog,
				}
			}
			continue
		}
		id, isRecord := strings.CutSuffix(name, ".json")
		if !isRecord || sandbox.ValidateID(id) != nil {
			continue
		}
		if err := durable.ReadJSON(filepath.Join(dir, name), &info); err != nil {
			b.d.log.Warn("record of exec cannot be read", slog.String("box", b.id), slog.String("exec", id), slog.Any("err", err))
			continue
		}
		b.execs[id] = &execFile{info: info, cgroup: b.d.cgroups.execDir(b.id, id), logLimit: sandbox.DefaultMaxLog}
	}
}

// loseExecs closes the records of execs whose end nobody saw.
func (b *box) loseExecs() {
	b.mu.Lock()
	var lost []sandbox.ExecInfo
	for _, e := range b.execs {
		if !e.info.Done() {
			e.info.State, e.info.Reason = sandbox.ExecLost, sandbox.ReasonLost
			e.info.Ended, e.doubtful = time.Now().UTC(), false
			lost = append(lost, e.info)
		}
	}
	labels := b.rec.Spec.Labels
	b.mu.Unlock()
	for _, info := range lost {
		b.d.events.publish(sandbox.Event{Type: sandbox.EventExec, Box: b.id, Labels: labels, Exec: &info})
		b.keepExec(info)
	}
}

// logLimitLocked is how much output of a new exec is kept: what was asked for,
// within what the box's running execs leave of its share of the disk. The
// default leaves some to those that come later.
func (b *box) logLimitLocked(asked int64) int64 {
	left := b.d.cfg.KeepExecBytes
	for _, e := range b.execs {
		if !e.info.Done() {
			left -= e.logLimit
		}
	}
	if asked == 0 {
		return max(min(sandbox.DefaultMaxLog, left/2), leastLog)
	}
	return min(asked, max(left, leastLog))
}

// leastKept is how many finished execs are kept however much running ones
// write: whoever waits for one that has just ended is to find it.
const leastKept = 8

// trimExecs drops the oldest finished execs beyond what is kept. What running
// ones have written counts too.
func (b *box) trimExecs() {
	keepExecs, keepBytes := b.d.cfg.KeepExecs, b.d.cfg.KeepExecBytes
	b.mu.Lock()
	var finished []*execFile
	var running []string
	var bytes int64
	for id, e := range b.execs {
		if e.info.Done() {
			finished = append(finished, e)
			bytes += e.info.Bytes - e.info.FirstOffset
		} else {
			running = append(running, id)
		}
	}
	b.mu.Unlock()
	for _, id := range running {
		var st unix.Stat_t
		if err := unix.Stat(b.d.execPath(b.id, id, ".log"), &st); err == nil {
			bytes += st.Blocks * 512
		}
	}
	if len(finished) <= keepExecs && bytes <= keepBytes {
		return
	}
	slices.SortFunc(finished, func(x, y *execFile) int { return x.info.Ended.Compare(y.info.Ended) })
	for i, e := range finished {
		if left := len(finished) - i; left <= keepExecs && (bytes <= keepBytes || left <= leastKept) {
			return
		}
		bytes -= e.info.Bytes - e.info.FirstOffset
		b.forgetExec(e)
	}
}

// forgetExec drops an exec that does not run, everywhere.
func (b *box) forgetExec(e *execFile) {
	b.mu.Lock()
	live := b.live
	b.mu.Unlock()
	if live != nil {
		ctx, cancel := context.WithTimeoutCause(b.d.ctx, drainTimeout, sandbox.ErrBridgeLost)
		defer cancel()
		if err := live.bridge.ForgetExec(ctx, e.info.ID); err != nil && !errors.Is(err, sandbox.ErrExecNotFound) {
			b.d.log.Warn("exec is not forgotten", slog.String("box", b.id), slog.String("exec", e.info.ID), slog.Any("err", err))
		}
	}
	if err := b.dropExec(e); err != nil {
		b.d.log.Warn("files of exec are left", slog.String("box", b.id), slog.String("exec", e.info.ID), slog.Any("err", err))
	}
}

// dropExec deletes what the node has of an exec. Its ID is free only when its
// files are gone.
func (b *box) dropExec(e *execFile) error {
	err := b.removeExecFiles(e)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.execs[e.info.ID] == e {
		delete(b.execs, e.info.ID)
	}
	return err
}

// removeExecFiles deletes what an exec has on disk and its cgroup.
func (b *box) removeExecFiles(e *execFile) error {
	var errs []error
	for _, ext := range []string{".log", ".json"} {
		if err := os.Remove(b.d.execPath(b.id, e.info.ID, ext)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if e.cgroup != "" {
		errs = append(errs, removeCgroup(e.cgroup))
	}
	return errors.Join(errs...)
}
