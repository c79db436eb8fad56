package treesync_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/tai/volume"
)

// ways are the sides of a sync, near and far.
func ways(from, to string) map[string][2]volume.SyncEnd {
	return map[string][2]volume.SyncEnd{
		"near": {treesync.Dir(from), treesync.Dir(to)},
		"push": {treesync.Dir(from), far{treesync.Dir(to)}},
		"pull": {far{treesync.Dir(from)}, treesync.Dir(to)},
		"far":  {far{treesync.Dir(from)}, far{treesync.Dir(to)}},
	}
}

func TestSync(t *testing.T) {
	for _, way := range []string{"near", "push", "pull", "far"} {
		t.Run(way, func(t *testing.T) {
			from, to := t.TempDir(), filepath.Join(t.TempDir(), "not", "there")
			ends := ways(from, to)[way]
			odd := []string{"a\nb", "\xff\xfe", "-rf", "a b", `"`, "%2F", "é", "e\u0301", "🚀", strings.Repeat("x", 255), ".git", "trailing ", "*", "a!", "a", "a.b"} // K08
			for i, name := range odd {
				plant(t, from, map[string]string{name + "": strings.Repeat(name, i)})
			}
			plant(t, from, map[string]string{"d/e/f": "f", "d/empty/": "", "d/l": "->e/f", "d/up": "->../a b", "none/": "", "zero": "", "a-dir/x": "x", "b/c": "c"})
			for _, err := range []error{
				os.Chmod(filepath.Join(from, "d/e/f"), 0o4751), os.Chmod(filepath.Join(from, "zero"), 0o400), os.Chmod(filepath.Join(from, "none"), 0o500),
				os.Chtimes(filepath.Join(from, "zero"), time.Time{}, time.Unix(1e9, 123456789)), syscall.Mkfifo(filepath.Join(from, "pipe"), 0o600),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() { os.Chmod(filepath.Join(from, "none"), 0o700); os.Chmod(filepath.Join(to, "none"), 0o700) })
			var told []volume.SyncResult
			res := sync(t, ends[0], ends[1], volume.SyncOptions{Progress: func(r volume.SyncResult) { told = append(told, r) }})
			if res.FilesTotal != res.FilesSynced || res.FilesTotal == 0 || res.BytesTotal != res.BytesSynced || res.BytesSent == 0 {
				t.Errorf("the first sync: %+v", res)
			}
			if last := told[len(told)-1]; last.FilesSynced != res.FilesSynced || last.BytesSent != res.BytesSent {
				t.Errorf("the last progress is %+v, the result %+v", last, res)
			}
			// Pipes stay behind, and so do set-user-ID bits.
			os.Remove(filepath.Join(from, "pipe"))
			os.Chmod(filepath.Join(from, "d/e/f"), 0o751)
			if got, want := picture(t, to), picture(t, from); got != want {
				t.Fatalf("got\n%s\nwant\n%s", got, want)
			}
			for _, o := range []volume.SyncOptions{{}, {Delete: true}, {Checksum: true}} {
				if res := sync(t, ends[0], ends[1], o); res.FilesSynced != 0 || res.BytesSent != 0 || res.FilesRemoved != 0 {
					t.Errorf("another sync %+v: %+v", o, res)
				}
			}
			// Every kind becomes every other.
			for _, name := range []string{"a", "d", "zero", "b", "d2"} {
				os.RemoveAll(filepath.Join(from, name))
			}
			plant(t, from, map[string]string{"a/b/c": "c", "d": "->zero", "zero/": "", "b": "file", "new/x": "x"})
			plant(t, to, map[string]string{"only/here/x": "x", "c": "->a"})
			dry := sync(t, ends[0], ends[1], volume.SyncOptions{Delete: true, DryRun: true})
			res = sync(t, ends[0], ends[1], volume.SyncOptions{Delete: true})
			if got, want := picture(t, to), picture(t, from); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if res.FilesRemoved == 0 || dry.FilesRemoved != res.FilesRemoved || dry.FilesSynced != res.FilesSynced || dry.BytesSent != 0 {
				t.Errorf("it is %+v; foretold was %+v", res, dry)
			}
		})
	}
}

