package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/testimage"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// run is the command line's "run", in its ways to end.
func (a *actor) run(ctx context.Context) {
	script, stdout, stderr, code := a.script(1+a.rnd.IntN(200), "sleep 0.05")
	args, stdin := []string{"run", "-q"}, []byte(nil)
	args = args[:1]
	image := taisandbox.HostFS
	if a.rnd.IntN(3) == 0 {
		image = a.m.imageName("base")
	}
	switch a.rnd.IntN(4) {
	case 0: // past its time
		args, script, stdout, code = append(args, "--timeout", "300ms"), "echo begun; echo "+strings.TrimSpace(stderr)+" >&2; sleep 1000", "begun\n", 124
	case 1: // with input
		stdin = []byte(strings.Repeat(stdout, 50))
		args, script, stdout = append(args, "-i"), fmt.Sprintf("cat; echo %s >&2; exit %d", strings.TrimSpace(stderr), code), string(stdin)
	}
	args = append(args, image, "--", "sh", "-c", script)
	begin := time.Now()
	a.wantResult(ctx, "run", begin, a.m.run(ctx, stdin, args...), stdout, stderr, code)
}

// wantResult tells what a program did that it should not. Beside the command's
// own words on stderr there may be our notes, which begin with our name.
func (a *actor) wantResult(_ context.Context, what string, begin time.Time, r result, stdout, stderr string, code int) {
	if r.code != code && (r.code == 125 || r.code == 6 || r.code == -1) {
		a.m.judgeCLI(what, begin, r)
		return
	}
	var told, ours strings.Builder
	for line := range strings.Lines(r.stderr) {
		if strings.HasPrefix(line, "taibox: ") || strings.HasPrefix(line, "hint: ") {
			ours.WriteString(line)
		} else {
			told.WriteString(line)
		}
	}
	if r.code != code || r.stdout != stdout || told.String() != stderr {
		a.m.fail("%s: code %d, stdout %.200q (%d bytes), stderr %.400q; want %d, %.200q (%d bytes), %.100q",
			what, r.code, r.stdout, len(r.stdout), r.stderr, code, stdout, len(stdout), stderr)
		return
	}
	a.m.tally.add(what)
}

// commandLine uses a box by command line.
func (a *actor) commandLine(ctx context.Context, b *box) {
	if b.kind != stays {
		a.exec(ctx, b)
		return
	}
	if a.rnd.IntN(2) == 0 {
		script, stdout, stderr, code := a.script(1+a.rnd.IntN(200), "sleep 0.05")
		begin := time.Now()
		a.wantResult(ctx, "taibox exec", begin, a.m.run(ctx, nil, "exec", b.id, "--", "sh", "-c", script), stdout, stderr, code)
		return
	}
	dir, err := os.MkdirTemp(a.m.dir, "cp")
	if err != nil {
		a.m.fail("%v", err)
		return
	}
	defer os.RemoveAll(dir)
	in, out, name := filepath.Join(dir, "in"), filepath.Join(dir, "out"), fmt.Sprintf("/tmp/cp%d", a.rnd.IntN(1e9))
	text := strings.Repeat(fmt.Sprintln(a.rnd.Int()), 1+a.rnd.IntN(5000))
	if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
		a.m.fail("%v", err)
		return
	}
	for _, args := range [][]string{{"cp", "-q", in, b.id + ":" + name}, {"cp", "-q", b.id + ":" + name, out}} {
		begin := time.Now()
		if r := a.m.run(ctx, nil, args...); r.code != 0 {
			a.m.judgeCLI(strings.Join(args, " "), begin, r)
			return
		}
	}
	if got, err := os.ReadFile(out); err != nil || string(got) != text {
		a.m.fail("cp: %d bytes came back of %d, %v", len(got), len(text), err)
	}
	a.m.tally.add("taibox cp")
}

