package sandbox_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func (r *rig) oneShot() *sandbox.Box {
	r.t.Helper()
	return r.create(sandbox.CreateOptions{ID: "x", Policy: sandbox.OneShot})
}

func open(t *testing.T, b *sandbox.Box, cmd ...string) taisandbox.Stream {
	t.Helper()
	s, err := b.OpenExec(t.Context(), taisandbox.ExecSpec{ID: "e1", Args: cmd})
	must(t, err)
	return s
}

// drain reads a stream to its end, and acknowledges if ack is set.
func drain(t *testing.T, s taisandbox.Stream, ack bool) {
	t.Helper()
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		if ack {
			must(t, s.Ack(c.End()))
		}
	}
}

// A oneshot box is gone when its command's call returns, whichever call and
// however it went.
func TestOneShotEnds(t *testing.T) {
	exec := func(opts ...sandbox.ExecOption) func(*testing.T, *sandbox.Box) {
		return func(t *testing.T, b *sandbox.Box) {
			if _, err := b.Exec(t.Context(), []string{"true"}, opts...); err != nil && len(opts) == 0 {
				t.Error(err)
			}
		}
	}
	for name, use := range map[string]func(*testing.T, *sandbox.Box){
		"exec":         exec(),
		"no_such_user": exec(sandbox.WithUser("nosuch")),
		"invalid":      exec(sandbox.WithTimeout(-1)),
		"missing": func(t *testing.T, b *sandbox.Box) {
			res, err := b.Exec(t.Context(), []string{"nosuch"})
			must(t, err)
			if res.ExitCode != 127 {
				t.Errorf("code %d", res.ExitCode)
			}
		},
		"stream": func(t *testing.T, b *sandbox.Box) {
			s, err := b.Stream(t.Context(), []string{"echo", "hi"})
			must(t, err)
			out, err := io.ReadAll(s.Stdout)
			must(t, err)
			if _, err := s.Wait(); err != nil || string(out) != "hi\n" {
				t.Errorf("got %q, %v", out, err)
			}
		},
		"stream_unread": func(t *testing.T, b *sandbox.Box) {
			s, err := b.Stream(t.Context(), []string{"echo", "hi"})
			must(t, err)
			_, err = s.Wait()
			must(t, err)
			out, err := io.ReadAll(s.Stdout)
			if err != nil || string(out) != "hi\n" {
				t.Errorf("got %q, %v", out, err)
			}
		},
		"stream_no_such_dir": func(t *testing.T, b *sandbox.Box) {
			_, err := b.Stream(t.Context(), []string{"true"}, sandbox.WithWorkDir("/nosuch"))
			wantErr(t, err, sandbox.ErrDirNotFound)
		},
		"open_exec": func(t *testing.T, b *sandbox.Box) {
			s := open(t, b, "echo", "hi")
			drain(t, s, true)
			must(t, s.Close())
		},
		"hangup": func(t *testing.T, b *sandbox.Box) {
			s, err := b.OpenExec(t.Context(), taisandbox.ExecSpec{Args: []string{"sleep", "infinity"}, OnDisconnect: taisandbox.OnDisconnectKill})
			must(t, err)
			must(t, s.Hangup())
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				r := newRig(t)
				use(t, r.oneShot())
				r.want()
			})
		})
	}
}

