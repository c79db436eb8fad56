package server

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

// fileTree is the files that a request is for: those of a box, as one of its
// users, or those of a workspace. Its errors are the same for both.
type fileTree interface {
	// check refuses a path that none of the calls can take.
	check(field, name string) error
	join(dir, name string) string
	// open opens a regular file; limit 0 is to its end.
	open(ctx context.Context, name string, offset, limit int64) (io.ReadCloser, rest.File, error)
	// stat describes a file, or with follow what a link leads to.
	stat(ctx context.Context, name string, follow bool) (rest.File, error)
	list(ctx context.Context, dir string) ([]rest.File, error)
	write(ctx context.Context, name string, r io.Reader, o volume.WriteOptions) (rest.File, error)
	// writeNumbered writes under the first free name, see [volume.NumberedName].
	writeNumbered(ctx context.Context, name string, r io.Reader, o volume.WriteOptions) (rest.File, error)
	mkdir(ctx context.Context, name string, mode fs.FileMode, parents bool) error
	rename(ctx context.Context, from, to string) error
	remove(ctx context.Context, name string, o volume.RemoveOptions) error
	pack(ctx context.Context, name string, follow bool) (io.ReadCloser, error)
	unpack(ctx context.Context, dir string, r io.Reader, owners bool) error
	watch(ctx context.Context, name string) (<-chan rest.FileEvent, error)
}

// fileAPI is the routes for files, of boxes and of workspaces alike.
type fileAPI struct {
	s *Server
	// find asks the authoriser about a box or workspace. user is who does it
	// in a box.
	find func(ctx context.Context, verb Verb, id, user string) (fileTree, error)
}

// filePlace is what a route for files is about.
type filePlace struct {
	id, user  string
	path, b64 string // the path, or its bytes
}

// boxDir is the input of a route about the files in a directory of a box.
type boxDir struct {
	ID      string `path:"id"`
	Path    string `query:"path" doc:"Absolute, in the box"`
	PathB64 string `query:"path_b64" doc:"Instead of path: its bytes in base64"`
	User    string `query:"user" doc:"Who does it: user[:group]; default the box's user"`
	Paging
}

// workspaceFile is the input of a route about a file of a workspace.
type workspaceFile struct {
	ID      string `path:"id"`
	Path    string `query:"path" doc:"Relative to the workspace's root, which is the default"`
	PathB64 string `query:"path_b64" doc:"Instead of path: its bytes in base64"`
}

// workspaceDir is the input of a route about the files in a directory of a
// workspace.
type workspaceDir struct {
	ID      string `path:"id"`
	Path    string `query:"path" doc:"Relative to the workspace's root, which is the default"`
	PathB64 string `query:"path_b64" doc:"Instead of path: its bytes in base64"`
	Paging
}

// at finds the tree and the path of a call.
func (a *fileAPI) at(ctx context.Context, verb Verb, p filePlace) (fileTree, string, error) {
	t, err := a.find(ctx, verb, p.id, p.user)
	if err != nil {
		return nil, "", err
	}
	raw, err := base64.StdEncoding.DecodeString(p.b64)
	if err != nil {
		return nil, "", fmt.Errorf("%w: path_b64 is not base64", rest.ErrRequest)
	}
	name, err := onePath(t, "path", p.path, raw)
	return t, name, err
}

// onePath takes a path or its bytes.
func onePath(t fileTree, field, text string, raw []byte) (string, error) {
	switch {
	case text != "" && len(raw) > 0:
		return "", fmt.Errorf("%w: %s and %s_b64 exclude each other", rest.ErrRequest, field, field)
	case len(raw) > 0:
		text = string(raw)
	}
	return text, t.check(field, text)
}

// fileCall is what a route that streams was asked for.
type fileCall struct {
	fileTree
	name          string
	follow        bool
	owners        bool
	parents       bool
	rename        bool
	offset, limit int64
	mode          fs.FileMode
}

// call reads what a route that streams was asked for.
func (a *fileAPI) call(r *http.Request, verb Verb) (*fileCall, error) {
	q := r.URL.Query()
	t, name, err := a.at(r.Context(), verb, filePlace{id: r.PathValue("id"), user: q.Get("user"), path: q.Get("path"), b64: q.Get("path_b64")})
	if t == nil {
		return nil, err
	}
	c := &fileCall{fileTree: t, name: name}
	errs := []error{err}
	for _, f := range []struct {
		name string
		to   *bool
	}{{"follow", &c.follow}, {"owners", &c.owners}, {"parents", &c.parents}, {"rename", &c.rename}} {
		*f.to, err = queryFlag(q, f.name)
		errs = append(errs, err)
	}
	c.offset, err = queryBytes(q, "offset")
	errs = append(errs, err)
	c.limit, err = queryBytes(q, "limit")
	errs = append(errs, err)
	c.mode, err = parseMode(q.Get("mode"))
	return c, errors.Join(append(errs, err)...)
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

// queryBytes is a parameter that is a number of bytes.
func queryBytes(q url.Values, name string) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: %s %.32q: bytes are expected", rest.ErrRequest, name, text)
	}
	return n, nil
}

// boxTree is the files of a box, as one of its users.
type boxTree struct {
	s    *Server
	b    *sandbox.Box
	user string
}

