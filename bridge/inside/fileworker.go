package inside

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

const (
	defaultFileMode = 0o644
	defaultDirMode  = 0o755
	listPage        = 256
)

// handleFile carries out a request as the user this process is.
func handleFile(conn *wire.Conn, req *wire.File) error {
	path := string(req.Path)
	if !filepath.IsAbs(path) || req.Offset < 0 || req.Limit < 0 {
		return fmt.Errorf("%w: path %.64q", sandbox.ErrInvalidSpec, path)
	}
	perm := fs.FileMode(req.Mode) & fs.ModePerm
	var err error
	switch req.Kind {
	case wire.FileRead:
		return sendFile(conn, path, req.Offset, req.Limit)
	case wire.FileWrite:
		return receiveFile(conn, path, perm, &condition{})
	case wire.FileReplace:
		return receiveFile(conn, path, perm, &condition{absent: req.IfAbsent, version: req.IfVersion})
	case wire.FileList:
		return listDir(conn, path)
	case wire.FileWatch:
		return watchFiles(conn, path)
	case wire.FilePack:
		return sendTree(conn, path, req.Follow)
	case wire.FileUnpack:
		return receiveTree(conn, path, req.Owners)
	case wire.FileStat:
		if req.Follow {
			return replyFollowed(conn, path)
		}
	case wire.FileMkdir:
		if perm == 0 {
			perm = defaultDirMode
		}
		if req.All {
			err = os.MkdirAll(path, perm)
		} else {
			err = os.Mkdir(path, perm)
		}
	case wire.FileRemove:
		if req.All {
			err = os.RemoveAll(path)
		} else {
			err = os.Remove(path)
		}
		if err == nil {
			return conn.WriteJSON(wire.TypeReply, wire.FileInfo{})
		}
	case wire.FileRename:
		err = os.Rename(path, string(req.To))
		path = string(req.To)
	default:
		err = fmt.Errorf("%w: the box's bridge cannot %.32q a file", sandbox.ErrUnsupported, req.Kind)
	}
	if err != nil {
		return err
	}
	return replyStat(conn, path)
}

func replyStat(conn *wire.Conn, path string) error {
	info, err := fileInfo(path)
	if err != nil {
		return err
	}
	return conn.WriteJSON(wire.TypeReply, info)
}

func fileInfo(path string) (wire.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return wire.FileInfo{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	info := describe(filepath.Base(path), &st)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if to, err := os.Readlink(path); err == nil {
			info.Link = []byte(to)
		}
	}
	return info, nil
}

func describe(name string, st *unix.Stat_t) wire.FileInfo {
	return wire.FileInfo{
		Name: []byte(name), Size: st.Size, Mode: st.Mode, UID: st.Uid, GID: st.Gid,
		ModTime: time.Unix(st.Mtim.Unix()).UTC(), Version: version(st),
	}
}

// version tells the states of a regular file apart: whoever writes to it
// changes its ctime, which nobody can set.
func version(st *unix.Stat_t) string {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x", st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
}

// openRegular opens a file that can be read to its end: no pipe, no device,
// nothing that the kernel makes up.
func openRegular(path string) (*os.File, *unix.Stat_t, error) {
	fail := func(err error) (*os.File, *unix.Stat_t, error) {
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	var st unix.Stat_t
	var on unix.Statfs_t
	err = errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &on))
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		err = unix.EISDIR
	case st.Mode&unix.S_IFMT != unix.S_IFREG, on.Type == unix.PROC_SUPER_MAGIC, on.Type == unix.SYSFS_MAGIC:
		err = unix.EINVAL
	}
	if err != nil {
		unix.Close(fd) //nolint:errcheck // nothing was written
		return fail(err)
	}
	return os.NewFile(uintptr(fd), path), &st, nil
}

// sendFile sends limit bytes, or all, of a file; the size it had counts for
// nothing.
func sendFile(conn *wire.Conn, path string, offset, limit int64) error {
	f, st, err := openRegular(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := conn.WriteJSON(wire.TypeReply, describe(filepath.Base(path), st)); err != nil {
		return err
	}
	if limit == 0 {
		limit = never
	}
	buf := make([]byte, wire.MaxData)
	var out []byte
	for at := offset; at < offset+limit; {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), offset+limit-at)], at)
		if n > 0 {
			out = wire.AppendOutput(out[:0], byte(sandbox.Stdout), at, buf[:n])
			if err := conn.WriteFrames(out); err != nil {
				return err
			}
			at += int64(n)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	return conn.WriteFrame(wire.TypeEnd, nil)
}

// receiveFile writes a file whole or not at all. One that is there keeps its
// mode, and its owner if root writes; a link stays, and what it leads to is written.
func receiveFile(conn *wire.Conn, path string, perm fs.FileMode, c *condition) (err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	var old *syscall.Stat_t
	switch st, err := os.Lstat(path); {
	case err == nil && st.Mode().IsRegular():
		perm = st.Mode().Perm()
		old, _ = st.Sys().(*syscall.Stat_t)
	case err == nil && st.IsDir():
		return &fs.PathError{Op: "write", Path: path, Err: unix.EISDIR}
	case err == nil:
		return &fs.PathError{Op: "write", Path: path, Err: unix.EINVAL}
	case perm == 0:
		perm = defaultFileMode
	}
	if err := c.check(path); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	tmp := filepath.Join(dir, ".taibox-"+rand.Text())
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		f.Close() //nolint:errcheck // synced before it counts
		if err != nil {
			os.Remove(tmp) //nolint:errcheck // the first error counts
		}
	}()
	if err := conn.WriteJSON(wire.TypeReply, wire.FileInfo{}); err != nil {
		return err
	}
	if err := receiveData(conn, f); err != nil {
		return err
	}
	if old != nil && os.Geteuid() == 0 {
		if err := f.Chown(int(old.Uid), int(old.Gid)); err != nil {
			return err
		}
	}
	if err := errors.Join(f.Chmod(perm), f.Sync()); err != nil {
		return err
	}
	if err := c.publish(tmp, path); err != nil {
		return err
	}
	syncDir(dir)
	return replyStat(conn, path)
}

func receiveData(conn *wire.Conn, w io.Writer) error {
	for {
		t, p, err := conn.ReadFrame()
		switch {
		case err != nil:
			return err
		case t == wire.TypeEOF:
			return nil
		case t != wire.TypeStdin:
			return fmt.Errorf("%w: frame of type %d", wire.ErrProtocol, t)
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
}

// syncDir makes a rename last, where the directory can be opened.
func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		d.Sync()  //nolint:errcheck // not every file system can
		d.Close() //nolint:errcheck // nothing was written
	}
}

// listDir sends what is in a directory, in pages.
func listDir(conn *wire.Conn, path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d := os.NewFile(uintptr(fd), path)
	defer d.Close()
	if err := replyStat(conn, path); err != nil {
		return err
	}
	for {
		names, err := d.Readdirnames(listPage)
		page := make([]wire.FileInfo, 0, len(names))
		for _, name := range names {
			if info, err := fileInfo(filepath.Join(path, name)); err == nil {
				page = append(page, info)
			}
		}
		if len(page) > 0 {
			if err := conn.WriteJSON(wire.TypeReply, page); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return conn.WriteFrame(wire.TypeEnd, nil)
		}
		if err != nil {
			return err
		}
	}
}
