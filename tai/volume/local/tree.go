package local

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/filemode"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

// maxPath is the longest path, as the kernel's.
const maxPath = unix.PathMax - 1

// openFlags never wait for the other end of a pipe that stands where a file did.
const openFlags = os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// dirFlags open a directory that is no link.
const dirFlags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_DIRECTORY | unix.O_NOFOLLOW

// tree is the files of a workspace, open for one call.
type tree struct {
	v     *Volume
	space *space
	root  *os.Root // the files
	tmp   *os.Root // see temp
}

// tree opens the files of a workspace. The caller releases it.
func (v *Volume) tree(id string) (*tree, error) {
	s, err := v.space(id)
	if err != nil {
		return nil, err
	}
	return v.treeOf(s)
}

// treeOf is tree for a workspace that was found.
func (v *Volume) treeOf(s *space) (*tree, error) {
	root, err := v.openOwn(s, s.dataDir())
	if err != nil {
		return nil, err
	}
	return &tree{v: v, space: s, root: root}, nil
}

// temp is the place for what is half written, on the same file system. It is
// opened by the first call that needs it.
func (t *tree) temp() (_ *os.Root, err error) {
	if t.tmp == nil {
		t.tmp, err = t.v.openOwn(t.space, t.space.tmpDir())
	}
	return t.tmp, err
}

// openTemp opens that place as a directory.
func (t *tree) openTemp() (*os.File, error) {
	tmp, err := t.temp()
	if err != nil {
		return nil, err
	}
	return tmp.Open(".")
}

// openOwn opens a directory of a workspace. Why that fails, and where on this
// machine, is not for its owner.
func (v *Volume) openOwn(s *space, dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) && s.remount() == nil {
		root, err = os.OpenRoot(dir)
	}
	switch {
	case s.isGone(): // by its path another's may have been found
		if err == nil {
			root.Close()
		}
		return nil, volume.ErrNotFound
	case err != nil:
		v.log.Error("the files of a workspace cannot be opened", slog.String("workspace", s.id), slog.Any("err", err))
		return nil, fmt.Errorf("%w: its files cannot be opened on the node, whose log says why", volume.ErrFileBusy)
	}
	return root, nil
}

// release lets go of the tree.
func (t *tree) release() {
	t.root.Close()
	if t.tmp != nil {
		t.tmp.Close()
	}
}

// cleanPath returns the shortest form of a path of a workspace, "." for the root.
func cleanPath(name string) (string, error) {
	bad := func(why string) (string, error) {
		return "", fmt.Errorf("%w: %.64q %s", volume.ErrPath, name, why)
	}
	switch {
	case len(name) > maxPath:
		return bad(fmt.Sprintf("has more than %d bytes", maxPath))
	case strings.HasPrefix(name, "/"):
		return bad("is absolute")
	case strings.IndexByte(name, 0) >= 0:
		return bad("has a NUL")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return bad(`has ".."`)
		}
		if len(part) > volume.MaxName {
			return bad(fmt.Sprintf("has an element of more than %d bytes", volume.MaxName))
		}
	}
	return path.Clean(name), nil
}

// errEscapes is what an [os.Root] says of what leads out of it. The package os
// does not export it.
var errEscapes = sync.OnceValue(func() error {
	_, err := os.OpenInRoot("/", "..")
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return errors.New("no error") // nothing is equal to it
})

// fileError tells what went wrong with a file by the sentinels of package volume.
func fileError(err error) error {
	if err != nil && errors.Is(err, errEscapes()) {
		return fmt.Errorf("%w: %w", volume.ErrFileDenied, err)
	}
	return taisandbox.FileError(err)
}

// told wraps what goes wrong with a file of a workspace.
func told(verb, id, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %.256q of workspace %s: %w", verb, name, id, fileError(err))
}

// statOf reads the state of an open file.
func statOf(f *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return st, os.NewSyscallError("fstat", err)
}

// place is where a file is or will be: an open directory and a name in it that
// is no link.
type place struct {
	dir  *os.File
	base string
	name string // the path it was found by
}

func (p *place) fd() int { return int(p.dir.Fd()) }

// stat describes what is at the place, if anything.
func (p *place) stat() (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(p.fd(), p.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// maxLinks is how many links in a row are followed, as the kernel does.
const maxLinks = 40

// parent opens the directory that a path is in.
func (t *tree) parent(name string) (place, error) {
	dir, base := splitPath(name)
	switch base {
	case "", ".", "..":
		return place{}, &fs.PathError{Op: "open", Path: name, Err: unix.EISDIR}
	}
	f, err := t.root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return place{}, err
	}
	return place{dir: f, base: base, name: name}, nil
}

// splitPath splits a path that may have dots and links in it, so that it must
// not be cleaned.
func splitPath(name string) (dir, base string) {
	name = strings.TrimRight(name, "/")
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return ".", name
	}
	return cmp.Or(strings.TrimRight(name[:i], "/"), "."), name[i+1:]
}