// boxFiles finds the files of a box.
func (s *Server) boxFiles(ctx context.Context, verb Verb, id, user string) (fileTree, error) {
	b, err := s.box(ctx, verb, id)
	if err != nil {
		return nil, err
	}
	return &boxTree{s, b, user}, nil
}

func (*boxTree) check(field, name string) error {
	if !strings.HasPrefix(name, "/") || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: %s %.64q: an absolute path is expected", rest.ErrRequest, field, name)
	}
	return nil
}

func (*boxTree) join(dir, name string) string { return path.Join(dir, name) }

func (t *boxTree) open(ctx context.Context, name string, offset, limit int64) (io.ReadCloser, rest.File, error) {
	f, info, err := t.b.OpenFile(ctx, name, sandbox.FileOptions{User: t.user, Offset: offset, Limit: limit})
	return f, fileOf(&info), err
}

func (t *boxTree) stat(ctx context.Context, name string, follow bool) (rest.File, error) {
	info, err := t.b.Stat(ctx, name, sandbox.FileOptions{User: t.user, Follow: follow})
	return fileOf(&info), err
}

func (t *boxTree) list(ctx context.Context, dir string) ([]rest.File, error) {
	infos, err := t.b.ListDir(ctx, dir, sandbox.FileOptions{User: t.user})
	items := make([]rest.File, len(infos))
	for i := range infos {
		items[i] = fileOf(&infos[i])
	}
	return items, err
}

func (t *boxTree) write(ctx context.Context, name string, r io.Reader, o volume.WriteOptions) (rest.File, error) {
	info, err := t.b.WriteFile(ctx, name, r, sandbox.FileOptions{User: t.user, Mode: o.Mode, All: o.Parents, IfAbsent: o.IfAbsent, IfVersion: o.IfVersion})
	return fileOf(&info), err
}

// writeNumbered claims a name by an empty file, which nobody else can make then;
// its place is taken by the whole one, or it goes again.
func (t *boxTree) writeNumbered(ctx context.Context, name string, r io.Reader, o volume.WriteOptions) (rest.File, error) {
	o.IfAbsent = true
	dir, base := path.Split(name)
	var claim rest.File
	var at string
	for n := 0; ; n++ {
		at = dir + volume.NumberedName(base, n)
		var err error
		if claim, err = t.write(ctx, at, strings.NewReader(""), o); err == nil {
			break
		}
		if !errors.Is(err, volume.ErrFileExists) || n == maxRenameTries {
			return rest.File{}, err
		}
	}
	o.IfAbsent, o.IfVersion = false, claim.Version
	f, err := t.write(ctx, at, r, o)
	if err != nil && !errors.Is(err, volume.ErrVersion) {
		err = errors.Join(err, t.remove(context.WithoutCancel(ctx), at, volume.RemoveOptions{}))
	}
	return f, err
}

func (t *boxTree) mkdir(ctx context.Context, name string, mode fs.FileMode, parents bool) error {
	return t.b.MkDir(ctx, name, sandbox.FileOptions{User: t.user, Mode: mode, All: parents})
}

func (t *boxTree) rename(ctx context.Context, from, to string) error {
	return t.b.RenameFile(ctx, from, to, sandbox.FileOptions{User: t.user})
}

// remove looks for the version alone before, which another write may follow.
func (t *boxTree) remove(ctx context.Context, name string, o volume.RemoveOptions) error {
	return t.b.RemoveFile(ctx, name, sandbox.FileOptions{User: t.user, All: o.All})
}

func (t *boxTree) pack(ctx context.Context, name string, follow bool) (io.ReadCloser, error) {
	return t.b.CopyFrom(ctx, name, sandbox.FileOptions{User: t.user, Follow: follow})
}

func (t *boxTree) unpack(ctx context.Context, dir string, r io.Reader, owners bool) error {
	return t.b.CopyTo(ctx, dir, r, sandbox.FileOptions{User: t.user, Owners: owners})
}

// fileTypes names the kinds of files.
var fileTypes = map[fs.FileMode]string{
	0: "file", fs.ModeDir: "dir", fs.ModeSymlink: "link", fs.ModeNamedPipe: "pipe", fs.ModeSocket: "socket",
	fs.ModeDevice: "block", fs.ModeDevice | fs.ModeCharDevice: "char",
}

// isFile reports whether a description is that of a regular file.
func isFile(f *rest.File) bool { return f.Type == fileTypes[0] }

// modeOf spells a file's permissions.
func modeOf(m fs.FileMode) string {
	mode := uint32(m.Perm())
	for bit, value := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			mode |= value
		}
	}
	return fmt.Sprintf("%04o", mode)
}

func fileOf(i *sandbox.FileInfo) rest.File {
	f := rest.File{Type: fileTypes[i.Mode.Type()], Size: i.Size, Mode: modeOf(i.Mode), UID: i.UID, GID: i.GID, ModTime: i.ModTime}
	if isFile(&f) {
		f.Version = i.Version
	}
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

// rawName is a file's name as it is.
func rawName(f *rest.File) string {
	if len(f.NameB64) > 0 {
		return string(f.NameB64)
	}
	return f.Name
}
