package load

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// outside is what lies beside the product and must stay as it is: files, a
// process in a cgroup, the firewall, loop devices.
type outside struct {
	t      *testing.T
	tree   string
	cgroup string
	sleep  *exec.Cmd
	before map[string]string
}

func newOutside(t *testing.T, tree string) *outside {
	t.Helper()
	o := &outside{t: t, tree: tree}
	for _, dir := range []string{"a/b", "taibox", "boxes/c0-1/fs"} {
		if err := os.MkdirAll(filepath.Join(o.tree, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"a/f": 0o640, "a/b/suid": 0o755 | os.ModeSetuid, "boxes/c0-1/box.json": 0o600} {
		path := filepath.Join(o.tree, name)
		if err := os.WriteFile(path, []byte("canary "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, 1234, 4321); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	o.sleep = exec.CommandContext(t.Context(), "sleep", "100000")
	if err := o.sleep.Start(); err != nil {
		t.Fatal(err)
	}
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/unified"); err == nil {
		root += "/unified"
	}
	o.cgroup = filepath.Join(root, fmt.Sprintf("load-canary-%d", os.Getpid()))
	if err := os.Mkdir(o.cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.cgroup+"/cgroup.procs", fmt.Append(nil, o.sleep.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		o.sleep.Process.Kill()
		o.sleep.Wait()
		os.Remove(o.cgroup)
	})
	o.before = o.look()
	return o
}

// ours are tables of the firewall that instances of the product have.
var (
	ours     = regexp.MustCompile(`(?ms)^table \w+ taibox-\w+ \{.*?^\}\n`)
	counters = regexp.MustCompile(`packets \d+ bytes \d+`)
)

func (o *outside) look() map[string]string {
	o.t.Helper()
	has := map[string]string{}
	rules, err := exec.CommandContext(o.t.Context(), "nft", "list", "ruleset").Output()
	if err != nil {
		o.t.Fatal(err)
	}
	has["firewall"] = counters.ReplaceAllString(ours.ReplaceAllString(string(rules), ""), "")
	loops, err := exec.CommandContext(o.t.Context(), "losetup", "-n", "-O", "BACK-FILE", "-a").Output()
	if err != nil {
		o.t.Fatal(err)
	}
	for line := range strings.Lines(string(loops)) { // others may have some too
		if strings.HasPrefix(line, filepath.Dir(filepath.Dir(o.tree))) {
			has["loop devices"] += line
		}
	}
	procs, err := os.ReadFile(o.cgroup + "/cgroup.procs")
	if err != nil {
		o.t.Error(err)
	}
	has["cgroup"] = string(procs)
	err = filepath.WalkDir(o.tree, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		sum := ""
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = fmt.Sprintf("%x", sha256.Sum256(data))
		}
		has[strings.TrimPrefix(path, o.tree)] = fmt.Sprint(info.Mode(), st.Uid, st.Gid, sum, info.ModTime())
		return nil
	})
	if err != nil {
		o.t.Error(err)
	}
	return has
}

// wantUnchanged compares everything with what it was.
func (o *outside) wantUnchanged() {
	o.t.Helper()
	now := o.look()
	if diff := cmp.Diff(o.before, now); diff != "" {
		o.t.Errorf("beside the product something changed (-before +after):\n%s", diff)
	}
	if err := o.sleep.Process.Signal(syscall.Signal(0)); err != nil {
		o.t.Errorf("a foreign process: %v", err)
	}
}
