package treesync_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/tai/volume"
)

// place is a destination with a canary tree beside it.
func place(t testing.TB) (dest, beside string) {
	t.Helper()
	base := t.TempDir()
	dest, beside = filepath.Join(base, "dest"), filepath.Join(base, "canary")
	plant(t, base, map[string]string{"dest/dir/f": "old", "dest/file": "old", "dest/out": "->../canary", "canary/secret": "untouched"})
	return dest, beside
}

// evilStreams are what no side sends.
func evilStreams() map[string][]byte {
	return map[string][]byte{
		"empty":           {},
		"garbage":         []byte("<!doctype html>"),
		"magic-only":      stream(),
		"no-end":          stream().file("x", "x"),
		"up":              stream().file("../canary/evil", "x").end(),
		"up-inside":       stream().file("dir/../../canary/evil", "x").end(),
		"absolute":        stream().file("/tmp/evil", "x").end(),
		"empty-name":      stream().file("", "x").end(),
		"dot":             stream().file(".", "x").end(),
		"dot-inside":      stream().file("dir/./x", "x").end(),
		"double-slash":    stream().file("dir//x", "x").end(),
		"slash-at-end":    stream().dir("dir/").end(),
		"nul":             stream().file("a\x00b", "x").end(),
		"long-name":       stream().file(strings.Repeat("n", 256), "x").end(),
		"long-path":       stream().file(strings.Repeat("d/", 2100)+"x", "x").end(),
		"deep":            stream().file(strings.Repeat("d/", 300)+"x", "x").end(),
		"our-name":        stream().file(".taibox-sync-x", "x").end(),
		"through-link":    stream().file("out/evil", "x").end(),
		"through-own":     stream().dir("d").link("d/l", "..").file("d/l/../evil", "x").end(),
		"dir-over-link":   stream().dir("out").end(),
		"dir-over-file":   stream().dir("file").end(),
		"file-over-dir":   stream().file("dir", "x").end(),
		"link-over-dir":   stream().link("dir", "x").end(),
		"link-absolute":   stream().link("l", "/etc/passwd").end(),
		"link-up":         stream().link("l", "../canary").end(),
		"link-climbs":     stream().link("l", "dir/../../canary").end(),
		"link-empty":      stream().link("l", "").end(),
		"link-nul":        stream().link("l", "a\x00b").end(),
		"through-new":     stream().link("l", "dir").file("l/evil", "x").end(),
		"longer":          stream().kind('F').str("x").uint(0o644).int(1).uint(0).uint(3).kind('C').str("four").kind('K').end(),
		"shorter":         stream().kind('F').str("x").uint(0o644).int(1).uint(0).uint(30).kind('C').str("four").kind('K').end(),
		"empty-chunk":     stream().kind('F').str("x").uint(0o644).int(1).uint(0).uint(3).kind('C').str("").kind('K').end(),
		"hole-too-long":   stream().kind('F').str("x").uint(0o644).int(1).uint(0).uint(3).kind('Z').uint(4).kind('K').end(),
		"hole-overflows":  stream().kind('F').str("x").uint(0o644).int(1).uint(0).uint(3).kind('Z').uint(1 << 63).kind('K').end(),
		"huge-size":       stream().kind('F').str("x").uint(0o644).int(1).uint(0).uint(1<<63 + 1).kind('K').end(),
		"bad-time":        stream().kind('F').str("x").uint(0o644).int(1).uint(2e9).uint(0).kind('K').end(),
		"far-time":        stream().kind('F').str("x").uint(0o644).int(1 << 60).uint(0).uint(0).kind('K').end(),
		"bad-mode":        stream().kind('F').str("x").uint(1 << 40).int(1).uint(0).uint(0).kind('K').end(),
		"record-in-file":  stream().kind('F').str("x").uint(0o644).int(1).uint(0).uint(3).file("y", "y").end(),
		"unknown":         stream().kind('Q').str("x").end(),
		"varint-overflow": append(stream().kind('F'), bytes.Repeat([]byte{0xff}, 20)...),
		"long-string":     stream().kind('F').uint(1 << 40),
		"cut-in-data":     stream().kind('F').str("x").uint(0o644).int(1).uint(0).uint(30).kind('C').uint(30).kind('x'),
		"after-the-end":   append(stream().end(), "more"...),
		"bad-zstd":        append([]byte("\x28\xb5\x2f\xfd"), bytes.Repeat([]byte{0xff}, 100)...),
	}
}

