package quota_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/quota"
)

// enforcer opens the quotas of a directory where images are the method, or
// skips the test.
func enforcer(t *testing.T) (e *quota.Enforcer, dir string) {
	t.Helper()
	dir = t.TempDir()
	e, err := quota.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if e.Method() == quota.None && slices.Contains(strings.Split(os.Getenv("TAIBOX_TEST_REQUIRE"), ","), "oci") {
		t.Fatal(e.Missing())
	}
	if e.Method() != quota.Image {
		t.Skipf("method %s: %s", e.Method(), e.Missing())
	}
	return e, dir
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	e, err := quota.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if none := e.Method() == quota.None; none != (e.Missing() != "") {
		t.Errorf("method %s, missing %q", e.Method(), e.Missing())
	}
	if _, err := quota.Open("/no/such/directory"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// made makes an image with a directory for files.
func made(t *testing.T, e *quota.Enforcer, dir, name string, l quota.Limits) (file, mount string) {
	t.Helper()
	file, mount = filepath.Join(dir, name+".img"), filepath.Join(dir, name)
	if err := os.Mkdir(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { quota.DetachImage(mount) })
	if err := e.MakeImage(t.Context(), file, mount, l); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"data", "tmp", "snapshots"} {
		if err := os.Mkdir(filepath.Join(mount, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return file, mount
}

func TestImageEnforcesLimits(t *testing.T) {
	e, dir := enforcer(t)
	for _, l := range []quota.Limits{
		{Bytes: 1 << 20}, {Bytes: 1 << 20, Files: 1}, {Bytes: 5<<20 + 123, Files: 17}, {Bytes: 64 << 20, Files: 1000}, {Bytes: 100 << 20},
	} {
		name := fmt.Sprintf("%d-%d", l.Bytes, l.Files)
		t.Run(name, func(t *testing.T) {
			_, mount := made(t, e, dir, name, l)
			if l.Files > 0 {
				n := int64(0)
				for ; n < l.Files+50; n++ {
					err := os.WriteFile(filepath.Join(mount, "data", fmt.Sprint(n)), nil, 0o600)
					if errors.Is(err, unix.ENOSPC) {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				if n != l.Files {
					t.Errorf("%d files fit into %d", n, l.Files)
				}
				os.RemoveAll(filepath.Join(mount, "data"))
				if err := os.Mkdir(filepath.Join(mount, "data"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if l.Bytes == 0 {
				return
			}
			f, err := os.OpenFile(filepath.Join(mount, "data", "f"), os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			n, buf := int64(0), make([]byte, 64<<10)
			for err == nil && n < 2*l.Bytes {
				var k int
				k, err = f.Write(buf)
				n += int64(k)
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("writing beyond the limit: %v", err)
			}
			if n > l.Bytes || n < l.Bytes-l.Bytes/50-128<<10 {
				t.Errorf("%d bytes fit into %d", n, l.Bytes)
			}
		})
	}
}

func TestImageTooLarge(t *testing.T) {
	e, dir := enforcer(t)
	file, mount := filepath.Join(dir, "img"), filepath.Join(dir, "m")
	if err := os.Mkdir(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, l := range []quota.Limits{{Bytes: 1 << 60}, {Files: 1 << 50}} {
		if err := e.MakeImage(t.Context(), file, mount, l); !errors.Is(err, unix.EFBIG) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file is left")
	}
}

func TestAttachFindsWhatIsThere(t *testing.T) {
	e, dir := enforcer(t)
	file, mount := made(t, e, dir, "a", quota.Limits{Bytes: 4 << 20})
	other, otherMount := made(t, e, dir, "b", quota.Limits{Bytes: 4 << 20})
	for range 2 { // again is nothing
		if err := quota.AttachImage(file, mount); err != nil {
			t.Fatal(err)
		}
	}
	if err := quota.AttachImage(other, mount); err == nil {
		t.Error("another image is taken for this one")
	}
	for range 2 {
		if err := quota.DetachImage(otherMount); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(otherMount, "data")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("still mounted: %v", err)
	}
	if err := quota.DetachImage(filepath.Join(dir, "nosuch")); err != nil {
		t.Error(err)
	}
	// A link in the place of an image is not followed.
	link := filepath.Join(dir, "link")
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	if err := quota.AttachImage(link, otherMount); err == nil {
		t.Error("a link is taken for an image")
	}
}

// TestGrow grows a mounted image where the machine lets us.
func TestGrow(t *testing.T) {
	e, dir := enforcer(t)
	small, large := quota.Limits{Bytes: 8 << 20, Files: 20}, quota.Limits{Bytes: 200 << 20, Files: 2000}
	file, mount := made(t, e, dir, "a", small)
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	err = e.GrowImage(t.Context(), file, mount, large)
	if errors.Is(err, unix.EPERM) {
		after, serr := os.Stat(file)
		if serr != nil || after.Size() != info.Size() {
			t.Errorf("the image was %d bytes, and is %d: %v", info.Size(), after.Size(), serr)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1900 {
		if err := os.WriteFile(filepath.Join(mount, "data", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(mount, "data", "large"), make([]byte, 150<<20), 0o600); err != nil {
		t.Fatal(err)
	}
}
