package server

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
)

func (s *Server) fileRoutes() {
	const files, archive = "/v1/sandboxes/{id}/files", "/v1/sandboxes/{id}/archive"
	s.raw(http.MethodGet, files, "A file's contents (application/octet-stream); its description is in the header "+rest.HeaderFile,
		[]string{"path", "path_b64", "user", "offset", "limit"}, s.readFile)
	s.raw(http.MethodHead, files, "A file's description, in the header "+rest.HeaderFile, []string{"path", "path_b64", "user", "follow"}, s.headFile)
	s.raw(http.MethodPut, files, "Write a file, whole or not at all; the body is its contents (application/octet-stream)",
		[]string{"path", "path_b64", "user", "mode", "parents"}, s.writeFile)
	handle(s, http.MethodDelete, files, "Remove a file or directory", s.removeFile)
	handle(s, http.MethodGet, files+"/list", "What is in a directory, by name", s.listFiles)
	handle(s, http.MethodGet, files+"/stat", "Describe a file", s.statFile)
	handle(s, http.MethodPost, files+"/mkdir", "Make a directory", s.makeDir)
	handle(s, http.MethodPost, files+"/rename", "Move a file or directory, over what is there", s.renameFile)
	s.raw(http.MethodGet, archive, "A file or tree as a tar stream (application/x-tar)", []string{"path", "path_b64", "user", "follow"}, s.readArchive)
	s.raw(http.MethodPut, archive, "Unpack a tar stream, which is the body (application/x-tar), into a directory",
		[]string{"path", "path_b64", "user", "owners"}, s.writeArchive)
}

// queryPath takes a path or its bytes from a query.
func queryPath(text, b64 string) (string, error) {
	raw, err := base64.StdEncoding.DecodeString(b64)
	if err != nil {
		return "", fmt.Errorf("%w: path_b64 is not base64", rest.ErrRequest)
	}
	return onePath("path", text, raw)
}

// onePath takes a path or its bytes.
func onePath(field, text string, raw []byte) (string, error) {
	switch {
	case text != "" && len(raw) > 0:
		return "", fmt.Errorf("%w: %s and %s_b64 exclude each other", rest.ErrRequest, field, field)
	case len(raw) > 0:
		text = string(raw)
	}
	if !strings.HasPrefix(text, "/") || strings.ContainsRune(text, 0) {
		return "", fmt.Errorf("%w: %s %.64q: an absolute path is expected", rest.ErrRequest, field, text)
	}
	return text, nil
}

func parseMode(text string) (fs.FileMode, error) {
	if text == "" {
		return 0, nil
	}
	m, err := strconv.ParseUint(text, 8, 32)
	if err != nil || m > 0o777 {
		return 0, fmt.Errorf("%w: mode %.16q: octal permissions are expected, as 0644", rest.ErrRequest, text)
	}
	return fs.FileMode(m), nil
}

// queryFlag is a parameter that is set or not.
func queryFlag(q url.Values, name string) (bool, error) {
	if !q.Has(name) {
		return false, nil
	}
	on, err := strconv.ParseBool(q.Get(name))
	if err != nil {
		return false, fmt.Errorf("%w: %s %.16q: true or false is expected", rest.ErrRequest, name, q.Get(name))
	}
	return on, nil
}

// fileCall is what a route that streams was asked for.
func (s *Server) fileCall(r *http.Request, verb Verb) (*sandbox.Box, string, sandbox.FileOptions, error) {
	q := r.URL.Query()
	o := sandbox.FileOptions{User: q.Get("user")}
	b, err := s.box(r.Context(), verb, r.PathValue("id"))
	if err != nil {
		return nil, "", o, err
	}
	name, err := queryPath(q.Get("path"), q.Get("path_b64"))
	for flag, to := range map[string]*bool{"follow": &o.Follow, "parents": &o.All, "owners": &o.Owners} {
		var ferr error
		*to, ferr = queryFlag(q, flag)
		err = errors.Join(err, ferr)
	}
	for field, to := range map[string]*int64{"offset": &o.Offset, "limit": &o.Limit} {
		if text := q.Get(field); text != "" {
			n, perr := strconv.ParseInt(text, 10, 64)
			if perr != nil || n < 0 {
				err = errors.Join(err, fmt.Errorf("%w: %s %.32q: bytes are expected", rest.ErrRequest, field, text))
			}
			*to = n
		}
	}
	mode, merr := parseMode(q.Get("mode"))
	o.Mode = mode
	return b, name, o, errors.Join(err, merr)
}

