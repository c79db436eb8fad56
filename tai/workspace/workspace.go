package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/taibox/taibox/tai/volume"
)

// New returns the files of a workspace of a volume. Nothing is asked of the
// volume yet. Calls run until the volume answers or [FS] is closed; a nil
// volume fails each of them.
func New(vol volume.Volume, id string) FS {
	ctx, end := context.WithCancelCause(context.Background())
	f := &files{vol: vol, ctx: ctx, end: end, id: id}
	if vol == nil {
		f.broken = fmt.Errorf("workspace %.64q: %w", id, volume.ErrUnsupported)
	}
	return f
}

// Broken returns files of which each call fails with err: where there is no
// workspace and the caller wants one.
func Broken(err error) FS {
	ctx, end := context.WithCancelCause(context.Background())
	return &files{ctx: ctx, end: end, broken: err}
}

// files implements [FS], and [fs.ReadLinkFS] too.
type files struct {
	vol    volume.Volume
	id     string
	broken error           // what each call says; nil if there is a volume
	ctx    context.Context //nolint:containedctx // the interfaces of io/fs have none; ended by Close
	end    context.CancelCauseFunc
}

// fault gives an error of a volume the meaning that the standard library has
// for it.
type fault struct {
	err     error
	meaning error
}

func (f *fault) Error() string   { return f.err.Error() }
func (f *fault) Unwrap() []error { return []error{f.err, f.meaning} }

func (f *files) failed(op, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case f.ctx.Err() != nil:
		err = fs.ErrClosed
	case errors.Is(err, volume.ErrFileNotFound), errors.Is(err, volume.ErrNotFound):
		err = &fault{err, fs.ErrNotExist}
	case errors.Is(err, volume.ErrFileExists):
		err = &fault{err, fs.ErrExist}
	case errors.Is(err, volume.ErrFileDenied):
		err = &fault{err, fs.ErrPermission}
	case errors.Is(err, volume.ErrPath), errors.Is(err, volume.ErrFileKind):
		err = &fault{err, fs.ErrInvalid}
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// check refuses what the volume need not be asked for.
func (f *files) check(op, name string) error {
	switch {
	case f.ctx.Err() != nil:
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrClosed}
	case !fs.ValidPath(name):
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	case f.broken != nil:
		return f.failed(op, name, f.broken)
	}
	return nil
}

// Close implements [FS].
func (f *files) Close() error {
	f.end(fs.ErrClosed)
	return nil
}

// Open implements [FS].
func (f *files) Open(name string) (fs.File, error) {
	if err := f.check("open", name); err != nil {
		return nil, err
	}
	info, err := f.stat(name)
	switch {
	case err != nil:
	case info.IsDir():
		return &openDir{fsys: f, name: name, info: info}, nil
	case info.Mode().IsRegular():
		return &openFile{fsys: f, name: name, info: info}, nil
	default:
		err = fmt.Errorf("%w: it is %v", volume.ErrFileKind, info.Mode().Type())
	}
	return nil, f.failed("open", name, err)
}

// Stat implements [FS]. It follows links.
func (f *files) Stat(name string) (fs.FileInfo, error) {
	if err := f.check("stat", name); err != nil {
		return nil, err
	}
	info, err := f.stat(name)
	if err != nil {
		return nil, f.failed("stat", name, err)
	}
	return info, nil
}

// Lstat implements [fs.ReadLinkFS]: of a link it describes the link itself.
func (f *files) Lstat(name string) (fs.FileInfo, error) {
	if err := f.check("lstat", name); err != nil {
		return nil, err
	}
	info, err := f.vol.Stat(f.ctx, f.id, name)
	if err != nil {
		return nil, f.failed("lstat", name, err)
	}
	return fileInfo{path.Base(name), info}, nil
}

// ReadLink implements [fs.ReadLinkFS].
func (f *files) ReadLink(name string) (string, error) {
	if err := f.check("readlink", name); err != nil {
		return "", err
	}
	info, err := f.vol.Stat(f.ctx, f.id, name)
	if err == nil && info.Mode&fs.ModeSymlink == 0 {
		err = fmt.Errorf("%w: it is no link", volume.ErrFileKind)
	}
	if err != nil {
		return "", f.failed("readlink", name, err)
	}
	return info.Link, nil
}

func (f *files) stat(name string) (fileInfo, error) {
	info, err := f.vol.Stat(f.ctx, f.id, name)
	if err == nil && info.Mode&fs.ModeSymlink != 0 {
		info, err = f.follow(name)
	}
	return fileInfo{path.Base(name), info}, err
}

// maxLinks bounds the links on the way to a file, as the kernel does.
const maxLinks = 40

