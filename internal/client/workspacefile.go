package client

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/tai/volume"
)

// fileAt returns the address of a call for a file of the workspace.
func (w *Workspace) fileAt(name string, segments ...string) (url.URL, error) {
	u, err := w.at(segments...)
	u.RawQuery = pathQuery(name).Encode()
	return u, err
}

// pathQuery is a path as a parameter.
func pathQuery(name string) url.Values {
	if utf8.ValidString(name) {
		return url.Values{"path": {name}}
	}
	return url.Values{"path_b64": {base64.StdEncoding.EncodeToString([]byte(name))}}
}

// Stat describes a file; of a symbolic link the link itself.
func (w *Workspace) Stat(ctx context.Context, name string) (volume.FileInfo, error) {
	u, err := w.fileAt(name, "files", "stat")
	if err != nil {
		return volume.FileInfo{}, err
	}
	f, err := call[rest.File](ctx, w.c, http.MethodGet, u, nil)
	if err != nil {
		return volume.FileInfo{}, err
	}
	return volumeInfo(&f)
}

// List describes what is in a directory, by name.
func (w *Workspace) List(ctx context.Context, dir string) ([]volume.FileInfo, error) {
	u, err := w.fileAt(dir, "files", "list")
	if err != nil {
		return nil, err
	}
	files, err := list[rest.File](ctx, w.c, u, u.Query())
	if err != nil {
		return nil, err
	}
	infos := make([]volume.FileInfo, len(files))
	for i := range files {
		if infos[i], err = volumeInfo(&files[i]); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// Open opens a file, or the part of it that o names. One that breaks off ends
// with an error. The caller closes it.
func (w *Workspace) Open(ctx context.Context, name string, o volume.OpenOptions) (io.ReadCloser, volume.FileInfo, error) {
	u, err := w.fileAt(name, "files")
	if err != nil {
		return nil, volume.FileInfo{}, err
	}
	part(&u, o.Offset, o.Limit)
	resp, err := w.c.send(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, volume.FileInfo{}, err
	}
	var info volume.FileInfo
	f, err := headerFile(resp)
	if err == nil {
		info, err = volumeInfo(&f)
	}
	if err != nil {
		resp.Body.Close()
		return nil, info, w.c.linkError(ctx, err)
	}
	return resp.Body, info, nil
}

// headerFile reads the description that comes with a file's contents.
func headerFile(resp *http.Response) (f rest.File, err error) {
	raw, err := base64.StdEncoding.DecodeString(resp.Header.Get(rest.HeaderFile))
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	return f, err
}

// Write writes all of r to a file, whole or not at all.
func (w *Workspace) Write(ctx context.Context, name string, r io.Reader, o volume.WriteOptions) (volume.FileInfo, error) {
	u, err := w.fileAt(name, "files")
	if err != nil {
		return volume.FileInfo{}, err
	}
	if o.Mode != 0 {
		with(&u, "mode", strconv.FormatUint(uint64(o.Mode.Perm()), 8))
	}
	if o.Parents {
		with(&u, "parents", "true")
	}
	header := []string{"Content-Type", "application/octet-stream"}
	if o.IfVersion != "" {
		header = append(header, "If-Match", `"`+o.IfVersion+`"`)
	}
	if o.IfAbsent {
		header = append(header, "If-None-Match", "*")
	}
	sent := &tally{r: r}
	resp, err := w.c.send(ctx, http.MethodPut, u, sent, header...)
	if err != nil {
		return volume.FileInfo{}, err
	}
	defer resp.Body.Close()
	var f rest.File
	if err := json.NewDecoder(resp.Body).Decode(&f); err != nil {
		return volume.FileInfo{}, w.c.linkError(ctx, err)
	}
	if f.Size != sent.n {
		return volume.FileInfo{}, fmt.Errorf("%w: %d bytes were sent and %d written", rest.ErrInternal, sent.n, f.Size)
	}
	return volumeInfo(&f)
}

// tally counts what is read.
type tally struct {
	r io.Reader
	n int64
}

func (t *tally) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.n += int64(n)
	return n, err
}

// Remove removes a file or an empty directory, with all what is in it too.
func (w *Workspace) Remove(ctx context.Context, name string, all bool) error {
	u, err := w.fileAt(name, "files")
	if err != nil {
		return err
	}
	if all {
		with(&u, "recursive", "true")
	}
	_, err = call[none](ctx, w.c, http.MethodDelete, u, nil)
	return err
}

// MkdirAll makes a directory and its parents; mode 0 means 0755.
func (w *Workspace) MkdirAll(ctx context.Context, name string, mode fs.FileMode) error {
	req := rest.MakeWorkspaceDir{PathB64: []byte(name)}
	if mode != 0 {
		req.Mode = strconv.FormatUint(uint64(mode.Perm()), 8)
	}
	_, err := onWorkspace[none](ctx, w, http.MethodPost, req, "files", "mkdir")
	return err
}

// Rename moves a file or directory, over a file that is there.
func (w *Workspace) Rename(ctx context.Context, from, to string) error {
	_, err := onWorkspace[none](ctx, w, http.MethodPost, moveFile(from, to), "files", "rename")
	return err
}

// Copy copies a file or directory to where nothing is yet.
func (w *Workspace) Copy(ctx context.Context, from, to string) error {
	_, err := onWorkspace[none](ctx, w, http.MethodPost, moveFile(from, to), "files", "copy")
	return err
}

// CopyTo unpacks a tar stream into a directory.
func (w *Workspace) CopyTo(ctx context.Context, dir string, archive io.Reader) error {
	u, err := w.fileAt(dir, "archive")
	if err != nil {
		return err
	}
	resp, err := w.c.send(ctx, http.MethodPut, u, archive, "Content-Type", "application/x-tar")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// CopyFrom packs a file or tree as a tar stream. One that breaks off ends with
// an error. The caller closes it.
func (w *Workspace) CopyFrom(ctx context.Context, name string) (io.ReadCloser, error) {
	u, err := w.fileAt(name, "archive")
	if err != nil {
		return nil, err
	}
	resp, err := w.c.send(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Watch delivers what changes at a path and below until ctx ends. ready is
// called once nothing is missed any more.
func (w *Workspace) Watch(ctx context.Context, name string, ready func()) iter.Seq2[volume.FileEvent, error] {
	return func(yield func(volume.FileEvent, error) bool) {
		u, err := w.fileAt(name, "files", "watch")
		if err != nil {
			yield(volume.FileEvent{}, err)
			return
		}
		for e, err := range w.c.watch(ctx, u, ready) {
			if !yield(volume.FileEvent{Kind: volume.FileEventKind(e.Kind), Path: bytesOr(e.PathB64, e.Path), Dir: e.Dir}, err) || err != nil {
				return
			}
		}
	}
}

// watch reads a stream of file events to its end, which is an error.
func (c *Client) watch(ctx context.Context, u url.URL, ready func()) iter.Seq2[rest.FileEvent, error] {
	return func(yield func(rest.FileEvent, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		silence := time.AfterFunc(eventSilence, func() { cancel(errSilence) })
		defer silence.Stop()
		resp, err := c.send(ctx, http.MethodGet, u, nil, "Accept", "text/event-stream")
		if err != nil {
			yield(rest.FileEvent{}, err)
			return
		}
		defer resp.Body.Close()
		r := bufio.NewReaderSize(resp.Body, 16<<10)
		for {
			_, data, err := readEvent(r, func() { silence.Reset(eventSilence) })
			if err != nil {
				yield(rest.FileEvent{}, c.linkError(ctx, err))
				return
			}
			if ready != nil {
				ready()
				ready = nil
			}
			if data == "" {
				continue
			}
			var e rest.FileEvent
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				yield(e, fmt.Errorf("file event: %w", err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// volumeInfo reads a description.
func volumeInfo(f *rest.File) (volume.FileInfo, error) {
	mode, err := modeOf(f)
	if err != nil {
		return volume.FileInfo{}, err
	}
	return volume.FileInfo{
		Name: bytesOr(f.NameB64, f.Name), Path: bytesOr(f.PathB64, f.Path), Size: f.Size, Mode: mode,
		ModTime: f.ModTime, Link: bytesOr(f.LinkB64, f.Link), Version: f.Version,
	}, nil
}