func fileHeader(w http.ResponseWriter, info *sandbox.FileInfo) error {
	raw, err := json.Marshal(fileOf(info))
	if err != nil {
		return err
	}
	w.Header().Set(rest.HeaderFile, base64.StdEncoding.EncodeToString(raw))
	w.Header().Set("Content-Type", "application/octet-stream")
	return nil
}

func (s *Server) headFile(w http.ResponseWriter, r *http.Request) error {
	b, name, o, err := s.fileCall(r, VerbGet)
	if err != nil {
		return err
	}
	info, err := b.Stat(r.Context(), name, o)
	if err != nil {
		return err
	}
	return fileHeader(w, &info)
}

func (s *Server) readFile(w http.ResponseWriter, r *http.Request) error {
	b, name, o, err := s.fileCall(r, VerbGet)
	if err != nil {
		return err
	}
	f, info, err := b.OpenFile(r.Context(), name, o)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.stream(w, r, f, func() error { return fileHeader(w, &info) })
}

func (s *Server) readArchive(w http.ResponseWriter, r *http.Request) error {
	b, name, o, err := s.fileCall(r, VerbGet)
	if err != nil {
		return err
	}
	f, err := b.CopyFrom(r.Context(), name, o)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.stream(w, r, f, func() error {
		w.Header().Set("Content-Type", "application/x-tar")
		return nil
	})
}

// streamAhead is read before an answer begins: an error within it is still a
// proper answer.
const streamAhead = 64 << 10

// stream answers with all of body. Where that breaks off, so does the answer,
// and nobody takes it for whole.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, body io.Reader, head func() error) error {
	in := bufio.NewReaderSize(body, streamAhead)
	if _, err := in.Peek(streamAhead); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := head(); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	if _, err := io.Copy(w, in); err != nil {
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

func (s *Server) writeFile(w http.ResponseWriter, r *http.Request) error {
	b, name, o, err := s.fileCall(r, VerbExec)
	if err == nil {
		err = streamBody(r)
	}
	if err != nil {
		return err
	}
	info, err := b.WriteFile(r.Context(), name, r.Body, o)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, fileOf(&info))
	return nil
}

