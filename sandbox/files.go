package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// FileInfo describes a file of a box.
type FileInfo struct {
	Name     string
	Path     string
	Size     int64
	Mode     os.FileMode
	ModTime  time.Time
	IsDir    bool
	UID, GID uint32
	Link     string // where a symbolic link leads
	Version  string // see [taisandbox.FileInfo]
}

// fileInfo describes the file at p.
func fileInfo(p string, i taisandbox.FileInfo) FileInfo {
	return FileInfo{
		Name: i.Name, Path: p, Size: i.Size, Mode: i.Mode, ModTime: i.ModTime, IsDir: i.Mode.IsDir(),
		UID: i.UID, GID: i.GID, Link: i.Link, Version: i.Version,
	}
}

// FileOptions are the settings of the calls for files; see [taisandbox.FileOptions].
type FileOptions = taisandbox.FileOptions

// useFiles keeps the box busy while its files are used.
const useFiles = "files"

// files admits a call for the box's files, which keeps it awake until done.
func (b *Box) files(verb string) (taisandbox.Files, func(), error) {
	sb, done, err := b.use(useFiles)
	if err != nil {
		return nil, nil, b.failed(verb, err)
	}
	f, ok := taisandbox.As[taisandbox.Files](sb)
	if !ok {
		done()
		return nil, nil, b.failed(verb, fmt.Errorf("%w: %s", taisandbox.ErrUnsupported, taisandbox.FeatureFiles))
	}
	return f, done, nil
}

// withFiles makes one call for the box's files.
func withFiles[T any](ctx context.Context, b *Box, verb string, call func(taisandbox.Files) (T, error)) (T, error) {
	f, done, err := b.files(verb)
	if err != nil {
		var none T
		return none, err
	}
	defer done()
	res, err := call(f)
	if err != nil {
		err = b.explain(ctx, verb, err)
	}
	return res, err
}

// inUse is a stream that keeps its box busy until it is closed.
type inUse struct {
	io.ReadCloser
	done func()
}

// Close implements io.Closer.
func (r *inUse) Close() error {
	defer r.done()
	return r.ReadCloser.Close()
}

// OpenFile opens a regular file of the box. ctx bounds the reading to its end;
// the caller closes the reader.
func (b *Box) OpenFile(ctx context.Context, name string, o FileOptions) (io.ReadCloser, FileInfo, error) {
	const verb = "read a file of"
	f, done, err := b.files(verb)
	if err != nil {
		return nil, FileInfo{}, err
	}
	r, info, err := f.ReadFile(ctx, b.id, name, o)
	if err != nil {
		done()
		return nil, FileInfo{}, b.explain(ctx, verb, err)
	}
	return &inUse{r, done}, fileInfo(name, info), nil
}

// WriteFile writes all of r to a file of the box, whole or not at all.
func (b *Box) WriteFile(ctx context.Context, name string, r io.Reader, o FileOptions) (FileInfo, error) {
	info, err := withFiles(ctx, b, "write a file of", func(f taisandbox.Files) (taisandbox.FileInfo, error) {
		return f.WriteFile(ctx, b.id, name, r, o)
	})
	return fileInfo(name, info), err
}

// Stat describes a file of the box.
func (b *Box) Stat(ctx context.Context, name string, o FileOptions) (FileInfo, error) {
	info, err := withFiles(ctx, b, "look at a file of", func(f taisandbox.Files) (taisandbox.FileInfo, error) {
		return f.Stat(ctx, b.id, name, o)
	})
	return fileInfo(name, info), err
}

// ListDir describes what is in a directory of the box, ordered by name.
func (b *Box) ListDir(ctx context.Context, name string, o FileOptions) ([]FileInfo, error) {
	infos, err := withFiles(ctx, b, "list a directory of", func(f taisandbox.Files) ([]taisandbox.FileInfo, error) {
		return f.ListDir(ctx, b.id, name, o)
	})
	list := make([]FileInfo, len(infos))
	for i, info := range infos {
		list[i] = fileInfo(path.Join(name, info.Name), info)
	}
	return list, err
}

