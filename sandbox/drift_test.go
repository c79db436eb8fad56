package sandbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// One box that hangs, or a whole node, holds nobody else up.
func TestC04HangingBox(t *testing.T) {
	at(t, func(t *testing.T) {
		var hang atomic.Bool
		answer := func(ctx context.Context, id string) error {
			if !hang.Load() || id == "other" {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		h := &hook{inspect: answer, list: func(ctx context.Context) error { return answer(ctx, "") }}
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		hangs := r.create(sandbox.CreateOptions{ID: "hangs"})
		hang.Store(true)
		pass(time.Minute) // a sweep hangs, too
		run, err := hangs.Stream(t.Context(), []string{"sleep", "infinity"})
		must(t, err)

		began := time.Now()
		r.listed()
		info, err := hangs.Info(t.Context())
		must(t, err)
		if info.Status != "running" {
			t.Errorf("it is %s", info.Status)
		}
		other := r.create(sandbox.CreateOptions{ID: "other"})
		_, err = other.Exec(t.Context(), []string{"true"})
		must(t, err)
		must(t, other.Remove(t.Context()))
		if d := time.Since(began); d >= time.Second {
			t.Errorf("it took %v", d)
		}
		run.Cancel()
	})
}

// A removal that did not happen is not reported as one, and is not forgotten.
func TestG13DeleteLies(t *testing.T) {
	at(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		h := &hook{remove: func(context.Context, string) error {
			if down.Load() {
				return errdefs.ErrUnavailable
			}
			return nil
		}}
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		b := r.create(sandbox.CreateOptions{ID: "x"})
		wantErr(t, b.Remove(t.Context()), errdefs.ErrUnavailable)
		r.want("x")
		down.Store(false)
		pass(2 * time.Minute)
		r.want()
	})
}

func TestG14Drift(t *testing.T) {
	lost := func(t *testing.T, r *rig, b *sandbox.Box) {
		t.Helper()
		wantStatus(t, b, taisandbox.StateFailed, "lost")
		_, err := b.Exec(t.Context(), []string{"true"})
		wantErr(t, err, sandbox.ErrLost)
		wantErr(t, b.Start(t.Context()), sandbox.ErrLost)
		must(t, b.Remove(t.Context()))
		r.want()
	}
	t.Run("event", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRig(t)
			b := r.create(sandbox.CreateOptions{ID: "x"})
			must(t, r.d.Remove(t.Context(), "x"))
			synctest.Wait()
			lost(t, r, b)
		})
	})
	t.Run("sweep", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRigOn(t, fake.New(), &hook{events: blind}, sandbox.DefaultConfig())
			b := r.create(sandbox.CreateOptions{ID: "x"})
			must(t, r.d.Remove(t.Context(), "x"))
			synctest.Wait()
			wantStatus(t, b, taisandbox.StateRunning, "")
			pass(time.Minute)
			lost(t, r, b)
		})
	})
	t.Run("use", func(t *testing.T) {
		r := newRigOn(t, fake.New(), &hook{events: blind}, sandbox.DefaultConfig())
		b := r.create(sandbox.CreateOptions{ID: "x"})
		must(t, r.d.Remove(t.Context(), "x"))
		_, err := b.Exec(t.Context(), []string{"true"})
		wantErr(t, err, sandbox.ErrLost)
		lost(t, r, b)
	})
	// The ID has come to somebody else's box, which our handle never means.
	t.Run("replaced", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRig(t)
			b := r.create(sandbox.CreateOptions{ID: "x"})
			must(t, r.d.Remove(t.Context(), "x"))
			_, err := r.d.Create(t.Context(), taisandbox.Spec{ID: "x", Image: "hostfs"})
			must(t, err)
			synctest.Wait()
			wantStatus(t, b, taisandbox.StateFailed, "lost")
			must(t, b.Remove(t.Context()))
			if _, err := r.d.Inspect(t.Context(), "x"); err != nil {
				t.Error(err)
			}
		})
	})
}

