package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strings"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/tai/volume"
)

const (
	maxUploads     = 10_000 // files of one request
	maxRenameTries = 10_000 // names that may be taken already
)

func (a *fileAPI) writeFile(w http.ResponseWriter, r *http.Request) error {
	c, err := a.call(r, VerbExec)
	if err == nil {
		err = streamBody(r)
	}
	if err != nil {
		return err
	}
	o, err := c.conditions(r.Context(), r.Header)
	if err != nil {
		return err
	}
	o.Mode, o.Parents = c.mode, c.parents
	f, err := c.write(r.Context(), c.name, r.Body, o)
	if err != nil {
		return conditional(err, o)
	}
	w.Header().Set("ETag", etag(&f))
	writeJSON(w, http.StatusOK, f)
	return nil
}

// conditional tells a condition of the request that did not hold from a
// conflict that the request does not know of.
func conditional(err error, o volume.WriteOptions) error {
	if o.IfAbsent && errors.Is(err, volume.ErrFileExists) || o.IfVersion != "" && errors.Is(err, volume.ErrVersion) {
		return &precondition{err}
	}
	return err
}

// uploadFiles takes the files of a form, each of which becomes one in a
// directory. What was written before an error stays, and the error names it.
func (a *fileAPI) uploadFiles(w http.ResponseWriter, r *http.Request) error {
	c, err := a.call(r, VerbExec)
	if err != nil {
		return err
	}
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || t != "multipart/form-data" {
		return fmt.Errorf("%w: %.64q: multipart/form-data is expected", rest.ErrMediaType, r.Header.Get("Content-Type"))
	}
	form, err := r.MultipartReader()
	if err != nil {
		return fmt.Errorf("%w: %w", rest.ErrRequest, err)
	}
	absent := parseTags(strings.Join(r.Header.Values("If-None-Match"), ",")).any
	list := rest.FileList{Items: []rest.File{}}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		var f rest.File
		switch {
		case err != nil:
			err = fmt.Errorf("%w: %w", rest.ErrRequest, err)
		case len(list.Items) == maxUploads:
			err = fmt.Errorf("%w: at most %d files are possible", rest.ErrTooLarge, maxUploads)
		default:
			f, err = c.upload(r.Context(), part, absent)
		}
		if err != nil {
			if len(list.Items) > 0 {
				return &detailedError{err, map[string]any{"written": list.Items}}
			}
			return err
		}
		list.Items = append(list.Items, f)
	}
	if len(list.Items) == 0 {
		return fmt.Errorf("%w: no file is in the form", rest.ErrRequest)
	}
	writeJSON(w, http.StatusCreated, list)
	return nil
}

// upload writes one file of a form.
func (c *fileCall) upload(ctx context.Context, part *multipart.Part, absent bool) (rest.File, error) {
	name, err := uploadName(part)
	if err != nil {
		return rest.File{}, err
	}
	o := volume.WriteOptions{Mode: c.mode, Parents: c.parents, IfAbsent: absent}
	if c.rename {
		return c.writeNumbered(ctx, c.join(c.name, name), &formPart{part}, o)
	}
	f, err := c.write(ctx, c.join(c.name, name), &formPart{part}, o)
	return f, conditional(err, o)
}

// formPart reads a file of a form; one that breaks off is the request's fault.
type formPart struct{ r io.Reader }

func (p *formPart) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: the form breaks off: %w", rest.ErrRequest, err)
	}
	return n, err
}

// uploadName is the name that a form gives a file: one element of a path, as
// bytes. Directories in it, which some clients send, do not count.
func uploadName(part *multipart.Part) (string, error) {
	name := part.FileName()
	if _, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition")); err == nil && params["filename"] != "" {
		name = path.Base(params["filename"])
	}
	switch {
	case name == "":
		return "", fmt.Errorf("%w: field %.64q is no file", rest.ErrRequest, part.FormName())
	case name == ".", name == "..", name == "/", strings.ContainsRune(name, 0):
		return "", fmt.Errorf("%w: file name %.64q", rest.ErrRequest, name)
	case len(name) > volume.MaxName:
		return "", fmt.Errorf("%w: a file name of %d bytes: at most %d are possible", rest.ErrRequest, len(name), volume.MaxName)
	}
	return name, nil
}
