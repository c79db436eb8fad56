package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

// workspaceEnd is a workspace at one end of a copy. Its root is /.
type workspaceEnd struct{ w *client.Workspace }

// relative is a path as a workspace takes it.
func relative(p string) string {
	p = strings.TrimSuffix(strings.TrimLeft(p, "/"), "/.")
	if p = strings.TrimRight(p, "/"); p == "" {
		return "."
	}
	return p
}

// Stat implements [boxcopy.Box].
func (e workspaceEnd) Stat(ctx context.Context, p string, follow bool) (taisandbox.FileInfo, error) {
	p, err := e.resolve(ctx, p, follow)
	if err != nil {
		return taisandbox.FileInfo{}, err
	}
	i, err := e.w.Stat(ctx, p)
	if err == nil && strings.HasPrefix(i.Link, "/") {
		err = outside(p, i.Link)
	}
	return taisandbox.FileInfo{Name: i.Name, Size: i.Size, Mode: i.Mode, ModTime: i.ModTime, Link: i.Link}, err
}

func outside(p, target string) error {
	return fmt.Errorf("%w: the link %q leads to %q, which is not in the workspace", volume.ErrFileDenied, p, target)
}

// maxWorkspaceLinks bounds the links that a path leads through.
const maxWorkspaceLinks = 16

// resolve finds what a path leads to, if the last of it is a link that is to be
// followed. The server keeps watch over where the others lead.
func (e workspaceEnd) resolve(ctx context.Context, p string, follow bool) (string, error) {
	p = relative(p)
	for range maxWorkspaceLinks {
		if !follow {
			return p, nil
		}
		i, err := e.w.Stat(ctx, p)
		if err != nil || i.Mode&fs.ModeSymlink == 0 {
			return p, err
		}
		next := path.Join(path.Dir(p), i.Link)
		if path.IsAbs(i.Link) || next == ".." || strings.HasPrefix(next, "../") {
			return "", outside(p, i.Link)
		}
		p = next
	}
	return "", fmt.Errorf("%w: %s leads through too many links", volume.ErrFileKind, p)
}

// CopyTo implements [boxcopy.Box].
func (e workspaceEnd) CopyTo(ctx context.Context, dir string, archive io.Reader) error {
	return e.w.CopyTo(ctx, relative(dir), archive)
}

// CopyFrom implements [boxcopy.Box].
func (e workspaceEnd) CopyFrom(ctx context.Context, p string, follow bool) (io.ReadCloser, error) {
	p, err := e.resolve(ctx, p, follow)
	if err != nil {
		return nil, err
	}
	return e.w.CopyFrom(ctx, p)
}

// PackedName implements [boxcopy.Namer].
func (e workspaceEnd) PackedName(ctx context.Context, p string, follow bool) (string, error) {
	p, err := e.resolve(ctx, p, follow)
	if errors.Is(err, volume.ErrFileNotFound) {
		err = nil // which the copy itself tells
	}
	return path.Base(p), err
}
