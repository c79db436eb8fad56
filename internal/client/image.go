package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

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
	l, err := call[rest.ImageList](ctx, c, http.MethodGet, c.at("v1", "images"), nil)
	return l.Items, err
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
