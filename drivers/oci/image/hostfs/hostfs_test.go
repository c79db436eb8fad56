package hostfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/drivers/oci/image/hostfs"
	"github.com/taibox/taibox/tai/sandbox"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if strings.Contains(os.Getenv("TAIBOX_TEST_REQUIRE"), "oci") {
		t.Fatal("oci is required: needs root")
	}
	t.Skip("needs root")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, name, data string, mode fs.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.WriteFile(name+".new", []byte(data), 0o600))
	must(t, os.Chmod(name+".new", mode))
	must(t, os.Rename(name+".new", name))
}

// machine makes a small machine with secrets.
func machine(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "a:b,c\\d e")
	for name, mode := range map[string]fs.FileMode{
		"etc/protocols": 0o644, "etc/ssl/certs/ca.crt": 0o644, "etc/java-17/conf/tool": 0o755, "etc/python3/site.py": 0o600, "etc/hosts": 0o644,
		"etc/ssl/private/key.pem": 0o644, "etc/shadow": 0o640, "etc/passwd": 0o644, "etc/ssh/ssh_host_key": 0o600, "etc/sudoers": 0o444, "etc/pip.conf": 0o644,
		"etc/perl/private/secret": 0o644, "usr/bin/tool": 0o755, "usr/bin/root-tool": os.ModeSetuid | 0o755, "usr/share/secret": 0o600,
		"usr/local/share/doc": 0o644, "lib64/ld.so": 0o755,
	} {
		write(t, filepath.Join(root, name), name, mode)
	}
	must(t, os.Chmod(filepath.Join(root, "etc/perl/private"), 0o750))
	must(t, os.Symlink("usr/bin", filepath.Join(root, "bin")))
	must(t, os.MkdirAll(filepath.Join(root, "etc/alternatives"), 0o755))
	must(t, os.Symlink("/usr/bin/tool", filepath.Join(root, "etc/alternatives/t")))
	must(t, os.Symlink("/etc/shadow", filepath.Join(root, "etc/ssl/certs/evil")))
	must(t, os.Symlink("/usr/share/zoneinfo/UTC", filepath.Join(root, "etc/localtime")))
	must(t, os.Symlink("shadow", filepath.Join(root, "etc/services")))
	must(t, unix.Mkfifo(filepath.Join(root, "etc/ssl/certs/fifo"), 0o644))
	must(t, unix.Mknod(filepath.Join(root, "etc/rpc"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	return root
}

func config(t *testing.T, machine string) hostfs.Config {
	t.Helper()
	base := filepath.Join(t.TempDir(), "c:d,e f")
	return hostfs.Config{
		Dir: filepath.Join(base, "hostfs"), RunDir: filepath.Join(base, "run"), Machine: machine,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func open(t *testing.T, cfg hostfs.Config) *hostfs.HostFS {
	t.Helper()
	h, err := hostfs.Open(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if left := mountsBelow(t, cfg.RunDir); left != "" {
			t.Errorf("still mounted: %s", left)
		}
	})
	return h
}

func use(t *testing.T, h *hostfs.HostFS) hostfs.View {
	t.Helper()
	v, err := h.Use(t.Context())
	must(t, err)
	t.Cleanup(v.Release)
	return v
}

func mountsBelow(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	var found []string
	for line := range strings.Lines(string(data)) {
		if p := strings.ReplaceAll(strings.Fields(line)[4], `\040`, " "); strings.HasPrefix(p, dir) {
			found = append(found, p)
		}
	}
	return strings.Join(found, "\n")
}

func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	m := map[string]string{}
	must(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		what := fmt.Sprint(fi.Mode(), " ", st.Uid, ":", st.Gid)
		if fi.Mode()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(p)
			what = "-> " + target
		}
		m[strings.TrimPrefix(p, root+"/")] = what
		return nil
	}))
	return m
}

