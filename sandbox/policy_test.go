package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

const (
	idle = 10 * time.Minute
	life = time.Hour
)

var sessionBox = sandbox.CreateOptions{ID: "x", Policy: sandbox.Session, IdleTimeout: idle}

// Every policy in every state, made or recovered, comes to the documented end.
func TestH05PolicyTable(t *testing.T) {
	const never = 24 * time.Hour
	for _, c := range []struct {
		policy        sandbox.LifecyclePolicy
		state         string
		stopped, gone time.Duration // after its last use; 0 = was already
	}{
		{sandbox.Session, "running", idle, idle},
		{sandbox.Session, "stopped", 0, idle},
		{sandbox.Session, "failed", 0, idle},
		{sandbox.LongRunning, "running", idle, life},
		{sandbox.LongRunning, "stopped", 0, life},
		{sandbox.LongRunning, "failed", 0, life},
		{sandbox.Persistent, "running", never, never},
		{sandbox.Persistent, "stopped", 0, never},
		{sandbox.OneShot, "running", 5 * time.Minute, 5 * time.Minute},
	} {
		for _, recovered := range []bool{false, true} {
			if recovered && c.policy == sandbox.OneShot {
				continue // TestH05PolicyAfterRestart
			}
			t.Run(fmt.Sprintf("%s/%s/recovered=%v", c.policy, c.state, recovered), func(t *testing.T) {
				at(t, func(t *testing.T) {
					dir := machineDir(t)
					s := newServer(t, dir)
					b := s.create(sandbox.CreateOptions{ID: "x", Policy: c.policy, IdleTimeout: idle, MaxLifetime: life})
					switch c.state {
					case "stopped":
						must(t, b.Stop(t.Context()))
					case "failed":
						fake.Crash(dir)
						s = newServer(t, dir)
					}
					synctest.Wait()
					spent := time.Duration(0)
					if recovered {
						must(t, s.m.Close())
						pass(time.Minute)
						spent = time.Minute
						s.m = s.manager()
					}
					if c.stopped > 0 {
						pass(c.stopped - spent - time.Second)
						spent = c.stopped - time.Second
						b, err := s.m.Get(t.Context(), "x")
						must(t, err)
						wantStatus(t, b, taisandbox.StateRunning, "")
						if c.gone > c.stopped {
							pass(4 * time.Second)
							spent += 4 * time.Second
							wantStatus(t, b, taisandbox.StateStopped, "idle")
						}
					}
					if c.gone == never {
						return
					}
					pass(c.gone - spent - time.Second)
					s.want("x")
					pass(4 * time.Second)
					s.want()
				})
			})
		}
	}
}

// A label of a version that had other policies is left alone, and a time that
// cannot be is the default.
func TestH05UnknownPolicy(t *testing.T) {
	at(t, func(t *testing.T) {
		h := &hook{infos: func(infos []taisandbox.Info) {
			for i := range infos {
				infos[i].Labels["sandbox-policy"], infos[i].Labels["taibox-idle-timeout"] = "weekly", "soon"
				infos[i].Labels["taibox-stop-timeout"] = (sandbox.MaxStopTimeout + 1).String()
			}
		}}
		r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
		r.create(sessionBox)
		r.restart()
		pass(24 * time.Hour)
		r.want("x")
		b, err := r.m.Get(t.Context(), "x")
		must(t, err)
		if got := b.Snapshot().StopTimeout; got != sandbox.DefaultStopTimeout {
			t.Errorf("stop timeout of %v", got)
		}
	})
}

// Without timeouts nothing ends.
func TestZeroIsNoLimit(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		r.create(sandbox.CreateOptions{ID: "l", Policy: sandbox.LongRunning})
		r.create(sandbox.CreateOptions{ID: "s"})
		pass(30 * 24 * time.Hour)
		r.want("l", "s")
	})
}

