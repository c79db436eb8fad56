package volumetest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/taibox/taibox/tai/volume"
)

// piece reads a range of a file.
func (e *env) piece(id, name string, o volume.OpenOptions) string {
	e.Helper()
	r, _, err := e.v.Open(e.ctx(), id, name, o)
	e.ok(err)
	defer r.Close()
	data, err := io.ReadAll(r)
	e.ok(err)
	return string(data)
}

func ranges(e *env) {
	e.run("pieces", func(e *env) {
		id := e.workspace()
		e.write(id, "f", "0123456789")
		for o, want := range map[volume.OpenOptions]string{
			{}: "0123456789", {Offset: 3}: "3456789", {Limit: 4}: "0123", {Offset: 3, Limit: 4}: "3456", {Offset: 8, Limit: 100}: "89",
			{Offset: 10}: "", {Offset: 1 << 50}: "", {Offset: 1 << 50, Limit: 1}: "", {Limit: 1 << 60}: "0123456789",
		} {
			e.equal("range", e.piece(id, "f", o), want)
		}
		for _, o := range []volume.OpenOptions{{Offset: -1}, {Limit: -1}} {
			_, _, err := e.v.Open(e.ctx(), id, "f", o)
			e.fails(err, volume.ErrInvalid)
		}
		_, info, err := e.v.Open(e.ctx(), id, "f", volume.OpenOptions{Offset: 5, Limit: 1})
		e.ok(err)
		e.equal("size told of a piece", info.Size, int64(10))
	})
	e.run("a_growing_file_ends", func(e *env) {
		id := e.workspace()
		f, err := os.Create(filepath.Join(e.box(id), "g"))
		e.ok(err)
		defer f.Close()
		_, err = f.WriteString("begin")
		e.ok(err)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if info, err := f.Stat(); err == nil && info.Size() > 64<<20 {
						f.Truncate(5)
						f.Seek(0, io.SeekEnd)
					}
					f.WriteString(strings.Repeat("x", 4096))
				}
			}
		})
		defer wg.Wait()
		defer close(stop)
		for range 20 {
			r, info, err := e.v.Open(e.ctx(), id, "g", volume.OpenOptions{})
			e.ok(err)
			n, err := io.Copy(io.Discard, r)
			r.Close()
			if n > info.Size {
				e.Errorf("%d bytes came of a file of %d", n, info.Size)
			}
			if err == nil && n != info.Size {
				e.Errorf("%d bytes came of a file of %d, and no error", n, info.Size)
			}
		}
	})
	e.run("a_file_that_is_cut_is_an_error", func(e *env) {
		id := e.workspace()
		e.write(id, "f", strings.Repeat("x", 1<<20))
		r, _, err := e.v.Open(e.ctx(), id, "f", volume.OpenOptions{})
		e.ok(err)
		defer r.Close()
		_, err = io.ReadFull(r, make([]byte, 100))
		e.ok(err)
		e.ok(os.Truncate(filepath.Join(e.box(id), "f"), 1000))
		_, err = io.ReadAll(r)
		e.fails(err, io.ErrUnexpectedEOF)
	})
}

