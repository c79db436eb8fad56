package client

import (
	"bytes"
	"context"
	"io"
	"iter"
	"net/http"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/tai/volume"
)

// SyncEnd returns a directory of the workspace as a side of a sync.
func (w *Workspace) SyncEnd(dir string) volume.SyncEnd { return &syncEnd{w, dir} }

// syncEnd is a [volume.SyncEnd] over HTTP.
type syncEnd struct {
	w   *Workspace
	dir string
}

// post sends a request of the sync.
func (e *syncEnd) post(ctx context.Context, what string, body io.Reader, media string) (*http.Response, error) {
	u, err := e.w.fileAt(e.dir, "sync", what)
	if err != nil {
		return nil, err
	}
	return e.w.c.send(ctx, http.MethodPost, u, body, "Content-Type", media)
}

// postNames sends a request that names files.
func (e *syncEnd) postNames(ctx context.Context, what string, names []string) (*http.Response, error) {
	var body bytes.Buffer
	if err := treesync.WriteNames(&body, names); err != nil {
		return nil, err
	}
	return e.post(ctx, what, &body, treesync.ContentType)
}

// Index implements [volume.SyncEnd].
func (e *syncEnd) Index(ctx context.Context, o volume.IndexOptions) iter.Seq2[volume.SyncEntry, error] {
	return func(yield func(volume.SyncEntry, error) bool) {
		u, err := e.w.fileAt(e.dir, "sync", "index")
		var resp *http.Response
		if err == nil {
			resp, err = e.w.c.postTo(ctx, u, rest.SyncIndex{Exclude: o.Exclude, GitIgnore: o.GitIgnore})
		}
		if err != nil {
			yield(volume.SyncEntry{}, err)
			return
		}
		defer resp.Body.Close()
		for entry, err := range treesync.ReadIndex(resp.Body) {
			if !yield(entry, err) || err != nil {
				return
			}
		}
	}
}

// Hashes implements [volume.SyncEnd].
func (e *syncEnd) Hashes(ctx context.Context, names []string) ([]string, error) {
	resp, err := e.postNames(ctx, "hashes", names)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return treesync.ReadHashes(resp.Body, len(names))
}

// Fetch implements [volume.SyncEnd].
func (e *syncEnd) Fetch(ctx context.Context, names []string, w io.Writer) error {
	resp, err := e.postNames(ctx, "fetch", names)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	dst := &ours{w: w}
	if _, err := io.Copy(dst, resp.Body); err != nil && dst.err == nil {
		return e.w.c.linkError(ctx, err)
	}
	return dst.err
}

// Apply implements [volume.SyncEnd].
func (e *syncEnd) Apply(ctx context.Context, remove []string, r io.Reader) error {
	pr, pw := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		pw.CloseWithError(treesync.WriteApply(pw, remove, r))
	}()
	resp, err := e.post(ctx, "apply", pr, treesync.ContentType)
	pr.Close() //nolint:errcheck // it has no error to tell
	<-written
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
