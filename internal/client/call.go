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
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/errmap"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// none is the answer that nobody reads.
type none struct{}

// call sends one request and decodes its answer. One that may be repeated is,
// once, when the server went away under it and was brought back.
func call[T any](ctx context.Context, c *Client, method string, u url.URL, in any, header ...string) (T, error) {
	out, err := once[T](ctx, c, method, u, in, header...)
	repeatable := method == http.MethodGet || slices.Contains(header, rest.HeaderIdempotencyKey)
	if !repeatable || c.revive == nil || !gone(err) || c.revive(ctx) != nil {
		return out, err
	}
	return once[T](ctx, c, method, u, in, header...)
}

func once[T any](ctx context.Context, c *Client, method string, u url.URL, in any, header ...string) (out T, err error) {
	err = c.roundTrip(ctx, method, u, in, &out, header...)
	return out, err
}

// gone reports a server that went away, or said that it is about to.
func gone(err error) bool {
	return errors.Is(err, rest.ErrUnreachable) || errors.Is(err, rest.ErrStopping)
}

// await sends a request that the server answers in its own time. It is sent
// again however often the server goes away, as long as one comes back. One that
// says that it stops was told to: whoever did that has the say whether there is
// another one, and not a wait that somebody left running.
func await[T any](ctx context.Context, c *Client, u url.URL) (T, error) {
	revive := c.revive
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		out, err := once[T](ctx, c, http.MethodGet, u, nil)
		if c.revive == nil || !gone(err) {
			return out, err
		}
		if errors.Is(err, rest.ErrStopping) {
			revive = func(context.Context) error { return nil }
		}
		if err = c.back(ctx, wait, revive); err != nil {
			return out, err
		}
	}
}

// back waits until a server answers again, but no longer than an exec outlives
// its link.
func (c *Client) back(ctx context.Context, wait time.Duration, revive func(context.Context) error) error {
	const patience = taisandbox.DefaultLease
	for end := time.Now().Add(patience); ; wait = min(2*wait, retryMost) {
		if err := pause(ctx, wait); err != nil {
			return err
		}
		err := revive(ctx)
		if err == nil {
			_, err = c.Version(ctx)
		}
		switch {
		case err == nil, !errmap.Temporary(err):
			return err
		case time.Now().After(end):
			return fmt.Errorf("gave up after %v: %w", patience, err)
		}
	}
}

// pause waits for d, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// list reads a list, page by page.
func list[T any](ctx context.Context, c *Client, u url.URL, q url.Values) ([]T, error) {
	type page struct {
		Items     []T    `json:"items"`
		NextToken string `json:"next_token"`
	}
	all := []T{}
	for {
		u.RawQuery = q.Encode()
		p, err := call[page](ctx, c, http.MethodGet, u, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, p.Items...)
		if p.NextToken == "" {
			return all, nil
		}
		q.Set("next_token", p.NextToken)
	}
}

// idempotent returns the header of a request that may be repeated, which one
// without a key may not.
func idempotent(key string) []string {
	if key == "" {
		return nil
	}
	return []string{rest.HeaderIdempotencyKey, key}
}

func (c *Client) roundTrip(ctx context.Context, method string, u url.URL, in, out any, header ...string) error {
	var body io.Reader
	if in != nil {
		raw, err := encode(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
		header = append(header, "Content-Type", "application/json")
	}
	resp, err := c.send(ctx, method, u, body, header...)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, skip := out.(*none); !skip {
		if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
			return c.linkError(ctx, err)
		}
	}
	// What is left unread would keep the connection from being used again.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return c.linkError(ctx, err)
	}
	return nil
}

func (c *Client) send(ctx context.Context, method string, u url.URL, body io.Reader, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.http.Do(req)
	if ue, ok := errors.AsType[*url.Error](err); ok { // it repeats method and address
		err = ue.Err
	}
	return resp, err
}
