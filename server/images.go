package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func (s *Server) imageRoutes() {
	handle(s, http.MethodGet, "/v1/images", "Images of a node, the built-in one first", s.listImages)
	handle(s, http.MethodGet, "/v1/images/{ref}", "One image, by name or digest", s.getImage)
	handle(s, http.MethodDelete, "/v1/images/{ref}", "Remove an image", s.removeImage)
	s.raw(http.MethodPost, "/v1/images/load", "Load the archive that is the body (application/x-tar, OCI or Docker, plain or compressed)",
		[]string{"name", "node"}, s.loadImage)
	s.raw(http.MethodPost, "/v1/images/pull", "Pull the image that the body (PullImage, as application/json) names; the answer is one PullEvent a line, the last of which says how it ended",
		nil, s.pullImage)
	s.raw(http.MethodPost, "/v1/images/save", "Save the images that the body (SaveImages, as application/json) names, as an OCI archive", nil, s.saveImages)
	handle(s, http.MethodPost, "/v1/images/prune", "Remove images that no box is made of", s.pruneImages)
	handle(s, http.MethodPost, "/v1/sandboxes/{id}/commit", "Make an image of a box", s.commitBox)
}

type imagesInput struct {
	Node string `query:"node"`
	Paging
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
	name := func(i *taisandbox.ImageInfo) cursor {
		if i.BuiltIn {
			return cursor{0, i.Name}
		}
		return cursor{1, cmp.Or(i.Name, i.Digest)}
	}
	items, next, err := page(in.Paging, inOrder(infos, name), name, always(imageOf))
	if err != nil {
		return nil, err
	}
	return ok(rest.ImageList{Items: items, NextToken: next}), nil
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

type pruneInput struct {
	Body rest.PruneImages
}

func (s *Server) pruneImages(ctx context.Context, in *pruneInput) (*output[rest.ImageList], error) {
	if err := s.allow(ctx, VerbRemove, Object{Kind: KindImage, Node: in.Body.NodeID}); err != nil {
		return nil, err
	}
	images, err := s.images(in.Body.NodeID)
	if err != nil {
		return nil, err
	}
	removed, err := images.Prune(ctx, in.Body.All)
	if err != nil {
		return nil, err
	}
	return ok(imagesOf(removed)), nil
}

type commitInput struct {
	ID   string `path:"id"`
	Body rest.CommitBox
}

func (s *Server) commitBox(ctx context.Context, in *commitInput) (*output[rest.Image], error) {
	b, err := s.box(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	if err := s.allow(ctx, VerbCreate, Object{Kind: KindImage, ID: in.Body.Image, Node: b.NodeID()}); err != nil {
		return nil, err
	}
	images, err := s.cfg.Manager.Images(b.NodeID())
	if err != nil {
		return nil, err
	}
	release, err := b.Lease(commitLease) // it is not to go for being idle under our hands
	if err != nil {
		return nil, err
	}
	defer release()
	info, err := images.Commit(ctx, b.ID(), in.Body.Image, taisandbox.ImageChange{
		Entrypoint: in.Body.Entrypoint, Cmd: in.Body.Cmd, Env: in.Body.Env,
		WorkDir: in.Body.WorkDir, User: in.Body.User, Labels: in.Body.Labels,
	})
	if err != nil {
		return nil, err
	}
	return &output[rest.Image]{Status: http.StatusCreated, Body: imageOf(&info)}, nil
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