// Commands that come as the idle timer fires run, or get an error that says
// why; none dies of it, and what is left is as it says.
func TestH02ExecAtTheLastMoment(t *testing.T) {
	for _, policy := range []sandbox.LifecyclePolicy{sandbox.Session, sandbox.LongRunning} {
		t.Run(string(policy), func(t *testing.T) {
			at(t, func(t *testing.T) {
				delay := func() { time.Sleep(time.Duration(rand.Int64N(int64(time.Millisecond)))) }
				d := fake.New(fake.WithFault(func(op, _ string) error {
					if op == "exec.start" || op == "stop.term" {
						delay()
					}
					return nil
				}))
				h := &hook{execs: func(context.Context, string) error { delay(); return nil }}
				r := newRigOn(t, d, h, sandbox.DefaultConfig())
				const n = 500
				var ran, refused int
				var mu sync.Mutex
				var wg sync.WaitGroup
				for i := range n {
					b := r.create(sandbox.CreateOptions{Policy: policy, IdleTimeout: idle})
					wg.Go(func() {
						time.Sleep(idle - 2*time.Millisecond + time.Duration(i)*4*time.Millisecond/n)
						res, err := b.Exec(t.Context(), []string{"sleep", "5"})
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err == nil:
							ran++
							if res.ExitCode != 0 || b.Snapshot().Status != "running" {
								t.Errorf("code %d (%s) in a box that is %s", res.ExitCode, res.Reason, b.Snapshot().Status)
							}
						case errors.Is(err, sandbox.ErrNotFound) && policy == sandbox.Session:
							refused++
						case errors.Is(err, sandbox.ErrStopping), errors.Is(err, sandbox.ErrRemoving), errors.Is(err, sandbox.ErrNotRunning):
							if refused++; reason.Hint(err) == "" {
								t.Errorf("no hint: %v", err)
							}
						default:
							t.Error(err)
						}
					})
				}
				wg.Wait()
				pass(time.Minute)
				if ran == 0 || refused == 0 || ran+refused != n {
					t.Errorf("%d ran, %d were refused", ran, refused)
				}
				var running int
				for _, id := range r.onNode() {
					info, err := r.d.Inspect(t.Context(), id)
					must(t, err)
					b, err := r.m.Get(t.Context(), id)
					must(t, err)
					if b.Snapshot().Status != string(info.State) {
						t.Errorf("box %s is %s, and said to be %s", id, info.State, b.Snapshot().Status)
					}
					if info.State == taisandbox.StateRunning {
						running++
					}
				}
				if running != ran {
					t.Errorf("%d boxes run, %d commands ran", running, ran)
				}
				pass(idle)
				for _, id := range r.onNode() {
					if info, err := r.d.Inspect(t.Context(), id); err != nil || info.State != taisandbox.StateStopped {
						t.Errorf("box %s: %v, %v", id, info.State, err)
					}
				}
			})
		})
	}
}

// A start of a box that is just being stopped waits, and wins.
func TestH02StartWhileStopping(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		entrypoint := []string{"trap"} // deaf to TERM
		b := r.create(sandbox.CreateOptions{ID: "x", Policy: sandbox.LongRunning, IdleTimeout: idle, StopTimeout: 10 * time.Second, Entrypoint: &entrypoint})
		pass(idle + 5*time.Second)
		wantStatus(t, b, taisandbox.StateStopping, "idle")
		_, err := b.Exec(t.Context(), []string{"true"})
		wantErr(t, err, sandbox.ErrStopping)
		wantErr(t, r.m.Heartbeat("x", true, 1), sandbox.ErrStopping)
		must(t, b.Start(t.Context()))
		_, err = b.Exec(t.Context(), []string{"true"})
		must(t, err)
		pass(idle - time.Second)
		wantStatus(t, b, taisandbox.StateRunning, "")
		pass(time.Minute)
		wantStatus(t, b, taisandbox.StateStopped, "idle")
	})
}