func (s *Server) writeArchive(w http.ResponseWriter, r *http.Request) error {
	b, name, o, err := s.fileCall(r, VerbExec)
	if err == nil {
		err = streamBody(r)
	}
	if err != nil {
		return err
	}
	if err := b.CopyTo(r.Context(), name, r.Body, o); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type removeFileInput struct {
	ID        string `path:"id"`
	Path      string `query:"path" doc:"Absolute, in the box"`
	PathB64   string `query:"path_b64" doc:"Instead of path: its bytes in base64"`
	User      string `query:"user" doc:"Who does it: user[:group]; default the box's user"`
	Recursive bool   `query:"recursive" doc:"With all that is in it; one that is not there is no error"`
}

func (s *Server) removeFile(ctx context.Context, in *removeFileInput) (*nothing, error) {
	b, err := s.box(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	name, err := queryPath(in.Path, in.PathB64)
	if err != nil {
		return nil, err
	}
	return nil, b.RemoveFile(ctx, name, sandbox.FileOptions{User: in.User, All: in.Recursive})
}

type listFilesInput struct {
	ID      string `path:"id"`
	Path    string `query:"path" doc:"Absolute, in the box"`
	PathB64 string `query:"path_b64" doc:"Instead of path: its bytes in base64"`
	User    string `query:"user" doc:"Who does it: user[:group]; default the box's user"`
}

func (s *Server) listFiles(ctx context.Context, in *listFilesInput) (*output[rest.FileList], error) {
	b, err := s.box(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	name, err := queryPath(in.Path, in.PathB64)
	if err != nil {
		return nil, err
	}
	list, err := b.ListDir(ctx, name, sandbox.FileOptions{User: in.User})
	if err != nil {
		return nil, err
	}
	items := make([]rest.File, len(list))
	for i := range list {
		items[i] = fileOf(&list[i])
	}
	return ok(rest.FileList{Items: items}), nil
}

type statFileInput struct {
	ID      string `path:"id"`
	Path    string `query:"path" doc:"Absolute, in the box"`
	PathB64 string `query:"path_b64" doc:"Instead of path: its bytes in base64"`
	User    string `query:"user" doc:"Who does it: user[:group]; default the box's user"`
	Follow  bool   `query:"follow" doc:"Describe what a symbolic link leads to"`
}

func (s *Server) statFile(ctx context.Context, in *statFileInput) (*output[rest.File], error) {
	b, err := s.box(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	name, err := queryPath(in.Path, in.PathB64)
	if err != nil {
		return nil, err
	}
	info, err := b.Stat(ctx, name, sandbox.FileOptions{User: in.User, Follow: in.Follow})
	if err != nil {
		return nil, err
	}
	return ok(fileOf(&info)), nil
}

type makeDirInput struct {
	ID   string `path:"id"`
	Body rest.MakeDir
}

func (s *Server) makeDir(ctx context.Context, in *makeDirInput) (*nothing, error) {
	b, err := s.box(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	name, err := onePath("path", in.Body.Path, in.Body.PathB64)
	mode, merr := parseMode(in.Body.Mode)
	if err := errors.Join(err, merr); err != nil {
		return nil, err
	}
	return nil, b.MkDir(ctx, name, sandbox.FileOptions{User: in.Body.User, Mode: mode, All: in.Body.Parents})
}

type renameFileInput struct {
	ID   string `path:"id"`
	Body rest.RenameFile
}

func (s *Server) renameFile(ctx context.Context, in *renameFileInput) (*nothing, error) {
	b, err := s.box(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	from, err := onePath("path", in.Body.Path, in.Body.PathB64)
	to, terr := onePath("to", in.Body.To, in.Body.ToB64)
	if err := errors.Join(err, terr); err != nil {
		return nil, err
	}
	return nil, b.RenameFile(ctx, from, to, sandbox.FileOptions{User: in.Body.User})
}

// fileTypes names the kinds of files.
var fileTypes = map[fs.FileMode]string{
	0: "file", fs.ModeDir: "dir", fs.ModeSymlink: "link", fs.ModeNamedPipe: "pipe", fs.ModeSocket: "socket",
	fs.ModeDevice: "block", fs.ModeDevice | fs.ModeCharDevice: "char",
}

func fileOf(i *sandbox.FileInfo) rest.File {
	mode := uint32(i.Mode.Perm())
	for bit, value := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if i.Mode&bit != 0 {
			mode |= value
		}
	}
	f := rest.File{Type: fileTypes[i.Mode.Type()], Size: i.Size, Mode: fmt.Sprintf("%04o", mode), UID: i.UID, GID: i.GID, ModTime: i.ModTime}
	f.Name, f.NameB64 = shownBytes(i.Name)
	f.Path, f.PathB64 = shownBytes(i.Path)
	f.Link, f.LinkB64 = shownBytes(i.Link)
	return f
}

// shownBytes returns text that can be shown, and the bytes if that is not them.
func shownBytes(text string) (string, []byte) {
	if utf8.ValidString(text) {
		return text, nil
	}
	return strings.ToValidUTF8(text, "\uFFFD"), []byte(text)
}
