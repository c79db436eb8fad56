package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/volume"
)

func (s *Server) fileRoutes() {
	const files, archive = "/v1/sandboxes/{id}/files", "/v1/sandboxes/{id}/archive"
	a := &fileAPI{s, s.boxFiles}
	s.raw(http.MethodGet, files, "A file's contents (application/octet-stream), or the part that Range names; its description is in the header "+rest.HeaderFile,
		[]string{"path", "path_b64", "user", "offset", "limit"}, a.readFile)
	s.raw(http.MethodHead, files, "A file's description, in the header "+rest.HeaderFile, []string{"path", "path_b64", "user", "follow"}, a.headFile)
	s.raw(http.MethodPut, files, "Write a file, whole or not at all; the body is its contents (application/octet-stream)",
		[]string{"path", "path_b64", "user", "mode", "parents"}, a.writeFile)
	s.raw(http.MethodPost, files, "Upload files (multipart/form-data) into a directory, each whole or not at all; with rename one whose name is taken gets another",
		[]string{"path", "path_b64", "user", "mode", "parents", "rename"}, a.uploadFiles)
	handle(s, http.MethodDelete, files, "Remove a file or directory", func(ctx context.Context, in *removeBoxFile) (*nothing, error) {
		return a.removeFile(ctx, filePlace{in.ID, in.User, in.Path, in.PathB64}, in.Recursive, in.IfMatch)
	})
	handle(s, http.MethodGet, files+"/list", "What is in a directory, by name", func(ctx context.Context, in *boxDir) (*output[rest.FileList], error) {
		return a.listFiles(ctx, filePlace{in.ID, in.User, in.Path, in.PathB64}, in.Paging)
	})
	handle(s, http.MethodGet, files+"/stat", "Describe a file", func(ctx context.Context, in *statBoxFile) (*output[rest.File], error) {
		return a.statFile(ctx, filePlace{in.ID, in.User, in.Path, in.PathB64}, in.Follow)
	})
	handle(s, http.MethodPost, files+"/mkdir", "Make a directory", func(ctx context.Context, in *makeBoxDir) (*nothing, error) {
		b := &in.Body
		return a.makeDir(ctx, filePlace{id: in.ID, user: b.User}, b.Path, b.PathB64, b.Mode, b.Parents)
	})
	handle(s, http.MethodPost, files+"/rename", "Move a file or directory, over what is there", func(ctx context.Context, in *renameBoxFile) (*nothing, error) {
		b := &in.Body
		return a.rename(ctx, in.ID, b.User, &rest.MoveFile{Path: b.Path, PathB64: b.PathB64, To: b.To, ToB64: b.ToB64})
	})
	s.raw(http.MethodGet, files+"/watch", "What changes in a directory and below, as server-sent events", []string{"path", "path_b64", "user"}, a.watchFiles)
	s.raw(http.MethodGet, archive, "A file or tree as a tar stream (application/x-tar)", []string{"path", "path_b64", "user", "follow"}, a.readArchive)
	s.raw(http.MethodPut, archive, "Unpack a tar stream, which is the body (application/x-tar), into a directory",
		[]string{"path", "path_b64", "user", "owners"}, a.writeArchive)
}

// huma sees no fields of embedded types that are not exported: they are here in full.

type removeBoxFile struct {
	ID        string `path:"id"`
	Path      string `query:"path" doc:"Absolute, in the box"`
	PathB64   string `query:"path_b64" doc:"Instead of path: its bytes in base64"`
	User      string `query:"user" doc:"Who does it: user[:group]; default the box's user"`
	Recursive bool   `query:"recursive" doc:"With all that is in it; one that is not there is no error"`
	IfMatch   string `header:"If-Match" doc:"Only a file that has this ETag just before"`
}

type statBoxFile struct {
	ID      string `path:"id"`
	Path    string `query:"path" doc:"Absolute, in the box"`
	PathB64 string `query:"path_b64" doc:"Instead of path: its bytes in base64"`
	User    string `query:"user" doc:"Who does it: user[:group]; default the box's user"`
	Follow  bool   `query:"follow" doc:"Describe what a symbolic link leads to"`
}

type makeBoxDir struct {
	ID   string `path:"id"`
	Body rest.MakeDir
}

type renameBoxFile struct {
	ID   string `path:"id"`
	Body rest.RenameFile
}

func (a *fileAPI) removeFile(ctx context.Context, p filePlace, all bool, ifMatch string) (*nothing, error) {
	t, name, err := a.at(ctx, VerbExec, p)
	if err != nil {
		return nil, err
	}
	o := volume.RemoveOptions{All: all}
	if ifMatch != "" {
		f, err := t.stat(ctx, name, false)
		if err != nil {
			return nil, err
		}
		tags := parseTags(ifMatch)
		if !tags.strong(&f) {
			return nil, &precondition{fmt.Errorf("remove %.64q: %w", name, volume.ErrVersion)}
		}
		if !tags.any {
			o.IfVersion = f.Version
		}
	}
	err = t.remove(ctx, name, o)
	if o.IfVersion != "" && errors.Is(err, volume.ErrVersion) {
		err = &precondition{err}
	}
	return nil, err
}

