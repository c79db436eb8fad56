package sandboxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/taibox/taibox/tai/sandbox"
)

// files: the files of a box, whatever its state.
func files(e *env) {
	if !e.has(sandbox.FeatureFiles) {
		e.test("absent", func(e *env) {
			f, ok := sandbox.As[sandbox.Files](e.d)
			if ok {
				_, err := f.Stat(e.ctx, e.box(), "/tmp", sandbox.FileOptions{})
				e.wantErr(err, sandbox.ErrUnsupported)
			}
		})
		return
	}
	e.cases([]testCase{
		{"write-and-read", writeAndRead},
		{"commands-see-them", commandsSeeThem},
		{"conditions", writeConditions},
		{"K10-writers-of-one-file", writersOfOneFile},
		{"watch", watchFiles},
		{"directories", directories},
		{"K08-odd-names", oddNames},
		{"errors", fileErrors},
		{"trees", trees},
		{"J10-bad-archives", badArchives},
		{"stopped", stoppedFiles},
		{"cancelled", cancelledFiles},
	})
}

// files returns the driver's files.
func (e *env) files() sandbox.Files {
	e.Helper()
	f, ok := sandbox.As[sandbox.Files](e.d)
	if !ok {
		e.Fatal("the driver has the feature and not the methods")
	}
	return f
}

// place makes a directory of the shared box that is the test's own.
func (e *env) place() string {
	e.Helper()
	dir := "/tmp/" + sandbox.NewID("f-")
	e.ok(e.files().MkDir(e.ctx, e.box(), dir, sandbox.FileOptions{}))
	return dir
}

func (e *env) writeFile(id, name, text string) {
	e.Helper()
	info, err := e.files().WriteFile(e.ctx, id, name, strings.NewReader(text), sandbox.FileOptions{})
	e.ok(err)
	if info.Size != int64(len(text)) || !info.Mode.IsRegular() {
		e.Errorf("%q was written as %+v", name, info)
	}
}

func (e *env) readFile(id, name string, o sandbox.FileOptions) string {
	e.Helper()
	text, err := e.tryRead(id, name, o)
	e.ok(err)
	return text
}

