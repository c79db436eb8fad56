package errmap_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/errmap"
	"github.com/taibox/taibox/internal/reason"
)

// classes is every class there is, with its status and what a client that only
// knows the status takes it for.
var classes = []struct {
	class  error
	status int
	back   error
}{
	{errdefs.ErrInvalidArgument, 400, errdefs.ErrInvalidArgument},
	{errdefs.ErrOutOfRange, 400, errdefs.ErrInvalidArgument},
	{errdefs.ErrUnauthenticated, 401, errdefs.ErrUnauthenticated},
	{errdefs.ErrPermissionDenied, 403, errdefs.ErrPermissionDenied},
	{errdefs.ErrNotFound, 404, errdefs.ErrNotFound},
	{errdefs.ErrAlreadyExists, 409, errdefs.ErrConflict},
	{errdefs.ErrConflict, 409, errdefs.ErrConflict},
	{errdefs.ErrFailedPrecondition, 409, errdefs.ErrConflict},
	{errdefs.ErrAborted, 409, errdefs.ErrConflict},
	{errdefs.ErrResourceExhausted, 429, errdefs.ErrResourceExhausted},
	{context.Canceled, 499, context.Canceled},
	{errdefs.ErrNotImplemented, 501, errdefs.ErrNotImplemented},
	{errdefs.ErrUnavailable, 503, errdefs.ErrUnavailable},
	{context.DeadlineExceeded, 504, context.DeadlineExceeded},
	{errdefs.ErrInternal, 500, errdefs.ErrInternal},
	{errdefs.ErrDataLoss, 500, errdefs.ErrInternal},
	{errdefs.ErrUnknown, 500, errdefs.ErrInternal},
}

func TestEveryClass(t *testing.T) {
	for _, c := range classes {
		sentinel := &reason.Error{Reason: "X", Msg: "x", Class: c.class}
		for _, err := range []error{c.class, fmt.Errorf("more: %w", c.class), sentinel, fmt.Errorf("more: %w", sentinel)} {
			if got := errmap.HTTPStatus(err); got != c.status {
				t.Errorf("%v has the status %d; wanted is %d", err, got, c.status)
			}
		}
		if got := errmap.ClassOf(c.status); !errors.Is(got, c.back) {
			t.Errorf("status %d is %v; wanted is %v", c.status, got, c.back)
		}
		if got := errmap.HTTPStatus(errmap.ClassOf(c.status)); got != c.status {
			t.Errorf("status %d comes back as %d", c.status, got)
		}
	}
}

func TestOutermostClassDecides(t *testing.T) {
	inner := fmt.Errorf("inner: %w", errdefs.ErrNotFound)
	outer := &wrapper{class: errdefs.ErrUnavailable, err: inner}
	if got := errmap.HTTPStatus(outer); got != http.StatusServiceUnavailable {
		t.Errorf("the status is %d", got)
	}
}

type wrapper struct{ class, err error }

func (w *wrapper) Error() string   { return "outer" }
func (w *wrapper) Unwrap() []error { return []error{w.class, w.err} }

func TestNoClass(t *testing.T) {
	if got := errmap.HTTPStatus(nil); got != http.StatusOK {
		t.Errorf("nothing has the status %d", got)
	}
	if got := errmap.HTTPStatus(errors.New("x")); got != http.StatusInternalServerError {
		t.Errorf("an error without a class has the status %d", got)
	}
	for status, want := range map[int]error{
		200: nil, 201: nil, 204: nil, 302: nil, 418: errdefs.ErrInternal, 422: errdefs.ErrInvalidArgument, 502: errdefs.ErrInternal,
	} {
		if got := errmap.ClassOf(status); !errors.Is(got, want) {
			t.Errorf("status %d is %v; wanted is %v", status, got, want)
		}
	}
}

func TestTemporary(t *testing.T) {
	for _, c := range classes {
		want := c.status == 429 || c.status == 503 || c.status == 504
		if got := errmap.Temporary(fmt.Errorf("more: %w", c.class)); got != want {
			t.Errorf("%v is temporary: %v", c.class, got)
		}
	}
}
