package fake_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/testimage"
	"github.com/taibox/taibox/tai/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine opens a driver on a machine of the test's own. The contract itself is
// tested in test/conformance.
func machine(t *testing.T, opts ...fake.Option) *fake.Driver {
	t.Helper()
	d, err := fake.Open(t.Context(), t.Name(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fake.Wipe(t.Name()) })
	return d
}

func started(t *testing.T, d *fake.Driver, id string) {
	t.Helper()
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: id, Image: sandbox.HostFS}); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

func stream(t *testing.T, d *fake.Driver, spec sandbox.ExecSpec) sandbox.Stream {
	t.Helper()
	s, err := d.ExecStream(t.Context(), "a", spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func states(t *testing.T, d *fake.Driver) string {
	t.Helper()
	infos, err := d.List(t.Context(), sandbox.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, i := range infos {
		out = append(out, i.ID+" "+string(i.State))
	}
	return strings.Join(out, ", ")
}

// TestD05 runs a command without a timeout for a month.
func TestD05NoLimitNobodySet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := fake.New()
		defer d.Close()
		started(t, d, "a")
		began := time.Now()
		s := stream(t, d, sandbox.ExecSpec{Args: []string{"sleep", "720h"}})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		x, err := d.WaitExec(t.Context(), "a", s.ID())
		if err != nil || x.Reason != sandbox.ReasonExit || time.Since(began) != 720*time.Hour {
			t.Errorf("after %v it ended by %s, %v", time.Since(began), x.Reason, err)
		}
	})
}

// TestStalledReader: a reader that acknowledges nothing holds the command back
// for 30 s, and for 30 s after each acknowledgement.
func TestStalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := fake.New()
		defer d.Close()
		started(t, d, "a")
		began := time.Now()
		s := stream(t, d, sandbox.ExecSpec{Args: []string{"yes", "100000"}, MaxLog: 1000})
		for _, acked := range []int64{500, 600} {
			time.Sleep(29 * time.Second)
			if err := s.Ack(acked); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if x, err := d.InspectExec(t.Context(), "a", s.ID()); err != nil || x.Bytes != acked+1000 {
				t.Errorf("after acknowledging %d there are %d bytes, %v", acked, x.Bytes, err)
			}
		}
		x, err := s.Wait(t.Context())
		if err != nil || time.Since(began) != 88*time.Second || x.Bytes != 100000 || x.FirstOffset != 99000 {
			t.Errorf("after %v: %d to %d, %v", time.Since(began), x.FirstOffset, x.Bytes, err)
		}
	})
}

func TestLeaseIsAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := machine(t)
		started(t, d, "a")
		s := stream(t, d, sandbox.ExecSpec{Args: []string{"sleep", "infinity"}, OnDisconnect: sandbox.OnDisconnectKill})
		began := time.Now()
		if err := d.Close(); err != nil { // the link is lost, the client is not
			t.Fatal(err)
		}
		d = machine(t)
		x, err := d.WaitExec(t.Context(), "a", s.ID())
		if err != nil || x.Reason != sandbox.ReasonKilled || time.Since(began) != time.Minute {
			t.Errorf("after %v it ended by %s, %v", time.Since(began), x.Reason, err)
		}
		fake.Wipe(t.Name())
	})
}

// TestG01KilledAtEachStep kills the driver at each step of each call, as often
// as there are steps, and looks at what the next one finds.
func TestG01KilledAtEachStep(t *testing.T) {
	for _, step := range fake.Steps() {
		op, _, _ := strings.Cut(step, ".")
		if !slices.Contains([]string{"create", "start", "stop", "remove"}, op) {
			continue
		}
		t.Run(step, func(t *testing.T) {
			fault, err := fake.Failpoints(step + ":kill")
			if err != nil {
				t.Fatal(err)
			}
			d := machine(t)
			if op != "create" {
				started(t, d, "a")
			}
			if op == "start" {
				if err := d.Stop(t.Context(), "a", 0); err != nil {
					t.Fatal(err)
				}
			}
			d.Close()
			d = machine(t, fake.WithFault(fault))
			switch op {
			case "create":
				_, err = d.Create(t.Context(), sandbox.Spec{ID: "a", Image: sandbox.HostFS})
			case "start":
				err = d.Start(t.Context(), "a")
			case "stop":
				err = d.Stop(t.Context(), "a", time.Hour)
			case "remove":
				err = d.Remove(t.Context(), "a")
			}
			if !errors.Is(err, fake.ErrKilled) {
				t.Fatalf("the error is %v", err)
			}
			if _, err := d.List(t.Context(), sandbox.Filter{}); err == nil {
				t.Error("a killed driver still answers")
			}
			d = machine(t)
			want := map[string][]string{
				"create": {"", "a created"}, "start": {"a stopped", "a running"}, "stop": {"a stopped"}, "remove": {"", "a running"},
			}[op]
			if got := states(t, d); !slices.Contains(want, got) {
				t.Errorf("the next driver finds %q; possible are %q", got, want)
			}
			if err := d.Remove(t.Context(), "a"); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
				t.Error(err)
			}
			started(t, d, "a") // the id is free
		})
	}
}

