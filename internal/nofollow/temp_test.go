package nofollow_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/nofollow"
)

// What is half written goes once its maker must be gone, and nothing else ever.
func TestRemoveLeft(t *testing.T) {
	const prefix = ".test-"
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	left, link, used, sub, pipe := nofollow.TempName(prefix), nofollow.TempName(prefix), nofollow.TempName(prefix), nofollow.TempName(prefix), nofollow.TempName(prefix)
	keep := []string{used, sub, pipe, "file", prefix + "mine", nofollow.TempName(".other-"), left + "X", prefix + left[len(prefix):len(left)-1] + "!"}
	for _, err := range []error{
		os.WriteFile(at(left), []byte("half"), 0o600), os.Symlink("file", at(link)), os.WriteFile(at(used), nil, 0o600), os.Mkdir(at(sub), 0o700), unix.Mkfifo(at(pipe), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range keep[3:] {
		if err := os.WriteFile(at(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(at(used), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	nofollow.InUse(f)
	// An old time does not make it old: an archive may say what it likes.
	if err := os.Chtimes(at(left), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	d := open(t, dir)
	all := append([]string{left, link}, keep...)
	tidy := func() {
		for _, name := range append(all, "..", ".", "", prefix) {
			d.RemoveLeft(name, prefix)
		}
	}
	wantNames := func(want []string) {
		t.Helper()
		got, err := d.Names()
		got = slices.DeleteFunc(got, func(n string) bool { return n == "." || n == ".." })
		slices.Sort(got)
		want = slices.Sorted(slices.Values(want))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("there is %q, want %q, %v", got, want, err)
		}
	}
	tidy()
	wantNames(all)
	synctest.Test(t, func(*testing.T) {
		time.Sleep(100 * 365 * 24 * time.Hour) // files have the time of the machine
		tidy()
	})
	wantNames(keep)
	if err := errors.Join(f.Close(), os.Remove(at(sub))); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(*testing.T) {
		time.Sleep(100 * 365 * 24 * time.Hour)
		tidy()
	})
	wantNames(keep[2:])
}
