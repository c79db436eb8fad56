package oci_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/internal/testimage"
	"github.com/taibox/taibox/tai/sandbox"
)

// workspaceDir is a directory as a volume has it: below one that is closed to
// all but root.
func workspaceDir(t testing.TB) string {
	t.Helper()
	closed, err := filepath.EvalSymlinks(t.TempDir())
	if err == nil {
		err = os.Chmod(closed, 0o700)
	}
	dir := filepath.Join(closed, "data")
	if err == nil {
		err = errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)) // whatever the umask
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func inWorkspace(dir, target string) []sandbox.Mount {
	return []sandbox.Mount{{Source: dir, Target: target, Workspace: "ws-test"}}
}

func mustSh(t testing.TB, d *oci.Driver, id, script string) string {
	t.Helper()
	res := sh(t, d, id, script)
	if code(res) != 0 {
		t.Fatalf("%s: ended with %d: %s%s", script, code(res), res.Stdout, res.Stderr)
	}
	return string(res.Stdout)
}

// K01: an image whose user is not root, and what is made with which mode on
// either side.
func TestK01WorkspaceOfAnImagesUser(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	for name, user := range map[string]string{"number": "10001", "name": "user", "group": "10001:33"} {
		im, err := testimage.Busybox("example.test/" + name + ":1")
		if err != nil {
			t.Fatal(err)
		}
		im.Config.User = user
		archive, err := testimage.OCI(im)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Load(t.Context(), bytes.NewReader(archive), ""); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			dir := workspaceDir(t)
			put := func(name string, mode os.FileMode) {
				t.Helper()
				path := filepath.Join(dir, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte("outside\n"), mode), os.Chmod(path, mode)); err != nil {
					t.Fatal(err)
				}
			}
			put("a/b/c.txt", 0o640)
			put("private", 0o600)
			id := "k01-" + name
			started(t, d, sandbox.Spec{ID: id, Image: im.Name, Mounts: inWorkspace(dir, "/workspace")})
			mustSh(t, d, id, `cd /workspace && test $(id -u) != 0 &&
				test "$(cat a/b/c.txt private)" = "outside
outside" && echo inside >>a/b/c.txt && mkdir a/b/beside && rm private &&
				umask 077 && echo secret >a/b/beside/key && chmod 600 a/b/beside/key &&
				test $(stat -c %a a/b/c.txt) = 640 && test $(stat -c %u:%g a) = $(id -u):$(id -g)`)
			for name, want := range map[string]string{"a/b/c.txt": "outside\ninside\n", "a/b/beside/key": "secret\n"} {
				var st unix.Stat_t
				data, err := os.ReadFile(filepath.Join(dir, name))
				if err == nil {
					err = unix.Stat(filepath.Join(dir, name), &st)
				}
				if err != nil || string(data) != want || st.Uid != 0 || st.Gid != 0 {
					t.Errorf("outside %s is %q of %d:%d, %v", name, data, st.Uid, st.Gid, err)
				}
			}
			// Root inside is not the owner outside, and nothing is without one.
			res, err := d.Exec(t.Context(), id, sandbox.ExecSpec{Args: []string{"sh", "-c", "echo r >/workspace/by-root; stat -c %u /workspace/by-root"}, User: "0"})
			if err != nil || string(res.Stdout) != "0\n" {
				t.Errorf("root's file belongs to %q, %v", res.Stdout, err)
			}
			if out := mustSh(t, d, id, "stat -c %u /workspace/by-root; echo more >/workspace/mine; rm /workspace/by-root"); out != "0\n" {
				t.Errorf("to its user root's file belongs to %q", out)
			}
			if err := d.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	wantNoTraces(t, cfg)
}

func TestWorkspaceOfAnImpossibleUser(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	for user, want := range map[string]error{"nobody-knows": sandbox.ErrUserNotFound, "70000": sandbox.ErrInvalidSpec} {
		dir := workspaceDir(t)
		if _, err := d.Create(t.Context(), sandbox.Spec{ID: "b1", Image: sandbox.HostFS, User: user, Mounts: inWorkspace(dir, "/workspace")}); err != nil {
			t.Fatal(err)
		}
		if err := d.Start(t.Context(), "b1"); !errors.Is(err, want) {
			t.Errorf("start as %s: %v; wanted is %v", user, err, want)
		}
		if err := d.Remove(t.Context(), "b1"); err != nil {
			t.Error(err)
		}
	}
	wantNoTraces(t, cfg)
}