// TestFailedSteps: a step that fails undoes a create, and can be repeated
// elsewhere.
func TestFailedSteps(t *testing.T) {
	for _, step := range fake.Steps() {
		op, _, _ := strings.Cut(step, ".")
		if !slices.Contains([]string{"create", "start", "stop", "remove"}, op) {
			continue
		}
		t.Run(step, func(t *testing.T) {
			fault, err := fake.Failpoints(step + ":1*error(NO_SPACE)")
			if err != nil {
				t.Fatal(err)
			}
			d := machine(t, fake.WithFault(fault))
			calls := []struct {
				op   string
				call func() error
			}{
				{"create", func() error {
					_, err := d.Create(t.Context(), sandbox.Spec{ID: "a", Image: sandbox.HostFS})
					return err
				}},
				{"start", func() error { return d.Start(t.Context(), "a") }},
				{"stop", func() error { return d.Stop(t.Context(), "a", 0) }},
				{"remove", func() error { return d.Remove(t.Context(), "a") }},
			}
			for _, c := range calls {
				err := c.call()
				if c.op != op {
					if err != nil {
						t.Fatal(err)
					}
					continue
				}
				if !errors.Is(err, sandbox.ErrNoSpace) {
					t.Errorf("the error is %v", err)
				}
				if op == "create" && states(t, d) != "" {
					t.Errorf("a failed create leaves %s", states(t, d))
				}
				if err := c.call(); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
					t.Errorf("the second try gives %v", err)
				}
			}
			if got := states(t, d); got != "" {
				t.Errorf("in the end there is %s", got)
			}
		})
	}
}