func (e *env) tryRead(id, name string, o sandbox.FileOptions) (string, error) {
	r, _, err := e.files().ReadFile(e.ctx, id, name, o)
	if err != nil {
		return "", err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	return string(data), err
}

func (e *env) stat(id, name string) sandbox.FileInfo {
	e.Helper()
	info, err := e.files().Stat(e.ctx, id, name, sandbox.FileOptions{})
	e.ok(err)
	return info
}

func writeAndRead(e *env) {
	id, dir := e.box(), e.place()
	for _, n := range []int{0, 1, 4097, 65537, 1<<20 + 1} {
		text := strings.Repeat("0123456789", n/10+1)[:n]
		e.writeFile(id, dir+"/f", text)
		if got := e.readFile(id, dir+"/f", sandbox.FileOptions{}); got != text {
			e.Errorf("of %d bytes %d came back", n, len(got))
		}
	}
	if got := e.readFile(id, dir+"/f", sandbox.FileOptions{Offset: 11, Limit: 3}); got != "123" {
		e.Errorf("a part is %q", got)
	}
	if got := e.readFile(id, dir+"/f", sandbox.FileOptions{Offset: 1 << 30}); got != "" {
		e.Errorf("behind the end is %q", clip(got))
	}
	info, err := e.files().WriteFile(e.ctx, id, dir+"/a/b/mode", strings.NewReader("x"), sandbox.FileOptions{Mode: 0o640, All: true})
	e.ok(err)
	if info.Mode.Perm() != 0o640 || info.Name != "mode" {
		e.Errorf("it is %+v", info)
	}
}

func commandsSeeThem(e *env) {
	id, dir := e.box(), e.place()
	e.writeFile(id, dir+"/in", "to the box\n")
	if got := string(e.run(id, e.commands.Cat(dir+"/in")).Stdout); got != "to the box\n" {
		e.Errorf("the command sees %q", got)
	}
	e.run(id, e.commands.Write(dir+"/out", "from the box"))
	if got := e.readFile(id, dir+"/out", sandbox.FileOptions{}); got != "from the box\n" {
		e.Errorf("the file has %q", got)
	}
}

// writersOfOneFile: whoever looks sees what one of them wrote, whole.
func writersOfOneFile(e *env) {
	id, dir := e.box(), e.place()
	const writers, rounds, size = 64, 4, 100_000
	name := dir + "/f"
	whole := func(text string) bool {
		return len(text) == size && strings.Trim(text, text[:1]) == ""
	}
	e.writeFile(id, name, strings.Repeat("0", size))
	done := make(chan struct{})
	var reading sync.WaitGroup
	for range 2 {
		reading.Go(func() {
			for looks := 0; ; looks++ {
				select {
				case <-done:
					return
				default:
				}
				text, err := e.tryRead(id, name, sandbox.FileOptions{})
				if err != nil || !whole(text) {
					e.Errorf("look %d shows %d bytes, %q, %v", looks, len(text), clip(text), err)
					return
				}
			}
		})
	}
	errs := concurrently(writers, func(i int) error {
		body := strings.Repeat(string(rune('0'+i)), size)
		for range rounds {
			if _, err := e.files().WriteFile(e.ctx, id, name, strings.NewReader(body), sandbox.FileOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	close(done)
	reading.Wait()
	for _, err := range errs {
		e.ok(err)
	}
	if text := e.readFile(id, name, sandbox.FileOptions{}); !whole(text) {
		e.Errorf("in the end there are %d bytes, %q", len(text), clip(text))
	}
	list, err := e.files().ListDir(e.ctx, id, dir, sandbox.FileOptions{})
	e.ok(err)
	if len(list) != 1 {
		e.Errorf("beside it is left %+v", list)
	}
}

func directories(e *env) {
	id, dir, f := e.box(), e.place(), e.files()
	o, all := sandbox.FileOptions{}, sandbox.FileOptions{All: true}
	e.wantErr(f.MkDir(e.ctx, id, dir+"/a/b", o), sandbox.ErrFileNotFound)
	e.ok(f.MkDir(e.ctx, id, dir+"/a/b", all))
	e.ok(f.MkDir(e.ctx, id, dir+"/a/b", all))
	e.wantErr(f.MkDir(e.ctx, id, dir+"/a", o), sandbox.ErrFileExists)
	e.writeFile(id, dir+"/a/b/f", "x")
	e.writeFile(id, dir+"/a/z", "x")
	list, err := f.ListDir(e.ctx, id, dir+"/a", o)
	e.ok(err)
	if len(list) != 2 || list[0].Name != "b" || !list[0].Mode.IsDir() || list[1].Name != "z" || list[1].Size != 1 {
		e.Errorf("the list is %+v", list)
	}
	e.ok(f.Rename(e.ctx, id, dir+"/a", dir+"/c", o))
	if got := e.readFile(id, dir+"/c/b/f", o); got != "x" {
		e.Errorf("moved was %q", got)
	}
	e.wantErr(f.RemoveFile(e.ctx, id, dir+"/c", o), sandbox.ErrFileBusy)
	e.ok(f.RemoveFile(e.ctx, id, dir+"/c", all))
	e.ok(f.RemoveFile(e.ctx, id, dir+"/c", all))
	e.wantErr(f.RemoveFile(e.ctx, id, dir+"/c", o), sandbox.ErrFileNotFound)
}

func oddNames(e *env) {
	id, dir, f := e.box(), e.place(), e.files()
	names := []string{
		"a\nb", "\xff\xfe", "-rf", "a b", `"`, "'", "%2F", "é", "e\u0301", "🚀", strings.Repeat("x", 255), ".git", "trailing ", "*", "\\", "...",
	}
	for _, n := range names {
		e.writeFile(id, dir+"/"+n, n)
	}
	list, err := f.ListDir(e.ctx, id, dir, sandbox.FileOptions{})
	e.ok(err)
	var got []string
	for _, i := range list {
		got = append(got, i.Name)
	}
	slices.Sort(names)
	if !slices.Equal(got, names) {
		e.Errorf("the list is %q", got)
	}
	for i, n := range names {
		if text := e.readFile(id, dir+"/"+n, sandbox.FileOptions{}); text != n {
			e.Errorf("%q has %q", n, text)
		}
		to := fmt.Sprintf("%s/%d", dir, i)
		e.ok(f.Rename(e.ctx, id, dir+"/"+n, to, sandbox.FileOptions{}))
		e.ok(f.RemoveFile(e.ctx, id, to, sandbox.FileOptions{}))
	}
}

func fileErrors(e *env) {
	id, dir, f := e.box(), e.place(), e.files()
	o := sandbox.FileOptions{}
	e.writeFile(id, dir+"/f", "x")
	read := func(id, name string) error {
		r, _, err := f.ReadFile(e.ctx, id, name, o)
		if err == nil {
			r.Close()
		}
		return err
	}
	write := func(name string, o sandbox.FileOptions) error {
		_, err := f.WriteFile(e.ctx, id, name, strings.NewReader("x"), o)
		return err
	}
	from := func(name string) error {
		r, err := f.CopyFrom(e.ctx, id, name, o)
		if err == nil {
			r.Close()
		}
		return err
	}
	for _, c := range []struct {
		what      string
		err, want error
	}{
		{"read nothing", read(id, dir+"/none"), sandbox.ErrFileNotFound},
		{"read a directory", read(id, dir), sandbox.ErrFileKind},
		{"read below a file", read(id, dir+"/f/x"), sandbox.ErrFileKind},
		{"read a relative path", read(id, "tmp"), sandbox.ErrInvalidSpec},
		{"read in no box", read("none", dir+"/f"), sandbox.ErrNotFound},
		{"write without parent", write(dir+"/no/f", o), sandbox.ErrFileNotFound},
		{"write over a directory", write(dir, o), sandbox.ErrFileKind},
		{"write as nobody there is", write(dir+"/f", sandbox.FileOptions{User: "no-such-user"}), sandbox.ErrUserNotFound},
		{"copy nothing", from(dir + "/none"), sandbox.ErrFileNotFound},
		{"copy contents of a file", from(dir + "/f/."), sandbox.ErrFileKind},
		{"copy to nothing", f.CopyTo(e.ctx, id, dir+"/none", bytes.NewReader(make([]byte, 1024)), o), sandbox.ErrFileNotFound},
		{"copy to a file", f.CopyTo(e.ctx, id, dir+"/f", bytes.NewReader(make([]byte, 1024)), o), sandbox.ErrFileKind},
		{"rename nothing", f.Rename(e.ctx, id, dir+"/none", dir+"/x", o), sandbox.ErrFileNotFound},
	} {
		if !errors.Is(c.err, c.want) {
			e.Errorf("%s: %v; wanted is %v", c.what, c.err, c.want)
		}
	}
}

// tarOf makes an archive; a regular file's contents are its name.
func (e *env) tarOf(hs ...tar.Header) *bytes.Reader {
	e.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range hs {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		e.ok(tw.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := io.WriteString(tw, h.Name)
			e.ok(err)
		}
	}
	e.ok(tw.Close())
	return bytes.NewReader(buf.Bytes())
}

// untar describes an archive of a box.
func (e *env) untar(id, name string, o sandbox.FileOptions) string {
	e.Helper()
	r, err := e.files().CopyFrom(e.ctx, id, name, o)
	e.ok(err)
	defer r.Close()
	var b strings.Builder
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		e.ok(err)
		data, err := io.ReadAll(tr)
		e.ok(err)
		fmt.Fprintf(&b, "%s %o %s%s\n", h.Name, h.Mode&0o7777, h.Linkname, data)
	}
}

func trees(e *env) {
	id, dir, f := e.box(), e.place(), e.files()
	e.ok(f.CopyTo(e.ctx, id, dir, e.tarOf(
		tar.Header{Typeflag: tar.TypeDir, Name: "t/", Mode: 0o755}, tar.Header{Typeflag: tar.TypeReg, Name: "t/f", Mode: 0o640},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "t/l", Linkname: "f", Mode: 0o777}, tar.Header{Typeflag: tar.TypeReg, Name: "t/no/dir/g", Mode: 0o600},
	), sandbox.FileOptions{}))
	want := "t/ 755 \nt/f 640 t/f\nt/l 777 f\nt/no/ 755 \nt/no/dir/ 755 \nt/no/dir/g 600 t/no/dir/g\n"
	if got := e.untar(id, dir+"/t", sandbox.FileOptions{}); got != want {
		e.Errorf("the tree is\n%s", got)
	}
	if got, want := e.untar(id, dir+"/t/no/.", sandbox.FileOptions{}), "./ 755 \ndir/ 755 \ndir/g 600 t/no/dir/g\n"; got != want {
		e.Errorf("its contents are\n%s", got)
	}
	if got := e.untar(id, dir+"/t/l", sandbox.FileOptions{}); got != "l 777 f\n" {
		e.Errorf("the link is\n%s", got)
	}
	if got := e.untar(id, dir+"/t/l", sandbox.FileOptions{Follow: true}); got != "l 640 t/f\n" {
		e.Errorf("what the link leads to is\n%s", got)
	}
	if info := e.stat(id, dir+"/t/l"); info.Mode&fs.ModeSymlink == 0 || info.Link != "f" {
		e.Errorf("the link is %+v", info)
	}
	if got := e.readFile(id, dir+"/t/l", sandbox.FileOptions{}); got != "t/f" {
		e.Errorf("through the link is %q", got)
	}
	// Over what is there.
	e.ok(f.CopyTo(e.ctx, id, dir+"/t", e.tarOf(tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o600}), sandbox.FileOptions{}))
	if got := e.readFile(id, dir+"/t/f", sandbox.FileOptions{}); got != "f" {
		e.Errorf("replaced it has %q", got)
	}
	e.wantErr(f.CopyTo(e.ctx, id, dir, e.tarOf(tar.Header{Typeflag: tar.TypeReg, Name: "t", Mode: 0o600}), sandbox.FileOptions{}), sandbox.ErrFileKind)
}

func badArchives(e *env) {
	id, dir, f := e.box(), e.place(), e.files()
	whole := e.tarOf(tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o600})
	cut := make([]byte, whole.Size()-1024)
	_, err := whole.ReadAt(cut, 0)
	e.ok(err)
	for name, archive := range map[string]io.Reader{
		"empty": strings.NewReader(""), "cut": bytes.NewReader(cut), "noise": strings.NewReader(strings.Repeat("noise", 1000)),
		"up":       e.tarOf(tar.Header{Typeflag: tar.TypeReg, Name: "../evil"}),
		"absolute": e.tarOf(tar.Header{Typeflag: tar.TypeReg, Name: dir + "/evil"}),
		"device":   e.tarOf(tar.Header{Typeflag: tar.TypeReg, Name: "ok"}, tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}),
		"pipe":     e.tarOf(tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}),
		"through":  e.tarOf(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/tmp"}, tar.Header{Typeflag: tar.TypeReg, Name: "l/evil"}),
		"hard":     e.tarOf(tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "../../etc/passwd"}),
	} {
		if err := f.CopyTo(e.ctx, id, dir, archive, sandbox.FileOptions{}); !errors.Is(err, sandbox.ErrArchive) {
			e.Errorf("%s: %v", name, err)
		}
	}
	_, err = f.Stat(e.ctx, id, "/tmp/evil", sandbox.FileOptions{})
	e.wantErr(err, sandbox.ErrFileNotFound)
}

