package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/errmap"
	"github.com/taibox/taibox/internal/reason"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

// Client is a connection to one server. Make it with [New].
type Client struct {
	host   string // as given, for messages
	base   url.URL
	local  bool // a Unix socket: its other end cannot die unseen
	http   *http.Client
	key    string
	roots  []byte // PEM; nil = the machine's
	table  reason.Table
	revive func(context.Context) error
}

// Option changes a client.
type Option func(*Client)

// WithAPIKey sends a key with each request.
func WithAPIKey(key string) Option { return func(c *Client) { c.key = key } }

// WithRootCAs checks an https server's certificate against those in pem, and
// no others: with the server's own certificate in it, only that one will do.
func WithRootCAs(pem []byte) Option { return func(c *Client) { c.roots = pem } }

// WithReasons adds the sentinels of other packages to those that errors of the
// server are turned into: those of [taisandbox.Reasons], [volume.Reasons] and
// [rest.Reasons].
func WithReasons(lists ...[]*reason.Error) Option {
	return func(c *Client) {
		for _, list := range lists {
			for _, e := range list {
				c.table[e.Reason] = e
			}
		}
	}
}

// WithRevive gives streams, waits and requests that may be repeated a way to
// have a server started again that cannot be reached. It is called before each
// attempt to connect.
func WithRevive(revive func(context.Context) error) Option {
	return func(c *Client) { c.revive = revive }
}

// New returns a client of the server at host: unix:///path, http://host:port
// or https://host. It does not connect.
func New(host string, opts ...Option) (*Client, error) {
	u, err := url.Parse(host)
	if err != nil {
		return nil, fmt.Errorf("host %q: %w", host, errHost)
	}
	c := &Client{host: host, table: reason.NewTable(taisandbox.Reasons(), volume.Reasons(), rest.Reasons())}
	dialer := &net.Dialer{Timeout: dialTimeout}
	tr := &http.Transport{
		DialContext:         dialer.DialContext,
		DisableCompression:  true,
		IdleConnTimeout:     idleConn,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: 16,
	}
	switch {
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
		path := u.Path
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
		c.local = true
		c.base = url.URL{Scheme: "http", Host: "taibox"}
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.Trim(u.Path, "/") == "":
		c.base = url.URL{Scheme: u.Scheme, Host: u.Host}
		tr.Proxy = http.ProxyFromEnvironment
	default:
		return nil, fmt.Errorf("host %q: %w", host, errHost)
	}
	c.http = &http.Client{Transport: &transport{next: tr, c: c}}
	for _, o := range opts {
		o(c)
	}
	if c.roots != nil {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(c.roots) {
			return nil, fmt.Errorf("certificates for %q: %w: no certificate in PEM is in them", host, taisandbox.ErrInvalidSpec)
		}
		tr.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return c, nil
}

var errHost = fmt.Errorf("%w: unix:///path, http://host:port or https://host is expected", taisandbox.ErrInvalidSpec)

// Close lets go of idle connections. Streams go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Error is what a server reported.
type Error struct {
	Body     rest.Error
	sentinel error
}

// Error returns the server's text.
func (e *Error) Error() string {
	if e.Body.RequestID != "" && errors.Is(e.sentinel, rest.ErrInternal) {
		return fmt.Sprintf("%s (request %s)", e.Body.Message, e.Body.RequestID)
	}
	return e.Body.Message
}

// Unwrap returns the sentinel with the server's reason.
func (e *Error) Unwrap() error { return e.sentinel }

// errorOf makes the error that a body of the API stands for.
func (c *Client) errorOf(e rest.Error, class error) error {
	s := c.table[e.Code]
	if s == nil {
		s = &reason.Error{Reason: e.Code, Msg: e.Message, Class: class}
	}
	err := error(&Error{Body: e, sentinel: s})
	if e.Hint != "" {
		err = reason.WithHint(err, e.Hint)
	}
	return err
}

// transport turns what is no success into an error, for plain requests and
// for the handshakes of WebSockets alike.
type transport struct {
	next *http.Transport
	c    *Client
}

func (t *transport) CloseIdleConnections() { t.next.CloseIdleConnections() }

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.c.key != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+t.c.key)
	}
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, t.c.linkError(r.Context(), err)
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, t.c.statusError(resp)
}

// linkError classifies a request that got no answer.
func (c *Client) linkError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("connect to %s: %w: %w", c.host, rest.ErrForbidden, rootCause(err))
		return reason.WithHint(err, "run it as root, or as a member of the group that the server was given with --group")
	}
	err = fmt.Errorf("connect to %s: %w: %w", c.host, rest.ErrUnreachable, rootCause(err))
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		err = reason.WithHint(err, "a server's own certificate is DATA/tls/cert.pem there: copy it here and name the file in TAIBOX_TLS_CA")
	}
	return err
}

// rootCause takes off the layers that repeat the address.
func rootCause(err error) error {
	if no, ok := errors.AsType[syscall.Errno](err); ok {
		return no
	}
	return err
}

func (c *Client) statusError(resp *http.Response) error {
	class := errmap.ClassOf(resp.StatusCode)
	var body rest.ErrorBody
	if mt, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); mt == "application/json" {
		raw, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		if err == nil && json.Unmarshal(raw, &body) == nil && body.Error.Code != "" {
			return c.errorOf(body.Error, class)
		}
	}
	return c.errorOf(rest.Error{
		Code:    rest.ErrInternal.Reason,
		Message: fmt.Sprintf("%s answered %s, which is not how a Taibox server speaks", c.host, resp.Status),
	}, class)
}

const maxErrorBody = 1 << 20

// at returns the address of a path made of segments.
func (c *Client) at(segments ...string) url.URL {
	u := c.base
	var raw strings.Builder
	for _, s := range segments {
		u.Path += "/" + s
		raw.WriteString("/" + url.PathEscape(s))
	}
	u.RawPath = raw.String()
	return u
}

// box returns the address of a path below a box. An id that no box can have
// is refused here: as a part of a path it could mean another one.
func (c *Client) box(id string, segments ...string) (url.URL, error) {
	if err := taisandbox.ValidateID(id); err != nil {
		return url.URL{}, err
	}
	return c.at(append([]string{"v1", "sandboxes", id}, segments...)...), nil
}

func (c *Client) exec(box, exec string, segments ...string) (url.URL, error) {
	if err := taisandbox.ValidateID(exec); err != nil {
		return url.URL{}, err
	}
	return c.box(box, append([]string{"execs", exec}, segments...)...)
}
