package server

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"

	"github.com/taibox/taibox/api/rest"
)

func (s *Server) imageRoutes() {
	handle(s, http.MethodGet, "/v1/images", "Images of a node, the built-in one first", s.listImages)
	handle(s, http.MethodGet, "/v1/images/{ref}", "One image, by name or digest", s.getImage)
	handle(s, http.MethodDelete, "/v1/images/{ref}", "Remove an image", s.removeImage)
	s.raw(http.MethodPost, "/v1/images/load", "Load the archive that is the body (application/x-tar, OCI or Docker, plain or compressed)",
		[]string{"name", "node"}, s.loadImage)
}

type imagesInput struct {
	Node string `query:"node"`
}

func (s *Server) listImages(ctx context.Context, in *imagesInput) (*output[rest.ImageList], error) {
	if err := s.allow(ctx, VerbList, Object{Kind: KindImage, Node: in.Node}); err != nil {
		return nil, err
	}
	images, err := s.images(in.Node)
	if err != nil {
		return nil, err
	}
	infos, err := images.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	return ok(imagesOf(infos)), nil
}

type imagePath struct {
	Ref  string `path:"ref"`
	Node string `query:"node"`
}

func (s *Server) getImage(ctx context.Context, in *imagePath) (*output[rest.Image], error) {
	if err := s.allow(ctx, VerbGet, Object{Kind: KindImage, ID: in.Ref, Node: in.Node}); err != nil {
		return nil, err
	}
	images, err := s.images(in.Node)
	if err != nil {
		return nil, err
	}
	info, err := images.InspectImage(ctx, in.Ref)
	if err != nil {
		return nil, err
	}
	return ok(imageOf(&info)), nil
}

func (s *Server) removeImage(ctx context.Context, in *imagePath) (*nothing, error) {
	if err := s.allow(ctx, VerbRemove, Object{Kind: KindImage, ID: in.Ref, Node: in.Node}); err != nil {
		return nil, err
	}
	images, err := s.images(in.Node)
	if err != nil {
		return nil, err
	}
	return nil, images.RemoveImage(ctx, in.Ref)
}

// archiveTypes are the types of a body that is an archive. None of them can be
// sent by a form of a web page.
var archiveTypes = map[string]bool{
	"application/x-tar": true, "application/octet-stream": true, "application/gzip": true, "application/zstd": true,
}

func (s *Server) loadImage(w http.ResponseWriter, r *http.Request) error {
	ctx, query := r.Context(), r.URL.Query()
	if err := s.allow(ctx, VerbCreate, Object{Kind: KindImage, ID: query.Get("name"), Node: query.Get("node")}); err != nil {
		return err
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || !archiveTypes[t] {
		return fmt.Errorf("%w: %.64q: application/x-tar is expected", rest.ErrMediaType, r.Header.Get("Content-Type"))
	}
	images, err := s.images(query.Get("node"))
	if err != nil {
		return err
	}
	infos, err := images.Load(ctx, r.Body, query.Get("name"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, imagesOf(infos))
	return nil
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) //nolint:errcheck,errchkjson // the client is gone, and there is nobody else to tell
}
