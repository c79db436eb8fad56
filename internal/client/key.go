package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// CreateKey makes an API key. Its secret is in the answer and nowhere else.
func (c *Client) CreateKey(ctx context.Context, req rest.CreateKey) (rest.NewKey, error) {
	return call[rest.NewKey](ctx, c, http.MethodPost, c.at("v1", "keys"), req, idempotent(req.IdempotencyKey)...)
}

// ListKeys returns all API keys, oldest first.
func (c *Client) ListKeys(ctx context.Context) ([]rest.Key, error) {
	return list[rest.Key](ctx, c, c.at("v1", "keys"), url.Values{})
}

// RemoveKey ends an API key at once.
func (c *Client) RemoveKey(ctx context.Context, id string) error {
	if err := taisandbox.ValidateID(id); err != nil {
		return fmt.Errorf("key %.64q: %w", id, rest.ErrKeyNotFound)
	}
	_, err := call[none](ctx, c, http.MethodDelete, c.at("v1", "keys", id), nil)
	return err
}