// follow finds what a path leads to: if that is a link which stays inside, it
// is where the link leads.
func (t *tree) follow(name string) (place, error) {
	for range maxLinks {
		p, err := t.parent(name)
		if err != nil {
			return place{}, err
		}
		link, err := readlinkat(p.fd(), p.base)
		if err != nil {
			return p, nil //nolint:nilerr // it is no link, or not there
		}
		p.dir.Close()
		if strings.HasPrefix(link, "/") {
			return place{}, &fs.PathError{Op: "open", Path: name, Err: errEscapes()}
		}
		dir, _ := splitPath(name)
		if name = dir + "/" + link; len(name) > maxPath {
			return place{}, &fs.PathError{Op: "open", Path: name, Err: unix.ENAMETOOLONG}
		}
	}
	return place{}, &fs.PathError{Op: "open", Path: name, Err: unix.ELOOP}
}

func readlinkat(fd int, name string) (string, error) {
	for size := 256; ; size *= 2 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(fd, name, buf)
		if err != nil {
			return "", err
		}
		if n < size {
			return string(buf[:n]), nil
		}
	}
}

// newName returns a name that nobody guesses.
func newName(prefix string) string { return prefix + rand.Text() }

// createTemp makes a file that no box sees. The caller closes it and moves or
// removes it.
func createTemp(dir *os.Root) (*os.File, string, error) {
	name := newName("w")
	f, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return f, name, err
}

// replace writes a file: whole and on the disk when it returns, or not at all.
// The name is one of [cleanPath].
func (t *tree) replace(name string, write func(*os.File) error, o volume.WriteOptions) (_ volume.FileInfo, err error) {
	if name == "." {
		return volume.FileInfo{}, &fs.PathError{Op: "write", Path: name, Err: unix.EISDIR}
	}
	find := t.follow
	if o.Numbered { // where it leads, its neighbours are no alternative
		find = t.parent
	}
	p, err := find(name)
	if errors.Is(err, fs.ErrNotExist) && o.Parents {
		// Not of what a link leads to: a link to nothing is no parent.
		if err = t.mkdirAll(path.Dir(name), 0o755); err == nil {
			p, err = find(name)
		}
	}
	if err != nil {
		return volume.FileInfo{}, err
	}
	defer p.dir.Close()
	// What can be told before the contents are here is.
	if _, err := p.check(o); err != nil && !o.Numbered {
		return volume.FileInfo{}, err
	}
	dir, err := t.temp()
	if err != nil {
		return volume.FileInfo{}, err
	}
	tmp, tmpName, err := createTemp(dir)
	if err != nil {
		return volume.FileInfo{}, err
	}
	defer func() {
		tmp.Close()
		if err != nil {
			dir.Remove(tmpName) //nolint:errcheck // it is emptied when the volume is opened, too
		}
	}()
	if err := write(tmp); err != nil {
		return volume.FileInfo{}, err
	}
	// The data go to the disk without the lock. What is set after that is in
	// the inode, and on the disk with the directory by the second call at the
	// latest, which has little to do.
	if err := tmp.Sync(); err != nil {
		return volume.FileInfo{}, err
	}
	if o.Numbered {
		return t.publishNumbered(tmp, tmpName, &p, o)
	}
	return t.publish(tmp, tmpName, &p, o)
}

// maxNumber bounds the names that may be taken already.
const maxNumber = 10_000

// publishNumbered moves a written file to the first place that is free.
func (t *tree) publishNumbered(tmp *os.File, tmpName string, p *place, o volume.WriteOptions) (volume.FileInfo, error) {
	o.IfAbsent = true
	dir, base := path.Split(p.name)
	for n := 0; ; n++ {
		p.base = volume.NumberedName(base, n)
		p.name = dir + p.base
		info, err := t.publish(tmp, tmpName, p, o)
		if !errors.Is(err, fs.ErrExist) || n == maxNumber {
			return info, err
		}
	}
}

// lock keeps all other calls from what is at the place until unlock is called.
func (t *tree) lock(p *place) (unlock func(), err error) {
	st, err := statOf(p.dir)
	if err != nil {
		return nil, err
	}
	return t.v.paths.lock(fileKey{st.Dev, st.Ino, p.base}), nil
}