func conditional(e *env) {
	e.run("if_absent", func(e *env) {
		id := e.workspace()
		put := func(name string) error {
			_, err := e.v.WriteFile(e.ctx(), id, name, strings.NewReader("new"), volume.WriteOptions{IfAbsent: true})
			return err
		}
		e.ok(put("f"))
		e.fails(put("f"), volume.ErrFileExists)
		e.ok(e.v.MkdirAll(e.ctx(), id, "d", 0))
		e.fails(put("d"), volume.ErrFileExists)
	})
	e.run("if_version", func(e *env) {
		id := e.workspace()
		put := func(version string) (volume.FileInfo, error) {
			return e.v.WriteFile(e.ctx(), id, "f", strings.NewReader("same"), volume.WriteOptions{IfVersion: version})
		}
		_, err := put("nosuch")
		e.fails(err, volume.ErrVersion)
		seen := map[string]bool{}
		last := e.write(id, "f", "same").Version
		for range 20 { // the same contents again are another version
			if seen[last] {
				e.Fatal("a version came twice")
			}
			seen[last] = true
			info, err := put(last)
			e.ok(err)
			last = info.Version
		}
		stat, err := e.v.Stat(e.ctx(), id, "f")
		e.ok(err)
		e.equal("version", stat.Version, last)
		for version := range seen {
			_, err := put(version)
			e.fails(err, volume.ErrVersion)
		}
		// A box writes in place.
		e.ok(os.WriteFile(filepath.Join(e.box(id), "f"), []byte("other"), 0o644))
		_, err = put(last)
		e.fails(err, volume.ErrVersion)
		e.holds(id, "f", "other")
	})
	e.run("remove_if_version", removeIfVersion)
	e.run("numbered", numbered)
	e.run("numbered_by_many", numberedByMany)
	e.run("one_of_many_wins", func(e *env) {
		id := e.workspace()
		for round := range 20 {
			name := "f" + strconv.Itoa(round)
			o := volume.WriteOptions{IfAbsent: true}
			if round%2 == 1 {
				o = volume.WriteOptions{IfVersion: e.write(id, name, "old").Version}
			}
			var mu sync.Mutex
			var won []string
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					body := strconv.Itoa(i)
					_, err := e.v.WriteFile(e.ctx(), id, name, strings.NewReader(body), o)
					switch {
					case err == nil:
						mu.Lock()
						won = append(won, body)
						mu.Unlock()
					case !errors.Is(err, volume.ErrVersion) && !errors.Is(err, volume.ErrFileExists):
						e.Errorf("loser: %v", err)
					}
				})
			}
			wg.Wait()
			if len(won) != 1 {
				e.Fatalf("%d writers won", len(won))
			}
			e.holds(id, name, won[0])
		}
	})
	e.run("TestK11UploadsUnderFreeNames", func(e *env) {
		id := e.workspace()
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				for n := 0; ; n++ {
					name := "a-" + strconv.Itoa(n) + ".txt"
					_, err := e.v.WriteFile(e.ctx(), id, name, strings.NewReader(strconv.Itoa(i)), volume.WriteOptions{IfAbsent: true})
					if err == nil {
						return
					}
					if !errors.Is(err, volume.ErrFileExists) {
						e.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		seen := map[string]bool{}
		for _, name := range e.tree(id, ".") {
			seen[e.read(id, name)] = true
		}
		e.equal("contents", len(seen), 50)
	})
}

func removeIfVersion(e *env) {
	id := e.workspace()
	remove := func(version string, all bool) error {
		return e.v.Remove(e.ctx(), id, "f", volume.RemoveOptions{All: all, IfVersion: version})
	}
	old := e.write(id, "f", "same").Version
	e.write(id, "f", "same")
	for _, all := range []bool{false, true} {
		e.fails(remove(old, all), volume.ErrVersion)
		e.holds(id, "f", "same")
		e.ok(remove(e.write(id, "f", "new").Version, all))
		e.fails(remove(old, all), volume.ErrVersion)
		e.write(id, "f", "same")
	}
	// What comes in its place, and how, is not removed in its stead.
	for range 30 {
		version := e.write(id, "f", "old").Version
		e.write(id, "g", "moved")
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := remove(version, false); err != nil {
				e.fails(err, volume.ErrVersion)
			}
		})
		wg.Go(func() {
			if err := e.v.Rename(e.ctx(), id, "g", "f"); err != nil {
				e.Error(err)
			}
		})
		wg.Wait()
		e.holds(id, "f", "moved")
	}
}

// lookedAt calls look when its first byte is read.
type lookedAt struct {
	io.Reader
	look func()
}

func (l *lookedAt) Read(p []byte) (int, error) {
	if l.look != nil {
		l.look()
		l.look = nil
	}
	return l.Reader.Read(p)
}

func numbered(e *env) {
	id := e.workspace()
	e.write(id, "d/a.txt", "first")
	e.ok(e.v.MkdirAll(e.ctx(), id, "d/a (1).txt", 0))
	e.ok(os.Symlink("elsewhere/none", filepath.Join(e.box(id), "d", "a (2).txt")))
	before := e.tree(id, ".")
	body := &lookedAt{strings.NewReader("text"), func() {
		e.equal("tree while it is written", e.tree(id, "."), before)
	}}
	info, err := e.v.WriteFile(e.ctx(), id, "d/a.txt", body, volume.WriteOptions{Numbered: true})
	e.ok(err)
	e.equal("path", info.Path, "d/a (3).txt")
	e.holds(id, "d/a (3).txt", "text")
	e.holds(id, "d/a.txt", "first")
	info, err = e.v.WriteFile(e.ctx(), id, "new/b", strings.NewReader("x"), volume.WriteOptions{Numbered: true, Parents: true})
	e.ok(err)
	e.equal("path", info.Path, "new/b")
	long := strings.Repeat("é", volume.MaxName/2)
	for range 2 {
		_, err = e.v.WriteFile(e.ctx(), id, long, strings.NewReader("x"), volume.WriteOptions{Numbered: true})
		e.ok(err)
	}
}

func numberedByMany(e *env) {
	id := e.workspace()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			info, err := e.v.WriteFile(e.ctx(), id, "a", strings.NewReader(strconv.Itoa(i)), volume.WriteOptions{Numbered: true})
			if err != nil {
				e.Error(err)
				return
			}
			e.holds(id, info.Path, strconv.Itoa(i))
		})
	}
	wg.Wait()
	if n := len(e.tree(id, ".")); n != 16 {
		e.Errorf("%d files were made", n)
	}
}