func TestLayer(t *testing.T) {
	needRoot(t)
	v := use(t, open(t, config(t, machine(t))))
	want := map[string]string{
		"bin": "-> usr/bin", "lib64": "drwxr-xr-x 0:0", "usr": "drwxr-xr-x 0:0", "proc": "dr-xr-xr-x 0:0", "sys": "dr-xr-xr-x 0:0", "dev": "drwxr-xr-x 0:0",
		"home": "drwxr-xr-x 1000:1000", "root": "drwx------ 0:0", "tmp": "dtrwxrwxrwx 0:0", "opt": "drwxr-xr-x 0:0",
		"srv": "drwxr-xr-x 0:0", "mnt": "drwxr-xr-x 0:0", "media": "drwxr-xr-x 0:0", "run": "drwxr-xr-x 0:0", "run/lock": "dtrwxrwxrwx 0:0", "workspace": "dtrwxrwxrwx 0:0",
		"var": "drwxr-xr-x 0:0",
		"etc": "drwxr-xr-x 0:0", "etc/passwd": "-rw-r--r-- 0:0", "etc/group": "-rw-r--r-- 0:0", "etc/shells": "-rw-r--r-- 0:0", "etc/mtab": "-> /proc/self/mounts",
		"etc/hosts": "-rw-r--r-- 0:0", "etc/hostname": "-rw-r--r-- 0:0", "etc/resolv.conf": "-rw-r--r-- 0:0",
		"etc/protocols": "-rw-r--r-- 0:0", "etc/ssl": "drwxr-xr-x 0:0", "etc/ssl/certs": "drwxr-xr-x 0:0", "etc/ssl/certs/ca.crt": "-rw-r--r-- 0:0", "etc/ssl/certs/evil": "-> /etc/shadow",
		"etc/java-17": "drwxr-xr-x 0:0", "etc/java-17/conf": "drwxr-xr-x 0:0", "etc/java-17/conf/tool": "-rwxr-xr-x 0:0", "etc/python3": "drwxr-xr-x 0:0",
		"etc/perl": "drwxr-xr-x 0:0", "etc/alternatives": "drwxr-xr-x 0:0", "etc/alternatives/t": "-> /usr/bin/tool", "etc/localtime": "-> /usr/share/zoneinfo/UTC", "etc/services": "-> shadow",
	}
	if diff := cmp.Diff(want, tree(t, v.Root)); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
	for name, text := range map[string]string{"etc/passwd": "user:x:1000:1000", "etc/group": "user:x:1000", "etc/protocols": "etc/protocols"} {
		if data, err := os.ReadFile(filepath.Join(v.Root, name)); err != nil || !strings.Contains(string(data), text) {
			t.Errorf("%s is %q, %v", name, data, err)
		}
	}
	if data, _ := os.ReadFile(filepath.Join(v.Root, "etc/hosts")); len(data) > 0 {
		t.Errorf("the machine's hosts: %q", data)
	}
}

func TestMounts(t *testing.T) {
	needRoot(t)
	m := machine(t)
	below := filepath.Join(m, "usr/local/share")
	must(t, unix.Mount("tmpfs", below, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(below, unix.MNT_DETACH)) })
	write(t, filepath.Join(below, "of-another-file-system"), "x", 0o644)
	short := t.TempDir() // the name of a socket cannot be long
	must(t, os.Symlink(filepath.Join(m, "usr/bin"), filepath.Join(short, "bin")))
	l, err := net.Listen("unix", filepath.Join(short, "bin/socket"))
	must(t, err)
	defer l.Close()

	v := use(t, open(t, config(t, m)))
	var targets []string
	for _, mnt := range v.Mounts {
		targets = append(targets, mnt.Target)
		var st unix.Statfs_t
		must(t, unix.Statfs(mnt.Source, &st))
		if want := int64(unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV); st.Flags&want != want || st.Type != unix.OVERLAYFS_SUPER_MAGIC {
			t.Errorf("%s: flags %#x, type %#x", mnt.Source, st.Flags, st.Type)
		}
		if err := os.WriteFile(filepath.Join(mnt.Source, "new"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s can be written: %v", mnt.Source, err)
		}
	}
	if diff := cmp.Diff([]string{"/usr", "/lib64"}, targets); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	usr := v.Mounts[0].Source
	if _, err := os.Stat(filepath.Join(usr, "local/share/of-another-file-system")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file system mounted below /usr is seen: %v", err)
	}
	if _, err := os.Stat(filepath.Join(usr, "local/share/doc")); err != nil {
		t.Error(err)
	}
	must(t, os.Symlink(filepath.Join(usr, "bin"), filepath.Join(short, "seen")))
	if c, err := net.Dial("unix", filepath.Join(short, "seen/socket")); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the machine's socket answers: %v, %v", c, err)
	}
	empty, err := os.ReadDir(filepath.Join(filepath.Dir(usr), "empty"))
	if err != nil || len(empty) > 0 {
		t.Errorf("%v, %v", empty, err)
	}
}

