package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// fileURL returns the address of a call for a file of a box.
func (c *Client) fileURL(id, name string, o taisandbox.FileOptions, segments ...string) (url.URL, error) {
	u, err := c.box(id, segments...)
	if err != nil {
		return u, err
	}
	q := pathQuery(name)
	if o.User != "" {
		q.Set("user", o.User)
	}
	u.RawQuery = q.Encode()
	return u, nil
}

// with adds a parameter.
func with(u *url.URL, name, value string) {
	u.RawQuery += "&" + url.Values{name: {value}}.Encode()
}

// part adds which part of a file is meant; 0 is from its start, or to its end.
func part(u *url.URL, offset, limit int64) {
	for _, p := range []struct {
		name string
		n    int64
	}{{"offset", offset}, {"limit", limit}} {
		if p.n != 0 {
			with(u, p.name, strconv.FormatInt(p.n, 10))
		}
	}
}

// StatFile describes a file of a box.
func (c *Client) StatFile(ctx context.Context, id, name string, o taisandbox.FileOptions) (taisandbox.FileInfo, error) {
	u, err := c.fileURL(id, name, o, "files", "stat")
	if err != nil {
		return taisandbox.FileInfo{}, err
	}
	if o.Follow {
		with(&u, "follow", "true")
	}
	f, err := call[rest.File](ctx, c, http.MethodGet, u, nil)
	if err != nil {
		return taisandbox.FileInfo{}, err
	}
	return infoOf(&f)
}

