package oci_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/tai/sandbox"
)

// box opens a fresh instance with one running box of the built-in image.
func box(t *testing.T, spec sandbox.Spec) (*oci.Driver, oci.Config) {
	t.Helper()
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	spec.ID = "b1"
	started(t, d, spec)
	return d, cfg
}

func python(t testing.TB, d *oci.Driver, id, script string) sandbox.ExecResult {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3 on this machine")
	}
	res, err := d.Exec(t.Context(), id, sandbox.ExecSpec{Args: []string{"/usr/bin/python3", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestUserNamespace(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	started(t, d, sandbox.Spec{ID: "b2"})
	seen := map[string]bool{}
	for _, id := range []string{"b1", "b2"} {
		f := strings.Fields(string(sh(t, d, id, "cat /proc/self/uid_map /proc/self/gid_map").Stdout))
		if len(f) != 6 || f[0] != "0" || f[1] == "0" || f[2] != "65536" || f[1] != f[4] {
			t.Fatalf("map of %s: %v", id, f)
		}
		if seen[f[1]] {
			t.Errorf("both boxes have host id %s", f[1])
		}
		seen[f[1]] = true
	}
	// On disk, files have the numbers that they have inside.
	sh(t, d, "b1", "touch /mine && chown 1234:5678 /mine && chmod 640 /mine")
	info, err := os.Lstat(filepath.Join(cfg.DataDir, "boxes/b1/fs/upper/mine"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 5678 || info.Mode().Perm() != 0o640 {
		t.Errorf("on disk: %d:%d %v", st.Uid, st.Gid, info.Mode())
	}
	if res := sh(t, d, "b1", "unshare -U true"); code(res) == 0 {
		t.Error("a user namespace can be made inside")
	}
	if out := string(sh(t, d, "b1", "cat /proc/sys/user/max_user_namespaces").Stdout); out != "0\n" {
		t.Errorf("max_user_namespaces = %q", out)
	}
}

func TestHardening(t *testing.T) {
	d, _ := box(t, sandbox.Spec{})
	for _, c := range []struct{ name, script, want string }{
		{"seccomp", "awk '/^Seccomp:/{print $2}' /proc/self/status", "2"},
		{"no-new-privileges", "awk '/^NoNewPrivs:/{print $2}' /proc/self/status", "1"},
		{"capabilities-bounded", "awk '/^CapBnd:/{print $2}' /proc/self/status", "00000000800405fb"},
		{"mount", "mount -t tmpfs x /mnt 2>/dev/null || echo refused", "refused"},
		{"device-nodes", "mknod /tmp/m b 7 0 2>/dev/null || echo refused", "refused"},
		{"kernel-log", "cat /dev/kmsg >/dev/null 2>&1 || echo refused", "refused"},
		{"sysrq", "(echo b >/proc/sysrq-trigger) 2>/dev/null || echo refused", "refused"},
		{"sysctl", "(echo 1 >/proc/sys/kernel/panic) 2>/dev/null || echo refused", "refused"},
		{"kcore", "head -c 1 /proc/kcore 2>/dev/null | wc -c", "0"},
		{"sys-read-only", "touch /sys/x 2>/dev/null || echo refused", "refused"},
		{"machine-usr-read-only", "touch /usr/bin/x 2>/dev/null || echo refused", "refused"},
		{"no-cgroup-files", "ls /sys/fs/cgroup | wc -l", "0"},
		{"own-processes-only", "ls -d /proc/[0-9]* | wc -l | awk '{print ($1<8)?\"few\":\"many\"}'", "few"},
		{"bridge-memory", "for f in environ maps mem stack; do cat /proc/1/$f >/dev/null 2>&1 && echo $f; done; ls /proc/1/fd >/dev/null 2>&1 && echo fd; echo end", "end"},
		{"bridge-survives-root", "for s in HUP QUIT SEGV ABRT TERM INT USR1 STOP KILL; do kill -$s 1 2>/dev/null; done; sleep 0.1; echo alive", "alive"},
		{"shadow", "cat /etc/shadow 2>/dev/null | wc -c", "0"},
		{"root-home", "ls -A /root | wc -l", "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := strings.TrimSpace(string(sh(t, d, "b1", c.script).Stdout)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	for _, family := range []string{"AF_VSOCK", "AF_ALG", "AF_PACKET"} {
		res := python(t, d, "b1", "import socket; socket.socket(socket."+family+", socket.SOCK_RAW if '"+family+"'=='AF_PACKET' else socket.SOCK_SEQPACKET if '"+family+"'=='AF_ALG' else socket.SOCK_STREAM)")
		if code(res) == 0 {
			t.Errorf("%s opens", family)
		}
	}
	res, err := d.Exec(t.Context(), "b1", sandbox.ExecSpec{Args: []string{"awk", "/^CapEff:/{print $2}", "/proc/self/status"}, User: "1000"})
	if err != nil || strings.TrimSpace(string(res.Stdout)) != "0000000000000000" {
		t.Errorf("a user other than root has capabilities %q, %v", res.Stdout, err)
	}
}

// What everybody may read of the machine's /usr is seen, and nothing else.
func TestHostFSShowsNoSecrets(t *testing.T) {
	machine(t)
	secret := "/usr/local/share/taibox-test-secret"
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(secret)
	sock := "/usr/local/share/taibox-test.sock"
	os.Remove(sock)
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(sock, 0o777); err != nil {
		t.Fatal(err)
	}
	d, _ := box(t, sandbox.Spec{})
	if res := sh(t, d, "b1", "cat "+secret); code(res) == 0 {
		t.Errorf("a private file of the machine was read: %q", res.Stdout)
	}
	if res := python(t, d, "b1", "import socket; socket.socket(socket.AF_UNIX).connect('"+sock+"')"); code(res) == 0 {
		t.Error("a socket of the machine was reached")
	}
}

// The server's umask, which is for its own files, is not the boxes'.
func TestUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	d, _ := box(t, sandbox.Spec{WorkDir: "/srv/made/here"})
	res, err := d.Exec(t.Context(), "b1", sandbox.ExecSpec{
		Args: []string{"sh", "-ec", "pwd; cat /etc/hosts /etc/resolv.conf /etc/passwd >/dev/null; ls /etc/ssl >/dev/null; touch /workspace/x; umask"}, User: "1000",
	})
	if err != nil || string(res.Stdout) != "/srv/made/here\n0022\n" {
		t.Errorf("%q %q %v", res.Stdout, res.Stderr, err)
	}
}

// Other users of the machine get at no box's files.
func TestOtherUsersOfTheMachine(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	sh(t, d, "b1", "echo secret >/tmp/f; chmod 644 /tmp/f; cp /bin/sh /tmp/sh; chmod 4755 /tmp/sh")
	root := "/run/taibox/" + cfg.Instance + "/b/b1/rootfs"
	if _, err := os.Stat(root + "/tmp/f"); err != nil {
		t.Fatal(err)
	}
	nobody := exec.Command("/bin/ls", root, cfg.DataDir)
	nobody.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := nobody.CombinedOutput(); err == nil || strings.Count(string(out), "Permission denied") != 2 {
		t.Errorf("another user lists %s", out)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(root, &st); err != nil || st.Flags&syscall.MS_NOSUID == 0 || st.Flags&syscall.MS_NODEV == 0 {
		t.Errorf("mount flags %#x, %v", st.Flags, err)
	}
}

// Devices come by CDI name, with what their specification says of them.
func TestDevices(t *testing.T) {
	machine(t)
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip(err)
	}
	name := "taibox-test-" + instanceOf(t)
	file := "/etc/cdi/" + name + ".json"
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	spec := fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":"taibox.test/%s","devices":[{"name":"d","containerEdits":{"deviceNodes":[{"path":"/dev/fuse"}],"env":["FROM_DEVICE=yes"]}}]}`, name)
	if err := os.WriteFile(file, []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file)
	d, _ := box(t, sandbox.Spec{Devices: []string{"taibox.test/" + name + "=d"}})
	if out := string(sh(t, d, "b1", "test -c /dev/fuse && echo $FROM_DEVICE").Stdout); out != "yes\n" {
		t.Errorf("got %q", out)
	}
	_, err := d.Create(t.Context(), sandbox.Spec{ID: "b2", Image: sandbox.HostFS, Devices: []string{"taibox.test/" + name + "=none"}})
	if !errors.Is(err, sandbox.ErrInvalidSpec) || !strings.Contains(err.Error(), "none") {
		t.Errorf("an unknown device: %v", err)
	}
}

func waitFor(t *testing.T, ok func() bool, what string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

// A07: out of memory is told apart from every other end.
func TestA07OutOfMemory(t *testing.T) {
	d, _ := box(t, sandbox.Spec{MemoryBytes: 64 << 20})
	if !d.Features().Has(sandbox.FeatureMemoryLimit) {
		t.Skip("no memory controller")
	}
	leader := python(t, d, "b1", "b=bytearray(400<<20)")
	if code(leader) != 137 || leader.Reason != sandbox.ReasonOOM {
		t.Errorf("leader: code %d, reason %s", code(leader), leader.Reason)
	}
	child := sh(t, d, "b1", `python3 -c 'b=bytearray(400<<20)'; echo still here`)
	if code(child) != 0 || child.Reason != sandbox.ReasonExit || child.OOMKills == 0 || string(child.Stdout) != "still here\n" {
		t.Errorf("child: code %d, reason %s, %d kills, %q", code(child), child.Reason, child.OOMKills, child.Stdout)
	}
	killed := sh(t, d, "b1", "kill -9 $$")
	if code(killed) != 137 || killed.Reason != sandbox.ReasonSignal {
		t.Errorf("a kill from inside: code %d, reason %s", code(killed), killed.Reason)
	}
	if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.OOMKills < 2 || info.State != sandbox.StateRunning {
		t.Errorf("box: %d kills, %s, %v", info.OOMKills, info.State, err)
	}
}

// A07: a box whose PID 1 is the victim says so, whether or not anybody looked.
func TestA07PID1IsTheVictim(t *testing.T) {
	for _, closed := range []bool{false, true} {
		t.Run(fmt.Sprintf("closed-%t", closed), func(t *testing.T) {
			d, cfg := box(t, sandbox.Spec{MemoryBytes: 64 << 20})
			if !d.Features().Has(sandbox.FeatureMemoryLimit) {
				t.Skip("no memory controller")
			}
			const script = `
import os,signal
signal.pthread_sigmask(signal.SIG_BLOCK,[signal.SIGUSR1])
print("waits",flush=True)
signal.sigwait([signal.SIGUSR1])
for i in range(8): # none of which is large
    if os.fork()==0: break
b=bytearray(20<<20)
signal.pause()
`
			s, err := d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{ID: "eater", Args: []string{"/usr/bin/python3", "-c", script}, OnDisconnect: sandbox.OnDisconnectKeep})
			if err != nil {
				t.Fatal(err)
			}
			if c, err := s.Recv(); err != nil || string(c.Data) != "waits\n" {
				t.Fatalf("%q, %v", c.Data, err)
			}
			s.Close()
			// The kernel takes PID 1 before the one that eats.
			init := pid1(t, cfg, "b1")
			eater := childOf(t, init)
			for pid, score := range map[int]string{init: "1000", eater: "0"} {
				if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(score), 0); err != nil {
					t.Fatal(err)
				}
			}
			if closed {
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := syscall.Kill(eater, syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			if closed {
				waitFor(t, func() bool { return errors.Is(syscall.Kill(init, 0), syscall.ESRCH) }, "PID 1 to be killed")
				d = open(t, cfg)
			}
			var info sandbox.Info
			waitFor(t, func() bool {
				info, err = d.Inspect(t.Context(), "b1")
				return err == nil && info.State == sandbox.StateFailed
			}, "the box to fail")
			if info.Reason != "oom" || info.OOMKills == 0 || info.Error == "" {
				t.Errorf("the box failed for %s, %d kills, %q", info.Reason, info.OOMKills, info.Error)
			}
			if e, err := d.InspectExec(t.Context(), "b1", "eater"); err != nil || e.State != sandbox.ExecLost || e.Reason != sandbox.ReasonLost {
				t.Errorf("its exec is %s, %s, %v", e.State, e.Reason, err)
			}
			if err := d.Start(t.Context(), "b1"); err != nil {
				t.Errorf("it does not start again: %v", err)
			}
		})
	}
}

// childOf is the one child of a process.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var children []int
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for child := range strings.FieldsSeq(string(data)) {
			n, err := strconv.Atoi(child)
			if err != nil {
				t.Fatal(err)
			}
			children = append(children, n)
		}
	}
	if len(children) != 1 {
		t.Fatalf("process %d has the children %v", pid, children)
	}
	return children[0]
}

// L04: a fork bomb leaves room to look and to stop.
func TestL04ForkBomb(t *testing.T) {
	for name, bomb := range map[string][]string{
		"dies":  {"sh", "-c", "b() { b | b & }; b; sleep 600"},
		"holds": {"/usr/bin/python3", "-c", holdingBomb},
	} {
		t.Run(name, func(t *testing.T) {
			d, cfg := box(t, sandbox.Spec{Pids: 40})
			started(t, d, sandbox.Spec{ID: "b2", Pids: 40})
			s, err := d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{Args: bomb})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			waitFor(t, func() bool { return refusedForks(t, cfg, "b1") > 0 }, "the bomb to go off")
			lookInto(t, d, "b1")
			if res := sh(t, d, "b2", "echo ok"); string(res.Stdout) != "ok\n" {
				t.Errorf("a neighbour says %q", res.Stdout)
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the bomb keeps the box from being stopped"))
			defer cancel()
			if err := d.Stop(ctx, "b1", time.Second); err != nil {
				t.Error(err)
			}
			if info, err := d.Inspect(t.Context(), "b1"); err != nil || info.State != sandbox.StateStopped || info.Reason != "user" {
				t.Errorf("the box is %s, %s, %v", info.State, info.Reason, err)
			}
		})
	}
}

// holdingBomb forks for as long as it may, and tries again and again to take
// what becomes free.
const holdingBomb = `
import os,time
while True:
    try:
        if os.fork()==0: pass
    except OSError: time.sleep(.001)
`

// L04: room for one process or a few is not room for all that a call needs.
func TestL04FewProcessesLeft(t *testing.T) {
	const almost = `
import os,signal,sys
kids=[]
while True:
    try: pid=os.fork()
    except OSError: break
    if pid==0: signal.pause()
    kids.append(pid)
for i in range(int(sys.argv[1])):
    pid=kids.pop(); os.kill(pid,9); os.waitpid(pid,0)
print("full",flush=True)
signal.pause()
`
	d, _ := box(t, sandbox.Spec{Pids: 40})
	for left := range 5 {
		s, err := d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{Args: []string{"/usr/bin/python3", "-c", almost, strconv.Itoa(left)}})
		if err != nil {
			t.Fatal(err)
		}
		if c, err := s.Recv(); err != nil || string(c.Data) != "full\n" {
			t.Fatalf("%q, %v", c.Data, err)
		}
		lookInto(t, d, "b1")
		if err := d.KillExec(t.Context(), "b1", s.ID(), sandbox.KillOptions{Tree: true, Signal: 9}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
}

// lookInto runs commands and reads files in a box with no room for processes:
// each succeeds or says why not, and the box goes on.
func lookInto(t *testing.T, d *oci.Driver, id string) {
	t.Helper()
	const many = 20
	errs := make(chan error, 2*many)
	for range many {
		go func() {
			_, err := d.Exec(t.Context(), id, sandbox.ExecSpec{Args: []string{"true"}})
			errs <- err
			r, _, err := d.ReadFile(t.Context(), id, "/etc/hostname", sandbox.FileOptions{})
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				err = errors.Join(err, r.Close())
			}
			errs <- err
		}()
	}
	refused := 0
	for range 2 * many {
		switch err := <-errs; {
		case errors.Is(err, sandbox.ErrProcessLimit):
			refused++
		case err != nil:
			t.Errorf("with no room for processes: %v", err)
		}
	}
	t.Logf("%d of %d were refused", refused, 2*many)
	if info, err := d.Inspect(t.Context(), id); err != nil || info.State != sandbox.StateRunning {
		t.Errorf("the box is %s, %s, %s, %v", info.State, info.Reason, info.Error, err)
	}
}

// refusedForks counts how often a box's limit of processes was met.
func refusedForks(t *testing.T, cfg oci.Config, id string) (n int) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/taibox-%s/%s/pids.events", "/sys/fs/cgroup/pids/taibox-%s/%s/pids.events"} {
		data, err := os.ReadFile(fmt.Sprintf(pattern, cfg.Instance, id))
		if err != nil {
			continue
		}
		if _, err := fmt.Sscanf(string(data), "max %d", &n); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		return n
	}
	t.Fatal("the box has no cgroup that counts")
	return 0
}

func TestOtherLimits(t *testing.T) {
	d, _ := box(t, sandbox.Spec{OpenFiles: 100, CPUs: 0.5, ReadOnly: true, Tmpfs: []string{"/scratch"}, Hostname: "box.example", ExtraHosts: []string{"db:11.0.0.5"}})
	for _, c := range []struct{ script, want string }{
		{"ulimit -n", "100"},
		{"touch /x 2>/dev/null || echo refused", "refused"},
		{"touch /tmp/x /scratch/x && echo ok", "ok"},
		{"hostname", "box.example"},
		{"awk '/db/{print $1}' /etc/hosts", "11.0.0.5"},
		{"ulimit -c", "0"},
	} {
		if got := strings.TrimSpace(string(sh(t, d, "b1", c.script).Stdout)); got != c.want {
			t.Errorf("%s: got %q, want %q", c.script, got, c.want)
		}
	}
}

// Several instances on one machine leave each other alone.
func TestInstances(t *testing.T) {
	d1, _ := box(t, sandbox.Spec{})
	d2, cfg2 := box(t, sandbox.Spec{})
	if err := d2.Remove(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	wantNoTraces(t, cfg2)
	if res := sh(t, d1, "b1", "echo here"); string(res.Stdout) != "here\n" {
		t.Errorf("the other instance's box says %q", res.Stdout)
	}
}