// A stream that is closed before its end leaves the output for another reader,
// for a minute after the command's end.
func TestOneShotLease(t *testing.T) {
	t.Run("nobody_comes", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRig(t)
			must(t, open(t, r.oneShot(), "sleep", "600").Close())
			pass(10*time.Minute + 59*time.Second)
			r.want("x")
			pass(2 * time.Second)
			r.want()
		})
	})
	t.Run("not_acknowledged", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRig(t)
			s := open(t, r.oneShot(), "echo", "hi")
			drain(t, s, false)
			must(t, s.Close())
			pass(59 * time.Second)
			r.want("x")
			pass(2 * time.Second)
			r.want()
		})
	})
	t.Run("another_comes", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRig(t)
			b := r.oneShot()
			must(t, open(t, b, "echo", "hi").Close())
			pass(30 * time.Second)
			s, err := b.AttachExec(t.Context(), "e1", taisandbox.AttachOptions{Hold: true})
			must(t, err)
			pass(time.Hour)
			r.want("x")
			drain(t, s, true)
			r.want("x")
			must(t, s.Close())
			r.want()
		})
	})
	t.Run("a_viewer_does_not_count", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRig(t)
			b := r.oneShot()
			must(t, open(t, b, "echo", "hi").Close())
			v, err := b.AttachExec(t.Context(), "e1", taisandbox.AttachOptions{})
			must(t, err)
			drain(t, v, true)
			must(t, v.Close())
			r.want("x")
			pass(time.Minute)
			r.want()
		})
	})
}

// A oneshot box on which nothing is run does not live for ever (H04), and the
// time of its create does not count.
func TestH04OneShotUnused(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t, fake.WithFault(func(op, _ string) error {
			if op == "create.image" {
				time.Sleep(time.Hour)
			}
			return nil
		}))
		r.oneShot()
		pass(5*time.Minute - time.Second)
		r.want("x")
		pass(2 * time.Second)
		r.want()
	})
}

// Each policy comes to the end that is documented, also after a restart.
func TestH05PolicyAfterRestart(t *testing.T) {
	for _, c := range []struct {
		policy sandbox.LifecyclePolicy
		run    []string
		stop   bool
		after  time.Duration // gone after; 0 = never
	}{
		{sandbox.OneShot, nil, false, time.Minute},
		{sandbox.OneShot, nil, true, time.Minute},
		{sandbox.OneShot, []string{"true"}, false, time.Minute},
		{sandbox.OneShot, []string{"sleep", "300"}, false, 6 * time.Minute},
		{sandbox.OneShot, []string{"sleep", "300"}, true, time.Minute},
		{sandbox.Session, []string{"true"}, false, 0},
		{sandbox.LongRunning, nil, false, 0},
		{sandbox.Persistent, []string{"true"}, true, 0},
	} {
		name := string(c.policy)
		if c.run != nil {
			name += "_" + c.run[0]
		}
		if c.stop {
			name += "_stopped"
		}
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				r := newRig(t)
				b := r.create(sandbox.CreateOptions{ID: "x", Policy: c.policy})
				if c.run != nil {
					open(t, b, c.run...) // and the server dies before its end
				}
				synctest.Wait()
				must(t, r.m.Close())
				if c.stop {
					must(t, r.d.Stop(t.Context(), "x", 0))
				}
				r.m = r.manager()
				if c.after == 0 {
					pass(24 * time.Hour)
					r.want("x")
					return
				}
				pass(c.after - time.Second)
				r.want("x")
				pass(2 * time.Second)
				r.want()
			})
		})
	}
}

// The end of a oneshot box's command is noticed although its event was lost.
func TestOneShotWithoutEvents(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRigOn(t, fake.New(), &hook{events: blind}, sandbox.DefaultConfig())
		must(t, open(t, r.oneShot(), "sleep", "90").Close())
		pass(2*time.Minute + 59*time.Second)
		r.want("x")
		pass(2 * time.Second)
		r.want()
	})
}

// An entrypoint that the caller runs is the command; one that runs by itself
// is not.
func TestOneShotEntrypoint(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		e := []string{"sleep", "600"}
		b := r.create(sandbox.CreateOptions{ID: "x", Policy: sandbox.OneShot, Entrypoint: &e, NoStart: true})
		_, err := b.OpenExec(t.Context(), taisandbox.ExecSpec{ID: taisandbox.EntrypointExec, Entrypoint: true})
		must(t, err)
		r.restart()
		pass(9 * time.Minute)
		r.want("x")
		pass(3 * time.Minute)
		r.want()

		r.create(sandbox.CreateOptions{ID: "y", Policy: sandbox.OneShot, Entrypoint: &e})
		r.restart()
		pass(time.Minute)
		r.want()
	})
}
