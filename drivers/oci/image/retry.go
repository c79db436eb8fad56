package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

const (
	// Tries in a row that bring nothing.
	resolveTries = 3
	blobTries    = 6

	firstWait = 250 * time.Millisecond // doubled with each try
	maxWait   = 10 * time.Second
	// maxRetryAfter is how long a registry may make a pull wait.
	maxRetryAfter = time.Minute

	defaultStall = time.Minute
)

// statusError is an answer that is a failure.
type statusError struct {
	host   string
	status int
	until  time.Time // when to come again; zero if it was not said
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s answers %d %s", e.host, e.status, http.StatusText(e.status))
	if !e.until.IsZero() {
		text += ", come again at " + e.until.UTC().Format(time.RFC3339)
	}
	return text
}

func (e *statusError) Unwrap() error { return statusSentinel(e.status) }

func statusSentinel(status int) error {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return sandbox.ErrRegistryAuth
	case status == http.StatusNotFound:
		return sandbox.ErrRegistryNotFound
	case status == http.StatusTooManyRequests:
		return sandbox.ErrRegistryLimit
	}
	return sandbox.ErrRegistryUnavailable
}

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(header string) time.Time {
	if n, err := strconv.Atoi(header); err == nil && n >= 0 {
		return time.Now().Add(time.Duration(min(n, 1<<30)) * time.Second)
	}
	if t, err := http.ParseTime(header); err == nil {
		return t
	}
	return time.Time{}
}

// registryError gives what a registry did a name. Texts of the libraries are
// not passed on where they hold addresses: these may hold secrets.
func registryError(ctx context.Context, err error) error {
	if err == nil || reason.Of(err) != "" && !isStatus(err) {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var status *statusError
	var unexpected remoteerrors.ErrUnexpectedStatus
	var answer docker.Errors
	var address *url.Error
	switch {
	case errors.As(err, &status):
		return fmt.Errorf("%w: %w", statusSentinel(status.status), status)
	case errors.As(err, &unexpected):
		return fmt.Errorf("%w: it answers %s", statusSentinel(unexpected.StatusCode), unexpected.Status)
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return fmt.Errorf("%w: credentials are missing or wrong", sandbox.ErrRegistryAuth)
	case errors.As(err, &answer):
		return fmt.Errorf("%w: %w", sandbox.ErrRegistryUnavailable, answer)
	case errdefs.IsNotFound(err):
		return sandbox.ErrRegistryNotFound
	case errors.As(err, &address):
		err = address.Err
	}
	err = fmt.Errorf("%w: %w", sandbox.ErrRegistryUnavailable, err)
	if isTLS(err) {
		return reason.WithHint(err, "the server's configuration file can name the registry's certificates: registries: {HOST: {ca_file: FILE}}, or say that it speaks plain HTTP: {plain_http: true}")
	}
	return err
}

func isStatus(err error) bool {
	_, ok := errors.AsType[*statusError](err)
	return ok
}

// isTLS reports whether there is no speaking TLS with the other end.
func isTLS(err error) bool {
	var record tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var cert *tls.CertificateVerificationError
	return errors.As(err, &record) || errors.As(err, &authority) || errors.As(err, &cert) ||
		strings.Contains(err.Error(), "HTTP response to HTTPS client")
}

// retry calls f until it succeeds, or has failed too often in a row without
// progress, or for good.
func retry(ctx context.Context, tries int, f func() (progressed bool, err error)) error {
	for failed := 0; ; failed++ {
		progressed, err := f()
		if err == nil || ctx.Err() != nil || !temporary(err) {
			return err
		}
		if progressed {
			failed = 0
		}
		wait, ok := pause(err, failed)
		if !ok || failed+1 >= tries {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func temporary(err error) bool {
	var dns *net.DNSError
	if isTLS(err) || errors.As(err, &dns) && dns.IsNotFound {
		return false
	}
	return errors.Is(err, sandbox.ErrRegistryLimit) || errors.Is(err, sandbox.ErrRegistryUnavailable)
}

// pause is how long to wait after so many failures; ok is false where the
// registry asks for more than a pull should take.
func pause(err error, failed int) (_ time.Duration, ok bool) {
	wait := min(firstWait<<min(failed, 16), maxWait)
	if status, is := errors.AsType[*statusError](err); is && !status.until.IsZero() {
		wait = max(wait, time.Until(status.until))
		if wait > maxRetryAfter {
			return 0, false
		}
		return wait + rand.N(wait/4+1), true //nolint:gosec // spreads requests
	}
	return wait/2 + rand.N(wait/2+1), true //nolint:gosec // spreads requests
}