func TestChangedMachine(t *testing.T) {
	needRoot(t)
	m := machine(t)
	cfg := config(t, m)
	h := open(t, cfg)
	first := use(t, h)
	again := use(t, h)
	if first.ID != again.ID || first.Mounts[0] != again.Mounts[0] {
		t.Errorf("nothing changed, and yet: %+v, %+v", first, again)
	}
	again.Release()

	t.Run("new_program", func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(first.Mounts[0].Source, "bin/new")); err == nil {
			t.Fatal("it is there already")
		}
		write(t, filepath.Join(m, "usr/bin/new"), "new", 0o755)
		v := use(t, h)
		if _, err := os.Stat(filepath.Join(v.Mounts[0].Source, "bin/new")); err != nil {
			t.Error(err)
		}
		if v.ID != first.ID {
			t.Error("the layer is another one")
		}
		if _, err := os.Stat(filepath.Join(first.Mounts[0].Source, "bin/tool")); err != nil {
			t.Errorf("who began earlier lost it: %v", err)
		}
		first.Release()
		first.Release()
		if left := mountsBelow(t, filepath.Dir(first.Mounts[0].Source)); left != "" {
			t.Errorf("what nobody uses is still mounted: %s", left)
		}
		if _, err := os.Stat(filepath.Join(v.Mounts[0].Source, "bin/new")); err != nil {
			t.Error(err)
		}
	})
	ids := map[string]bool{first.ID: true}
	for name, change := range map[string]func(){
		"file": func() { write(t, filepath.Join(m, "etc/protocols"), "other", 0o644) },
		"in_place": func() {
			must(t, os.WriteFile(filepath.Join(m, "etc/ssl/certs/ca.crt"), []byte("longer than before"), 0o600))
		},
		"link":      func() { must(t, os.Symlink("/usr/bin/new", filepath.Join(m, "etc/alternatives/n"))) },
		"new_entry": func() { write(t, filepath.Join(m, "etc/timezone"), "UTC", 0o644) },
		"gone":      func() { must(t, os.RemoveAll(filepath.Join(m, "etc/perl"))) },
		"readable":  func() { must(t, os.Chmod(filepath.Join(m, "etc/python3/site.py"), 0o644)) },
	} {
		t.Run(name, func(t *testing.T) {
			change()
			v := use(t, h)
			if ids[v.ID] {
				t.Error("the layer is the same")
			}
			ids[v.ID] = true
		})
	}
	t.Run("not_in_the_list", func(t *testing.T) {
		before := use(t, h)
		write(t, filepath.Join(m, "etc/shadow"), "other", 0o640)
		if v := use(t, h); v.ID != before.ID {
			t.Error("the layer is another one")
		}
	})
	if entries, err := os.ReadDir(cfg.Dir); err != nil || len(entries) != len(ids) {
		t.Errorf("layers: %v, %v; made were %d", entries, err, len(ids))
	}
}

func TestUnusedLayersGo(t *testing.T) {
	needRoot(t)
	m := machine(t)
	cfg := config(t, m)
	used := map[string]bool{}
	cfg.InUse = func(id string) bool { return used[id] }
	h := open(t, cfg)
	first := use(t, h)
	used[first.ID] = true
	write(t, filepath.Join(m, "etc/protocols"), "2", 0o644)
	second := use(t, h)
	write(t, filepath.Join(m, "etc/protocols"), "3", 0o644)
	use(t, h).Release()
	if _, err := os.Stat(second.Root); err != nil {
		t.Errorf("the layer of a view went: %v", err)
	}
	second.Release()
	write(t, filepath.Join(m, "etc/protocols"), "4", 0o644)
	third := use(t, h)
	for _, c := range []struct {
		v    hostfs.View
		want bool
	}{{first, true}, {second, false}, {third, true}} {
		if _, err := os.Stat(c.v.Root); (err == nil) != c.want {
			t.Errorf("layer %s: %v", c.v.ID, err)
		}
	}
}

