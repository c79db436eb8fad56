package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
)

// limited opens a volume and makes a workspace with a quota, or skips the test.
func limited(t *testing.T, bytes int64) (v *local.Volume, dir, data string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "w")
	v = open(t, local.Config{Dir: dir})
	if !v.Features().Has(volume.FeatureQuota) {
		if required("oci") {
			t.Fatal("no quotas on this machine")
		}
		t.Skip("no quotas on this machine")
	}
	return v, dir, create(t, v, "ws", volume.Options{Quota: volume.Quota{Bytes: bytes}})
}

func image(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "ws", "fs.img")
	if _, err := os.Stat(name); err != nil {
		t.Skip("the file system has quotas of its own")
	}
	return name
}

// blocks returns how many bytes of a file are on the disk.
func blocks(t *testing.T, name string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// loops counts loop devices whose file is below a directory.
func loops(t *testing.T, dir string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(name), dir) {
			n++
		}
	}
	return n
}

func TestImageIsSparse(t *testing.T) {
	v, dir, data := limited(t, 1<<30)
	img := image(t, dir)
	if n := blocks(t, img); n > 12<<20 {
		t.Errorf("an empty workspace of 1 GiB takes %d bytes", n)
	}
	if err := os.WriteFile(filepath.Join(data, "f"), make([]byte, 64<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	syncData := func() {
		d, err := os.Open(data)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := unix.Syncfs(int(d.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	syncData()
	full := blocks(t, img)
	if full < 64<<20 {
		t.Errorf("64 MiB take %d bytes", full)
	}
	if err := v.Remove(context.Background(), "ws", "f", volume.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "blocks are given back", func() bool {
		syncData()
		return blocks(t, img) < full-60<<20
	})
}

func TestImageIsFoundAgain(t *testing.T) {
	ctx := context.Background()
	v, dir, data := limited(t, 16<<20)
	image(t, dir)
	write := func(v *local.Volume, text string) {
		t.Helper()
		if _, err := v.WriteFile(ctx, "ws", "f", strings.NewReader(text), volume.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(v *local.Volume, want string) {
		t.Helper()
		if got, err := v.ReadFile(ctx, "ws", "f"); err != nil || string(got) != want {
			t.Errorf("read %q, %v; want %q", got, err, want)
		}
	}
	write(v, "first")
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(data, "f")); err != nil || string(got) != "first" {
		t.Errorf("after Close the mount is gone: %q, %v", got, err)
	}
	// After a restart it is mounted still, once; after a reboot again.
	for _, reboot := range []bool{false, true} {
		if reboot {
			if err := unix.Unmount(filepath.Join(dir, "ws", "fs"), 0); err != nil {
				t.Fatal(err)
			}
			// A process that was just born in a mount namespace of its own holds it.
			eventually(t, "the loop device goes", func() bool { return loops(t, dir) == 0 })
		}
		v = open(t, local.Config{Dir: dir})
		read(v, "first")
		if n := loops(t, dir); n != 1 {
			t.Errorf("reboot %v: %d loop devices", reboot, n)
		}
		v.Close()
	}
	// What an administrator unmounts is mounted when it is needed.
	v = open(t, local.Config{Dir: dir})
	if err := unix.Unmount(filepath.Join(dir, "ws", "fs"), 0); err != nil {
		t.Fatal(err)
	}
	read(v, "first")
	// A reader that is left holds up nothing.
	r, _, err := v.Open(ctx, "ws", "f", volume.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Delete(ctx, "ws"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	r.Close()
	eventually(t, "the loop device goes", func() bool { return loops(t, dir) == 0 })
}

func TestImageThatIsLost(t *testing.T) {
	ctx := context.Background()
	v, dir, _ := limited(t, 16<<20)
	img := image(t, dir)
	create(t, v, "other", volume.Options{})
	v.Close()
	if err := errors.Join(unix.Unmount(filepath.Join(dir, "ws", "fs"), 0), os.Truncate(img, 0)); err != nil {
		t.Fatal(err)
	}
	v = open(t, local.Config{Dir: dir})
	if _, err := v.Stat(ctx, "other", "."); err != nil {
		t.Errorf("one lost workspace keeps another away: %v", err)
	}
	if _, err := v.Get(ctx, "ws"); err != nil {
		t.Error(err)
	}
	for _, call := range []func() error{
		func() error { _, err := v.ReadFile(ctx, "ws", "f"); return err },
		func() error {
			_, err := v.WriteFile(ctx, "ws", "f", strings.NewReader("x"), volume.WriteOptions{})
			return err
		},
		func() error { _, err := v.MountPath(ctx, "ws"); return err },
	} {
		if err := call(); !errors.Is(err, volume.ErrFileBusy) {
			t.Errorf("got %v, want %v", err, volume.ErrFileBusy)
		}
	}
	if err := v.Delete(ctx, "ws"); err != nil {
		t.Error(err)
	}
}

// TestSnapshotsShareAmongThemselvesAlone looks at the inodes.
func TestSnapshotsShareAmongThemselvesAlone(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "w")
	v := open(t, local.Config{Dir: dir})
	data := create(t, v, "ws", volume.Options{})
	live := filepath.Join(data, "f")
	if err := os.WriteFile(live, []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	stat := func(name string) *syscall.Stat_t {
		t.Helper()
		info, err := os.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t)
	}
	kept := func(n int) string {
		return filepath.Join(dir, "ws", "fs", "snapshots", fmt.Sprintf("s%d", n), "tree", "f")
	}
	shared := false
	for n := 0; n < 100 && !shared; n++ {
		if _, err := v.CreateSnapshot(ctx, "ws", fmt.Sprintf("s%d", n)); err != nil {
			t.Fatal(err)
		}
		shared = n > 0 && stat(kept(n)).Ino == stat(kept(n-1)).Ino
	}
	if !shared {
		t.Error("no two of a hundred snapshots share an unchanged file")
	}
	for n := range 2 {
		if n == 1 {
			if err := os.WriteFile(live, []byte("other"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := v.RestoreSnapshot(ctx, "ws", "s0"); err != nil {
				t.Fatal(err)
			}
		}
		if st := stat(live); st.Nlink != 1 {
			t.Errorf("a box has an inode with %d names in hand", st.Nlink)
		}
	}
	// A writer that keeps size and time is found out by the other time.
	mtime := stat(live).Mtim
	if err := os.WriteFile(live, []byte("DATA"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(live, time.Time{}, time.Unix(mtime.Unix())); err != nil {
		t.Fatal(err)
	}
	if _, err := v.CreateSnapshot(ctx, "ws", "last"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "ws", "fs", "snapshots", "last", "tree", "f")); err != nil || string(got) != "DATA" {
		t.Errorf("kept %q, %v", got, err)
	}
}

func TestAttributesAreKept(t *testing.T) {
	ctx := context.Background()
	v := open(t, local.Config{Dir: filepath.Join(t.TempDir(), "w")})
	data := create(t, v, "ws", volume.Options{})
	name := filepath.Join(data, "f")
	if err := os.WriteFile(name, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(name, "user.mark", []byte("kept"), 0); err != nil {
		t.Skip("the file system has no attributes")
	}
	if err := v.Copy(ctx, "ws", "f", "g"); err != nil {
		t.Fatal(err)
	}
	if _, err := v.CreateSnapshot(ctx, "ws", "s"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := v.RestoreSnapshot(ctx, "ws", "s"); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"f", "g"} {
		buf := make([]byte, 100)
		if k, err := unix.Getxattr(filepath.Join(data, n), "user.mark", buf); err != nil || string(buf[:k]) != "kept" {
			t.Errorf("%s: %q, %v", n, buf[:max(k, 0)], err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	ctx := context.Background()
	if _, err := local.Open(ctx, local.Config{Dir: "relative"}); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("a relative directory: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "w")
	v := open(t, local.Config{Dir: dir})
	create(t, v, "ws", volume.Options{})
	v.Close()
	record := filepath.Join(dir, "ws", ".workspace.json")
	for _, text := range []string{"{", `{"version":99,"id":"ws","phase":"ready"}`, `{"version":1,"id":"other","phase":"ready"}`} {
		if err := os.WriteFile(record, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := local.Open(ctx, local.Config{Dir: dir}); err == nil {
			t.Errorf("record %s is taken", text)
		}
		if _, err := os.Stat(filepath.Join(dir, "ws", "fs", "data")); err != nil {
			t.Errorf("record %s: the files are gone: %v", text, err)
		}
	}
}

// TestCreateTakesNothingOver finds a directory that is not the volume's.
func TestCreateTakesNothingOver(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	v := open(t, local.Config{Dir: dir})
	file := filepath.Join(dir, "ws", "precious")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Create(context.Background(), "ws", volume.Options{}); !errors.Is(err, volume.ErrAlreadyExists) {
		t.Errorf("got %v, want %v", err, volume.ErrAlreadyExists)
	}
	// A workspace whose record was lost is not thrown away either.
	v.Close()
	var log bytes.Buffer
	v = open(t, local.Config{Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if text, err := os.ReadFile(file); err != nil || string(text) != "x" {
		t.Errorf("after reopening there is %q, %v", text, err)
	}
	if !strings.Contains(log.String(), "no record") {
		t.Errorf("the log does not tell of it: %s", log.String())
	}
	_, err := v.Create(context.Background(), "ws", volume.Options{})
	if !errors.Is(err, volume.ErrAlreadyExists) || !strings.Contains(err.Error(), "record") || strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want %v with what to do and no directory of the node", err, volume.ErrAlreadyExists)
	}
}

// TestLostRecord restores a workspace from a copy without hidden files, and its
// record later.
func TestLostRecord(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "w")
	v := open(t, local.Config{Dir: dir})
	create(t, v, "ws", volume.Options{})
	if _, err := v.WriteFile(ctx, "ws", "f", strings.NewReader("x"), volume.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := v.CreateSnapshot(ctx, "ws", "s"); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(dir, "ws", ".workspace.json")
	for _, rename := range [][2]string{{record, filepath.Join(dir, "kept")}, {filepath.Join(dir, "kept"), record}} {
		v.Close()
		if err := os.Rename(rename[0], rename[1]); err != nil {
			t.Fatal(err)
		}
		v = open(t, local.Config{Dir: dir})
	}
	if data, err := v.ReadFile(ctx, "ws", "f"); err != nil || string(data) != "x" {
		t.Errorf("got %q, %v", data, err)
	}
	if snaps, err := v.ListSnapshots(ctx, "ws"); err != nil || len(snaps) != 1 {
		t.Errorf("got %v, %v", snaps, err)
	}
}

// TestHalfRecords: what a kill leaves of records is swept, and nothing else.
func TestHalfRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	v := open(t, local.Config{Dir: dir})
	create(t, v, "ws", volume.Options{})
	v.Close()
	for _, id := range []string{"new", "empty"} {
		if err := os.Mkdir(filepath.Join(dir, id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"ws/..workspace.json.1", "new/..workspace.json.2"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v = open(t, local.Config{Dir: dir})
	if half, err := filepath.Glob(filepath.Join(dir, "*", "..*")); err != nil || len(half) > 0 {
		t.Errorf("left are %v, %v", half, err)
	}
	for _, id := range []string{"new", "empty"} { // which were never begun
		create(t, v, id, volume.Options{})
	}
	if _, err := v.ReadFile(context.Background(), "ws", "f"); !errors.Is(err, volume.ErrFileNotFound) {
		t.Error(err)
	}
}

// TestQuotaNoLongerEnforced opens workspaces whose file system has lost its
// project quotas: one has a quota, of the other it was lifted.
func TestQuotaNoLongerEnforced(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "w")
	v := open(t, local.Config{Dir: dir})
	for id, limit := range map[string]string{"ws": `{"bytes":8388608}`, "lifted": "{}"} {
		create(t, v, id, volume.Options{})
		file := filepath.Join(dir, id, ".workspace.json")
		rec, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		layout := bytes.Replace(rec, []byte(`"dir"`), []byte(`"project","project":7`), 1)
		changed := bytes.Replace(layout, []byte(`"quota":{}`), []byte(`"quota":`+limit), 1)
		if bytes.Equal(layout, rec) || bytes.Equal(changed, layout) != (limit == "{}") {
			t.Fatalf("the record is %s", rec)
		}
		if err := os.WriteFile(file, changed, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v.Close()
	var log bytes.Buffer
	v = open(t, local.Config{Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if _, err := v.MountPath(ctx, "lifted"); err != nil || strings.Contains(log.String(), "lifted") {
		t.Errorf("without a quota: %v; the log has %s", err, log.String())
	}
	_, err := v.MountPath(ctx, "ws")
	if err == nil {
		t.Skip("the file system has project quotas")
	}
	if !errors.Is(err, volume.ErrUnsupported) || !strings.Contains(err.Error(), "prjquota") || !strings.Contains(log.String(), "prjquota") {
		t.Errorf("got %v, want %v and why; the log has %s", err, volume.ErrUnsupported, log.String())
	}
	if _, err := v.WriteFile(ctx, "ws", "f", strings.NewReader("x"), volume.WriteOptions{}); err != nil {
		t.Errorf("its files cannot be saved: %v", err)
	}
}

// TestOwnersLearnNoPath: what is wrong with the node's own directories is for
// the node's log.
func TestOwnersLearnNoPath(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "w")
	var log bytes.Buffer
	v := open(t, local.Config{Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	data := create(t, v, "ws", volume.Options{})
	for _, gone := range []string{filepath.Join(filepath.Dir(data), "tmp"), data} {
		if err := os.Rename(gone, gone+"-away"); err != nil {
			t.Fatal(err)
		}
		_, err := v.WriteFile(ctx, "ws", "f", strings.NewReader("x"), volume.WriteOptions{})
		if !errors.Is(err, volume.ErrFileBusy) || strings.Contains(err.Error(), dir) {
			t.Errorf("got %v, want %v without a directory of the node", err, volume.ErrFileBusy)
		}
		if !strings.Contains(log.String(), gone) {
			t.Errorf("the log does not tell of %s: %s", gone, log.String())
		}
	}
}

// TestHalfDeletedIsNoLostRecord: a workspace that was never finished, and could
// not be deleted, blocks no id, and goes when the volume is opened.
func TestHalfDeletedIsNoLostRecord(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "w")
	errStep := errors.New("no further")
	stops := map[string]bool{"create.ready": true, "create.abandon": true}
	v := open(t, local.Config{Dir: dir, Step: func(step string) error {
		if stops[step] {
			return errStep
		}
		return nil
	}})
	if _, err := v.Create(ctx, "ws", volume.Options{}); !errors.Is(err, errStep) {
		t.Fatalf("got %v, want %v", err, errStep)
	}
	clear(stops)
	half, err := filepath.Glob(filepath.Join(dir, ".removing-*", ".workspace.json"))
	if err != nil || len(half) != 1 {
		t.Fatalf("left are %v, %v", half, err)
	}
	if err := os.Remove(half[0]); err != nil { // what is deleted first
		t.Fatal(err)
	}
	create(t, v, "ws", volume.Options{})
	v.Close()
	v = open(t, local.Config{Dir: dir})
	if infos, err := v.List(ctx); err != nil || len(infos) != 1 {
		t.Errorf("there is %v, %v", infos, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".removing-*")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