// MkDir makes a directory in the box.
func (b *Box) MkDir(ctx context.Context, name string, o FileOptions) error {
	return b.change(ctx, "make a directory in", func(f taisandbox.Files) error { return f.MkDir(ctx, b.id, name, o) })
}

// RemoveFile removes a file or directory of the box.
func (b *Box) RemoveFile(ctx context.Context, name string, o FileOptions) error {
	return b.change(ctx, "remove a file of", func(f taisandbox.Files) error { return f.RemoveFile(ctx, b.id, name, o) })
}

// RenameFile moves a file or directory of the box, over what is there.
func (b *Box) RenameFile(ctx context.Context, from, to string, o FileOptions) error {
	return b.change(ctx, "rename a file of", func(f taisandbox.Files) error { return f.Rename(ctx, b.id, from, to, o) })
}

// CopyTo unpacks a tar stream into a directory of the box.
func (b *Box) CopyTo(ctx context.Context, dir string, archive io.Reader, o FileOptions) error {
	return b.change(ctx, "copy to", func(f taisandbox.Files) error { return f.CopyTo(ctx, b.id, dir, archive, o) })
}

func (b *Box) change(ctx context.Context, verb string, call func(taisandbox.Files) error) error {
	_, err := withFiles(ctx, b, verb, func(f taisandbox.Files) (struct{}, error) { return struct{}{}, call(f) })
	return err
}

// CopyFrom packs a file or tree of the box as a tar stream. ctx bounds the
// reading to its end; the caller closes the reader.
func (b *Box) CopyFrom(ctx context.Context, name string, o FileOptions) (io.ReadCloser, error) {
	const verb = "copy from"
	f, done, err := b.files(verb)
	if err != nil {
		return nil, err
	}
	r, err := f.CopyFrom(ctx, b.id, name, o)
	if err != nil {
		done()
		return nil, b.explain(ctx, verb, err)
	}
	return &inUse{r, done}, nil
}

// WatchFiles tells what changes at a path of the box and below, until ctx or
// the box ends; then the channel is closed. It keeps the box busy.
func (b *Box) WatchFiles(ctx context.Context, name string, o FileOptions) (<-chan taisandbox.FileEvent, error) {
	const verb = "watch files of"
	sb, done, err := b.use(useFiles)
	if err != nil {
		return nil, b.failed(verb, err)
	}
	f, ok := taisandbox.As[taisandbox.FileWatcher](sb)
	if !ok {
		done()
		return nil, b.failed(verb, fmt.Errorf("%w: %s", taisandbox.ErrUnsupported, taisandbox.FeatureFileWatch))
	}
	in, err := f.WatchFiles(ctx, b.id, name, o)
	if err != nil {
		done()
		return nil, b.explain(ctx, verb, err)
	}
	out := make(chan taisandbox.FileEvent)
	go func() {
		defer done()
		defer close(out)
		for e := range in {
			select {
			case out <- e:
			case <-ctx.Done(): // in is closed soon
			}
		}
	}()
	return out, nil
}

// copyEnd is a box as [boxcopy] wants it.
type copyEnd struct{ b *Box }

func (c copyEnd) Stat(ctx context.Context, name string, follow bool) (taisandbox.FileInfo, error) {
	return withFiles(ctx, c.b, "look at a file of", func(f taisandbox.Files) (taisandbox.FileInfo, error) {
		return f.Stat(ctx, c.b.id, name, FileOptions{Follow: follow})
	})
}

func (c copyEnd) CopyTo(ctx context.Context, dir string, archive io.Reader) error {
	return c.b.CopyTo(ctx, dir, archive, FileOptions{})
}

func (c copyEnd) CopyFrom(ctx context.Context, name string, follow bool) (io.ReadCloser, error) {
	return c.b.CopyFrom(ctx, name, FileOptions{Follow: follow})
}