// A session that is needed again as it goes is waited for, and made anew.
func TestH02GetOrCreate(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		entrypoint := []string{"trap"}
		o := sessionBox
		o.StopTimeout, o.Entrypoint = 10*time.Second, &entrypoint
		old := r.create(o)
		pass(idle + 5*time.Second)
		_, err := old.Exec(t.Context(), []string{"true"})
		wantErr(t, err, sandbox.ErrRemoving)
		b, err := r.m.GetOrCreate(t.Context(), with(o))
		must(t, err)
		_, err = b.Exec(t.Context(), []string{"true"})
		must(t, err)
		r.want("x")
	})
}

// A box on which nothing is run goes after its idle time, and not before: the
// time of its create does not count.
func TestH04NeverUsed(t *testing.T) {
	for _, policy := range []sandbox.LifecyclePolicy{sandbox.Session, sandbox.LongRunning} {
		t.Run(string(policy), func(t *testing.T) {
			at(t, func(t *testing.T) {
				r := newRig(t, fake.WithFault(func(op, _ string) error {
					if op == "create.image" {
						time.Sleep(2 * life)
					}
					return nil
				}))
				b := r.create(sandbox.CreateOptions{ID: "x", Policy: policy, IdleTimeout: idle, MaxLifetime: life})
				must(t, r.m.Heartbeat("x", false, 0))
				pass(idle - time.Second)
				wantStatus(t, b, taisandbox.StateRunning, "")
				pass(4 * time.Second)
				if policy == sandbox.Session {
					r.want()
					return
				}
				wantStatus(t, b, taisandbox.StateStopped, "idle")
				pass(life - idle - 10*time.Second)
				r.want("x")
				pass(10 * time.Second)
				r.want()
			})
		})
	}
}

// Looking at a box does not keep it, however often.
func TestH07HousekeepingIsNoActivity(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		b := r.create(sessionBox)
		_, err := b.Exec(t.Context(), []string{"true"}, sandbox.WithExecID("e1"))
		must(t, err)
		for range int(idle/time.Second) - 1 {
			time.Sleep(time.Second)
			_, err := b.Info(t.Context())
			_, err1 := b.Execs(t.Context())
			_, err2 := b.InspectExec(t.Context(), "e1")
			_, err3 := b.Stats(t.Context())
			_, err4 := b.Ports(t.Context())
			_, err5 := b.WaitExec(t.Context(), "e1")
			s, err6 := b.AttachExec(t.Context(), "e1", taisandbox.AttachOptions{NoFollow: true})
			must(t, errors.Join(err, err1, err2, err3, err4, err5, err6, r.m.Heartbeat("x", false, 1)))
			drain(t, s, false)
			must(t, s.Close())
			r.want("x")
		}
		must(t, r.m.Cleanup(t.Context()))
		r.want("x")
		pass(2 * time.Second)
		r.want()
	})
}

// A process that stood still for longer than boxes may be idle gives those who
// use them time to come back.
func TestH08Frozen(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		b := r.create(sandbox.CreateOptions{ID: "used", IdleTimeout: 5 * time.Minute})
		r.create(sandbox.CreateOptions{ID: "unused", IdleTimeout: 5 * time.Minute})
		short := r.create(sandbox.CreateOptions{ID: "short", IdleTimeout: 10 * time.Second, Policy: sandbox.LongRunning, MaxLifetime: 8 * time.Minute})
		oneshot := r.create(sandbox.CreateOptions{ID: "one", Policy: sandbox.OneShot})
		must(t, open(t, oneshot, "true").Close())
		pass(3 * time.Second)
		r.m.Freeze(10 * time.Minute)
		pass(4 * time.Second)
		r.want("used", "unused", "short", "one")
		wantStatus(t, short, taisandbox.StateRunning, "")
		pass(10 * time.Second)
		wantStatus(t, short, taisandbox.StateStopped, "idle")
		pass(30 * time.Second)
		r.want("used", "unused", "short")
		_, err := b.Exec(t.Context(), []string{"true"})
		must(t, err)
		pass(30 * time.Second)
		r.want("used")
		pass(5 * time.Minute)
		r.want()
	})
}

