// Package holes tells what of a sparse file is on the disk.
package holes

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Next returns the first run of data at an offset or behind it, within the
// first size bytes of the file. It is empty, at size, if there is none: the rest
// is a hole. Where the file system has no idea of holes all is data. The file's
// own offset is moved.
func Next(f *os.File, at, size int64) (start, stop int64) {
	fd := int(f.Fd())
	start, err := unix.Seek(fd, at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // also if it was cut meanwhile
		return size, size
	case err != nil:
		return min(at, size), size
	}
	stop, err = unix.Seek(fd, start, unix.SEEK_HOLE)
	if err != nil {
		stop = size
	}
	return min(start, size), min(max(stop, start+1), size)
}