// What is mounted below the directory on the machine, before or afterwards, is
// not seen inside, and nothing of the mount stays on the machine.
func TestMountIsAlone(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	dir := workspaceDir(t)
	for _, sub := range []string{"before", "after"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cover := func(sub string) {
		t.Helper()
		path := filepath.Join(dir, sub)
		if err := unix.Mount("cover", path, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
		if err := os.WriteFile(filepath.Join(path, "secret"), []byte("of the machine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cover("before")
	started(t, d, sandbox.Spec{ID: "b1", Mounts: inWorkspace(dir, "/data")})
	cover("after")
	if out := mustSh(t, d, "b1", "cd /data && ls before after"); strings.Contains(out, "secret") {
		t.Errorf("inside there is %q", out)
	}
	for _, opt := range []string{"nosuid", "nodev"} {
		if out := mustSh(t, d, "b1", "grep ' /data ' /proc/mounts"); !strings.Contains(out, opt) {
			t.Errorf("the mount has no %s: %s", opt, out)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte("/run/taibox/"+cfg.Instance+"/b/b1/mounts/")) {
		t.Errorf("the machine sees the mount: %v", err)
	}
	// The directory can be taken away on the machine while a box has it.
	if err := errors.Join(unix.Unmount(filepath.Join(dir, "before"), 0), unix.Unmount(filepath.Join(dir, "after"), 0)); err != nil {
		t.Error(err)
	}
}

// TestMountOfTheMachine: numbers are the same on both sides.
func TestMountOfTheMachine(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	dir := workspaceDir(t)
	file := filepath.Join(dir, "of1234")
	if err := errors.Join(os.WriteFile(file, []byte("x"), 0o600), os.Chown(file, 1234, 1234)); err != nil {
		t.Fatal(err)
	}
	started(t, d, sandbox.Spec{ID: "b1", User: "1000", Mounts: []sandbox.Mount{{Source: dir, Target: "/data"}}})
	if out := mustSh(t, d, "b1", "stat -c %u /data/of1234 /data"); out != "1234\n0\n" {
		t.Errorf("inside they belong to %q", out)
	}
	if res := sh(t, d, "b1", "echo x >/data/new"); code(res) == 0 {
		t.Error("another user wrote into a directory of uid 0")
	}
}

// TestMountOfNoIDMap: a file system that cannot be id-mapped is named.
func TestMountOfNoIDMap(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	dir := workspaceDir(t)
	if err := unix.Mount("ram", dir, "ramfs", 0, ""); err != nil {
		t.Skip(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: "b1", Image: sandbox.HostFS, Mounts: inWorkspace(dir, "/data")}); err != nil {
		t.Fatal(err)
	}
	err := d.Start(t.Context(), "b1")
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "ramfs") {
		t.Errorf("start: %v", err)
	}
	if err := d.Remove(t.Context(), "b1"); err != nil {
		t.Error(err)
	}
	wantNoTraces(t, cfg)
}

// watchScript prints what inotify tells of a directory.
const watchScript = `import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init()
if libc.inotify_add_watch(fd, b"/data", 0x100 | 0x8 | 0x80) < 0: sys.exit(1)
print("ready", flush=True)
while True:
    data = os.read(fd, 4096)
    while data:
        _, _, _, n = struct.unpack("iIII", data[:16])
        print(data[16:16+n].rstrip(b"\0").decode(), flush=True)
        data = data[16+n:]
`

// TestWatchBothWays: inotify tells inside of what is done outside, and the
// other way round.
func TestWatchBothWays(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	dir := workspaceDir(t)
	started(t, d, sandbox.Spec{ID: "b1", User: "1000", Mounts: inWorkspace(dir, "/data")})
	if code(sh(t, d, "b1", "command -v python3")) != 0 {
		t.Skip("no python3 on this machine")
	}
	s, err := d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{Args: []string{"python3", "-c", watchScript}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		var text []byte
		for {
			c, err := s.Recv()
			if err != nil {
				return
			}
			text = append(text, c.Data...)
			for {
				line, rest, found := bytes.Cut(text, []byte("\n"))
				if !found {
					break
				}
				lines <- string(line)
				text = rest
			}
		}
	}()
	await := func(want string) {
		t.Helper()
		limit := time.After(30 * time.Second)
		for {
			select {
			case got, open := <-lines:
				if got == want {
					return
				}
				if !open {
					t.Fatalf("the watcher ended before %q", want)
				}
			case <-limit:
				t.Fatalf("inside nobody was told of %q", want)
			}
		}
	}
	await("ready")
	if err := os.WriteFile(filepath.Join(dir, "from-outside"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	await("from-outside")

	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CLOSE_WRITE); err != nil {
		t.Fatal(err)
	}
	mustSh(t, d, "b1", "echo x >/data/from-inside")
	if err := f.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := f.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) || !bytes.Contains(buf[:n], []byte("from-inside")) {
		t.Errorf("outside there came %q, %v", buf[:n], err)
	}
	if err := d.KillExec(t.Context(), "b1", s.ID(), sandbox.KillOptions{Signal: 9}); err != nil {
		t.Error(err)
	}
	for range lines { // until its end
	}
}
