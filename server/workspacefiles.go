package server

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/tai/volume"
)

func (s *Server) workspaceFileRoutes() {
	const files, archive = "/v1/workspaces/{id}/files", "/v1/workspaces/{id}/archive"
	a := &fileAPI{s, s.workspaceFiles}
	s.raw(http.MethodGet, files, "A file's contents (application/octet-stream), or the part that Range names; its description is in the header "+rest.HeaderFile,
		[]string{"path", "path_b64", "offset", "limit"}, a.readFile)
	s.raw(http.MethodHead, files, "A file's description, in the header "+rest.HeaderFile, []string{"path", "path_b64"}, a.headFile)
	s.raw(http.MethodPut, files, "Write a file, whole or not at all; the body is its contents (application/octet-stream)",
		[]string{"path", "path_b64", "mode", "parents"}, a.writeFile)
	s.raw(http.MethodPost, files, "Upload files (multipart/form-data) into a directory, each whole or not at all; with rename one whose name is taken gets another",
		[]string{"path", "path_b64", "mode", "parents", "rename"}, a.uploadFiles)
	handle(s, http.MethodDelete, files, "Remove a file or directory", func(ctx context.Context, in *removeWorkspaceFile) (*nothing, error) {
		return a.removeFile(ctx, filePlace{in.ID, "", in.Path, in.PathB64}, in.Recursive, in.IfMatch)
	})
	handle(s, http.MethodGet, files+"/list", "What is in a directory, by name", func(ctx context.Context, in *workspaceDir) (*output[rest.FileList], error) {
		return a.listFiles(ctx, filePlace{in.ID, "", in.Path, in.PathB64}, in.Paging)
	})
	handle(s, http.MethodGet, files+"/stat", "Describe a file; of a symbolic link the link itself", func(ctx context.Context, in *workspaceFile) (*output[rest.File], error) {
		return a.statFile(ctx, filePlace{in.ID, "", in.Path, in.PathB64}, false)
	})
	handle(s, http.MethodPost, files+"/mkdir", "Make a directory and its parents; one that is there stays", func(ctx context.Context, in *makeWorkspaceDir) (*nothing, error) {
		return a.makeDir(ctx, filePlace{id: in.ID}, in.Body.Path, in.Body.PathB64, in.Body.Mode, true)
	})
	handle(s, http.MethodPost, files+"/rename", "Move a file or directory, over a file that is there", func(ctx context.Context, in *moveWorkspaceFile) (*nothing, error) {
		return a.rename(ctx, in.ID, "", &in.Body)
	})
	handle(s, http.MethodPost, files+"/copy", "Copy a file or directory to where nothing is yet", func(ctx context.Context, in *moveWorkspaceFile) (*nothing, error) {
		t, err := s.workspaceTree(ctx, VerbExec, in.ID)
		if err != nil {
			return nil, err
		}
		from, to, err := pathsOf(t, &in.Body)
		if err != nil {
			return nil, err
		}
		return nil, t.v.Copy(ctx, t.id, from, to)
	})
	s.raw(http.MethodGet, files+"/watch", "What changes in a directory and below, as server-sent events", []string{"path", "path_b64"}, a.watchFiles)
	s.raw(http.MethodGet, archive, "A file or tree as a tar stream (application/x-tar)", []string{"path", "path_b64"}, a.readArchive)
	s.raw(http.MethodPut, archive, "Unpack a tar stream, which is the body (application/x-tar), into a directory, which is made if missing",
		[]string{"path", "path_b64"}, a.writeArchive)
}

type removeWorkspaceFile struct {
	ID        string `path:"id"`
	Path      string `query:"path" doc:"Relative to the workspace's root"`
	PathB64   string `query:"path_b64" doc:"Instead of path: its bytes in base64"`
	Recursive bool   `query:"recursive" doc:"With all that is in it; one that is not there is no error"`
	IfMatch   string `header:"If-Match" doc:"Only a file with this ETag"`
}

type makeWorkspaceDir struct {
	ID   string `path:"id"`
	Body rest.MakeWorkspaceDir
}

type moveWorkspaceFile struct {
	ID   string `path:"id"`
	Body rest.MoveFile
}

// workspaceTree is the files of a workspace: of that one alone, however long
// the request takes.
type workspaceTree struct {
	s  *Server
	v  volume.Volume // pinned to it
	id string
}

