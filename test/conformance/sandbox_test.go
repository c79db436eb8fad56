package conformance

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/taibox/taibox/tai/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	syscall.Umask(0o077) // the server's
	goleak.VerifyTestMain(m)
}

// driver is one that the suite runs on.
type driver struct {
	name string
	open sandboxtest.Subject
	need func() string // why it cannot run here; empty if it can
	opts []sandboxtest.Option
}

func TestSandbox(t *testing.T) {
	for _, d := range slices.Concat(fakeDrivers(), ociDrivers()) {
		t.Run(d.name, func(t *testing.T) {
			if why := d.need(); why != "" {
				if required(d.name) {
					t.Fatalf("it is required, and cannot run: %s", why)
				}
				t.Skip(why)
			}
			sandboxtest.Run(t, d.open, d.opts...)
		})
	}
}

// required reports whether a driver must not be skipped: TAIBOX_TEST_REQUIRE
// lists those, by the part of their name before the first dash.
func required(name string) bool {
	name, _, _ = strings.Cut(name, "-")
	return slices.Contains(strings.Split(os.Getenv("TAIBOX_TEST_REQUIRE"), ","), name)
}