// oneShot runs the one command of a box, which goes when its reader has seen
// the end.
func (a *actor) oneShot(ctx context.Context) {
	b := &box{id: a.id(), kind: once}
	began := time.Now()
	_, err := a.api.CreateBox(ctx, rest.CreateBox{ID: b.id, Image: taisandbox.HostFS, Policy: "oneshot", IdempotencyKey: "key-" + b.id})
	if a.m.judge("create oneshot", began, err) {
		b.left = time.Now()
		a.left = append(a.left, b)
		return
	}
	script, stdout, stderr, code := a.script(1+a.rnd.IntN(100), ":")
	begin := time.Now()
	s, err := a.api.Exec(ctx, b.id, rest.ExecRequest{ID: a.id(), Cmd: []string{"sh", "-c", script}})
	b.left = time.Now()
	if a.m.judge("exec in oneshot", begin, err) {
		a.left = append(a.left, b)
		return
	}
	var o output
	rerr := o.read(s, -1)
	info, err := s.Wait(ctx)
	s.Close()
	if !errors.Is(rerr, io.EOF) || err != nil {
		a.m.fail("oneshot %s: after %d bytes: %v, %v", b.id, o.at, rerr, err)
		return
	}
	a.wantExit("oneshot", info, code)
	a.wantOutput("oneshot "+b.id, &o, stdout, stderr)
	if a.m.killedSince(began) || a.m.fullSince(began) {
		a.left = append(a.left, b) // whoever was to remove it may be dead
		return
	}
	if got, err := a.get(ctx, b.id); !errors.Is(err, taisandbox.ErrNotFound) && !a.m.killedSince(began) && !a.m.fullSince(began) {
		a.m.fail("oneshot %s has run, and is there: %s %s, %v", b.id, got.Status, got.StopReason, err)
	}
}

// imageName returns a name of an image of this machine.
func (m *machine) imageName(tag string) string { return "load.test/busybox:" + tag }

// busybox returns an archive of an image, with a layer of its own if extra is
// not nil.
func busybox(t testing.TB, name string, extra []byte) []byte {
	im, err := testimage.Busybox(name)
	if err != nil {
		t.Fatal(err)
	}
	if extra != nil {
		im.Layers = append(im.Layers, testimage.Layer{testimage.File("etc/extra", extra, 0o644)})
	}
	data, err := testimage.OCI(im)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// image loads an image, makes a box of it, makes an image of the box, and a
// box of that; and removes everything.
func (a *actor) image(ctx context.Context) {
	name, commit := a.m.imageName(a.id()), a.m.imageName(a.id())
	extra := make([]byte, 1<<20)
	for i := range extra {
		extra[i] = byte(a.rnd.Uint32())
	}
	defer a.removeImage(ctx, name)
	begin := time.Now()
	_, err := a.api.LoadImage(ctx, strings.NewReader(string(busybox(a.m.t, name, extra))), "")
	if a.m.judge("load", begin, err) {
		return
	}
	first := a.imageBox(ctx, name)
	if first == nil {
		return
	}
	defer func() { a.remove(ctx, first) }()
	begin = time.Now()
	if err := a.api.RemoveImage(ctx, name); !errors.Is(err, taisandbox.ErrImageInUse) && !a.m.excused(begin, err) {
		a.m.fail("rm of image %s, of which %s is made: %v", name, first.id, err)
		return
	}
	mark := fmt.Sprint(a.rnd.Int())
	begin = time.Now()
	_, err = a.api.WriteFile(ctx, first.id, "/etc/mark", strings.NewReader(mark), taisandbox.FileOptions{})
	if a.m.judge("write a file", begin, err) {
		return
	}
	defer a.removeImage(ctx, commit)
	begin = time.Now()
	_, err = a.api.CommitBox(ctx, first.id, rest.CommitBox{Image: commit})
	if a.m.judge("commit", begin, err) {
		return
	}
	second := a.imageBox(ctx, commit)
	if second == nil {
		return
	}
	defer func() { a.remove(ctx, second) }()
	second.files = map[string]string{"/etc/mark": mark, "/etc/extra": string(extra)}
	for name, want := range second.files {
		if got, ok := a.readFile(ctx, second, name); ok && got != want {
			a.m.fail("file %s of the image %s: %d bytes, want %d", name, commit, len(got), len(want))
		}
	}
}

// imageBox makes a box of an image, or returns nil.
func (a *actor) imageBox(ctx context.Context, image string) *box {
	b := &box{id: a.id(), kind: stays, image: image, running: true}
	begin := time.Now()
	_, err := a.api.CreateBox(ctx, rest.CreateBox{ID: b.id, Image: image, Policy: "persistent", IdempotencyKey: "key-" + b.id})
	if a.m.judge("create of an own image", begin, err) {
		a.remove2(ctx, b)
		return nil
	}
	return b
}

// remove2 removes a box that may not have come into being.
func (a *actor) remove2(ctx context.Context, b *box) {
	if _, err := a.get(ctx, b.id); !errors.Is(err, taisandbox.ErrNotFound) {
		a.remove(ctx, b)
	}
}

// removeImage removes an image that may not be there.
func (a *actor) removeImage(ctx context.Context, name string) {
	for {
		begin := time.Now()
		err := a.api.RemoveImage(ctx, name)
		if err == nil || errors.Is(err, errdefs.ErrNotFound) {
			return
		}
		if !a.m.excused(begin, err) {
			a.m.fail("rm of image %s: %v", name, err)
			return
		}
		wait(ctx, 100*time.Millisecond)
	}
}