// J08, J10: nothing that a stream says leads out of the tree, and no file that
// was not whole is there.
func TestJ10EvilStreams(t *testing.T) {
	for name, data := range evilStreams() {
		t.Run(name, func(t *testing.T) {
			dest, beside := place(t)
			want := picture(t, filepath.Dir(dest))
			err := treesync.Dir(dest).Apply(t.Context(), nil, bytes.NewReader(data))
			var no unix.Errno
			if !errors.Is(err, volume.ErrArchive) && !errors.As(err, &no) {
				t.Errorf("it says %v", err)
			}
			if data, _ := os.ReadFile(filepath.Join(beside, "secret")); string(data) != "untouched" {
				t.Errorf("beside is %q", data)
			}
			if entries, _ := os.ReadDir(beside); len(entries) != 1 {
				t.Errorf("beside are %v", entries)
			}
			for _, made := range []string{"d", "l", "x"} { // what was whole may stay
				os.RemoveAll(filepath.Join(dest, made))
			}
			if got := picture(t, filepath.Dir(dest)); got != want {
				t.Errorf("there is\n%s", got)
			}
		})
	}
}

func TestEvilRemovals(t *testing.T) {
	for _, name := range []string{"../canary/secret", "/etc/passwd", "out/secret", "dir/../../canary/secret", ".", "", "a\x00", "..", "dir/.."} {
		dest, beside := place(t)
		err := treesync.Dir(dest).Apply(t.Context(), []string{name}, bytes.NewReader(stream().end()))
		if name != "out/secret" && !errors.Is(err, volume.ErrArchive) {
			t.Errorf("%q: %v", name, err)
		}
		if data, _ := os.ReadFile(filepath.Join(beside, "secret")); string(data) != "untouched" {
			t.Errorf("%q: beside is %q", name, data)
		}
		if _, err := os.Stat(filepath.Join(dest, "dir/f")); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// evil is a side that says what it likes.
type evil struct {
	entries []volume.SyncEntry
	data    []byte
}

func (e evil) Index(context.Context, volume.IndexOptions) iter.Seq2[volume.SyncEntry, error] {
	return func(yield func(volume.SyncEntry, error) bool) {
		for _, entry := range e.entries {
			if !yield(entry, nil) {
				return
			}
		}
	}
}

func (e evil) Hashes(_ context.Context, names []string) ([]string, error) {
	return make([]string, len(names)/2), nil
}

func (e evil) Fetch(_ context.Context, _ []string, w io.Writer) error {
	_, err := w.Write(e.data)
	return err
}

func (e evil) Apply(_ context.Context, _ []string, r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// A side gets no file made that it did not name before, as scp once did, and
// none that is excluded.
func TestEvilSides(t *testing.T) {
	when := time.Unix(1, 0)
	file := func(name string) volume.SyncEntry {
		return volume.SyncEntry{Path: name, Mode: 0o644, Size: 1, ModTime: when}
	}
	dir := func(name string) volume.SyncEntry { return volume.SyncEntry{Path: name, Mode: fs.ModeDir | 0o755} }
	for name, e := range map[string]evil{
		"unasked":       {[]volume.SyncEntry{file("a")}, stream().file("a", "x").file(".bashrc", "x").end()},
		"before":        {[]volume.SyncEntry{file("a"), file("b")}, stream().file("b", "x").file("a", "x").end()},
		"order":         {[]volume.SyncEntry{file("b"), file("a")}, nil},
		"twice":         {[]volume.SyncEntry{file("a"), file("a")}, nil},
		"no-dir":        {[]volume.SyncEntry{file("d/a")}, nil},
		"in-file":       {[]volume.SyncEntry{file("a"), file("a/b")}, nil},
		"other-dir":     {[]volume.SyncEntry{dir("a"), dir("b"), file("b/x"), file("c/x")}, nil},
		"up":            {[]volume.SyncEntry{file("../a")}, nil},
		"absolute":      {[]volume.SyncEntry{file("/a")}, nil},
		"negative":      {[]volume.SyncEntry{{Path: "a", Size: -1, ModTime: when}}, nil},
		"device":        {[]volume.SyncEntry{{Path: "a", Mode: fs.ModeDevice, ModTime: when}}, nil},
		"empty-link":    {[]volume.SyncEntry{{Path: "a", Mode: fs.ModeSymlink, ModTime: when}}, nil},
		"wrong-hashes":  {[]volume.SyncEntry{{Path: "dir", Mode: fs.ModeDir | 0o755}, {Path: "dir/f", Mode: 0o644, Size: 3, ModTime: when}}, nil},
		"excluded":      {[]volume.SyncEntry{dir("deny"), file("deny/x")}, stream().file("deny/x", "x").end()},
		"git-hook":      {[]volume.SyncEntry{dir(".git"), file(".git/hook")}, stream().file(".git/hook", "x").end()},
		"meta":          {[]volume.SyncEntry{file("a")}, stream().meta("file", 0o666).file("a", "x").end()},
		"meta-excluded": {[]volume.SyncEntry{file("a")}, stream().meta("dir/f", 0o666).file("a", "x").end()},
		"meta-later":    {[]volume.SyncEntry{file("a")}, append(stream().file("a", "x").end(), stream().meta("file", 0o666).end()...)},
		"other-side-up": {[]volume.SyncEntry{file("a")}, stream().kind('!').str("ARCHIVE_INVALID").str("no").end()},
	} {
		t.Run(name, func(t *testing.T) {
			dest, _ := place(t)
			want := picture(t, dest)
			o := volume.SyncOptions{IndexOptions: volume.IndexOptions{Exclude: []string{"deny"}, GitIgnore: true}}
			_, err := treesync.Sync(t.Context(), e, treesync.Dir(dest), o)
			if quiet := name == "excluded" || name == "git-hook"; quiet != (err == nil) || !quiet && !errors.Is(err, volume.ErrArchive) {
				t.Errorf("it says %v", err)
			}
			os.Remove(filepath.Join(dest, "a"))
			os.Remove(filepath.Join(dest, "b"))
			if got := picture(t, dest); got != want {
				t.Errorf("there is\n%s", got)
			}
			if name != "excluded" && name != "git-hook" && name != "other-side-up" && name != "unasked" && name != "before" && !strings.HasPrefix(name, "meta") {
				if _, err := treesync.Sync(t.Context(), treesync.Dir(dest), e, o); !errors.Is(err, volume.ErrArchive) {
					t.Errorf("as a destination: %v", err)
				}
			}
		})
	}
}

// compressed is a stream as a side far away sends it.
func compressed(t *testing.T, r record) []byte {
	t.Helper()
	zw, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer zw.Close()
	return zw.EncodeAll(r[len(stream()):], nil)
}

// A mode that is to be set is the one that the index has, whatever comes later.
func TestEvilMetas(t *testing.T) {
	dest, _ := place(t)
	e := evil{
		[]volume.SyncEntry{{Path: "a", Mode: 0o644, Size: 1, ModTime: time.Unix(1, 0)}, {Path: "dir", Mode: fs.ModeDir | 0o750}},
		compressed(t, stream().file("a", "x").meta("dir", 0o777).end()),
	}
	if _, err := treesync.Sync(t.Context(), e, treesync.Dir(dest), volume.SyncOptions{}); !errors.Is(err, volume.ErrArchive) || !strings.Contains(err.Error(), "nobody asked") {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(dest, "dir")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// What names files is refused at the first that is out of order or too much:
// a stream of a few bytes may have any number of them.
func TestEvilNames(t *testing.T) {
	long := strings.Repeat("d/", 2000)
	many := func(n int, name func(int) string) record {
		r := stream()
		for i := range n {
			r = r.kind('n').str(name(i))
		}
		return r.end()
	}
	for name, data := range map[string]record{
		"equal":    stream().kind('n').str("a").kind('n').str("a"), // of the rest nothing is asked
		"order":    stream().kind('n').str("b").kind('n').str("a"),
		"slash":    stream().kind('n').str("a!").kind('n').str("a/b"),
		"up":       stream().kind('n').str("../a"),
		"empty":    stream().kind('n').str(""),
		"number":   many(treesync.MaxNames+1, func(i int) string { return fmt.Sprintf("%06d", i) }),
		"bytes":    many(treesync.MaxNameBytes/255+1, func(i int) string { return fmt.Sprintf("%0255d", i) }),
		"too-long": stream().kind('n').str(long + long),
		"no-name":  stream().file("a", "x").end(),
	} {
		if _, err := treesync.ReadNames(bytes.NewReader(data)); !errors.Is(err, volume.ErrArchive) || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names, err := treesync.ReadNames(bytes.NewReader(many(treesync.MaxNames, func(i int) string { return fmt.Sprintf("%06d", i) }))); len(names) != treesync.MaxNames {
		t.Errorf("%d names, %v", len(names), err)
	}
	for name, data := range map[string]record{
		"more":     many(3, strconv.Itoa),
		"less":     many(1, strconv.Itoa),
		"too-long": stream().kind('n').str(strings.Repeat("0", 65)),
	} {
		if _, err := treesync.ReadHashes(bytes.NewReader(data), 2); !errors.Is(err, volume.ErrArchive) || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("hashes, %s: %v", name, err)
		}
	}
	// What a stream makes its reader remember is bounded.
	var wide bytes.Buffer
	zw, err := zstd.NewWriter(&wide, zstd.WithWindowSize(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(zw, io.LimitReader(rand.NewChaCha8([32]byte{}), 9<<20)); err != nil {
		t.Fatal(err)
	}
	zw.Close()
	if _, err := treesync.ReadNames(&wide); !errors.Is(err, volume.ErrArchive) || !strings.Contains(err.Error(), "window") {
		t.Errorf("a wide window: %v", err)
	}
}

// The patterns of directories in each other are bounded together, and what is
// too much is named, from afar too.
func TestHostileIgnoreFiles(t *testing.T) {
	from := t.TempDir()
	const each = 10_000
	text := strings.Repeat("a\n", each)
	plant(t, from, map[string]string{".gitignore": text, "f": "f"})
	for i := range 10 {
		plant(t, from, map[string]string{strings.Repeat("d/", i+1) + ".gitignore": text})
	}
	for way, ends := range ways(from, t.TempDir()) {
		o := volume.SyncOptions{IndexOptions: volume.IndexOptions{GitIgnore: true}}
		if _, err := treesync.Sync(t.Context(), ends[0], ends[1], o); !errors.Is(err, volume.ErrTooLarge) || !strings.Contains(err.Error(), `d/d/d/d/d/d/.gitignore`) {
			t.Errorf("%s: %v", way, err)
		}
		o.Exclude = []string{"/d"}
		if _, err := treesync.Sync(t.Context(), ends[0], ends[1], o); err != nil {
			t.Errorf("%s, without it: %v", way, err)
		}
		o.Exclude = strings.Split(strings.Repeat(text, 10), "\n")
		if _, err := treesync.Sync(t.Context(), ends[0], ends[1], o); !errors.Is(err, volume.ErrTooLarge) {
			t.Errorf("%s, with too much to exclude: %v", way, err)
		}
	}
}

// Of the .gitignore files of a source only so much is kept, holes or not.
func TestHostileIgnoreHoles(t *testing.T) {
	dest, e, data := t.TempDir(), evil{}, stream()
	for i := range 70 {
		dir := fmt.Sprintf("d%02d", i)
		plant(t, dest, map[string]string{dir + "/only-here": "x"})
		e.entries = append(e.entries, volume.SyncEntry{Path: dir, Mode: fs.ModeDir | 0o755})
		data = data.kind('F').str(dir + "/.gitignore").uint(0o644).int(1).uint(0).uint(1<<20 - 2).kind('Z').uint(1<<20 - 2).kind('K')
	}
	e.data = data.end()
	o := volume.SyncOptions{Delete: true, IndexOptions: volume.IndexOptions{GitIgnore: true}}
	if _, err := treesync.Sync(t.Context(), e, treesync.Dir(dest), o); !errors.Is(err, volume.ErrTooLarge) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dest, "d00/only-here")); err != nil {
		t.Error(err)
	}
}

// patient is a context that ends when it was looked at some times.
type patient struct {
	context.Context //nolint:containedctx // it is one
	left            int
}

func (p *patient) Err() error {
	if p.left--; p.left < 0 {
		return errCut
	}
	return nil
}

// An index ends with its caller, though nothing of a directory is ever yielded.
func TestIndexEndsWithItsCaller(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, map[string]string{".gitignore": "*"})
	for i := range 100 {
		plant(t, dir, map[string]string{fmt.Sprint(i): ""})
	}
	for left, want := range map[int]error{50: errCut, 1000: nil} {
		var got error
		for e, err := range treesync.Dir(dir).Index(&patient{context.Background(), left}, volume.IndexOptions{GitIgnore: true}) {
			if got = err; err == nil {
				t.Errorf("there is %q", e.Path)
			}
		}
		if !errors.Is(got, want) {
			t.Errorf("after %d looks: %v", left, got)
		}
	}
}

// J03: directories become links to the outside while a sync reads and writes.
func TestJ03SwappedDirectories(t *testing.T) {
	dest, beside := place(t)
	from := t.TempDir()
	plant(t, from, map[string]string{"d/e/f": "new", "d/e/g": "new", "d/e/secret": "new", "d/x": "new"})
	plant(t, dest, map[string]string{"d/e/secret": "old"})
	if err := os.Symlink(beside, filepath.Join(dest, "spare")); err != nil {
		t.Fatal(err)
	}
	before := picture(t, beside)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errCut)
	defer cancel()
	var wg gosync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			unix.Renameat2(unix.AT_FDCWD, filepath.Join(dest, "d"), unix.AT_FDCWD, filepath.Join(dest, "spare"), unix.RENAME_EXCHANGE)
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			var out bytes.Buffer
			treesync.Dir(dest).Fetch(ctx, []string{"d/secret", "d/e/secret", "spare/secret"}, &out)
			if bytes.Contains(out.Bytes(), []byte("untouched")) {
				t.Error("it read what is beside")
			}
		}
	})
	rounds := 0
	for ; ctx.Err() == nil; rounds++ {
		treesync.Sync(ctx, treesync.Dir(from), treesync.Dir(dest), volume.SyncOptions{Delete: rounds%2 == 0, Checksum: true})
		data := stream().dir("d").dir("d/e").file("d/e/secret", "evil").file("d/secret", "evil").end()
		treesync.Dir(dest).Apply(ctx, []string{"d/secret", "d/e/secret", "d/e"}, bytes.NewReader(data))
	}
	wg.Wait()
	if got := picture(t, beside); got != before {
		t.Errorf("after %d rounds there is beside\n%s", rounds, got)
	}
}

