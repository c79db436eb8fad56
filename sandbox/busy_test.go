package sandbox_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// slow gives one byte a step, for longer than a box may be idle.
type slow struct {
	r    io.Reader
	step time.Duration
}

func (s *slow) Read(p []byte) (int, error) {
	time.Sleep(s.step)
	return s.r.Read(p[:min(len(p), 1)])
}

// Files on their way in and out keep a box, however slowly they come.
func TestH01SlowTransfers(t *testing.T) {
	const steps = 30 // a minute each, of which a box may be idle for ten
	archive := func(t *testing.T) io.Reader {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		must(t, w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: 1}))
		_, err := w.Write([]byte("x"))
		must(t, err)
		must(t, w.Close())
		return &buf
	}
	for name, use := range map[string]func(*testing.T, *sandbox.Box){
		"upload": func(t *testing.T, b *sandbox.Box) {
			_, err := b.WriteFile(t.Context(), "/tmp/f", &slow{strings.NewReader(strings.Repeat("x", steps)), time.Minute}, sandbox.FileOptions{})
			must(t, err)
		},
		"download": func(t *testing.T, b *sandbox.Box) {
			_, err := b.WriteFile(t.Context(), "/tmp/f", strings.NewReader(strings.Repeat("x", steps)), sandbox.FileOptions{})
			must(t, err)
			r, _, err := b.OpenFile(t.Context(), "/tmp/f", sandbox.FileOptions{})
			must(t, err)
			_, err = io.Copy(io.Discard, &slow{r, time.Minute})
			must(t, err)
			must(t, r.Close())
		},
		"archive_in": func(t *testing.T, b *sandbox.Box) {
			must(t, b.CopyTo(t.Context(), "/tmp", &slow{archive(t), time.Second}, sandbox.FileOptions{})) // 512 bytes and more
		},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, func(t *testing.T) {
				r := newRig(t)
				b := r.create(sessionBox)
				done := make(chan struct{})
				go func() {
					defer close(done)
					use(t, b)
				}()
				for running := true; running; {
					select {
					case <-done:
						running = false
					case <-time.After(time.Minute):
						wantStatus(t, b, taisandbox.StateRunning, "")
					}
				}
				pass(idle - time.Second)
				r.want("x")
				pass(2 * time.Second)
				r.want()
			})
		})
	}
}

// What is in use does not go: nor after an hour of silence, nor for its idle
// time after its end.
func TestH01BusyStays(t *testing.T) {
	const work = 3 * idle
	sleepFor := func(t *testing.T, b *sandbox.Box, cmd ...string) {
		s, err := b.OpenExec(t.Context(), taisandbox.ExecSpec{ID: "e1", Args: cmd})
		must(t, err)
		must(t, s.Close())
	}
	for _, c := range []struct {
		name string
		use  func(*testing.T, *rig, *sandbox.Box) // busy for work from now
		busy string
	}{
		{"silent_exec", func(t *testing.T, _ *rig, b *sandbox.Box) { sleepFor(t, b, "sleep", "1800") }, "exec e1"},
		{"exec_call", func(t *testing.T, _ *rig, b *sandbox.Box) {
			go b.Exec(t.Context(), []string{"sleep", "1800"}, sandbox.WithExecID("e1"))
		}, "exec e1"},
		{"silent_stream", func(t *testing.T, _ *rig, b *sandbox.Box) {
			s, err := b.Stream(t.Context(), []string{"cat"}, sandbox.WithExecID("e1"))
			must(t, err)
			time.AfterFunc(work, func() { s.Stdin.Close() })
		}, "exec e1, stream of exec e1"},
		{"viewer_of_the_entrypoint", func(t *testing.T, _ *rig, b *sandbox.Box) {
			s, err := b.AttachExec(t.Context(), taisandbox.EntrypointExec, taisandbox.AttachOptions{})
			must(t, err)
			time.AfterFunc(work, func() { s.Close() })
		}, "stream of exec entrypoint"},
		{"heartbeat", func(t *testing.T, r *rig, _ *sandbox.Box) {
			r.beat(t, work)
		}, "heartbeat"},
		{"lease", func(t *testing.T, _ *rig, b *sandbox.Box) {
			_, err := b.Lease(work)
			must(t, err)
		}, "lease"},
	} {
		for _, policy := range []sandbox.LifecyclePolicy{sandbox.Session, sandbox.LongRunning} {
			t.Run(c.name+"/"+string(policy), func(t *testing.T) {
				at(t, func(t *testing.T) {
					r := newRig(t)
					entrypoint := []string{"sleep", "infinity"}
					b := r.create(sandbox.CreateOptions{ID: "x", Policy: policy, IdleTimeout: idle, Entrypoint: &entrypoint})
					pass(5 * time.Minute)
					c.use(t, r, b)
					pass(work - time.Second)
					wantStatus(t, b, taisandbox.StateRunning, "")
					info, err := b.Info(t.Context())
					must(t, err)
					if got := strings.Join(info.Busy, ", "); got != c.busy {
						t.Errorf("busy with %q, want %q", got, c.busy)
					}
					pass(idle - 2*time.Second)
					wantStatus(t, b, taisandbox.StateRunning, "")
					pass(10 * time.Second)
					if policy == sandbox.Session {
						r.want()
						return
					}
					wantStatus(t, b, taisandbox.StateStopped, "idle")
					if busy := b.Snapshot().Busy; len(busy) > 0 {
						t.Errorf("stopped, and busy with %v", busy)
					}
				})
			})
		}
	}
}

