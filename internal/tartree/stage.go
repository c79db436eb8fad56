package tartree

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/tai/sandbox"
)

// Limits bound what an archive may hold. Zero fields mean the default in the
// comment.
type Limits struct {
	Entries int64 // default 1,000,000; directories that are only implied count
	Bytes   int64 // of contents; default 64 GiB; holes count little
	Depth   int   // elements of a name; default 100, at most 256
}

// holeShare is how many bytes of holes count as one.
const holeShare = 32

// Stage makes the files of an archive in an empty directory that nobody else
// sees and that is thrown away after an error. What no archive may have is
// [sandbox.ErrArchive]: names that are absolute, lead out, come twice or go
// through what is no directory, links that could lead out of the tree, and more
// than the limits allow. Set-user-ID and set-group-ID bits are dropped.
type Stage struct {
	ctx     context.Context //nolint:containedctx // it lives for one call
	c       *nofollow.Cursor
	limits  Limits
	entries int64
	bytes   int64
	implied int64
	holes   int64
	known   map[string]int // the directories; where in dirs they are
	root    bool           // the root itself was named
	dirs    []madeDir
	buf     []byte
}

// madeDir is a directory that gets its mode and time in the end.
type madeDir struct {
	name string
	mode uint32
	time time.Time

	implied bool // the archive did not name it so far
}

// NewStage returns a stage on a directory, which it closes in the end.
func NewStage(ctx context.Context, root *nofollow.Dir, l Limits) *Stage {
	l.Entries = cmp.Or(l.Entries, 1_000_000)
	l.Bytes = cmp.Or(l.Bytes, 64<<30)
	l.Depth = min(cmp.Or(l.Depth, 100), nofollow.MaxDepth)
	return &Stage{ctx: ctx, c: nofollow.NewCursor(root), limits: l, known: map[string]int{}, buf: make([]byte, copyBuffer)}
}

// Close closes the directory.
func (s *Stage) Close() { s.c.Close() }

// Entries and Bytes are what was made so far.
func (s *Stage) Entries() int64 { return s.entries }

// Bytes counts the contents of the files, with their holes.
func (s *Stage) Bytes() int64 { return s.bytes + s.holes }

// clean checks a name of an archive.
func (s *Stage) clean(name string) (string, error) {
	clean := path.Clean(name)
	switch {
	case name == "" || strings.IndexByte(name, 0) >= 0:
		return "", bad(name, "no name")
	case path.IsAbs(name), slices.Contains(strings.Split(name, "/"), ".."):
		return "", bad(name, "a name that leads out")
	case len(clean) >= maxName:
		return "", bad(name, "a name that is too long")
	case strings.Count(clean, "/") >= s.limits.Depth:
		return "", bad(name, fmt.Sprintf("more than %d elements", s.limits.Depth))
	}
	for part := range strings.SplitSeq(clean, "/") {
		if len(part) > 255 {
			return "", bad(name, "a name that is too long")
		}
	}
	return clean, nil
}

// enter counts an entry and goes to the directory that it is in.
func (s *Stage) enter(name string) (in *nofollow.Dir, clean, base string, err error) {
	if err := context.Cause(s.ctx); err != nil {
		return nil, "", "", err
	}
	if s.entries++; s.entries+s.implied > s.limits.Entries {
		return nil, "", "", bad(name, fmt.Sprintf("more than %d entries", s.limits.Entries))
	}
	if clean, err = s.clean(name); err != nil {
		return nil, "", "", err
	}
	if clean == "." {
		return nil, ".", ".", nil
	}
	in, err = s.c.To(path.Dir(clean), func(in *nofollow.Dir, dir, base string) error {
		if s.implied++; s.entries+s.implied > s.limits.Entries {
			return bad(name, fmt.Sprintf("more than %d entries", s.limits.Entries))
		}
		s.known[dir] = len(s.dirs)
		s.dirs = append(s.dirs, madeDir{name: dir, mode: 0o755, implied: true})
		return in.Mkdir(base, 0o700)
	})
	if errors.Is(err, unix.ENOTDIR) {
		err = bad(name, "it goes through a link or a file")
	}
	return in, clean, path.Base(clean), err
}

// twice tells of a name that is taken.
func twice(name string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return bad(name, "it comes twice")
	}
	return err
}

// Dir makes a directory. The root itself may be named, too.
func (s *Stage) Dir(name string, mode fs.FileMode, mtime time.Time) error {
	in, clean, base, err := s.enter(name)
	if err != nil {
		return err
	}
	if clean == "." {
		if s.root {
			return bad(name, "it comes twice")
		}
		s.root = true
		return nil
	}
	if i, made := s.known[clean]; made {
		if !s.dirs[i].implied {
			return bad(name, "it comes twice")
		}
		s.dirs[i] = madeDir{name: clean, mode: nofollow.Mode(mode), time: mtime}
		s.implied--
		return nil
	}
	if err := in.Mkdir(base, 0o700); err != nil {
		return twice(name, err)
	}
	s.known[clean] = len(s.dirs)
	s.dirs = append(s.dirs, madeDir{name: clean, mode: nofollow.Mode(mode), time: mtime})
	return nil
}