func (a *fileAPI) listFiles(ctx context.Context, p filePlace, paging Paging) (*output[rest.FileList], error) {
	t, name, err := a.at(ctx, VerbGet, p)
	if err != nil {
		return nil, err
	}
	files, err := t.list(ctx, name)
	if err != nil {
		return nil, err
	}
	named := func(f *rest.File) cursor { return cursor{0, rawName(f)} }
	items, next, err := pageUpTo(maxFilePage, paging, inOrder(files, named), named, always(func(f *rest.File) rest.File { return *f }))
	if err != nil {
		return nil, err
	}
	return ok(rest.FileList{Items: items, NextToken: next}), nil
}

func (a *fileAPI) statFile(ctx context.Context, p filePlace, follow bool) (*output[rest.File], error) {
	t, name, err := a.at(ctx, VerbGet, p)
	if err != nil {
		return nil, err
	}
	f, err := t.stat(ctx, name, follow)
	if err != nil {
		return nil, err
	}
	return ok(f), nil
}

func (a *fileAPI) makeDir(ctx context.Context, p filePlace, text string, raw []byte, modeText string, parents bool) (*nothing, error) {
	t, err := a.find(ctx, VerbExec, p.id, p.user)
	if err != nil {
		return nil, err
	}
	name, err := onePath(t, "path", text, raw)
	mode, merr := parseMode(modeText)
	if err := errors.Join(err, merr); err != nil {
		return nil, err
	}
	return nil, t.mkdir(ctx, name, mode, parents)
}

func (a *fileAPI) rename(ctx context.Context, id, user string, body *rest.MoveFile) (*nothing, error) {
	t, err := a.find(ctx, VerbExec, id, user)
	if err != nil {
		return nil, err
	}
	from, to, err := pathsOf(t, body)
	if err != nil {
		return nil, err
	}
	return nil, t.rename(ctx, from, to)
}

func pathsOf(t fileTree, body *rest.MoveFile) (from, to string, err error) {
	from, err = onePath(t, "path", body.Path, body.PathB64)
	to, terr := onePath(t, "to", body.To, body.ToB64)
	return from, to, errors.Join(err, terr)
}

func (a *fileAPI) readArchive(w http.ResponseWriter, r *http.Request) error {
	c, err := a.call(r, VerbGet)
	if err != nil {
		return err
	}
	f, err := c.pack(r.Context(), c.name, c.follow)
	if err != nil {
		return err
	}
	defer f.Close()
	return a.s.stream(w, r, f, unknownLength, func() error {
		w.Header().Set("Content-Type", "application/x-tar")
		return nil
	})
}

func (a *fileAPI) writeArchive(w http.ResponseWriter, r *http.Request) error {
	c, err := a.call(r, VerbExec)
	if err == nil {
		err = streamBody(r)
	}
	if err != nil {
		return err
	}
	if err := c.unpack(r.Context(), c.name, r.Body, c.owners); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

const (
	// streamAhead is read before an answer begins: an error within it is still
	// a proper answer.
	streamAhead = 64 << 10

	unknownLength = -1
)

// stream answers with all of body, of which length bytes are expected if that
// is known. Where that breaks off, so does the answer, and nobody takes it for
// whole.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, body io.Reader, length int64, head func() error) error {
	in := bufio.NewReaderSize(body, streamAhead)
	ahead, err := in.Peek(streamAhead)
	switch {
	case err == nil:
	case !errors.Is(err, io.EOF):
		return err
	case int64(len(ahead)) < length:
		return reason.WithHint(fmt.Errorf("%w: it became shorter while it was read", volume.ErrVersion), "read it again")
	}
	if err := head(); err != nil {
		return err
	}
	status := http.StatusOK
	if w.Header().Get("Content-Range") != "" {
		status = http.StatusPartialContent
	}
	w.WriteHeader(status)
	from := io.Reader(in)
	if length >= 0 {
		from = io.LimitReader(in, length)
	}
	n, err := io.Copy(w, from)
	if err == nil && length >= 0 && n < length {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		s.log.LogAttrs(r.Context(), slog.LevelDebug, "stream broke off", slog.Any("err", err))
		panic(http.ErrAbortHandler)
	}
	return nil
}

// streamBody refuses a body that a form of a web page could send.
func streamBody(r *http.Request) error {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || !archiveTypes[t] {
		return fmt.Errorf("%w: %.64q: application/octet-stream or application/x-tar is expected", rest.ErrMediaType, r.Header.Get("Content-Type"))
	}
	return nil
}
