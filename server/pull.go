package server

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// readJSON reads the body of a route that is not huma's.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return fmt.Errorf("%w: %.64q: application/json is expected", rest.ErrMediaType, r.Header.Get("Content-Type"))
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return requestError(http.StatusBadRequest, "", []error{err})
	}
	return decodeStrict(raw, v)
}

// pullImage streams how far a pull is. What goes wrong before it begins is an
// answer as everywhere; afterwards it is the last line.
func (s *Server) pullImage(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	var in rest.PullImage
	wrong := readJSON(w, r, &in)
	if err := s.allow(ctx, VerbCreate, Object{Kind: KindImage, ID: in.Image, Node: in.NodeID}); err != nil {
		return err
	}
	if wrong != nil {
		return wrong
	}
	images, err := s.images(in.NodeID)
	if err != nil {
		return err
	}
	var opts taisandbox.PullOptions
	if a := in.Auth; a != nil {
		opts.Auth = &sandbox.RegistryAuth{Username: a.Username, Password: a.Password, Server: a.Server}
	}
	progress, err := images.Pull(ctx, in.Image, opts)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	out, flush := json.NewEncoder(w), http.NewResponseController(w)
	for p := range progress {
		e := rest.PullEvent{Status: p.Status, Layer: p.Layer, Current: p.Current, Total: p.Total, Digest: p.Digest}
		if p.Err != nil {
			e.Error = &s.fail(ctx, p.Err).Body
		}
		if err := out.Encode(e); err != nil {
			continue // the client is gone: so is ctx, and with it the pull
		}
		flush.Flush() //nolint:errcheck // as above
	}
	return nil
}

// saveImages streams an archive, for those who may make images. A failure in its middle cuts the connection:
// nobody takes the part for the whole.
func (s *Server) saveImages(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	var in rest.SaveImages
	wrong := readJSON(w, r, &in)
	if err := s.allow(ctx, VerbCreate, Object{Kind: KindImage, Node: in.NodeID}); err != nil {
		return err
	}
	if wrong != nil {
		return wrong
	}
	images, err := s.images(in.NodeID)
	if err != nil {
		return err
	}
	begun := &begun{w: w, media: "application/x-tar"}
	err = images.Save(ctx, in.Images, begun)
	if err != nil && begun.yes {
		s.log.LogAttrs(ctx, slog.LevelWarn, "saving images was cut short", slog.Any("err", err))
		panic(http.ErrAbortHandler)
	}
	return err
}

// begun sends the head of an answer with its first byte.
type begun struct {
	w     http.ResponseWriter
	media string // its type
	yes   bool
}

var _ io.Writer = (*begun)(nil)

func (b *begun) Write(p []byte) (int, error) {
	if !b.yes {
		b.yes = true
		b.w.Header().Set("Content-Type", b.media)
		b.w.WriteHeader(http.StatusOK)
	}
	return b.w.Write(p)
}