func TestAfterACrash(t *testing.T) {
	needRoot(t)
	m := machine(t)
	cfg := config(t, m)
	h1, err := hostfs.Open(t.Context(), cfg) // never closed
	must(t, err)
	before, err := h1.Use(t.Context())
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(cfg.Dir, ".tmp-123/root/etc"), 0o755))

	other := cfg // an instance beside it
	other.Dir, other.RunDir = filepath.Join(t.TempDir(), "hostfs"), filepath.Join(t.TempDir(), "run")
	beside := use(t, open(t, other))

	// A box has the mount, as a clone of its own.
	box := t.TempDir()
	must(t, unix.Mount(before.Mounts[0].Source, box, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(box, unix.MNT_DETACH)) })

	h := open(t, cfg)
	v := use(t, h)
	if v.ID != before.ID || v.Root != before.Root {
		t.Errorf("the layer is %s, was %s", v.ID, before.ID)
	}
	if left := mountsBelow(t, filepath.Dir(before.Mounts[0].Source)); left != "" {
		t.Errorf("left mounted: %s", left)
	}
	if left, _ := filepath.Glob(filepath.Join(cfg.Dir, ".tmp-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, dir := range []string{v.Mounts[0].Source, beside.Mounts[0].Source, box} {
		if _, err := os.Stat(filepath.Join(dir, "bin/tool")); err != nil {
			t.Error(err)
		}
	}
	must(t, h.Close())
	must(t, h.Close())
	if _, err := os.Stat(filepath.Join(box, "bin/tool")); err != nil {
		t.Errorf("a box lost its programs: %v", err)
	}
}

func TestUnmountAllTakesNothing(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "d")
	must(t, hostfs.UnmountAll(dir))
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	write(t, filepath.Join(dir, "z/file"), "x", 0o644)
	if err := hostfs.UnmountAll(dir); err == nil {
		t.Error("a file was no obstacle")
	}
	if _, err := os.Stat(filepath.Join(dir, "z/file")); err != nil {
		t.Error(err)
	}
}

func TestFullDisk(t *testing.T) {
	needRoot(t)
	m := machine(t)
	write(t, filepath.Join(m, "etc/mime.types"), strings.Repeat("x", 1<<20), 0o644)
	disk := t.TempDir()
	must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() { must(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	cfg := config(t, m)
	cfg.Dir = filepath.Join(disk, "hostfs")
	h := open(t, cfg)
	if _, err := h.Use(t.Context()); !errors.Is(err, sandbox.ErrNoSpace) {
		t.Errorf("Use: %v", err)
	}
	if left, err := os.ReadDir(cfg.Dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	write(t, filepath.Join(m, "etc/mime.types"), "x", 0o644)
	use(t, h)
}

// TestThisMachine runs programs of this machine in a root made of it.
func TestThisMachine(t *testing.T) {
	needRoot(t)
	v := use(t, open(t, config(t, "/")))
	root := t.TempDir()
	must(t, unix.Mount(v.Root, root, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(root, unix.MNT_DETACH)) })
	for _, m := range v.Mounts {
		must(t, unix.Mount(m.Source, filepath.Join(root, m.Target), "", unix.MS_BIND, ""))
	}
	for _, c := range [][]string{{"/bin/sh", "-c", "echo ok"}, {"awk", "BEGIN{print \"ok\"}"}, {"python3", "-c", "print('ok')"}} {
		if _, err := exec.LookPath(c[0]); err != nil {
			continue
		}
		cmd := exec.Command("/usr/bin/env", c...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok\n" {
			t.Errorf("%v: %q, %v", c, out, err)
		}
	}
	for _, secret := range []string{"etc/shadow", "etc/sudoers", "etc/ssh", "etc/ssl/private"} {
		if _, err := os.Lstat(filepath.Join(root, secret)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", secret, err)
		}
	}
}

func BenchmarkUse(b *testing.B) {
	h, err := hostfs.Open(b.Context(), hostfs.Config{Dir: filepath.Join(b.TempDir(), "hostfs"), RunDir: filepath.Join(b.TempDir(), "run")})
	if err != nil {
		b.Skip(err)
	}
	defer h.Close()
	for b.Loop() {
		v, err := h.Use(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		v.Release()
	}
}
