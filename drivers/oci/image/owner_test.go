package image_test

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

type tarHeader = tar.Header

func unixTime(s int64) time.Time { return time.Unix(s, 0) }

// describe returns mode, owner, group and time of modification.
func describe(t testing.TB, name string) string {
	t.Helper()
	fi, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	return fmt.Sprint(fi.Mode(), " ", st.Uid, " ", st.Gid, " ", fi.ModTime().Unix())
}

// netRaw is cap_net_raw=ep, as a file has it.
const netRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func ownedEntries() []entry {
	own := func(e entry, mode int64, uid, gid int) entry {
		return e.with(func(h *tarHeader) {
			h.Mode, h.Uid, h.Gid, h.ModTime, h.Uname = mode, uid, gid, unixTime(1234567), "nosuchuser"
		})
	}
	return []entry{
		own(dir("home"), 0o755, 0, 0),
		own(dir("home/user"), 0o700, 1000, 1000),
		own(file("home/user/f", "f"), 0o600, 1000, 1001),
		own(file("nobody", "n"), 0o644, 65534, 65534),
		own(file("suid", "s"), 0o4755, 0, 0),
		own(file("sgid", "s"), 0o2755, 0, 42),
		own(dir("tmp"), 0o1777, 0, 0),
		own(symlink("link", "suid"), 0o777, 7, 8),
		own(file("ping", "p"), 0o755, 0, 0).with(func(h *tarHeader) {
			h.PAXRecords = map[string]string{
				"SCHILY.xattr.security.capability": netRaw, "SCHILY.xattr.user.note": "n",
				"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.security.selinux": "evil",
			}
			h.Format = tar.FormatPAX
		}),
	}
}

func TestK02OwnersAndModes(t *testing.T) {
	needRoot(t)
	s := open(t)
	load(t, s, ociArchive(t, img{name: "t:1", layers: [][]byte{tarOf(t, ownedEntries()...)}}), "")
	layer := resolve(t, s, "t:1").Lowers[0]
	want := map[string]string{
		"home": "drwxr-xr-x 0 0", "home/user": "drwx------ 1000 1000", "home/user/f": "-rw------- 1000 1001", "nobody": "-rw-r--r-- 65534 65534",
		"suid": "urwxr-xr-x 0 0", "sgid": "grwxr-xr-x 0 42", "tmp": "dtrwxrwxrwx 0 0", "link": "Lrwxrwxrwx 7 8", "ping": "-rwxr-xr-x 0 0",
	}
	got := map[string]string{}
	for name := range want {
		text, ok := strings.CutSuffix(describe(t, filepath.Join(layer, name)), " 1234567")
		if !ok {
			t.Errorf("%s has another time: %s", name, text)
		}
		got[name] = text
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	wantXattrs := map[string]string{"security.capability": netRaw, "user.note": "n"}
	if diff := cmp.Diff(wantXattrs, xattrs(t, filepath.Join(layer, "ping"))); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}

func xattrs(t testing.TB, name string) map[string]string {
	t.Helper()
	buf := make([]byte, 4096)
	n, err := unix.Llistxattr(name, buf)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for key := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(name, key, value)
		if err != nil {
			t.Fatal(err)
		}
		got[key] = string(value[:n])
	}
	return got
}

// TestLayersUnderIDMappedOverlay mounts an image as boxes do: all through one
// id-mapped mount, the overlay made by the mapped root.
func TestLayersUnderIDMappedOverlay(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "images")
	s := openAt(t, root, nil)
	layers := [][]entry{
		append(ownedEntries(), dir("d"), file("d/a", "a"), file("gone", "g"), dir("e"), file("e/old", "old")),
		{white(".wh.gone"), white("d/.wh.a"), dir("e"), white("e/.wh..wh..opq"), file("e/new", "new")},
	}
	want := model{}
	var tars [][]byte
	for _, l := range layers {
		tars = append(tars, tarOf(t, l...))
		want = want.apply(l)
	}
	load(t, s, ociArchive(t, img{name: "t:1", layers: tars}), "")
	const hostID = 700000
	at := mountMapped(t, root, resolve(t, s, "t:1").Lowers, hostID)
	if diff := cmp.Diff(want, readTree(t, at)); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	for name, wantOwner := range map[string]string{"suid": "urwxr-xr-x 700000 700000", "home/user": "drwx------ 701000 701000", "d": "drwxr-xr-x 700000 700000"} {
		if got := describe(t, filepath.Join(at, name)); !strings.HasPrefix(got, wantOwner) {
			t.Errorf("%s is %s, want %s", name, got, wantOwner)
		}
	}
}

func mountMapped(t *testing.T, root string, lowers []string, hostID int) string {
	t.Helper()
	base := t.TempDir()
	staging, at := filepath.Join(base, "staging"), filepath.Join(base, "at")
	for _, d := range []string{staging, at} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	holder := exec.Command("sleep", "600")
	maps := []syscall.SysProcIDMap{{ContainerID: 0, HostID: hostID, Size: 65536}}
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: maps, GidMappings: maps, Pdeathsig: syscall.SIGKILL}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		holder.Process.Kill()
		holder.Wait()
	}()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", holder.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // never unlocked: its credentials change
		done <- mappedOverlay(ns, root, staging, at, lowers, hostID)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return at
}

func mappedOverlay(ns *os.File, root, staging, at string, lowers []string, hostID int) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, root, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return err
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, staging, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	defer unix.Unmount(staging, unix.MNT_DETACH)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return err
	}
	unix.Setfsgid(hostID)
	unix.Setfsuid(hostID)
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return err
	}
	mapped := make([]string, len(lowers))
	for i, l := range lowers {
		mapped[i] = staging + strings.TrimPrefix(l, root)
	}
	return unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(mapped, ":"))
}