// beat sends active heartbeats for d, in the background.
func (r *rig) beat(t *testing.T, d time.Duration) {
	t.Helper()
	end := time.Now().Add(d)
	go func() {
		for ; !time.Now().After(end); time.Sleep(30 * time.Second) {
			if err := r.m.Heartbeat("x", true, 3); err != nil {
				t.Error(err)
			}
		}
	}()
}

// A command that the server did not see end, or did not see at all, counts to
// its end.
func TestH01BusyUnseen(t *testing.T) {
	t.Run("restart", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRig(t)
			must(t, open(t, r.create(sessionBox), "sleep", "1800").Close())
			pass(5 * time.Minute)
			r.restart()
			pass(25*time.Minute + idle - time.Second)
			r.want("x")
			pass(3 * time.Second)
			r.want()
		})
	})
	t.Run("ended_while_down", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRig(t)
			must(t, open(t, r.create(sessionBox), "sleep", "300").Close())
			must(t, r.m.Close())
			pass(8 * time.Minute)
			r.m = r.manager()
			pass(7*time.Minute - time.Second)
			r.want("x")
			pass(2 * time.Second)
			r.want()
		})
	})
	t.Run("without_events", func(t *testing.T) {
		at(t, func(t *testing.T) {
			r := newRigOn(t, fake.New(), &hook{events: blind}, sandbox.DefaultConfig())
			must(t, open(t, r.create(sessionBox), "sleep", "1815").Close())
			pass(1815*time.Second + idle - time.Second)
			r.want("x")
			pass(3 * time.Second)
			r.want()
		})
	})
}

// What is not work does not keep a box: its entrypoint, and what an ended
// command left behind. An entrypoint that the caller runs is work.
func TestH01NotBusy(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		entrypoint := []string{"sleep", "infinity"}
		o := sessionBox
		o.Entrypoint = &entrypoint
		b := r.create(o)
		_, err := b.Exec(t.Context(), []string{"spawn", "86400", "1", "session"})
		must(t, err)
		pass(idle + time.Minute)
		r.want()

		o.NoStart = true
		b = r.create(o)
		s, err := b.OpenExec(t.Context(), taisandbox.ExecSpec{ID: taisandbox.EntrypointExec, Entrypoint: true})
		must(t, err)
		must(t, s.Close())
		pass(24 * time.Hour)
		r.want("x")
	})
}

// With KeepAlive the entrypoint and what an ended command left behind keep a
// box, also of a manager that did not see them begin.
func TestH01KeepAlive(t *testing.T) {
	const work = 3 * idle
	entrypoint := []string{"sleep", "1800"}
	o := sessionBox
	o.KeepAlive = true
	withEntrypoint := o
	withEntrypoint.Entrypoint = &entrypoint
	for name, c := range map[string]struct {
		o    sandbox.CreateOptions
		cmd  []string
		busy string
		late time.Duration // what nobody tells the end of is seen when the box is looked at next
	}{
		"entrypoint": {withEntrypoint, []string{"true"}, "exec entrypoint", 0},
		"left":       {o, []string{"spawn", "1800", "1", "session"}, "left by exec e1", idle},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restart=%v", name, restart), func(t *testing.T) {
				at(t, func(t *testing.T) {
					r := newRig(t)
					b := r.create(c.o)
					_, err := b.Exec(t.Context(), c.cmd, sandbox.WithExecID("e1"))
					must(t, err)
					if restart {
						pass(time.Minute)
						r.restart()
						b, err = r.m.Get(t.Context(), "x")
						must(t, err)
					}
					pass(2 * idle)
					info, err := b.Info(t.Context())
					must(t, err)
					if got := strings.Join(info.Busy, ", "); got != c.busy || !info.KeepAlive {
						t.Errorf("busy with %q, want %q; kept alive is %v", got, c.busy, info.KeepAlive)
					}
					pass(work + idle - 3*idle)
					r.want("x")
					pass(idle - 2*time.Minute)
					r.want("x")
					pass(c.late + 2*time.Minute)
					r.want()
				})
			})
		}
	}
	// What is told of as gone counts to then, whoever asked.
	at(t, func(t *testing.T) {
		r := newRig(t)
		b := r.create(o)
		_, err := b.Exec(t.Context(), []string{"spawn", "1195", "1", "session"})
		must(t, err)
		pass(2*idle - 2*time.Second)
		info, err := b.Info(t.Context())
		must(t, err)
		if len(info.Busy) > 0 {
			t.Errorf("busy with %v", info.Busy)
		}
		pass(idle - time.Second)
		r.want("x")
		pass(2 * time.Second)
		r.want()
	})
}

// A lease that nobody ends ends by itself; one that is released is over.
func TestLease(t *testing.T) {
	at(t, func(t *testing.T) {
		r := newRig(t)
		b := r.create(sessionBox)
		release, err := b.Lease(time.Hour)
		must(t, err)
		pass(30 * time.Minute)
		release()
		release()
		if busy := b.Snapshot().Busy; len(busy) > 0 {
			t.Errorf("busy with %v", busy)
		}
		for _, d := range []time.Duration{0, -1, 25 * time.Hour} {
			_, err = b.Lease(d)
			wantErr(t, err, sandbox.ErrInvalidSpec)
		}
		pass(idle + 10*time.Second)
		r.want()
		_, err = b.Lease(time.Hour)
		wantErr(t, err, sandbox.ErrNotFound)
	})
}
