package server

import (
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"mime"
	"net/http"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/tai/volume"
)

// The routes of a sync are a [volume.SyncEnd] over HTTP.
func (s *Server) workspaceSyncRoutes() {
	const at = "/v1/workspaces/{id}/sync"
	binary := " (" + treesync.ContentType + ")"
	where := []string{"path", "path_b64"}
	s.raw(http.MethodPost, at+"/index", "What a tree has"+binary+", without what the body (SyncIndex, as application/json) excludes", where, s.syncIndex)
	s.raw(http.MethodPost, at+"/hashes", "The hashes of the files that the body names"+binary, where, s.syncHashes)
	s.raw(http.MethodPost, at+"/fetch", "The files that the body names"+binary, where, s.syncFetch)
	s.raw(http.MethodPost, at+"/apply", "Remove and make files of a tree, as the body says"+binary, where, s.syncApply)
}

// syncEnd finds the tree of a sync.
func (s *Server) syncEnd(r *http.Request, verb Verb) (volume.SyncEnd, error) {
	q := r.URL.Query()
	a := &fileAPI{s, s.workspaceFiles}
	t, name, err := a.at(r.Context(), verb, filePlace{id: r.PathValue("id"), path: q.Get("path"), b64: q.Get("path_b64")})
	if err != nil {
		return nil, err
	}
	w := t.(*workspaceTree) //nolint:forcetypeassert // workspaceFiles finds no other
	return w.v.SyncEnd(r.Context(), w.id, name)
}

// syncBody refuses a body that is not ours.
func syncBody(r *http.Request) error {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != treesync.ContentType {
		return fmt.Errorf("%w: %.64q: %s is expected", rest.ErrMediaType, r.Header.Get("Content-Type"), treesync.ContentType)
	}
	return nil
}

// syncNames reads what a call names.
func (s *Server) syncNames(r *http.Request) (volume.SyncEnd, []string, error) {
	end, err := s.syncEnd(r, VerbGet)
	if err == nil {
		err = syncBody(r)
	}
	if err != nil {
		return nil, nil, err
	}
	names, err := treesync.ReadNames(r.Body)
	return end, names, err
}

func (s *Server) syncIndex(w http.ResponseWriter, r *http.Request) error {
	end, err := s.syncEnd(r, VerbGet)
	if err != nil {
		return err
	}
	var in rest.SyncIndex
	if err := readJSON(w, r, &in); err != nil {
		return err
	}
	entries, stop, err := begunSeq(end.Index(r.Context(), volume.IndexOptions{Exclude: in.Exclude, GitIgnore: in.GitIgnore}))
	if err != nil {
		return err
	}
	defer stop()
	return s.syncAnswer(w, r.Context(), func(out io.Writer) error { return treesync.WriteIndex(out, entries) })
}

// begunSeq takes the first of a sequence, so that an error of it is still a
// proper answer.
func begunSeq(seq iter.Seq2[volume.SyncEntry, error]) (iter.Seq2[volume.SyncEntry, error], func(), error) {
	next, stop := iter.Pull2(seq)
	first, err, some := next()
	if err != nil {
		stop()
		return nil, nil, err
	}
	return func(yield func(volume.SyncEntry, error) bool) {
		for e, err, ok := first, error(nil), some; ok; e, err, ok = next() {
			if !yield(e, err) {
				return
			}
		}
	}, stop, nil
}

func (s *Server) syncHashes(w http.ResponseWriter, r *http.Request) error {
	end, names, err := s.syncNames(r)
	if err != nil {
		return err
	}
	hashes, err := end.Hashes(r.Context(), names)
	if err != nil {
		return err
	}
	return s.syncAnswer(w, r.Context(), func(out io.Writer) error { return treesync.WriteNames(out, hashes) })
}

func (s *Server) syncFetch(w http.ResponseWriter, r *http.Request) error {
	end, names, err := s.syncNames(r)
	if err != nil {
		return err
	}
	return s.syncAnswer(w, r.Context(), func(out io.Writer) error { return end.Fetch(r.Context(), names, out) })
}

// syncAnswer writes what has its own end: an error after the first byte is in
// it, or the end is missing.
func (s *Server) syncAnswer(w http.ResponseWriter, ctx context.Context, write func(io.Writer) error) error { //nolint:revive // as net/http has it
	out := &begun{w: w, media: treesync.ContentType}
	err := write(out)
	if err != nil && out.yes {
		s.log.LogAttrs(ctx, slog.LevelDebug, "sync broke off", slog.Any("err", err))
		return nil
	}
	return err
}

func (s *Server) syncApply(w http.ResponseWriter, r *http.Request) error {
	end, err := s.syncEnd(r, VerbExec)
	if err == nil {
		err = syncBody(r)
	}
	if err != nil {
		return err
	}
	remove, stream, err := treesync.ReadApply(r.Body)
	if err == nil {
		err = end.Apply(r.Context(), remove, stream)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
