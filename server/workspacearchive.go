package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/volume"
)

// formatByName guesses a format from how a file is called; "" if it cannot.
func formatByName(p string) string {
	name := strings.ToLower(baseName(p))
	for _, f := range []struct{ suffix, format string }{
		{".zip", rest.FormatZip}, {".tar", rest.FormatTar}, {".tgz", rest.FormatTgz}, {".tar.gz", rest.FormatTgz}, {".gz", rest.FormatGzip},
	} {
		if strings.HasSuffix(name, f.suffix) {
			return f.format
		}
	}
	return ""
}

const (
	sniffed  = 32 << 10 // of an archive, to know its format
	tarMagic = "ustar"
	atMagic  = 257 // where that is
)

// isTar reports whether a tar archive begins so.
func isTar(head []byte) bool {
	return len(head) >= atMagic+len(tarMagic) && string(head[atMagic:atMagic+len(tarMagic)]) == tarMagic
}

// formatByContents guesses a format from how a file begins.
func formatByContents(head []byte) string {
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		return rest.FormatZip
	case isTar(head):
		return rest.FormatTar
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		inside := make([]byte, atMagic+len(tarMagic))
		z, err := gzip.NewReader(bytes.NewReader(head))
		if err == nil {
			if _, err := io.ReadFull(z, inside); err == nil && isTar(inside) {
				return rest.FormatTgz
			}
		}
		return rest.FormatGzip
	}
	return ""
}

// format returns the format of an archive that is a file of the workspace.
func (t *workspaceTree) format(ctx context.Context, name string) (string, error) {
	f, _, err := t.v.Open(ctx, t.id, name, volume.OpenOptions{Limit: sniffed})
	if err != nil {
		return "", err
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, sniffed))
	if err != nil {
		return "", err
	}
	format := formatByContents(head)
	byName := formatByName(name)
	switch {
	case format == "":
		format = byName
	case format == rest.FormatGzip && byName == rest.FormatTgz: // an old tar has no mark
		format = byName
	}
	if format == "" {
		return "", reason.WithHint(fmt.Errorf("%w: %.64q is in no format that is known", volume.ErrArchive, name), "zip, tar, tgz and gzip are; say which if it is one of them")
	}
	return format, nil
}

type packInput struct {
	ID   string `path:"id"`
	Body rest.PackFiles
}

