package oci

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// mayHaveBegun reports whether an exec whose start failed may run all the same:
// no answer came, but the bridge may have read the request, or read it yet.
// The exec is kept then, until the bridge says whether it knows it.
func (b *box) mayHaveBegun(ctx context.Context, live *liveBox, e *execFile, cause error) bool {
	if ctx.Err() == nil && !errors.Is(cause, sandbox.ErrBridgeLost) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.info.State != sandbox.ExecStarting {
		return true // the bridge has told of it meanwhile
	}
	if b.live != live {
		return b.d.ctx.Err() != nil // the box goes on, and the next driver asks its bridge
	}
	e.doubtful = true
	select {
	case live.doubt <- struct{}{}:
	default:
	}
	return true
}

// inDoubt reports an exec that may have begun or not.
func (b *box) inDoubt(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.execs[id]
	return e != nil && e.doubtful
}

// watchDoubts settles doubtful execs of a live box until its bridge is gone:
// those that an earlier process left, and whenever there are new ones.
func (b *box) watchDoubts(ctx context.Context, live *liveBox) {
	wait := execSettle
	for {
		var again <-chan time.Time
		if err := b.settleExecs(ctx, live); err != nil {
			b.d.log.Debug("asking for execs again", slog.String("box", b.id), slog.Any("err", err))
			again = time.After(wait)
			wait = min(2*wait, execSettleMost)
		} else {
			wait = execSettle
		}
		select {
		case <-live.doubt:
		case <-again:
		case <-live.died:
			return
		case <-ctx.Done():
			return
		}
	}
}

// settleExecs asks the bridge about the doubtful execs. One that it does not
// know never began: whoever asked for it may again.
func (b *box) settleExecs(ctx context.Context, live *liveBox) error {
	select {
	case b.asking <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-b.asking }()
	doubtful := map[string]*execFile{}
	b.mu.Lock()
	for id, e := range b.execs {
		if e.doubtful {
			doubtful[id] = e
		}
	}
	b.mu.Unlock()
	if len(doubtful) == 0 {
		return nil
	}
	ctx, cancel := answering(ctx)
	defer cancel()
	if err := live.bridge.Settle(ctx); err != nil {
		return err
	}
	known, err := live.bridge.ListExecs(ctx)
	if err != nil {
		return err
	}
	for _, info := range known {
		if doubtful[info.ID] != nil {
			b.noteExec(info)
			delete(doubtful, info.ID)
		}
	}
	for _, e := range doubtful {
		b.forgetExec(e)
	}
	return nil
}