func stoppedFiles(e *env) {
	id := e.create()
	e.writeFile(id, "/tmp/f", "before the start")
	e.wantState(id, sandbox.StateCreated)
	e.ok(e.d.Start(e.ctx, id))
	if got := string(e.run(id, e.commands.Cat("/tmp/f")).Stdout); got != "before the start" {
		e.Errorf("the command sees %q", got)
	}
	e.ok(e.d.Stop(e.ctx, id, 0))
	e.writeFile(id, "/tmp/f", "while it is stopped")
	if got := e.readFile(id, "/tmp/f", sandbox.FileOptions{}); got != "while it is stopped" {
		e.Errorf("the file has %q", got)
	}
	if got := e.untar(id, "/tmp/f", sandbox.FileOptions{}); got != "f 644 while it is stopped\n" {
		e.Errorf("the archive is %q", got)
	}
	e.wantState(id, sandbox.StateStopped)
	e.ok(e.d.Start(e.ctx, id))
	if got := string(e.run(id, e.commands.Cat("/tmp/f")).Stdout); got != "while it is stopped" {
		e.Errorf("the command sees %q", got)
	}
}

func cancelledFiles(e *env) {
	why := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(e.ctx)
	cancel(why)
	id, f := e.box(), e.files()
	_, err := f.Stat(ctx, id, "/tmp", sandbox.FileOptions{})
	e.wantErr(err, why)
	_, err = f.CopyFrom(ctx, id, "/tmp", sandbox.FileOptions{})
	e.wantErr(err, why)
	e.wantErr(f.MkDir(ctx, id, "/tmp/x", sandbox.FileOptions{}), why)
}