// A wall clock that is an hour off at the recovery reaps nothing at once, and
// keeps nothing for ever.
func TestH08ClockJump(t *testing.T) {
	for name, jump := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				h := &hook{}
				r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
				must(t, open(t, r.create(sessionBox), "sleep", "1").Close())
				pass(time.Minute)
				h.infos = func(infos []taisandbox.Info) {
					for i := range infos {
						for _, at := range []*time.Time{&infos[i].CreatedAt, &infos[i].StartedAt, &infos[i].LastExecAt} {
							*at = at.Add(-jump)
						}
					}
				}
				r.restart()
				pass(50 * time.Second)
				r.want("x")
				pass(idle)
				if jump > 0 {
					r.want()
					return
				}
				pass(time.Minute)
				r.want()
			})
		})
	}
}

// Subscribers are told why, in order, and the box says it too.
func TestPolicyReasons(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		events, err := r.m.Events(ctx)
		must(t, err)
		r.create(sandbox.CreateOptions{ID: "s", Owner: "u", IdleTimeout: idle})
		between := idle + 7*time.Second // sweeps, which may tell of a state before its event does
		r.create(sandbox.CreateOptions{ID: "l", Policy: sandbox.LongRunning, IdleTimeout: between, MaxLifetime: life + 7*time.Second})
		pass(2 * life)
		cancel(nil)
		got := map[string][]string{}
		for e := range events {
			if e.Type == sandbox.EventState || e.Type == sandbox.EventRemoved {
				got[e.Box] = append(got[e.Box], fmt.Sprintf("%s %s %s", e.Type, e.State, e.Reason))
			}
		}
		for id, list := range got {
			got[id] = list[slices.Index(list, "state running user")+1:]
		}
		want := map[string][]string{
			"s": {"state removing idle", "removed removing idle"},
			"l": {"state stopping idle", "state stopped idle", "state removing max-lifetime", "removed removing max-lifetime"},
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}

// Max lifetime ends work too, after its stop timeout, and any policy but
// persistent.
func TestMaxLifetime(t *testing.T) {
	for _, policy := range []sandbox.LifecyclePolicy{sandbox.OneShot, sandbox.Session, sandbox.LongRunning, sandbox.Persistent} {
		t.Run(string(policy), func(t *testing.T) {
			at(t, func(t *testing.T) {
				r := newRig(t)
				b := r.create(sandbox.CreateOptions{ID: "x", Policy: policy, MaxLifetime: life})
				s, err := b.Stream(t.Context(), []string{"trap-exit", "7"})
				must(t, err)
				pass(life - time.Second)
				r.want("x")
				if policy == sandbox.Persistent {
					pass(life)
					r.want("x")
					s.Cancel()
				} else if code, err := s.Wait(); code != 7 || err != nil {
					t.Errorf("ended with %d, %v", code, err)
				}
				synctest.Wait()
				if policy != sandbox.Persistent {
					r.want()
				}
			})
		})
	}
}

// failure is a call to a node that fails until it is healed.
type failure struct{ healed atomic.Bool }

func (f *failure) call(context.Context, string) error {
	if f.healed.Load() {
		return nil
	}
	return errors.New("not now")
}

// A node that does not say whether a box is busy keeps it; a removal that fails
// is tried again, unless the box was used since.
func TestPolicyFailures(t *testing.T) {
	t.Run("unknown", func(t *testing.T) {
		at(t, func(t *testing.T) {
			h, sick := &hook{}, &failure{}
			h.execs = sick.call
			r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
			r.create(sessionBox)
			pass(2 * idle)
			r.want("x")
			sick.healed.Store(true)
			pass(time.Minute)
			r.want()
		})
	})
	t.Run("remove", func(t *testing.T) {
		at(t, func(t *testing.T) {
			h, sick := &hook{}, &failure{}
			h.remove = sick.call
			r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
			b := r.create(sessionBox)
			pass(idle + 10*time.Second)
			sick.healed.Store(true)
			must(t, b.Start(t.Context()))
			pass(idle - time.Second)
			r.want("x")
			pass(10 * time.Second)
			r.want()
		})
	})
	t.Run("stop", func(t *testing.T) {
		at(t, func(t *testing.T) {
			h, sick := &hook{}, &failure{}
			h.stop = sick.call
			r := newRigOn(t, fake.New(), h, sandbox.DefaultConfig())
			b := r.create(sandbox.CreateOptions{ID: "x", Policy: sandbox.LongRunning, IdleTimeout: idle})
			pass(idle + 10*time.Second)
			wantStatus(t, b, taisandbox.StateRunning, "")
			sick.healed.Store(true)
			pass(time.Minute)
			wantStatus(t, b, taisandbox.StateStopped, "idle")
		})
	})
}

// Cleanup does what is due, also in a manager that was not started, and
// returns when it is done.
func TestCleanup(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		must(t, r.m.Close())
		cfg := r.cfg
		cfg.Registry = r.reg
		m, err := sandbox.New(cfg)
		must(t, err)
		r.m = m
		for i := range 200 {
			r.create(sandbox.CreateOptions{ID: fmt.Sprint("b", i), IdleTimeout: idle})
		}
		r.create(sandbox.CreateOptions{ID: "p", Policy: sandbox.Persistent, IdleTimeout: idle})
		must(t, m.Cleanup(t.Context()))
		pass(idle + time.Second)
		if n := len(r.listed()); n != 201 {
			t.Fatalf("%d boxes", n)
		}
		must(t, m.Cleanup(t.Context()))
		r.want("p")
		must(t, m.Close())
		wantErr(t, m.Cleanup(t.Context()), sandbox.ErrClosed)
	})
}

