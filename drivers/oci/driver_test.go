package oci_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/tai/sandbox"
)

func TestMain(m *testing.M) {
	syscall.Umask(0o077) // the server's
	if job := os.Getenv("TAIBOX_CRASH_JOB"); job != "" {
		os.Exit(crashJob(job))
	}
	goleak.VerifyTestMain(m)
}

// machine skips a test where the driver cannot run, or fails it where it must.
func machine(t testing.TB) {
	t.Helper()
	missing := ""
	if os.Geteuid() != 0 {
		missing = "root is needed"
	}
	for _, p := range []string{"taibox-runc", "taibox-bridge"} {
		if _, err := os.Stat(filepath.Join(binDir(), p)); err != nil {
			missing = err.Error() + " (make build)"
		}
	}
	if missing == "" {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("TAIBOX_TEST_REQUIRE"), ","), "oci") {
		t.Fatal(missing)
	}
	t.Skip(missing)
}

func binDir() string {
	if dir := os.Getenv("TAIBOX_BIN"); dir != "" {
		return dir
	}
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		panic(err)
	}
	return dir
}

// config is an instance of its own for a test.
func config(t testing.TB, instance string) oci.Config {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	return configAt(data, instance)
}

func configAt(data, instance string) oci.Config {
	return oci.Config{
		DataDir: data, Instance: instance, PoolSize: 2,
		RuncPath: filepath.Join(binDir(), "taibox-runc"), BridgePath: filepath.Join(binDir(), "taibox-bridge"),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

func open(t testing.TB, cfg oci.Config) *oci.Driver {
	t.Helper()
	d, err := oci.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// instanceOf makes an instance id that no other test of this run has.
func instanceOf(t testing.TB) string {
	t.Helper()
	return sandbox.NewID("")[:8]
}

// traces is everything that an instance's boxes have on the machine.
func traces(t testing.TB, cfg oci.Config) []string {
	t.Helper()
	var out []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		point := strings.Fields(line)[4]
		if strings.Contains(point, "/run/taibox/"+cfg.Instance+"/b/") && !strings.Contains(point, "/pool-") {
			out = append(out, "mount "+point)
		}
	}
	cgroups, _ := cgroupDirs(t, cfg)
	out = append(out, cgroups...)
	for _, pattern := range []string{"/run/taibox/%s/runc/*", "/run/taibox/%s/b/*"} {
		found, err := filepath.Glob(fmt.Sprintf(pattern, cfg.Instance))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if !strings.Contains(f, "/pool-") {
				out = append(out, f)
			}
		}
	}
	boxes, err := filepath.Glob(filepath.Join(cfg.DataDir, "boxes", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return append(out, boxes...)
}

func wantNoTraces(t testing.TB, cfg oci.Config) {
	t.Helper()
	if left := traces(t, cfg); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// dismantle removes what an instance has on the machine after the last driver.
func dismantle(t testing.TB, cfg oci.Config) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.Background()
		d, err := oci.Open(ctx, cfg)
		if err != nil {
			t.Errorf("open for clean-up: %v", err)
			return
		}
		infos, err := d.List(ctx, sandbox.Filter{})
		if err != nil {
			t.Error(err)
		}
		for _, i := range infos {
			if err := d.Remove(ctx, i.ID); err != nil {
				t.Error(err)
			}
		}
		if err := d.Dismantle(ctx); err != nil {
			t.Error(err)
		}
		wantNoTraces(t, cfg)
	})
}

func started(t testing.TB, d *oci.Driver, spec sandbox.Spec) {
	t.Helper()
	if spec.Image == "" {
		spec.Image = sandbox.HostFS
	}
	if _, err := d.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
}

func sh(t testing.TB, d *oci.Driver, id, script string) sandbox.ExecResult {
	t.Helper()
	res, err := d.Exec(t.Context(), id, sandbox.ExecSpec{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func code(res sandbox.ExecResult) int {
	if res.ExitCode == nil {
		return -1
	}
	return *res.ExitCode
}

func TestRunsCode(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	res := sh(t, d, "b1", "echo out; echo err >&2; exit 7")
	if string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" || code(res) != 7 || res.Reason != sandbox.ReasonExit {
		t.Fatalf("%q %q %d %s", res.Stdout, res.Stderr, code(res), res.Reason)
	}
	if err := d.Stop(t.Context(), "b1", time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Exec(t.Context(), "b1", sandbox.ExecSpec{Args: []string{"true"}}); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Fatalf("exec in a stopped box: %v", err)
	}
	if err := d.Start(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	wantNoTraces(t, cfg)
}

// The phases of a box are those of its create: how long a later start takes
// says nothing about that.
func TestPhasesAreTheCreates(t *testing.T) {
	d, _ := box(t, sandbox.Spec{})
	phases := func() []sandbox.Phase {
		t.Helper()
		info, err := d.Inspect(t.Context(), "b1")
		if err != nil {
			t.Fatal(err)
		}
		return info.Phases
	}
	before := phases()
	for _, name := range []string{"image", "record", "namespaces", "rootfs", "runtime", "bridge"} {
		if !slices.ContainsFunc(before, func(p sandbox.Phase) bool { return p.Name == name }) {
			t.Errorf("%s is not in %v", name, before)
		}
	}
	if err := d.Stop(t.Context(), "b1", 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	if after := phases(); !slices.Equal(before, after) {
		t.Errorf("after another start %v, before %v", after, before)
	}
}

// A machine's processes are never signalled on the strength of a pid that
// another process has by now.
func TestForeignProcessIsNotSignalled(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	// The box dies while nobody looks, and its pid goes to somebody else.
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		sleep.Process.Kill()
		sleep.Wait()
	}()
	file := filepath.Join(cfg.DataDir, "boxes", "b1", "box.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := replacePID(string(data), sleep.Process.Pid)
	if changed == string(data) {
		t.Fatal("no pid in the record")
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateFailed || info.Reason != "lost" {
		t.Errorf("state %s, reason %s, %v", info.State, info.Reason, err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", sleep.Process.Pid)); err != nil {
		t.Error("a foreign process was killed")
	}
}

func replacePID(record string, pid int) string {
	const key = `"pid":`
	i := strings.Index(record, key)
	if i < 0 {
		return record
	}
	end := i + len(key)
	for end < len(record) && record[end] >= '0' && record[end] <= '9' {
		end++
	}
	return record[:i] + fmt.Sprintf(`%s%d`, key, pid) + record[end:]
}