func TestCrash(t *testing.T) {
	d := machine(t)
	started(t, d, "a")
	s := stream(t, d, sandbox.ExecSpec{Args: []string{"sleep", "infinity"}})
	res, err := d.Exec(t.Context(), "a", sandbox.ExecSpec{Args: []string{"exit", "3"}})
	if err != nil {
		t.Fatal(err)
	}
	fake.Crash(t.Name())
	if _, err := d.Inspect(t.Context(), "a"); err == nil {
		t.Error("the old driver still answers")
	}
	d = machine(t)
	info, err := d.Inspect(t.Context(), "a")
	if err != nil || info.State != sandbox.StateStopped || info.Reason != fake.ReasonMachineRestarted {
		t.Errorf("the box is %s, %s, %v", info.State, info.Reason, err)
	}
	x, err := d.WaitExec(t.Context(), "a", s.ID())
	if err != nil || x.State != sandbox.ExecLost || x.Reason != sandbox.ReasonLost || x.ExitCode != nil {
		t.Errorf("the exec is %+v, %v", x, err)
	}
	if x, err := d.InspectExec(t.Context(), "a", res.ID); err != nil || *x.ExitCode != 3 {
		t.Errorf("one that ended before is %+v, %v", x, err)
	}
	if err := d.Start(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

func TestBreak(t *testing.T) {
	d := machine(t)
	started(t, d, "a")
	s := stream(t, d, sandbox.ExecSpec{Args: []string{"sleep", "infinity"}})
	if err := d.Break("a", "oom"); err != nil {
		t.Fatal(err)
	}
	if info, err := d.Inspect(t.Context(), "a"); err != nil || info.State != sandbox.StateFailed || info.Reason != "oom" || info.Error == "" {
		t.Errorf("the box is %s, %s, %v", info.State, info.Reason, err)
	}
	if x, err := s.Wait(t.Context()); err != nil || x.State != sandbox.ExecLost {
		t.Errorf("the exec is %s, %v", x.State, err)
	}
	if err := d.Start(t.Context(), "a"); err != nil {
		t.Errorf("a failed box does not start again: %v", err)
	}
	if err := d.Break("none", "oom"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("the error is %v", err)
	}
}

func TestFinishedExecsAreForgotten(t *testing.T) {
	d := machine(t)
	started(t, d, "a")
	first, err := d.Exec(t.Context(), "a", sandbox.ExecSpec{Args: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	running := stream(t, d, sandbox.ExecSpec{Args: []string{"sleep", "infinity"}})
	for range 1100 {
		if _, err := d.Exec(t.Context(), "a", sandbox.ExecSpec{Args: []string{"true"}}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := d.ListExecs(t.Context(), "a")
	if err != nil || len(list) != 1001 || list[0].ID != running.ID() {
		t.Errorf("%d execs are kept, %v", len(list), err)
	}
	if _, err := d.InspectExec(t.Context(), "a", first.ID); !errors.Is(err, sandbox.ErrExecNotFound) {
		t.Errorf("the oldest one is known: %v", err)
	}
}

func TestFailpoints(t *testing.T) {
	fault, err := fake.Failpoints("create.image:2*off->1*error(oops)->error(NO_SPACE)", "list:kill")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, nil, fake.ErrFault, sandbox.ErrNoSpace, sandbox.ErrNoSpace} {
		if got := fault("create.image", "x"); !errors.Is(got, want) {
			t.Errorf("call %d gives %v; wanted is %v", i, got, want)
		}
	}
	if got := fault("list", ""); !errors.Is(got, fake.ErrKilled) {
		t.Errorf("it gives %v", got)
	}
	if got := fault("inspect", ""); got != nil {
		t.Errorf("another step gives %v", got)
	}
	for _, bad := range []string{"", "list", "nosuch:off", "list:", "list:x*off", "list:-1*off", "list:error(", "list:boom"} {
		if _, err := fake.Failpoints(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestWithProgram(t *testing.T) {
	d := machine(t, fake.WithProgram("answer", func(ctx context.Context, p *fake.Proc) int {
		usr1 := p.Notify(syscall.SIGUSR1)
		p.Stdout.Write([]byte(p.Env["Q"] + " " + strings.Join(p.Args, ",")))
		select {
		case <-usr1:
			return 42
		case <-ctx.Done():
			return 0
		}
	}))
	started(t, d, "a")
	s := stream(t, d, sandbox.ExecSpec{Args: []string{"/usr/bin/answer", "x"}, Env: map[string]string{"Q": "why"}})
	c, err := s.Recv()
	if err != nil || string(c.Data) != "why /usr/bin/answer,x" {
		t.Errorf("it printed %q, %v", c.Data, err)
	}
	if err := d.KillExec(t.Context(), "a", s.ID(), sandbox.KillOptions{Signal: int(syscall.SIGUSR1)}); err != nil {
		t.Fatal(err)
	}
	if x, err := s.Wait(t.Context()); err != nil || *x.ExitCode != 42 {
		t.Errorf("it ended with %v, %v", x.ExitCode, err)
	}
}

func TestBusyboxArchive(t *testing.T) {
	im, err := testimage.Busybox("example.test/bb:1", "/bin/echo", "ep")
	if errors.Is(err, testimage.ErrNoBusybox) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err := testimage.OCI(im)
	if err != nil {
		t.Fatal(err)
	}
	d := machine(t)
	if _, err := d.Load(t.Context(), bytes.NewReader(data), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: "a", Image: "example.test/bb:1", NoStart: true}); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{"ep from-cmd\n": nil, "ep x\n": {"x"}} {
		res, err := d.Exec(t.Context(), "a", sandbox.ExecSpec{Entrypoint: true, Args: args})
		if err != nil || string(res.Stdout) != want {
			t.Errorf("with %v it printed %q, %v", args, res.Stdout, err)
		}
	}
	if res, err := d.Exec(t.Context(), "a", sandbox.ExecSpec{Args: []string{"pwd"}}); err != nil || string(res.Stdout) != "/home\n" {
		t.Errorf("the directory is %q, %v", res.Stdout, err)
	}
}

func TestNewEndsWithClose(t *testing.T) {
	d := fake.New()
	started(t, d, "a")
	s := stream(t, d, sandbox.ExecSpec{Args: []string{"sleep", "infinity"}})
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Recv(); err == nil {
		t.Error("its stream goes on")
	}
	// TestMain sees that nothing of it runs any more.
}
