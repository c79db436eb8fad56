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

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/tai/sandbox"
)

// noteSize is the room of the note that a box leaves which ends itself. It is
// filled when the file is made, so that a full disk does not keep the note out.
const noteSize = 32

// endNote is where a box writes why it ended itself, while no server ran.
func (d *Driver) endNote(id string) string { return filepath.Join(d.boxDir(id), "end") }

// makeEndNote makes the note of a new run, empty.
func (d *Driver) makeEndNote(id string) (*os.File, error) {
	f, err := os.OpenFile(d.endNote(id), os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, noSpace(err)
	}
	if _, err := f.Write(make([]byte, noteSize)); err != nil {
		return nil, errors.Join(noSpace(err), f.Close())
	}
	return f, nil
}

// ownEnd returns why a box has ended itself, or "". The note comes from inside
// the box: it may choose between the two things that it could have done.
func (d *Driver) ownEnd(id string) string {
	f, err := os.Open(d.endNote(id))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("note of a box's end cannot be read", slog.String("box", id), slog.Any("err", err))
		}
		return ""
	}
	defer f.Close()
	var buf [noteSize]byte
	n, _ := f.ReadAt(buf[:], 0)
	why := strings.TrimRight(string(buf[:n]), "\x00")
	if !slices.Contains([]string{bridge.EndOrphan, bridge.EndLifetime}, why) {
		return ""
	}
	return why
}

// left is what remains of a box's max lifetime; 0 for a box without one.
func (r *record) left() time.Duration {
	if r.Spec.MaxLifetime == 0 {
		return 0
	}
	return max(time.Until(r.CreatedAt.Add(r.Spec.MaxLifetime)), time.Nanosecond)
}

// renewSetup tells the bridge of a run that was found again what this server
// does differently. One that does not answer goes on with what it was told.
func (b *box) renewSetup(ctx context.Context, live *liveBox) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, sandbox.ErrBridgeLost)
	defer cancel()
	live.jobs.Go(func() {
		defer cancel()
		select {
		case <-live.died:
		case <-ctx.Done():
		}
	})
	if _, err := live.bridge.Setup(ctx, bridge.Setup{Box: b.id, OrphanAfter: b.d.cfg.OrphanAfter}); err != nil && ctx.Err() == nil {
		b.d.log.Info("bridge keeps its settings", slog.String("box", b.id), slog.Any("err", err))
	}
}
