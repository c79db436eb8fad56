package oci_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/tai/sandbox"
)

// cgroupDirs lists the cgroups that an instance's boxes have, in all
// hierarchies, and those of their execs.
func cgroupDirs(t testing.TB, cfg oci.Config) (boxes, execs []string) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		for pattern, found := range map[string]*[]string{"/taibox-%s/*": &boxes, "/taibox-%s/*/exec-*": &execs} {
			names, err := filepath.Glob(root + fmt.Sprintf(pattern, cfg.Instance))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if info, err := os.Stat(name); err == nil && info.IsDir() {
					*found = append(*found, name)
				}
			}
		}
	}
	return boxes, execs
}

// G10: no cgroup outlives its box, whatever the box's commands leave running.
func TestG10Cgroups(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	const boxes = 100
	for i := range boxes {
		id := fmt.Sprintf("b%d", i)
		started(t, d, sandbox.Spec{ID: id, Network: sandbox.NetworkNone})
		for range 2 {
			sh(t, d, id, "setsid sleep 1000 >/dev/null 2>&1 & setsid sh -c 'sleep 1000 & sleep 1000' >/dev/null 2>&1 &")
		}
		if i == 0 {
			if _, execs := cgroupDirs(t, cfg); d.Features().Has(sandbox.FeatureExecCgroup) && len(execs) < 2 {
				t.Errorf("what runs on has the cgroups %v", execs)
			}
		}
		if i%2 == 0 { // one way to end is as good as the other
			if err := d.Stop(t.Context(), id, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if left, execs := cgroupDirs(t, cfg); len(left)+len(execs) > 0 {
		t.Errorf("after %d boxes there are %v %v", boxes, left, execs)
	}
}

// G10: the cgroup of an ended exec goes when the children that it left have.
func TestG10CgroupsOfExecs(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	if !d.Features().Has(sandbox.FeatureExecCgroup) {
		t.Skip("execs have no cgroups")
	}
	const many = 10
	for range many {
		sh(t, d, "b1", "setsid sh -c 'while ! test -e /go; do sleep 0.05; done' >/dev/null 2>&1 &")
	}
	if _, execs := cgroupDirs(t, cfg); len(execs) < many {
		t.Errorf("what runs on has the cgroups %v", execs)
	}
	sh(t, d, "b1", "touch /go")
	waitFor(t, func() bool {
		sh(t, d, "b1", "true")
		_, execs := cgroupDirs(t, cfg)
		return len(execs) <= 1 // the last one's may be going
	}, "the cgroups to go with the children")
}