// follow finds what a link leads to, element by element: what ".." in a link
// means depends on the links before it.
func (f *files) follow(name string) (info volume.FileInfo, err error) {
	at, todo := ".", strings.Split(name, "/")
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if at == "." {
				return info, fmt.Errorf("%w: %.64q leads out of the workspace", volume.ErrFileDenied, name)
			}
			at = path.Dir(at)
			continue
		}
		if info, err = f.vol.Stat(f.ctx, f.id, path.Join(at, part)); err != nil {
			return info, err
		}
		switch {
		case info.Mode&fs.ModeSymlink == 0:
			at = path.Join(at, part)
		case path.IsAbs(info.Link):
			return info, fmt.Errorf("%w: %.64q leads out of the workspace", volume.ErrFileDenied, name)
		default:
			if links++; links > maxLinks {
				return info, fmt.Errorf("%w: %.64q: too many links", volume.ErrFileKind, name)
			}
			todo = append(strings.Split(info.Link, "/"), todo...)
		}
	}
	return f.vol.Stat(f.ctx, f.id, at)
}

// ReadFile implements [FS].
func (f *files) ReadFile(name string) ([]byte, error) {
	if err := f.check("read", name); err != nil {
		return nil, err
	}
	data, err := f.vol.ReadFile(f.ctx, f.id, name)
	if err != nil {
		return nil, f.failed("read", name, err)
	}
	return data, nil
}

// ReadDir implements [FS].
func (f *files) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := f.check("readdir", name); err != nil {
		return nil, err
	}
	infos, err := f.vol.ListDir(f.ctx, f.id, name)
	if err != nil {
		return nil, f.failed("readdir", name, err)
	}
	entries := make([]fs.DirEntry, len(infos))
	for i, info := range infos {
		entries[i] = fs.FileInfoToDirEntry(fileInfo{info.Name, info})
	}
	return entries, nil
}

// WriteFile implements [FS].
func (f *files) WriteFile(name string, data []byte, perm fs.FileMode) error {
	if err := f.check("write", name); err != nil {
		return err
	}
	if _, err := f.stat(name); err == nil {
		perm = 0 // a file that is there keeps its own
	}
	_, err := f.vol.WriteFile(f.ctx, f.id, name, bytes.NewReader(data), volume.WriteOptions{Mode: perm.Perm()})
	return f.failed("write", name, err)
}

// Remove implements [FS].
func (f *files) Remove(name string) error {
	if err := f.check("remove", name); err != nil {
		return err
	}
	return f.failed("remove", name, f.vol.Remove(f.ctx, f.id, name, volume.RemoveOptions{}))
}

// RemoveAll implements [FS].
func (f *files) RemoveAll(name string) error {
	if err := f.check("remove", name); err != nil {
		return err
	}
	return f.failed("remove", name, f.vol.Remove(f.ctx, f.id, name, volume.RemoveOptions{All: true}))
}

// Rename implements [FS].
func (f *files) Rename(oldname, newname string) error {
	for _, name := range []string{oldname, newname} {
		if err := f.check("rename", name); err != nil {
			return err
		}
	}
	return f.failed("rename", oldname, f.vol.Rename(f.ctx, f.id, oldname, newname))
}

// MkdirAll implements [FS].
func (f *files) MkdirAll(name string, perm fs.FileMode) error {
	if err := f.check("mkdir", name); err != nil {
		return err
	}
	return f.failed("mkdir", name, f.vol.MkdirAll(f.ctx, f.id, name, perm.Perm()))
}

// fileInfo is a volume's description of a file under the name it was asked
// for.
type fileInfo struct {
	name string
	info volume.FileInfo
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return i.info.Size }
func (i fileInfo) Mode() fs.FileMode  { return i.info.Mode }
func (i fileInfo) ModTime() time.Time { return i.info.ModTime }
func (i fileInfo) IsDir() bool        { return i.info.Mode.IsDir() }

// Sys returns the [volume.FileInfo].
func (i fileInfo) Sys() any { return i.info }

// openDir is a directory that was opened.
type openDir struct {
	fsys *files
	name string
	info fileInfo

	entries []fs.DirEntry
	read    bool
	closed  bool
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }

func (d *openDir) Read([]byte) (int, error) {
	return 0, d.fsys.failed("read", d.name, fmt.Errorf("%w: it is a directory", volume.ErrFileKind))
}

func (d *openDir) Close() error {
	if d.closed {
		return &fs.PathError{Op: "close", Path: d.name, Err: fs.ErrClosed}
	}
	d.closed = true
	return nil
}

// ReadDir implements [fs.ReadDirFile].
func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: fs.ErrClosed}
	}
	if !d.read {
		entries, err := d.fsys.ReadDir(d.name)
		if err != nil {
			return nil, err
		}
		d.entries, d.read = entries, true
	}
	take := len(d.entries)
	if n > 0 {
		if take == 0 {
			return nil, io.EOF
		}
		take = min(n, take)
	}
	list := d.entries[:take:take]
	d.entries = d.entries[take:]
	return list, nil
}