func FuzzApply(f *testing.F) {
	for _, data := range evilStreams() {
		f.Add("dir/f", data)
	}
	f.Add("file", []byte(stream().dir("d").file("d/x", "data").link("d/l", "x").kind('M').str("file").uint(0o600).int(5).uint(5).end()))
	var packed bytes.Buffer
	src := f.TempDir()
	plant(f, src, map[string]string{"a/b": "c", "l": "->a/b"})
	if err := treesync.Dir(src).Fetch(f.Context(), []string{"a", "a/b", "l"}, &packed); err != nil {
		f.Fatal(err)
	}
	f.Add("", packed.Bytes())
	f.Fuzz(func(t *testing.T, remove string, data []byte) {
		dest, beside := place(t)
		treesync.Dir(dest).Apply(t.Context(), []string{remove}, bytes.NewReader(data))
		if data, err := os.ReadFile(filepath.Join(beside, "secret")); string(data) != "untouched" {
			t.Errorf("beside: %q, %v", data, err)
		}
		if entries, _ := os.ReadDir(filepath.Dir(dest)); len(entries) != 2 {
			t.Errorf("beside are %v", entries)
		}
		filepath.WalkDir(dest, func(name string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasPrefix(d.Name(), ".taibox-sync-") {
				t.Errorf("%s is left", name)
			}
			return nil
		})
	})
}

