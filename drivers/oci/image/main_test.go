package image_test

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(loadAndDieDir); dir != "" {
		loadForever(dir)
	}
	goleak.VerifyTestMain(m)
}

// need skips a test that the environment cannot run, unless it is required.
func need(t *testing.T, what string, ok bool, why string) {
	t.Helper()
	if ok {
		return
	}
	if strings.Contains(os.Getenv("TAIBOX_TEST_REQUIRE"), what) {
		t.Fatalf("%s is required: %s", what, why)
	}
	t.Skip(why)
}

func needRoot(t *testing.T) {
	t.Helper()
	need(t, "oci", os.Geteuid() == 0, "needs root")
}
