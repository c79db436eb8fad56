package local_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
	"github.com/taibox/taibox/tai/volume/volumetest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == crashArg {
		crashMain(os.Args[2:])
		return
	}
	goleak.VerifyTestMain(m)
}

// required reports whether a test must not be skipped for want of something.
func required(what string) bool {
	return slices.Contains(strings.Split(os.Getenv("TAIBOX_TEST_REQUIRE"), ","), what)
}

// open opens a volume that is unmounted when the test ends.
func open(t testing.TB, cfg local.Config) *local.Volume {
	t.Helper()
	unmount(t, cfg.Dir)
	v, err := local.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

// unmount unmounts what a failed test left, when it ends.
func unmount(t testing.TB, dir string) {
	t.Cleanup(func() {
		mounts, _ := filepath.Glob(filepath.Join(dir, "*", "fs"))
		hidden, _ := filepath.Glob(filepath.Join(dir, ".*", "fs"))
		for _, m := range append(mounts, hidden...) {
			unix.Unmount(m, unix.MNT_DETACH)
		}
	})
}

// create makes a workspace, and returns its files' directory.
func create(t testing.TB, v *local.Volume, id string, o volume.Options) string {
	t.Helper()
	if _, err := v.Create(context.Background(), id, o); err != nil {
		t.Fatal(err)
	}
	dir, err := v.MountPath(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestContract(contract *testing.T) {
	volumetest.Run(contract, func(t *testing.T, dir string) volume.Volume {
		unmount(contract, dir)
		v, err := local.Open(t.Context(), local.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if required("oci") && !v.Features().Has(volume.FeatureQuota) {
			t.Error("no quotas on this machine")
		}
		return v
	})
}
