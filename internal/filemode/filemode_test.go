package filemode_test

import (
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/filemode"
)

func TestOf(t *testing.T) {
	for mode, want := range map[uint32]fs.FileMode{
		unix.S_IFREG | 0o644:                0o644,
		unix.S_IFREG | unix.S_ISUID | 0o755: fs.ModeSetuid | 0o755,
		unix.S_IFREG | unix.S_ISGID | 0o2:   fs.ModeSetgid | 0o2,
		unix.S_IFDIR | unix.S_ISVTX | 0o777: fs.ModeDir | fs.ModeSticky | 0o777,
		unix.S_IFLNK | 0o777:                fs.ModeSymlink | 0o777,
		unix.S_IFIFO:                        fs.ModeNamedPipe,
		unix.S_IFSOCK:                       fs.ModeSocket,
		unix.S_IFBLK:                        fs.ModeDevice,
		unix.S_IFCHR:                        fs.ModeDevice | fs.ModeCharDevice,
		0:                                   fs.ModeIrregular,
	} {
		if got := filemode.Of(mode); got != want {
			t.Errorf("%o: got %v, want %v", mode, got, want)
		}
	}
}