// Removes, stops, the end of its one command and its max lifetime befall a box
// at the same instant.
func TestG16StopRacesRemove(t *testing.T) {
	for range 20 {
		at(t, raceToTheEnd)
	}
}

func raceToTheEnd(t *testing.T) {
	r := newRig(t)
	b := r.create(sandbox.CreateOptions{ID: "x", Policy: sandbox.OneShot, MaxLifetime: time.Minute})
	events, err := r.m.Events(t.Context())
	must(t, err)
	time.Sleep(time.Minute) // and not a moment longer
	for _, err := range parallel(60, func(i int) error {
		switch i % 3 {
		case 0:
			return b.Remove(t.Context())
		case 1:
			return b.Stop(t.Context())
		}
		_, err := b.Exec(t.Context(), []string{"true"})
		if errors.Is(err, sandbox.ErrRemoving) || errors.Is(err, sandbox.ErrNotRunning) || errors.Is(err, sandbox.ErrExecLost) {
			return nil
		}
		return err
	}) {
		if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			t.Error(err)
		}
	}
	r.want()
	must(t, r.m.Close())
	removed := 0
	for ev := range events {
		if ev.Type == sandbox.EventRemoved {
			removed++
		}
	}
	if removed != 1 {
		t.Errorf("it was removed %d times", removed)
	}
}

// The node's word that a box does not run repairs what we believed.
func TestG17StaleRunning(t *testing.T) {
	r := newRigOn(t, fake.New(), &hook{events: blind}, sandbox.DefaultConfig())
	b := r.create(sandbox.CreateOptions{ID: "x"})
	must(t, r.d.Break("x", "bridge-lost"))
	wantStatus(t, b, taisandbox.StateRunning, "")
	_, err := b.Exec(t.Context(), []string{"true"})
	wantErr(t, err, sandbox.ErrNotRunning)
	wantStatus(t, b, taisandbox.StateFailed, "bridge-lost")
	must(t, b.Stop(t.Context()))
	must(t, b.Start(t.Context()))
	wantStatus(t, b, taisandbox.StateRunning, "")
}

func TestStopStart(t *testing.T) {
	r := newRig(t)
	b := r.create(sandbox.CreateOptions{ID: "x"})
	_, err := b.Exec(t.Context(), []string{"write", "/tmp/f", "kept"})
	must(t, err)
	must(t, b.Stop(t.Context()))
	wantStatus(t, b, taisandbox.StateStopped, "user")
	must(t, b.Stop(t.Context()))
	_, err = b.Exec(t.Context(), []string{"true"})
	wantErr(t, err, sandbox.ErrNotRunning)
	must(t, b.Start(t.Context()))
	must(t, b.Start(t.Context()))
	wantStatus(t, b, taisandbox.StateRunning, "")
	res, err := b.Exec(t.Context(), []string{"cat", "/tmp/f"})
	must(t, err)
	if res.Stdout != "kept\n" {
		t.Errorf("got %q", res.Stdout)
	}
	wantErr(t, b.StopWithin(t.Context(), -1), sandbox.ErrInvalidSpec)
}

// Looking is not activity; using is.
func TestLastActive(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		b := r.create(sandbox.CreateOptions{ID: "x"})
		last := b.Snapshot().LastActive
		pass(time.Minute)
		_, err := b.Info(t.Context())
		must(t, err)
		r.listed()
		pass(time.Minute)
		if now := b.Snapshot().LastActive; !now.Equal(last) {
			t.Errorf("housekeeping moved it by %v", now.Sub(last))
		}
		_, err = b.Exec(t.Context(), []string{"sleep", "30"})
		must(t, err)
		if idle := time.Since(b.Snapshot().LastActive); idle != 0 {
			t.Errorf("idle for %v after an exec", idle)
		}
		pass(time.Minute)
		r.restart()
		b, err = r.m.Get(t.Context(), "x")
		must(t, err)
		if idle := time.Since(b.Snapshot().LastActive); idle != time.Minute {
			t.Errorf("idle for %v after a restart", idle)
		}
	})
}