// ListFiles describes what is in a directory of a box, by name.
func (c *Client) ListFiles(ctx context.Context, id, name string, o taisandbox.FileOptions) ([]taisandbox.FileInfo, error) {
	u, err := c.fileURL(id, name, o, "files", "list")
	if err != nil {
		return nil, err
	}
	files, err := list[rest.File](ctx, c, u, u.Query())
	if err != nil {
		return nil, err
	}
	infos := make([]taisandbox.FileInfo, len(files))
	for i := range files {
		if infos[i], err = infoOf(&files[i]); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// ReadFile opens a file of a box. One that breaks off ends with an error. The
// caller closes it.
func (c *Client) ReadFile(ctx context.Context, id, name string, o taisandbox.FileOptions) (io.ReadCloser, taisandbox.FileInfo, error) {
	u, err := c.fileURL(id, name, o, "files")
	if err != nil {
		return nil, taisandbox.FileInfo{}, err
	}
	part(&u, o.Offset, o.Limit)
	resp, err := c.send(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, taisandbox.FileInfo{}, err
	}
	f, err := headerFile(resp)
	var info taisandbox.FileInfo
	if err == nil {
		info, err = infoOf(&f)
	}
	if err != nil {
		resp.Body.Close()
		return nil, info, c.linkError(ctx, err)
	}
	return resp.Body, info, nil
}

// WriteFile writes all of r to a file of a box, whole or not at all.
func (c *Client) WriteFile(ctx context.Context, id, name string, r io.Reader, o taisandbox.FileOptions) (taisandbox.FileInfo, error) {
	var info taisandbox.FileInfo
	u, err := c.fileURL(id, name, o, "files")
	if err != nil {
		return info, err
	}
	if o.Mode != 0 {
		with(&u, "mode", strconv.FormatUint(uint64(o.Mode.Perm()), 8))
	}
	if o.All {
		with(&u, "parents", "true")
	}
	header := []string{"Content-Type", "application/octet-stream"}
	if o.IfVersion != "" {
		header = append(header, "If-Match", `"`+o.IfVersion+`"`)
	}
	if o.IfAbsent {
		header = append(header, "If-None-Match", "*")
	}
	resp, err := c.send(ctx, http.MethodPut, u, r, header...)
	if err != nil {
		return info, err
	}
	defer resp.Body.Close()
	var f rest.File
	if err := json.NewDecoder(resp.Body).Decode(&f); err != nil {
		return info, c.linkError(ctx, err)
	}
	return infoOf(&f)
}

// RemoveFile removes a file or directory of a box.
func (c *Client) RemoveFile(ctx context.Context, id, name string, o taisandbox.FileOptions) error {
	u, err := c.fileURL(id, name, o, "files")
	if err != nil {
		return err
	}
	if o.All {
		with(&u, "recursive", "true")
	}
	_, err = call[none](ctx, c, http.MethodDelete, u, nil)
	return err
}

// MakeDir makes a directory in a box.
func (c *Client) MakeDir(ctx context.Context, id, name string, o taisandbox.FileOptions) error {
	u, err := c.box(id, "files", "mkdir")
	if err != nil {
		return err
	}
	req := rest.MakeDir{PathB64: []byte(name), User: o.User, Parents: o.All}
	if o.Mode != 0 {
		req.Mode = strconv.FormatUint(uint64(o.Mode.Perm()), 8)
	}
	_, err = call[none](ctx, c, http.MethodPost, u, req)
	return err
}

// RenameFile moves a file or directory of a box, over what is there.
func (c *Client) RenameFile(ctx context.Context, id, from, to string, o taisandbox.FileOptions) error {
	u, err := c.box(id, "files", "rename")
	if err != nil {
		return err
	}
	_, err = call[none](ctx, c, http.MethodPost, u, rest.RenameFile{PathB64: []byte(from), ToB64: []byte(to), User: o.User})
	return err
}

// CopyTo unpacks a tar stream into a directory of a box.
func (c *Client) CopyTo(ctx context.Context, id, dir string, archive io.Reader, o taisandbox.FileOptions) error {
	u, err := c.fileURL(id, dir, o, "archive")
	if err != nil {
		return err
	}
	if o.Owners {
		with(&u, "owners", "true")
	}
	resp, err := c.send(ctx, http.MethodPut, u, archive, "Content-Type", "application/x-tar")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// CopyFrom packs a file or tree of a box as a tar stream. One that breaks off
// ends with an error. The caller closes it.
func (c *Client) CopyFrom(ctx context.Context, id, name string, o taisandbox.FileOptions) (io.ReadCloser, error) {
	u, err := c.fileURL(id, name, o, "archive")
	if err != nil {
		return nil, err
	}
	if o.Follow {
		with(&u, "follow", "true")
	}
	resp, err := c.send(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// fileTypes are the kinds of files by name.
var fileTypes = map[string]fs.FileMode{
	"file": 0, "dir": fs.ModeDir, "link": fs.ModeSymlink, "pipe": fs.ModeNamedPipe, "socket": fs.ModeSocket,
	"block": fs.ModeDevice, "char": fs.ModeDevice | fs.ModeCharDevice,
}

// modeOf reads the kind and the permissions of a file.
func modeOf(f *rest.File) (fs.FileMode, error) {
	bits, err := strconv.ParseUint(f.Mode, 8, 16)
	kind, known := fileTypes[f.Type]
	if err != nil || !known {
		return 0, fmt.Errorf("%w: a file of type %.32q with mode %.32q", rest.ErrInternal, f.Type, f.Mode)
	}
	mode := kind | fs.FileMode(bits)&fs.ModePerm
	for value, bit := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&value != 0 {
			mode |= bit
		}
	}
	return mode, nil
}

// infoOf reads a description.
func infoOf(f *rest.File) (taisandbox.FileInfo, error) {
	mode, err := modeOf(f)
	if err != nil {
		return taisandbox.FileInfo{}, err
	}
	return taisandbox.FileInfo{
		Name: bytesOr(f.NameB64, f.Name), Size: f.Size, Mode: mode, UID: f.UID, GID: f.GID, ModTime: f.ModTime, Link: bytesOr(f.LinkB64, f.Link),
		Version: f.Version,
	}, nil
}

func bytesOr(raw []byte, text string) string {
	if len(raw) > 0 {
		return string(raw)
	}
	return text
}