// publish moves a written file to its place, if that still is as o wants it.
func (t *tree) publish(tmp *os.File, tmpName string, p *place, o volume.WriteOptions) (volume.FileInfo, error) {
	var none volume.FileInfo
	unlock, err := t.lock(p)
	if err != nil {
		return none, err
	}
	defer unlock()
	mode, err := p.check(o)
	if err != nil {
		return none, err
	}
	if err := tmp.Chmod(mode); err != nil {
		return none, err
	}
	// The kernel's own time may stand still between two writes.
	now := time.Now()
	if err := t.tmp.Chtimes(tmpName, now, now); err != nil {
		return none, err
	}
	dir, err := t.openTemp()
	if err != nil {
		return none, err
	}
	defer dir.Close()
	if o.IfAbsent {
		err = moveNew(int(dir.Fd()), tmpName, p.fd(), p.base)
	} else {
		err = unix.Renameat(int(dir.Fd()), tmpName, p.fd(), p.base)
	}
	if err != nil {
		return none, &os.LinkError{Op: "rename", Old: "temporary file", New: p.name, Err: err}
	}
	if err := p.dir.Sync(); err != nil {
		return none, err
	}
	st, err := statOf(tmp)
	return fileInfo(path.Clean(p.name), &st, ""), err
}

// moveNew renames what is at one place to another where nothing is.
func moveNew(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// Some file systems cannot, but all can link files.
	if err := unix.Linkat(fromDir, from, toDir, to, 0); err != nil {
		return err
	}
	return unix.Unlinkat(fromDir, from, 0)
}

// check returns the mode that a file is written with, if o allows to write it.
func (p *place) check(o volume.WriteOptions) (fs.FileMode, error) {
	st, err := p.stat()
	switch {
	case errors.Is(err, unix.ENOENT):
		if o.IfVersion != "" {
			return 0, fmt.Errorf("%w: it is not there", volume.ErrVersion)
		}
		return cmp.Or(permissions(o.Mode), 0o644), nil
	case err != nil:
		return 0, os.NewSyscallError("fstatat", err)
	case o.IfAbsent:
		return 0, &fs.PathError{Op: "write", Path: p.name, Err: unix.EEXIST}
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return 0, &fs.PathError{Op: "write", Path: p.name, Err: unix.EISDIR}
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return 0, &fs.PathError{Op: "write", Path: p.name, Err: unix.ELOOP} // it was none a moment ago
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return 0, fmt.Errorf("%w: it is no regular file", volume.ErrFileKind)
	case o.IfVersion != "" && o.IfVersion != version(&st):
		return 0, volume.ErrVersion
	}
	return cmp.Or(permissions(o.Mode), filemode.Of(st.Mode).Perm()), nil
}

func permissions(mode fs.FileMode) fs.FileMode { return mode & fs.ModePerm }

// owned reports whether files can be given to another user.
func owned() bool { return syscall.Geteuid() == 0 }

// mkdirAll makes a directory and its parents; one that is there stays.
func (t *tree) mkdirAll(name string, mode fs.FileMode) error {
	if info, err := t.root.Stat(name); err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: name, Err: unix.ENOTDIR}
		}
		return nil
	}
	if name == "." {
		return &fs.PathError{Op: "mkdir", Path: name, Err: unix.ENOENT}
	}
	if err := t.mkdirAll(path.Dir(name), mode); err != nil {
		return err
	}
	p, err := t.parent(name)
	if err != nil {
		return err
	}
	defer p.dir.Close()
	err = mkdirAt(p.fd(), p.base, mode)
	if errors.Is(err, unix.EEXIST) { // by somebody else, or a link
		info, serr := t.root.Stat(name)
		switch {
		case serr != nil:
			return serr
		case info.IsDir():
			return nil
		}
		err = unix.ENOTDIR
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return nil
}

// mkdirAt makes a directory with a mode whatever the umask, for root.
func mkdirAt(dir int, base string, mode fs.FileMode) error {
	if err := unix.Mkdirat(dir, base, uint32(mode.Perm())); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, base, dirFlags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // only looked at
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&0o777 != uint32(mode.Perm()) {
		if err := unix.Fchmod(fd, uint32(mode.Perm())|st.Mode&unix.S_ISGID); err != nil {
			return err
		}
	}
	if owned() && (st.Uid != 0 || st.Gid != 0) { // of a parent with a group of its own
		return unix.Fchown(fd, 0, 0)
	}
	return nil
}