func TestHeartbeat(t *testing.T) {
	r := newRig(t)
	b := r.create(sandbox.CreateOptions{ID: "x"})
	must(t, r.m.Heartbeat("x", true, 7))
	if s := b.Snapshot(); s.ProcessCount != 7 || !slices.Equal(s.Busy, []string{"heartbeat"}) {
		t.Errorf("%d processes, busy with %v", s.ProcessCount, s.Busy)
	}
	must(t, r.m.Heartbeat("x", false, 2))
	if s := b.Snapshot(); s.ProcessCount != 2 || len(s.Busy) > 0 {
		t.Errorf("%d processes, busy with %v", s.ProcessCount, s.Busy)
	}
	wantErr(t, r.m.Heartbeat("x", true, -1), sandbox.ErrInvalidSpec)
	wantErr(t, r.m.Heartbeat("nosuch", true, 1), sandbox.ErrNotFound)
	must(t, b.Remove(t.Context()))
	wantErr(t, r.m.Heartbeat("x", true, 1), sandbox.ErrNotFound)
}

func TestInvalidTimeouts(t *testing.T) {
	r := newRig(t)
	for _, o := range []sandbox.CreateOptions{{IdleTimeout: -1}, {MaxLifetime: -1}, {IdleTimeout: taisandbox.MaxTimeout + 1}, {StopTimeout: sandbox.MaxStopTimeout + 1}} {
		_, err := r.m.Create(t.Context(), with(o))
		wantErr(t, err, sandbox.ErrInvalidSpec)
	}
	r.want()
	b := r.create(sandbox.CreateOptions{StopTimeout: sandbox.MaxStopTimeout})
	wantErr(t, b.StopWithin(t.Context(), sandbox.MaxStopTimeout+1), sandbox.ErrInvalidSpec)
}