// workspaceFiles finds the files of a workspace.
func (s *Server) workspaceFiles(ctx context.Context, verb Verb, id, _ string) (fileTree, error) {
	t, err := s.workspaceTree(ctx, verb, id)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (s *Server) workspaceTree(ctx context.Context, verb Verb, id string) (*workspaceTree, error) {
	w, err := s.workspace(ctx, verb, id)
	if err != nil {
		return nil, err
	}
	v, err := s.cfg.Workspaces.Volume(ctx, w)
	if err != nil {
		return nil, err
	}
	return &workspaceTree{s, v, id}, nil
}

// check leaves paths to the volume, which has its own rules.
func (*workspaceTree) check(string, string) error { return nil }

func (*workspaceTree) join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name // not cleaned: the volume refuses what it has to
}

func (t *workspaceTree) open(ctx context.Context, name string, offset, limit int64) (io.ReadCloser, rest.File, error) {
	f, info, err := t.v.Open(ctx, t.id, name, volume.OpenOptions{Offset: offset, Limit: limit})
	return f, workspaceFileOf(&info), err
}

// stat describes a file; to follow a link it is opened, since only that is
// resolved within the workspace.
func (t *workspaceTree) stat(ctx context.Context, name string, follow bool) (rest.File, error) {
	info, err := t.v.Stat(ctx, t.id, name)
	if err != nil || !follow || info.Mode&fs.ModeSymlink == 0 {
		return workspaceFileOf(&info), err
	}
	f, info, err := t.v.Open(ctx, t.id, name, volume.OpenOptions{Limit: 1})
	if err != nil {
		return rest.File{}, err
	}
	return workspaceFileOf(&info), f.Close()
}

func (t *workspaceTree) list(ctx context.Context, dir string) ([]rest.File, error) {
	infos, err := t.v.ListDir(ctx, t.id, dir)
	items := make([]rest.File, len(infos))
	for i := range infos {
		items[i] = workspaceFileOf(&infos[i])
	}
	return items, err
}

func (t *workspaceTree) write(ctx context.Context, name string, r io.Reader, o volume.WriteOptions) (rest.File, error) {
	info, err := t.v.WriteFile(ctx, t.id, name, r, o)
	return workspaceFileOf(&info), err
}

// writeNumbered implements [fileTree].
func (t *workspaceTree) writeNumbered(ctx context.Context, name string, r io.Reader, o volume.WriteOptions) (rest.File, error) {
	o.Numbered = true
	return t.write(ctx, name, r, o)
}

func (t *workspaceTree) mkdir(ctx context.Context, name string, mode fs.FileMode, _ bool) error {
	return t.v.MkdirAll(ctx, t.id, name, mode)
}

func (t *workspaceTree) rename(ctx context.Context, from, to string) error {
	return t.v.Rename(ctx, t.id, from, to)
}

func (t *workspaceTree) remove(ctx context.Context, name string, o volume.RemoveOptions) error {
	return t.v.Remove(ctx, t.id, name, o)
}

func (t *workspaceTree) pack(ctx context.Context, name string, _ bool) (io.ReadCloser, error) {
	return t.v.CopyFrom(ctx, t.id, name)
}

func (t *workspaceTree) unpack(ctx context.Context, dir string, r io.Reader, _ bool) error {
	return t.v.CopyTo(ctx, t.id, dir, r, volume.ArchiveOptions{})
}

func (t *workspaceTree) watch(ctx context.Context, name string) (<-chan rest.FileEvent, error) {
	release, err := t.s.watches.take(ctx)
	if err != nil {
		return nil, err
	}
	in, err := t.v.Watch(ctx, t.id, name)
	if err != nil {
		release()
		return nil, err
	}
	context.AfterFunc(ctx, release) // it is ended when nobody listens any more
	return eventsOf(ctx, in, func(e volume.FileEvent) rest.FileEvent { return fileEvent(string(e.Kind), e.Path, e.Dir) }), nil
}

func workspaceFileOf(i *volume.FileInfo) rest.File {
	f := rest.File{Type: fileTypes[i.Mode.Type()], Size: i.Size, Mode: modeOf(i.Mode), ModTime: i.ModTime}
	if isFile(&f) {
		f.Version = i.Version
	}
	f.Name, f.NameB64 = shownBytes(i.Name)
	f.Path, f.PathB64 = shownBytes(i.Path)
	f.Link, f.LinkB64 = shownBytes(i.Link)
	return f
}

// baseName is the last element of a path, for what is guessed from it.
func baseName(p string) string { return path.Base(path.Clean("/" + p)) }

// wrongFormat reports a format that there is not.
func wrongFormat(format string) error {
	return fmt.Errorf("%w: format %.32q: %s, %s, %s and %s are possible", rest.ErrRequest, format, rest.FormatZip, rest.FormatTar, rest.FormatTgz, rest.FormatGzip)
}
