package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/taibox/taibox/api/rest"
)

// Version returns what the server says of itself.
func (c *Client) Version(ctx context.Context) (v rest.Version, err error) {
	// Not repeated by itself: whoever revives a server asks this.
	err = c.roundTrip(ctx, http.MethodGet, c.at("v1", "version"), nil, &v)
	return v, err
}

// Nodes returns all nodes.
func (c *Client) Nodes(ctx context.Context) ([]rest.Node, error) {
	return list[rest.Node](ctx, c, c.at("v1", "nodes"), url.Values{})
}

// CreateBox creates a box and starts it.
func (c *Client) CreateBox(ctx context.Context, req rest.CreateBox) (rest.Box, error) {
	return call[rest.Box](ctx, c, http.MethodPost, c.at("v1", "sandboxes"), req, idempotent(req.IdempotencyKey)...)
}

// GetBox returns a box.
func (c *Client) GetBox(ctx context.Context, id string) (rest.Box, error) {
	return onBox[rest.Box](ctx, c, http.MethodGet, id, nil)
}

// ListBoxes returns all boxes that match, page by page.
func (c *Client) ListBoxes(ctx context.Context, l rest.ListBoxes) ([]rest.Box, error) {
	q := url.Values{}
	for k, v := range map[string]string{"owner": l.Owner, "node": l.Node, "status": l.Status} {
		if v != "" {
			q.Set(k, v)
		}
	}
	for k, v := range l.Labels {
		q.Add("label", k+"="+v)
	}
	if l.PageSize > 0 {
		q.Set("limit", strconv.Itoa(l.PageSize))
	}
	return list[rest.Box](ctx, c, c.at("v1", "sandboxes"), q)
}

// StartBox starts a stopped box.
func (c *Client) StartBox(ctx context.Context, id string) error {
	_, err := onBox[none](ctx, c, http.MethodPost, id, nil, "start")
	return err
}

// StopBox stops a box. A nil grace is the box's own.
func (c *Client) StopBox(ctx context.Context, id string, grace *time.Duration) error {
	var req rest.StopBox
	if grace != nil {
		ms := grace.Milliseconds()
		req.GraceMs = &ms
	}
	_, err := onBox[none](ctx, c, http.MethodPost, id, req, "stop")
	return err
}

// RemoveBox removes a box, whatever its state.
func (c *Client) RemoveBox(ctx context.Context, id string) error {
	_, err := onBox[none](ctx, c, http.MethodDelete, id, nil)
	return err
}

// WaitBox blocks until the box does not run, and returns it. It outlasts
// restarts of the server.
func (c *Client) WaitBox(ctx context.Context, id string) (rest.Box, error) {
	u, err := c.box(id, "wait")
	if err != nil {
		return rest.Box{}, err
	}
	return await[rest.Box](ctx, c, u)
}

// Ports returns what listens in a box.
func (c *Client) Ports(ctx context.Context, id string) ([]rest.Port, error) {
	l, err := onBox[rest.PortList](ctx, c, http.MethodGet, id, nil, "ports")
	return l.Items, err
}

// Stats measures a running box.
func (c *Client) Stats(ctx context.Context, id string) (rest.Stats, error) {
	return onBox[rest.Stats](ctx, c, http.MethodGet, id, nil, "stats")
}

// AllStats measures all boxes that run.
func (c *Client) AllStats(ctx context.Context) ([]rest.BoxStats, error) {
	return list[rest.BoxStats](ctx, c, c.at("v1", "stats"), url.Values{})
}

// Processes returns the processes of a running box.
func (c *Client) Processes(ctx context.Context, id string) ([]rest.Process, error) {
	l, err := onBox[rest.ProcessList](ctx, c, http.MethodGet, id, nil, "processes")
	return l.Items, err
}

// onBox calls a path below a box.
func onBox[T any](ctx context.Context, c *Client, method, id string, in any, segments ...string) (T, error) {
	u, err := c.box(id, segments...)
	if err != nil {
		var zero T
		return zero, err
	}
	return call[T](ctx, c, method, u, in)
}