// Link makes a symbolic link.
func (s *Stage) Link(name, target string, mtime time.Time) error {
	in, clean, base, err := s.enter(name)
	switch {
	case err != nil:
		return err
	case clean == ".":
		return bad(name, "a directory is expected")
	case len(target) >= maxName || strings.IndexByte(target, 0) >= 0 || !Inside(clean, target):
		return bad(name, fmt.Sprintf("a link to %.256q, which leads out", target))
	}
	if err := in.Symlink(target, base); err != nil {
		return twice(name, err)
	}
	return setTime(in, base, mtime)
}

// HardLink makes another name of a file that the archive had before.
func (s *Stage) HardLink(name, old string) error {
	from, err := s.clean(old)
	if err != nil {
		return err
	}
	if from == "." {
		return bad(name, "a hard link to what is no file of the archive")
	}
	dir, err := s.c.To(path.Dir(from), nil)
	var st unix.Stat_t
	if err == nil {
		st, err = dir.Lstat(path.Base(from))
	}
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return bad(name, "a hard link to what is no file of the archive")
	}
	// The way to the new name may close that directory.
	if dir, err = dir.Again(); err != nil {
		return err
	}
	defer dir.Close()
	in, clean, base, err := s.enter(name)
	switch {
	case err != nil:
		return err
	case clean == ".":
		return bad(name, "a directory is expected")
	case clean == from:
		return bad(name, "it comes twice")
	}
	err = unix.Linkat(dir.Fd(), path.Base(from), in.Fd(), base, 0)
	if errors.Is(err, unix.EMLINK) {
		return bad(name, "too many names of one file")
	}
	if err != nil {
		return twice(name, &fs.PathError{Op: "link", Path: name, Err: err})
	}
	return nil
}

// File makes a regular file of size bytes. With holes, zeros are not written.
func (s *Stage) File(name string, mode fs.FileMode, mtime time.Time, size int64, r io.Reader, holes bool) (err error) {
	in, clean, base, err := s.enter(name)
	switch {
	case err != nil:
		return err
	case clean == ".":
		return bad(name, "a directory is expected")
	case size < 0, !holes && size > s.limits.Bytes-s.bytes, size/holeShare > s.limits.Bytes-s.holes/holeShare:
		return bad(name, fmt.Sprintf("more than %d bytes", s.limits.Bytes))
	}
	f, err := in.OpenFile(base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return twice(name, err)
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	if !holes {
		if err := room(f, size); err != nil {
			return &fs.PathError{Op: "unpack", Path: name, Err: err}
		}
	}
	if err := s.contents(f, name, size, r, holes); err != nil {
		return err
	}
	if err := unix.Fchmod(int(f.Fd()), nofollow.Mode(mode)); err != nil {
		return &fs.PathError{Op: "chmod", Path: name, Err: err}
	}
	if mtime.IsZero() {
		return nil
	}
	return nofollow.SetTime(f, mtime)
}

var zeros [copyBuffer]byte

func (s *Stage) contents(f *os.File, name string, size int64, r io.Reader, holes bool) error {
	written := int64(0)
	for at := int64(0); at < size; {
		if err := context.Cause(s.ctx); err != nil {
			return err
		}
		buf := s.buf[:min(int64(len(s.buf)), size-at)]
		if _, err := io.ReadFull(r, buf); err != nil {
			return readError(name, err)
		}
		switch {
		case holes && bytes.Equal(buf, zeros[:len(buf)]):
			s.holes += int64(len(buf))
		default:
			if s.bytes += int64(len(buf)); s.bytes > s.limits.Bytes {
				return bad(name, fmt.Sprintf("more than %d bytes", s.limits.Bytes))
			}
			if _, err := f.WriteAt(buf, at); err != nil {
				return err
			}
			written = at + int64(len(buf))
		}
		at += int64(len(buf))
	}
	// What ends with the last byte may still have a checksum, or go on.
	if n, err := io.ReadFull(r, s.buf[:1]); n > 0 {
		return bad(name, "it is longer than the archive says")
	} else if !errors.Is(err, io.EOF) {
		return readError(name, err)
	}
	if written < size {
		return f.Truncate(size)
	}
	return nil
}

// readError tells an archive that is broken from one that cannot be read.
func readError(name string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %.256q is cut", sandbox.ErrArchive, name)
	}
	return archiveError(err)
}

func setTime(in *nofollow.Dir, base string, mtime time.Time) error {
	if mtime.IsZero() {
		return nil
	}
	return in.Chtimes(base, mtime)
}

// Finish gives the directories their modes and times. Only then is the tree
// what the archive says.
func (s *Stage) Finish() error {
	for _, d := range slices.Backward(s.dirs) {
		if err := context.Cause(s.ctx); err != nil {
			return err
		}
		in, err := s.c.To(path.Dir(d.name), nil)
		if err != nil {
			return err
		}
		base := path.Base(d.name)
		if err := setTime(in, base, d.time); err != nil {
			return err
		}
		if d.mode == 0o700 {
			continue
		}
		if err := in.Chmod(base, d.mode); err != nil {
			return err
		}
	}
	return nil
}
