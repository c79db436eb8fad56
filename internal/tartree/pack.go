package tartree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bounds of an archive.
const (
	maxEntries = 1 << 20
	maxDepth   = 256
	maxName    = unix.PathMax
	// maxHole is how much of a file may be missing on disk: holes travel as zeros.
	maxHole = 1 << 30
	// copyBuffer is what a file's contents go through.
	copyBuffer = 128 << 10
)

// Pack writes the file or tree at name to w, under the name as. A symbolic
// link is packed as a link. Sockets, pipes and devices in a tree are left out,
// and so is what is in /proc and its like; asked for by name they are an error.
func Pack(w io.Writer, name, as string) error {
	p := &packer{tw: tar.NewWriter(w), links: map[fileID]string{}, buf: make([]byte, copyBuffer)}
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		err = p.tree(name, as)
	case info.Mode().IsRegular():
		err = p.file(as, info, func() (*os.File, error) { return openReal(name) })
	case info.Mode().Type() == fs.ModeSymlink:
		var target string
		if target, err = os.Readlink(name); err == nil {
			err = p.header(as, target, info)
		}
	default:
		err = &fs.PathError{Op: "pack", Path: name, Err: unix.EINVAL}
	}
	if err != nil {
		return err
	}
	return p.tw.Close()
}

// openReal opens a file that is on some disk.
func openReal(name string) (*os.File, error) {
	f, err := os.OpenFile(name, openFlags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	madeUp, err := isMadeUp(f)
	if err == nil && madeUp {
		err = &fs.PathError{Op: "pack", Path: name, Err: unix.EINVAL}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openFlags never wait for the other end of a pipe that stands where a file did.
const openFlags = os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY

// fileID tells files apart.
type fileID struct{ dev, ino uint64 }

type packer struct {
	tw    *tar.Writer
	root  *os.Root
	as    string
	links map[fileID]string // the names of files that have several
	count int
	buf   []byte
}

func (p *packer) tree(name, as string) error {
	root, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	defer root.Close()
	p.root, p.as = root, as
	return p.dir(".", true)
}

// dir packs a directory and all that is in it.
func (p *packer) dir(rel string, top bool) error {
	f, err := p.root.OpenFile(rel, openFlags|unix.O_DIRECTORY, 0)
	if vanished(err) && !top {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		err = p.header(path.Join(p.as, rel), "", info)
	}
	var names []string
	madeUp := false
	if err == nil {
		madeUp, err = isMadeUp(f)
	}
	if err == nil && !madeUp {
		names, err = f.Readdirnames(-1)
	}
	f.Close() //nolint:errcheck // only read
	switch {
	case err != nil:
		return err
	case madeUp && top:
		return &fs.PathError{Op: "pack", Path: p.root.Name(), Err: unix.EINVAL}
	}
	slices.Sort(names)
	for _, n := range names {
		if err := p.entry(path.Join(rel, n)); err != nil {
			return err
		}
	}
	return nil
}

// entry packs what is in a directory. What is gone by now is not there.
func (p *packer) entry(rel string) error {
	info, err := p.root.Lstat(rel)
	if vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	as := path.Join(p.as, rel)
	switch info.Mode().Type() {
	case fs.ModeDir:
		return p.dir(rel, false)
	case fs.ModeSymlink:
		target, err := p.root.Readlink(rel)
		if vanished(err) || errors.Is(err, unix.EINVAL) { // no link any more
			return nil
		}
		if err != nil {
			return err
		}
		return p.header(as, target, info)
	case 0:
		err := p.file(as, info, func() (*os.File, error) { return p.root.OpenFile(rel, openFlags, 0) })
		if vanished(err) {
			return nil
		}
		return err
	default:
		return nil
	}
}

// vanished reports that a file went, or that another kind of file, or one
// that leads out, stands in its place.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, errReplaced)
}

var errReplaced = errors.New("it was replaced while it was read")

// file packs a regular file, as long as it is when it is opened.
func (p *packer) file(as string, seen fs.FileInfo, open func() (*os.File, error)) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !os.SameFile(seen, info) || !info.Mode().IsRegular():
		return fmt.Errorf("pack %s: %w", as, errReplaced)
	}
	st := info.Sys().(*syscall.Stat_t)
	if st.Nlink > 1 {
		id := fileID{st.Dev, st.Ino}
		if first, ok := p.links[id]; ok {
			return p.hardLink(as, first, info)
		}
		p.links[id] = as
	}
	if info.Size()-st.Blocks*512 > maxHole {
		return fmt.Errorf("pack %s: %w: of its %d bytes only %d are on disk, and holes travel as zeros", as, unix.EFBIG, info.Size(), st.Blocks*512)
	}
	if err := p.header(as, "", info); err != nil {
		return err
	}
	n, err := io.CopyBuffer(onlyWriter{p.tw}, io.LimitReader(f, info.Size()), p.buf)
	if err == nil && n < info.Size() {
		err = fmt.Errorf("pack %s: %w: it was cut while it was read", as, io.ErrUnexpectedEOF)
	}
	return err
}

// onlyWriter keeps io.CopyBuffer from going round the buffer.
type onlyWriter struct{ io.Writer }

func (p *packer) header(as, target string, info fs.FileInfo) error {
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return fmt.Errorf("pack %s: %w", as, err)
	}
	return p.write(as, h)
}

func (p *packer) hardLink(as, first string, info fs.FileInfo) error {
	h, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return fmt.Errorf("pack %s: %w", as, err)
	}
	h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
	return p.write(as, h)
}

// write writes a header without what is of this machine only.
func (p *packer) write(as string, h *tar.Header) error {
	if p.count++; p.count > maxEntries {
		return fmt.Errorf("pack %s: %w: more than %d files", as, unix.EFBIG, maxEntries)
	}
	if len(as) > maxName {
		return &fs.PathError{Op: "pack", Path: as, Err: unix.ENAMETOOLONG}
	}
	h.Name = as
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	h.Uname, h.Gname = "", ""
	return p.tw.WriteHeader(h)
}

// isMadeUp reports whether the kernel makes up what is in a directory.
func isMadeUp(f *os.File) (bool, error) {
	on, err := statfs(f)
	switch on.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC:
		return true, err
	}
	return false, err
}

// statfs describes the file system that f is on.
func statfs(f *os.File) (on unix.Statfs_t, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return on, err
	}
	var serr error
	err = rc.Control(func(fd uintptr) { serr = unix.Fstatfs(int(fd), &on) })
	return on, errors.Join(err, serr)
}
