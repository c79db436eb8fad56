package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// LoadImage sends an archive to the node and returns the images that were in
// it. name, if not empty, is given to its only image.
func (c *Client) LoadImage(ctx context.Context, archive io.Reader, name string) ([]rest.Image, error) {
	u := c.at("v1", "images", "load")
	if name != "" {
		u.RawQuery = url.Values{"name": {name}}.Encode()
	}
	resp, err := c.send(ctx, http.MethodPost, u, archive, "Content-Type", "application/x-tar")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var l rest.ImageList
	if err := json.NewDecoder(resp.Body).Decode(&l); err != nil {
		return nil, c.linkError(ctx, err)
	}
	return l.Items, nil
}

// ListImages returns the images of the node, the built-in one first.
func (c *Client) ListImages(ctx context.Context) ([]rest.Image, error) {
	return list[rest.Image](ctx, c, c.at("v1", "images"), url.Values{})
}

// GetImage returns an image by name or digest.
func (c *Client) GetImage(ctx context.Context, ref string) (rest.Image, error) {
	u, err := c.image(ref)
	if err != nil {
		return rest.Image{}, err
	}
	return call[rest.Image](ctx, c, http.MethodGet, u, nil)
}

// RemoveImage removes an image by name or digest.
func (c *Client) RemoveImage(ctx context.Context, ref string) error {
	u, err := c.image(ref)
	if err != nil {
		return err
	}
	_, err = call[none](ctx, c, http.MethodDelete, u, nil)
	return err
}

// image returns the address of an image. Parts that a path would swallow are
// in no reference.
func (c *Client) image(ref string) (url.URL, error) {
	parts := strings.Split(ref, "/")
	if slices.ContainsFunc(parts, func(p string) bool { return p == "" || p == "." || p == ".." }) {
		return url.URL{}, fmt.Errorf("image %q: %w", ref, taisandbox.ErrImageRef)
	}
	return c.at(append([]string{"v1", "images"}, parts...)...), nil
}

// PullImage has the node pull an image, and tells each step of it.
func (c *Client) PullImage(ctx context.Context, req rest.PullImage, tell func(rest.PullEvent)) error {
	resp, err := c.post(ctx, req, "images", "pull")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(resp.Body)
	for {
		var e rest.PullEvent
		if err := lines.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // the last line says how it ended
			}
			return c.linkError(ctx, err)
		}
		switch {
		case e.Error != nil:
			return c.errorOf(*e.Error, errdefs.ErrUnknown)
		case e.Status == taisandbox.PullComplete:
			tell(e)
			return nil
		}
		tell(e)
	}
}

// SaveImages writes an OCI archive of images.
func (c *Client) SaveImages(ctx context.Context, refs []string, w io.Writer) error {
	resp, err := c.post(ctx, rest.SaveImages{Images: refs}, "images", "save")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	dst := &ours{w: w}
	if _, err := io.Copy(dst, resp.Body); err != nil && dst.err == nil {
		return c.linkError(ctx, err)
	}
	return dst.err
}

// ours tells failures to write from failures to read.
type ours struct {
	w   io.Writer
	err error
}

func (o *ours) Write(p []byte) (n int, err error) {
	n, o.err = o.w.Write(p)
	return n, o.err
}

// PruneImages removes images that no box is made of, and returns them.
func (c *Client) PruneImages(ctx context.Context, all bool) ([]rest.Image, error) {
	l, err := call[rest.ImageList](ctx, c, http.MethodPost, c.at("v1", "images", "prune"), rest.PruneImages{All: all})
	return l.Items, err
}

// CommitBox makes an image of a box.
func (c *Client) CommitBox(ctx context.Context, id string, req rest.CommitBox) (rest.Image, error) {
	u, err := c.box(id, "commit")
	if err != nil {
		return rest.Image{}, err
	}
	return call[rest.Image](ctx, c, http.MethodPost, u, req)
}

// post sends a request whose answer is a stream.
func (c *Client) post(ctx context.Context, in any, path ...string) (*http.Response, error) {
	return c.postTo(ctx, c.at(append([]string{"v1"}, path...)...), in)
}

func (c *Client) postTo(ctx context.Context, u url.URL, in any) (*http.Response, error) {
	body, err := encode(in)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, http.MethodPost, u, bytes.NewReader(body), "Content-Type", "application/json")
}
