package nofollow

import (
	"crypto/rand"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// leftAfter is how long a temporary file has not changed that is taken for left.
const leftAfter = 24 * time.Hour

// TempName returns a name for what is half written: the prefix, which is its
// maker's alone, and what nobody guesses.
func TempName(prefix string) string { return prefix + rand.Text() }

func isTempName(name, prefix string) bool {
	random, ok := strings.CutPrefix(name, prefix)
	return ok && len(random) == len(rand.Text()) && strings.Trim(random, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// InUse has [Dir.RemoveLeft] leave an open file alone until it is closed, or its
// process dies. On a file system without locks it leaves all files alone.
func InUse(f *os.File) {
	unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) //nolint:errcheck // see above
}

// RemoveLeft removes a file or link that has a name of [TempName] and whose maker
// was killed: it has not changed for a day, and is not in use. Anything else, and
// what cannot be removed, stays.
func (d *Dir) RemoveLeft(name, prefix string) {
	if !isTempName(name, prefix) {
		return
	}
	st, err := d.Lstat(name)
	// The time of the last change of the inode, which no archive can set.
	if err != nil || time.Since(time.Unix(st.Ctim.Unix())) < leftAfter {
		return
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
	case unix.S_IFREG:
		f, _, err := d.OpenRegular(name)
		if err != nil {
			return
		}
		defer f.Close()
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return
		}
	default:
		return
	}
	d.Remove(name) //nolint:errcheck // the next one tries again
}