func FuzzIndex(f *testing.F) {
	var wire bytes.Buffer
	dir := f.TempDir()
	plant(f, dir, map[string]string{"a/b": "c", "l": "->a/b"})
	if err := treesync.WriteIndex(&wire, treesync.Dir(dir).Index(f.Context(), volume.IndexOptions{})); err != nil {
		f.Fatal(err)
	}
	f.Add(wire.Bytes())
	f.Add([]byte(stream().kind('e').str("a").uint(0o644).uint(1).int(1).uint(1).str("").end()))
	f.Add([]byte(stream().kind('!').str("ARCHIVE_INVALID").str("text")))
	f.Add([]byte(stream().kind('n').str("a").end()))
	f.Fuzz(func(t *testing.T, data []byte) {
		treesync.ReadNames(bytes.NewReader(data))
		treesync.ReadHashes(bytes.NewReader(data), 1000)
		treesync.ReadApply(bytes.NewReader(data))
		var entries []volume.SyncEntry
		for e, err := range treesync.ReadIndex(bytes.NewReader(data)) {
			if err == nil {
				entries = append(entries, e)
			}
		}
		// Whatever it says, it does nothing to what is beside.
		dest, beside := place(t)
		treesync.Sync(t.Context(), evil{entries, data}, treesync.Dir(dest), volume.SyncOptions{Delete: true})
		treesync.Sync(t.Context(), treesync.Dir(dest), evil{entries, data}, volume.SyncOptions{Delete: true})
		if data, err := os.ReadFile(filepath.Join(beside, "secret")); string(data) != "untouched" {
			t.Errorf("beside: %q, %v", data, err)
		}
	})
}