func (s *Server) packFiles(ctx context.Context, in *packInput) (*output[rest.ArchiveResult], error) {
	t, err := s.workspaceTree(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	from, to, err := pathsOf(t, &in.Body.MoveFile)
	if err != nil {
		return nil, err
	}
	format := in.Body.Format
	if format == "" {
		if format = formatByName(to); format == "" {
			return nil, fmt.Errorf("%w: format: the name %.64q does not tell it", rest.ErrRequest, baseName(to))
		}
	}
	pack := map[string]func(ctx context.Context, id, src, dst string) (volume.ArchiveResult, error){
		rest.FormatZip: t.v.Zip, rest.FormatTar: t.v.Tar, rest.FormatTgz: t.v.Tgz, rest.FormatGzip: t.v.Gzip,
	}[format]
	if pack == nil {
		return nil, wrongFormat(format)
	}
	res, err := pack(ctx, t.id, from, to)
	if err != nil {
		return nil, err
	}
	return ok(rest.ArchiveResult{Format: format, Entries: res.Entries, Bytes: res.Bytes}), nil
}

type extractInput struct {
	ID   string `path:"id"`
	Body rest.ExtractFiles
}

func (s *Server) extractFiles(ctx context.Context, in *extractInput) (*output[rest.ArchiveResult], error) {
	t, err := s.workspaceTree(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	b := &in.Body
	from, to, err := pathsOf(t, &b.MoveFile)
	if err != nil {
		return nil, err
	}
	unpackers := map[string]func(ctx context.Context, id, src, dst string, o volume.ArchiveOptions) (volume.ArchiveResult, error){
		rest.FormatZip: t.v.Unzip, rest.FormatTar: t.v.Untar, rest.FormatTgz: t.v.Untgz, rest.FormatGzip: t.v.Gunzip,
	}
	format := b.Format
	if format == "" {
		if format, err = t.format(ctx, from); err != nil {
			return nil, err
		}
	}
	unpack := unpackers[format]
	if unpack == nil {
		return nil, wrongFormat(format)
	}
	res, err := unpack(ctx, t.id, from, to, volume.ArchiveOptions{MaxEntries: b.MaxEntries, MaxBytes: b.MaxBytes, MaxRatio: b.MaxRatio, MaxDepth: b.MaxDepth})
	if err != nil {
		return nil, err
	}
	return ok(rest.ArchiveResult{Format: format, Entries: res.Entries, Bytes: res.Bytes}), nil
}

type createSnapshotInput struct {
	ID   string `path:"id"`
	Body rest.CreateSnapshot
}

func (s *Server) createSnapshot(ctx context.Context, in *createSnapshotInput) (*output[rest.Snapshot], error) {
	t, err := s.workspaceTree(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	name := in.Body.Name
	if name == "" {
		name = "s" + time.Now().UTC().Format("20060102-150405-000")
		name = strings.ReplaceAll(name, ".", "-")
	}
	snap, err := t.v.CreateSnapshot(ctx, t.id, name)
	if err != nil {
		return nil, err
	}
	return &output[rest.Snapshot]{Status: 201, Body: rest.Snapshot(snap)}, nil
}

type listSnapshotsInput struct {
	ID string `path:"id"`
	Paging
}

func (s *Server) listSnapshots(ctx context.Context, in *listSnapshotsInput) (*output[rest.SnapshotList], error) {
	t, err := s.workspaceTree(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	snaps, err := t.v.ListSnapshots(ctx, t.id)
	if err != nil {
		return nil, err
	}
	made := func(snap *volume.Snapshot) cursor { return cursor{snap.CreatedAt.UnixNano(), snap.Name} }
	show := func(snap *volume.Snapshot) rest.Snapshot { return rest.Snapshot(*snap) }
	items, next, err := page(in.Paging, inOrder(snaps, made), made, always(show))
	if err != nil {
		return nil, err
	}
	return ok(rest.SnapshotList{Items: items, NextToken: next}), nil
}

type snapshotPath struct {
	ID   string `path:"id"`
	Name string `path:"name"`
}

func (s *Server) removeSnapshot(ctx context.Context, in *snapshotPath) (*nothing, error) {
	t, err := s.workspaceTree(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	return nil, t.v.RemoveSnapshot(ctx, t.id, in.Name)
}

func (s *Server) restoreSnapshot(ctx context.Context, in *snapshotPath) (*nothing, error) {
	t, err := s.workspaceTree(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	return nil, t.v.RestoreSnapshot(ctx, t.id, in.Name)
}

type diffInput struct {
	ID   string `path:"id"`
	From string `query:"from" doc:"A snapshot; the workspace as it is if absent"`
	To   string `query:"to" doc:"A snapshot; the workspace as it is if absent"`
	Paging
}

func (s *Server) diffWorkspace(ctx context.Context, in *diffInput) (*output[rest.ChangeList], error) {
	t, err := s.workspaceTree(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	if in.From == in.To {
		return nil, fmt.Errorf("%w: from and to are the same state", rest.ErrRequest)
	}
	changes, err := t.v.Diff(ctx, t.id, in.From, in.To)
	if err != nil {
		return nil, err
	}
	at := func(c *volume.Change) cursor { return cursor{0, c.Path + "\x00" + string(c.Kind)} }
	show := func(c *volume.Change) rest.Change {
		change := rest.Change{Kind: string(c.Kind), Dir: c.Dir}
		change.Path, change.PathB64 = shownBytes(c.Path)
		return change
	}
	items, next, err := pageUpTo(maxFilePage, in.Paging, inOrder(changes, at), at, always(show))
	if err != nil {
		return nil, err
	}
	return ok(rest.ChangeList{Items: items, NextToken: next}), nil
}