func TestOnlyWhatDiffersIsSent(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	plant(t, from, map[string]string{"touched": "same", "mode": "same", "changed": "aaaa", "hidden": "old", "kept": "k"})
	ends := ways(from, to)["push"]
	sync(t, ends[0], ends[1], volume.SyncOptions{})
	old := time.Unix(1e9, 5)
	hidden := filepath.Join(from, "hidden")
	info, _ := os.Stat(hidden)
	for _, err := range []error{
		os.Chtimes(filepath.Join(from, "touched"), old, old), os.Chmod(filepath.Join(from, "mode"), 0o600),
		os.WriteFile(filepath.Join(from, "changed"), []byte("bbbb"), 0o600),
		os.WriteFile(hidden, []byte("new"), 0o600), os.Chtimes(hidden, info.ModTime(), info.ModTime()),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	res := sync(t, ends[0], ends[1], volume.SyncOptions{})
	if res.FilesSynced != 3 || res.BytesSynced != 4 {
		t.Errorf("%+v", res)
	}
	if data, _ := os.ReadFile(filepath.Join(to, "hidden")); string(data) != "old" {
		t.Errorf("what looks the same was read: %q", data)
	}
	res = sync(t, ends[0], ends[1], volume.SyncOptions{Checksum: true})
	if res.FilesSynced != 1 || res.BytesSynced != 3 {
		t.Errorf("with checksums: %+v", res)
	}
	if got, want := picture(t, to), picture(t, from); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestWithoutDelete(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	plant(t, from, map[string]string{"a": "a", "e": "e"})
	plant(t, to, map[string]string{"b": "b", "e/": ""})
	sync(t, treesync.Dir(from), treesync.Dir(to), volume.SyncOptions{})
	if data, err := os.ReadFile(filepath.Join(to, "b")); string(data) != "b" {
		t.Error(err)
	}
	if data, err := os.ReadFile(filepath.Join(to, "e")); string(data) != "e" { // an empty directory goes
		t.Error(err)
	}
	os.Remove(filepath.Join(to, "e"))
	plant(t, to, map[string]string{"e/kept": "k"})
	if _, err := treesync.Sync(t.Context(), treesync.Dir(from), treesync.Dir(to), volume.SyncOptions{}); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("a file in the place of a directory: %v", err)
	}
	if data, err := os.ReadFile(filepath.Join(to, "e/kept")); string(data) != "k" {
		t.Error(err)
	}
}

func TestWhatIsExcluded(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	plant(t, from, map[string]string{
		".gitignore": "*.log\n/build/\n!keep.log\n/.gitignore\n", "x.log": "x", "keep.log": "k", "build/out": "o", "src/.gitignore": "gen/\n", "src/gen/g": "g", "src/a.c": "a",
		".git/HEAD": "h", "sub/.git/config": "c", "secret.key": "s", "node_modules/m": "m", "linked/.gitignore": "->../src/.gitignore", "linked/gen/x": "x",
		"-d/.gitignore": "own\n", "in/ner/f": "f",
	})
	for _, way := range []string{"near", "far"} {
		plant(t, to, map[string]string{"y.log": "y", "build/old": "o", "src/gen/old": "o", ".git/index": "i", "-d/own": "o", "in/ner/gone": "g", "secret.key": "mine", "node_modules/n": "n", "gone": "g", "src/gone": "g"})
		ends := ways(from, to)[way]
		sync(t, ends[0], ends[1], volume.SyncOptions{Delete: true, IndexOptions: volume.IndexOptions{GitIgnore: true, Exclude: []string{"*.key", "node_modules/"}}})
		var got []string
		for line := range strings.Lines(picture(t, to)) {
			got = append(got, strings.Trim(strings.Fields(line)[0], `"`))
		}
		want := []string{
			"-d", "-d/.gitignore", "-d/own", ".git", ".git/index", "build", "build/old", "in", "in/ner", "in/ner/f", "keep.log", "linked", "linked/.gitignore", "linked/gen", "linked/gen/x", "node_modules", "node_modules/n",
			"secret.key", "src", "src/.gitignore", "src/a.c", "src/gen", "src/gen/old", "sub", "y.log",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: there are\n%q, want\n%q", way, got, want)
		}
		if data, _ := os.ReadFile(filepath.Join(to, "secret.key")); string(data) != "mine" {
			t.Errorf("what is excluded became %q", data)
		}
	}
	// A directory stays for what is excluded in it.
	plant(t, to, map[string]string{"old/x.key": "k", "old/y": "y"})
	sync(t, treesync.Dir(from), treesync.Dir(to), volume.SyncOptions{Delete: true, IndexOptions: volume.IndexOptions{Exclude: []string{"*.key"}}})
	if entries, err := os.ReadDir(filepath.Join(to, "old")); len(entries) != 1 || entries[0].Name() != "x.key" {
		t.Errorf("%v, %v", entries, err)
	}
}

// More names than one call may have are sent by several.
func TestManyNames(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	deep := strings.Repeat(strings.Repeat("d", 250)+"/", 7)
	plant(t, from, map[string]string{deep: "", "kept": "k"})
	long := strings.Repeat("n", 240)
	number := 2*treesync.MaxNameBytes/(len(deep)+len(long)) + 100
	dir, err := os.OpenRoot(filepath.Join(from, deep))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	name := func(i int) string { return fmt.Sprintf("%s%05d", long, i) }
	for i := range number {
		if err := dir.WriteFile(name(i), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ends := ways(from, to)["far"]
	if res := sync(t, ends[0], ends[1], volume.SyncOptions{}); res.FilesSynced != int64(number)+8 {
		t.Fatalf("%+v", res)
	}
	if got, want := picture(t, to), picture(t, from); got != want {
		t.Fatal("the trees differ")
	}
	for i := range number {
		if err := dir.Chtimes(name(i), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if res := sync(t, ends[0], ends[1], volume.SyncOptions{}); res.FilesSynced != int64(number) || res.BytesSynced != 0 {
		t.Errorf("touched: %+v", res)
	}
	if err := os.RemoveAll(filepath.Join(from, deep[:250])); err != nil {
		t.Fatal(err)
	}
	if res := sync(t, ends[0], ends[1], volume.SyncOptions{Delete: true}); res.FilesRemoved != int64(number)+7 {
		t.Errorf("removed: %+v", res)
	}
	if got, want := picture(t, to), picture(t, from); got != want {
		t.Errorf("there is\n%.1000s", got)
	}
}

func TestJ01LinksThatLeadOut(t *testing.T) {
	from, to, beside := t.TempDir(), t.TempDir(), t.TempDir()
	plant(t, beside, map[string]string{"secret": "untouched"})
	plant(t, from, map[string]string{"abs": "->/etc/passwd", "up": "->../x", "d/up": "->../../x", "d/climb": "->../d/../../x", "ok": "->d/f", "d/f": "f", "evil/file": "x", "evil2": "x"})
	plant(t, to, map[string]string{"evil": "->" + beside, "evil2": "->" + filepath.Join(beside, "secret")})
	for way, ends := range ways(from, to) {
		res := sync(t, ends[0], ends[1], volume.SyncOptions{Delete: true})
		if want := []string{"abs", "d/climb", "d/up", "up"}; !slices.Equal(res.LeftOut, want) {
			t.Errorf("%s: left out were %q", way, res.LeftOut)
		}
	}
	for _, name := range []string{"abs", "up", "d/up", "d/climb"} {
		os.Remove(filepath.Join(from, name))
	}
	if got, want := picture(t, to), picture(t, from); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if data, _ := os.ReadFile(filepath.Join(beside, "secret")); string(data) != "untouched" {
		t.Errorf("beside is %q", data)
	}
}

// cutting is a side whose stream breaks off.
type cutting struct {
	volume.SyncEnd
	left int
}

func (c *cutting) Fetch(ctx context.Context, names []string, w io.Writer) error {
	return c.SyncEnd.Fetch(ctx, names, &cutWriter{w, &c.left})
}

type cutWriter struct {
	io.Writer
	left *int
}

var errCut = errors.New("the line was cut")

func (c *cutWriter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p[:min(len(p), *c.left)])
	*c.left -= n
	if err == nil && n < len(p) {
		err = errCut
	}
	return n, err
}

func random(n int) []byte {
	data := make([]byte, n)
	rnd := rand.NewChaCha8([32]byte{})
	rnd.Read(data)
	return data
}

// K05: a sync that is cut leaves whole files only, and goes on when repeated.
func TestK05CutSyncGoesOn(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	data := random(300 << 10)
	for i := range 10 {
		if err := os.WriteFile(filepath.Join(from, fmt.Sprint("f", i)), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for sent := int64(0); sent < 10; {
		end := &cutting{far{treesync.Dir(from)}, 1500 << 10}
		res, err := treesync.Sync(t.Context(), end, treesync.Dir(to), volume.SyncOptions{})
		entries, _ := os.ReadDir(to)
		for _, e := range entries {
			if got, _ := os.ReadFile(filepath.Join(to, e.Name())); !bytes.Equal(got, data) {
				t.Fatalf("%s is half a file", e.Name())
			}
		}
		if err != nil && !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		if got := int64(len(entries)); got <= sent {
			t.Fatalf("it does not go on: %d files, %+v, %v", got, res, err)
		} else {
			sent = got
		}
	}
}

// K07: a hole is not read, not sent and not written.
func TestK07Holes(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	big := filepath.Join(from, "big")
	f, err := os.OpenFile(big, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 1 << 40
	for _, err := range []error{f.Truncate(size), func() error { _, err := f.WriteAt([]byte("x"), size/2+12345); return err }()} {
		if err != nil {
			t.Skip(err)
		}
	}
	ends := ways(from, to)["push"]
	res := sync(t, ends[0], ends[1], volume.SyncOptions{})
	if res.BytesSynced != size || res.BytesSent > 1<<20 {
		t.Errorf("%+v", res)
	}
	got, err := os.Stat(filepath.Join(to, "big"))
	if err != nil || got.Size() != size || got.Sys().(*syscall.Stat_t).Blocks > 1000 {
		t.Fatalf("%+v, %v", got, err)
	}
	c := make([]byte, 3)
	copied, _ := os.Open(filepath.Join(to, "big"))
	defer copied.Close()
	if _, err := copied.ReadAt(c, size/2+12344); string(c) != "\x00x\x00" {
		t.Errorf("%q, %v", c, err)
	}
	// Its hash is made without reading it, and sees what is in it.
	when := time.Unix(1e9, 0)
	os.Chtimes(big, when, when)
	if res := sync(t, ends[0], ends[1], volume.SyncOptions{}); res.BytesSynced != 0 || res.FilesSynced != 1 {
		t.Errorf("touched: %+v", res)
	}
	f.WriteAt([]byte("y"), size/2+12345)
	os.Chtimes(big, when, when)
	if res := sync(t, ends[0], ends[1], volume.SyncOptions{Checksum: true}); res.BytesSynced != size {
		t.Errorf("changed: %+v", res)
	}
}

// A hash does not depend on where the holes are.
func TestHashesOfHoles(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 5<<20+123)
	copy(data[3<<20+1000:], "in the middle")
	var names []string
	for i, at := range [][]int{nil, {3<<20 + 1000}, {0, 3<<20 + 1000, 5 << 20}, {1 << 20, 3<<20 + 1000}} {
		name := fmt.Sprint(i)
		names = append(names, name)
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if at == nil {
			f.Write(data)
		}
		for _, n := range at {
			f.WriteAt(data[n:min(n+5000, len(data))], int64(n))
		}
		f.Truncate(int64(len(data)))
		f.Close()
	}
	hashes, err := treesync.Dir(dir).Hashes(t.Context(), append(names, "none", "no/where"))
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range hashes[:4] {
		if h != hashes[0] || h == "" {
			t.Errorf("%d: %q", i, h)
		}
	}
	if hashes[4] != "" || hashes[5] != "" {
		t.Errorf("what is not there has the hash %q", hashes[4:])
	}
}

// touching changes a file whenever something of it was sent.
type touching struct {
	volume.SyncEnd
	name string
}

func (c *touching) Fetch(ctx context.Context, names []string, w io.Writer) error {
	return c.SyncEnd.Fetch(ctx, names, &touchWriter{w, c.name})
}

type touchWriter struct {
	io.Writer
	name string
}

func (c *touchWriter) Write(p []byte) (int, error) {
	f, err := os.OpenFile(c.name, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.Write([]byte("more"))
		f.Close()
	}
	if err != nil {
		return 0, err
	}
	return c.Writer.Write(p)
}

// A file that never stands still is told, and the others arrive.
func TestFileChangesWhileItIsRead(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "busy"), random(4<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	plant(t, from, map[string]string{"a": "a", "z": "z"})
	end := &touching{treesync.Dir(from), filepath.Join(from, "busy")}
	_, err := treesync.Sync(t.Context(), end, treesync.Dir(to), volume.SyncOptions{})
	if !errors.Is(err, volume.ErrVersion) || !strings.Contains(err.Error(), "busy") {
		t.Error(err)
	}
	entries, _ := os.ReadDir(to)
	if len(entries) != 2 {
		t.Errorf("there are %v", entries)
	}
}

func TestCancelled(t *testing.T) {
	full, empty := t.TempDir(), t.TempDir()
	plant(t, full, map[string]string{"a/b": "b"})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errCut)
	for _, from := range []string{full, empty} {
		for way, ends := range ways(from, empty) {
			if _, err := treesync.Sync(ctx, ends[0], ends[1], volume.SyncOptions{}); err == nil || way == "near" && !errors.Is(err, errCut) {
				t.Errorf("%s: %v", way, err)
			}
		}
	}
}
