package probe_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/taibox/taibox/internal/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A run on the real machine, whatever it is: every check says something, and
// nothing stays behind.
func TestRun(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "not", "yet", "made")
	names := map[string]bool{}
	for _, c := range probe.Run(t.Context(), probe.Config{DataDir: dir, RunDir: filepath.Join(base, "run")}) {
		t.Logf("%-16s %-4s %s", c.Name, c.Status, c.Detail)
		if c.Name == "" || c.Detail == "" || names[c.Name] {
			t.Errorf("check %+v has no name or detail, or is there twice", c)
		}
		names[c.Name] = true
		switch c.Status {
		case probe.OK:
		case probe.Warn, probe.Fail:
			if c.Status == probe.Fail && c.Fix == "" {
				t.Errorf("check %+v fails and does not say what to do", c)
			}
		default:
			t.Errorf("check %+v has no status", c)
		}
	}
	left, err := os.ReadDir(base)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), base) {
		t.Errorf("a mount below %s was left behind (%v)", base, err)
	}
	if c, err := probe.ReadCgroups(); err == nil && c.Unified != "" {
		if left, _ := filepath.Glob(filepath.Join(c.Unified, "taibox-probe-*")); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// The root tests' machine can do all that boxes need.
func TestRootCanMapAndOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		if strings.Contains(os.Getenv("TAIBOX_TEST_REQUIRE"), "oci") {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := probe.IDMapped(dir); err != nil {
		t.Error(err)
	}
	for _, idMapped := range []bool{false, true} {
		if err := probe.Overlay(dir, idMapped); err != nil {
			t.Errorf("idMapped=%v: %v", idMapped, err)
		}
	}
}

func TestDirectoryThatIsAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := probe.IDMapped(filepath.Join(file, "data")); err == nil {
		t.Error("a data directory below a file was accepted")
	}
}
