package oci_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/internal/boxcopy"
	"github.com/taibox/taibox/tai/sandbox"
)

// boxFiles is a box as boxcopy wants it.
type boxFiles struct {
	d  *oci.Driver
	id string
	o  sandbox.FileOptions
}

func (b boxFiles) Stat(ctx context.Context, name string, follow bool) (sandbox.FileInfo, error) {
	return b.d.Stat(ctx, b.id, name, sandbox.FileOptions{User: b.o.User, Follow: follow})
}

func (b boxFiles) CopyTo(ctx context.Context, dir string, archive io.Reader) error {
	return b.d.CopyTo(ctx, b.id, dir, archive, b.o)
}

func (b boxFiles) CopyFrom(ctx context.Context, name string, follow bool) (io.ReadCloser, error) {
	return b.d.CopyFrom(ctx, b.id, name, sandbox.FileOptions{User: b.o.User, Follow: follow})
}

// outside is a tree of the machine with a canary beside the place to copy to.
func outside(t *testing.T) (src, dest string, unchanged func()) {
	t.Helper()
	base := t.TempDir()
	src, dest = filepath.Join(base, "src"), filepath.Join(base, "dest")
	for _, dir := range []string{src, dest, filepath.Join(base, "canary")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(base, "canary", "secret")
	if err := os.WriteFile(secret, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	return src, dest, func() {
		t.Helper()
		data, err := os.ReadFile(secret)
		entries, _ := os.ReadDir(filepath.Dir(secret))
		if string(data) != "untouched" || len(entries) != 1 {
			t.Errorf("the canary beside is %q, %v, among %v", data, err, entries)
		}
	}
}

func shell(t testing.TB, d *oci.Driver, id, script string, mods ...func(*sandbox.ExecSpec)) string {
	t.Helper()
	spec := sandbox.ExecSpec{Args: []string{"sh", "-c", script}}
	for _, m := range mods {
		m(&spec)
	}
	res, err := d.Exec(t.Context(), id, spec)
	if err != nil || res.ExitCode == nil || *res.ExitCode != 0 {
		t.Fatalf("%s: %v, %+v: %s", script, err, res.ExecInfo, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// K04: a file of any size is there once it is said to be, in a box that runs
// and in one that does not.
func TestK04FilesOfEverySize(t *testing.T) {
	d, _ := box(t, sandbox.Spec{ID: "b1", Image: sandbox.HostFS, Network: sandbox.NetworkNone})
	sizes := []int{0, 1, 4095, 4096, 4097, 18_000, 19_000, 65_535, 65_536, 65_537, 1<<20 - 1, 1<<20 + 1, 4<<20 + 1, 100 << 20}
	for _, n := range sizes {
		data := make([]byte, n)
		rand.Read(data)
		name := fmt.Sprintf("/opt/f%d", n)
		info, err := d.WriteFile(t.Context(), "b1", name, bytes.NewReader(data), sandbox.FileOptions{})
		if err != nil || info.Size != int64(n) {
			t.Fatalf("%d bytes: %+v, %v", n, info, err)
		}
		if got, want := shell(t, d, "b1", "sha256sum <"+name), fmt.Sprintf("%x  -", sha256.Sum256(data)); got != want {
			t.Errorf("%d bytes: the sum is %s instead of %s", n, got, want)
		}
		wantFile(t, d, name, data)
	}
	if err := d.Stop(t.Context(), "b1", 0); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 65_537, 4<<20 + 1} {
		data := make([]byte, n)
		rand.Read(data)
		if _, err := d.WriteFile(t.Context(), "b1", "/opt/again", bytes.NewReader(data), sandbox.FileOptions{}); err != nil {
			t.Fatal(err)
		}
		wantFile(t, d, "/opt/again", data)
	}
}

func wantFile(t *testing.T, d *oci.Driver, name string, want []byte) {
	t.Helper()
	r, _, err := d.ReadFile(t.Context(), "b1", name, sandbox.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes came back instead of %d, %v", name, len(got), len(want), err)
	}
}

// K01: what is made for a box belongs to its user, who can work with it.
func TestK01OwnerIsTheBoxesUser(t *testing.T) {
	d, _ := box(t, sandbox.Spec{ID: "b1", Image: sandbox.HostFS, Network: sandbox.NetworkNone, User: "10001:10002", WorkDir: "/"})
	root := sandbox.FileOptions{User: "root", Mode: 0o777}
	ctx := t.Context()
	if err := d.MkDir(ctx, "b1", "/opt/home", root); err != nil {
		t.Fatal(err)
	}
	shell(t, d, "b1", "chmod 777 /opt/home", func(s *sandbox.ExecSpec) { s.User = "root" })
	if _, err := d.WriteFile(ctx, "b1", "/opt/home/a/b/c.txt", strings.NewReader("x"), sandbox.FileOptions{Mode: 0o640, All: true}); err != nil {
		t.Fatal(err)
	}
	src, _, unchanged := outside(t)
	if err := os.WriteFile(filepath.Join(src, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := boxcopy.To(ctx, boxFiles{d: d, id: "b1"}, src, "/opt/home/a", boxcopy.Options{}); err != nil {
		t.Fatal(err)
	}
	got := shell(t, d, "b1", "cd /opt/home; stat -c '%n %u:%g %a' a a/b a/b/c.txt a/src/f; echo y >>a/b/c.txt; mkdir a/b/d; rm a/src/f; umask 077; echo secret >a/own")
	want := "a 10001:10002 755\na/b 10001:10002 755\na/b/c.txt 10001:10002 640\na/src/f 10001:10002 600"
	if got != want {
		t.Errorf("there is\n%s\ninstead of\n%s", got, want)
	}
	if _, err := d.WriteFile(ctx, "b1", "/etc/x", strings.NewReader("x"), sandbox.FileOptions{}); !errors.Is(err, sandbox.ErrFileDenied) {
		t.Errorf("a file of root's: %v", err)
	}
	// Root's write leaves a file to its owner.
	if _, err := d.WriteFile(ctx, "b1", "/opt/home/a/b/c.txt", strings.NewReader("root's"), root); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, d, "b1", "stat -c '%u:%g %a' /opt/home/a/b/c.txt"); got != "10001:10002 640" {
		t.Errorf("it is %s", got)
	}
	// K02: root may give the owners that the archive has.
	o := boxFiles{d: d, id: "b1", o: sandbox.FileOptions{User: "root", Owners: true}}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	tw.WriteHeader(&tar.Header{Name: "n", Mode: 0o4711, Uid: 65534, Gid: 7, Typeflag: tar.TypeReg})
	tw.Close()
	if err := o.CopyTo(ctx, "/opt", &buf); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, d, "b1", "stat -c '%u:%g %a' /opt/n"); got != "65534:7 711" {
		t.Errorf("it is %s", got)
	}
	unchanged()
}

// A stopped box has its files and stays as it was; so does one that never ran.
func TestFilesOfAStoppedBox(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	ctx := t.Context()
	if _, err := d.Create(ctx, sandbox.Spec{ID: "b1", Image: sandbox.HostFS, Entrypoint: &[]string{"sh", "-c", "echo ran >>/opt/ran; exec \"$@\"", "sh"}}); err != nil {
		t.Fatal(err)
	}
	defer d.Remove(context.WithoutCancel(ctx), "b1")
	events, err := d.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	check := func(state sandbox.State) {
		t.Helper()
		before := traces(t, cfg)
		if _, err := d.WriteFile(ctx, "b1", "/opt/f", strings.NewReader("x"), sandbox.FileOptions{}); err != nil {
			t.Fatal(err)
		}
		list, err := d.ListDir(ctx, "b1", "/opt", sandbox.FileOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			if state == sandbox.StateCreated && f.Name == "ran" {
				t.Error("the entrypoint ran")
			}
		}
		r, err := d.CopyFrom(ctx, "b1", "/opt", sandbox.FileOptions{})
		if err != nil {
			t.Fatal(err)
		}
		info, err := d.Inspect(ctx, "b1")
		if err != nil || info.State != state {
			t.Errorf("it is %s, %v", info.State, err)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Error(err)
		}
		r.Close()
		if after := traces(t, cfg); len(after) != len(before) {
			t.Errorf("something is left:\n%q\nbefore it was\n%q", after, before)
		}
	}
	check(sandbox.StateCreated)
	select {
	case e := <-events:
		t.Errorf("there was an event: %+v", e)
	default:
	}
	if err := d.Start(ctx, "b1"); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, d, "b1", "cat /opt/f"); got != "x" {
		t.Errorf("the file has %q", got)
	}
	if err := d.Stop(ctx, "b1", 0); err != nil {
		t.Fatal(err)
	}
	check(sandbox.StateStopped)

	// A start and a removal wait for a reader, the removal not for its end.
	r, err := d.CopyFrom(ctx, "b1", "/usr/bin", sandbox.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- d.Start(ctx, "b1") }()
	if _, err := io.CopyN(io.Discard, r, 1<<20); err != nil {
		t.Error(err)
	}
	removed := make(chan error, 1)
	go func() { removed <- d.Remove(ctx, "b1") }()
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, sandbox.ErrRemoving) {
		t.Errorf("the reader of a removed box: %v", err)
	}
	r.Close()
	for _, c := range []chan error{removed, started} {
		select {
		case err := <-c:
			if err != nil && c == removed {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("they wait for ever")
		}
	}
	if left := traces(t, cfg); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

// A driver that is closed lets go of the files at once; so does a caller that
// gives up and forgets its reader.
func TestForgottenReaders(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	d := open(t, cfg)
	ctx := t.Context()
	if _, err := d.Create(ctx, sandbox.Spec{ID: "b1", Image: sandbox.HostFS}); err != nil {
		t.Fatal(err)
	}
	before := traces(t, cfg)
	short, cancel := context.WithCancelCause(ctx)
	if _, err := d.CopyFrom(short, "b1", "/usr/bin", sandbox.FileOptions{}); err != nil {
		t.Fatal(err)
	}
	cancel(errors.New("enough"))
	r, err := d.CopyFrom(ctx, "b1", "/usr/bin", sandbox.FileOptions{}) // waits for the first one's end
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if after := traces(t, cfg); len(after) != len(before) {
		t.Errorf("something is left:\n%q\nbefore it was\n%q", after, before)
	}
	if _, err := io.Copy(io.Discard, r); err == nil {
		t.Error("the reader of a closed driver came to an end")
	}
	r.Close()
	d = open(t, cfg)
	if info, err := d.Inspect(ctx, "b1"); err != nil || info.State != sandbox.StateCreated {
		t.Errorf("it is %s, %v", info.State, err)
	}
	if err := d.Remove(ctx, "b1"); err != nil {
		t.Error(err)
	}
}

// J07: what has no end, or is no file, is refused.
func TestJ07SpecialFiles(t *testing.T) {
	d, _ := box(t, sandbox.Spec{ID: "b1", Image: sandbox.HostFS, Network: sandbox.NetworkNone})
	ctx := t.Context()
	shell(t, d, "b1", "mkdir /opt/t; mkfifo /opt/t/p; ln -s /dev/zero /opt/t/z; echo x >/opt/t/f; (while :; do echo x; done >>/opt/t/g) >/dev/null 2>&1 &")
	for _, name := range []string{"/dev/zero", "/dev/random", "/proc/kmsg", "/proc/self/mem", "/proc/self/status", "/proc/1/environ", "/sys/kernel/mm", "/opt/t/p"} {
		if r, err := d.CopyFrom(ctx, "b1", name, sandbox.FileOptions{}); err == nil {
			_, err = io.Copy(io.Discard, r)
			r.Close()
			if err == nil {
				t.Errorf("%s was packed", name)
			}
		}
		if r, _, err := d.ReadFile(ctx, "b1", name, sandbox.FileOptions{}); err == nil {
			r.Close()
			t.Errorf("%s was read", name)
		}
	}
	r, err := d.CopyFrom(ctx, "b1", "/opt/t", sandbox.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	seen := ""
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		seen += h.Name + " "
	}
	if seen != "t/ t/f t/g t/z " {
		t.Errorf("packed were %s", seen)
	}
}

// swapper turns /opt/t/d into a link to the root and back, as fast as it can.
const swapper = `import os
os.makedirs("/opt/t/d/sub", exist_ok=True)
os.makedirs("/opt/t/real", exist_ok=True)
open("/opt/t/d/f", "w").write("in the box")
print("ready", flush=True)
while True:
    try:
        os.rename("/opt/t/d", "/opt/t/away"); os.symlink("%s", "/opt/t/d")
        os.unlink("/opt/t/d"); os.rename("/opt/t/away", "/opt/t/d")
    except OSError: pass
`

// J01, J02, J04, J05: a box that swaps a directory for a link while files are
// copied in and out, running and stopped, gets at nothing beside it.
func TestJ04HostileBox(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{ID: "b1", Image: sandbox.HostFS, Network: sandbox.NetworkNone})
	ctx := t.Context()
	src, dest, unchanged := outside(t)
	canary := filepath.Join(filepath.Dir(src), "canary")
	if err := os.WriteFile(filepath.Join(src, "secret"), []byte("overwritten"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := d.ExecStream(ctx, "b1", sandbox.ExecSpec{Args: []string{"python3", "-c", fmt.Sprintf(swapper, canary)}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if c, err := s.Recv(); err != nil || !strings.Contains(string(c.Data), "ready") {
		t.Fatalf("%s, %v", c.Data, err)
	}
	end := boxFiles{d: d, id: "b1"}
	for i := range 60 {
		// Each may fail, as files come and go; none may lead out.
		boxcopy.To(ctx, end, src+"/.", "/opt/t/d", boxcopy.Options{})
		d.WriteFile(ctx, "b1", "/opt/t/d/secret", strings.NewReader("overwritten"), sandbox.FileOptions{})
		d.RemoveFile(ctx, "b1", "/opt/t/d/sub", sandbox.FileOptions{All: true})
		d.MkDir(ctx, "b1", "/opt/t/d/sub/deep", sandbox.FileOptions{All: true})
		out := filepath.Join(dest, fmt.Sprint(i))
		boxcopy.From(ctx, end, "/opt/t", out, boxcopy.Options{})
		if data, err := os.ReadFile(filepath.Join(out, "d", "secret")); err == nil && string(data) == "untouched" {
			t.Fatal("it got the canary of the machine")
		}
		if r, _, err := d.ReadFile(ctx, "b1", "/opt/t/d/secret", sandbox.FileOptions{}); err == nil {
			if data, _ := io.ReadAll(r); string(data) == "untouched" {
				t.Fatal("it read the canary of the machine")
			}
			r.Close()
		}
	}
	unchanged()
	// Left behind as links, in a box that is stopped.
	if err := d.KillExec(ctx, "b1", s.ID(), sandbox.KillOptions{Signal: 9, Tree: true}); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"/opt/esc": "/", "/opt/up": "../../../../../../../../..", "/opt/dangling": canary + "/new", "/opt/tree": canary, "/opt/data": cfg.DataDir}
	for name, to := range links {
		shell(t, d, "b1", fmt.Sprintf("ln -sfn %s %s", to, name))
	}
	if err := d.Stop(ctx, "b1", 0); err != nil {
		t.Fatal(err)
	}
	for name := range links {
		d.WriteFile(ctx, "b1", name, strings.NewReader("evil"), sandbox.FileOptions{})
		d.WriteFile(ctx, "b1", name+canary+"/secret", strings.NewReader("evil"), sandbox.FileOptions{All: true})
		d.WriteFile(ctx, "b1", name+"/secret", strings.NewReader("evil"), sandbox.FileOptions{All: true})
		boxcopy.To(ctx, end, src, name, boxcopy.Options{})
		if err := boxcopy.From(ctx, end, name, dest, boxcopy.Options{}); err == nil {
			t.Errorf("%s was made outside", name)
		}
		list, err := d.ListDir(ctx, "b1", name, sandbox.FileOptions{})
		for _, f := range list {
			if name == "/opt/data" && f.Name == "boxes" || name == "/opt/esc" && f.Name == "work" {
				t.Errorf("%s shows the machine's %s, %v", name, f.Name, err)
			}
		}
	}
	unchanged()
}

// J10: a bad archive leaves nothing in the box.
func TestJ10BadArchiveInABox(t *testing.T) {
	d, _ := box(t, sandbox.Spec{ID: "b1", Image: sandbox.HostFS, Network: sandbox.NetworkNone})
	for name, h := range map[string]*tar.Header{
		"up": {Name: "../evil", Typeflag: tar.TypeReg}, "absolute": {Name: "/tmp/evil", Typeflag: tar.TypeReg},
		"device": {Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, "pipe": {Name: "p", Typeflag: tar.TypeFifo},
		"through": {Name: "l/evil", Typeflag: tar.TypeReg}, "hard": {Name: "h", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"},
	} {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		tw.WriteHeader(&tar.Header{Name: "new/", Typeflag: tar.TypeDir, Mode: 0o755})
		tw.WriteHeader(&tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/tmp"})
		tw.WriteHeader(h)
		tw.Close()
		if err := d.CopyTo(t.Context(), "b1", "/opt", &buf, sandbox.FileOptions{}); !errors.Is(err, sandbox.ErrArchive) {
			t.Errorf("%s: %v", name, err)
		}
		if got := shell(t, d, "b1", "ls -A /opt /tmp | grep -v :; true"); got != "" {
			t.Errorf("%s: there is %q", name, got)
		}
	}
	// One that breaks off while it is sent is no archive either.
	pr, pw := io.Pipe()
	go func() {
		tw := tar.NewWriter(pw)
		tw.WriteHeader(&tar.Header{Name: "big", Typeflag: tar.TypeReg, Size: 1 << 20, Mode: 0o644})
		tw.Write(make([]byte, 1<<19))
		pw.CloseWithError(io.ErrClosedPipe)
	}()
	if err := d.CopyTo(t.Context(), "b1", "/opt", pr, sandbox.FileOptions{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("broken off: %v", err)
	}
	waitFor(t, func() bool { return shell(t, d, "b1", "ls -A /opt") == "" }, "nothing of it is there")
}
