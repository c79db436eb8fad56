// Package errmap turns the class of an error into a status, in one table.
package errmap

import (
	"context"
	"errors"
	"net/http"

	"github.com/containerd/errdefs"
)

// StatusClientClosed is what nginx made customary for "the client went away".
const StatusClientClosed = 499

// HTTPStatus returns the status for the outermost class in err's chain. What
// has no class, and every 500 class, is [http.StatusInternalServerError]: its
// text is for the log, not for the caller.
func HTTPStatus(err error) int {
	if err == nil {
		return http.StatusOK
	}
	switch errdefs.Resolve(err) {
	case errdefs.ErrInvalidArgument, errdefs.ErrOutOfRange:
		return http.StatusBadRequest
	case errdefs.ErrUnauthenticated:
		return http.StatusUnauthorized
	case errdefs.ErrPermissionDenied:
		return http.StatusForbidden
	case errdefs.ErrNotFound:
		return http.StatusNotFound
	case errdefs.ErrAlreadyExists, errdefs.ErrConflict, errdefs.ErrFailedPrecondition, errdefs.ErrAborted:
		return http.StatusConflict
	case errdefs.ErrResourceExhausted:
		return http.StatusTooManyRequests
	case context.Canceled:
		return StatusClientClosed
	case errdefs.ErrNotImplemented:
		return http.StatusNotImplemented
	case errdefs.ErrUnavailable:
		return http.StatusServiceUnavailable
	case context.DeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// ClassOf is the inverse of [HTTPStatus] for a client that got a status and no
// reason it knows. It returns nil for success.
func ClassOf(status int) error {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return errdefs.ErrInvalidArgument
	case http.StatusUnauthorized:
		return errdefs.ErrUnauthenticated
	case http.StatusForbidden:
		return errdefs.ErrPermissionDenied
	case http.StatusNotFound:
		return errdefs.ErrNotFound
	case http.StatusConflict:
		return errdefs.ErrConflict
	case http.StatusPreconditionFailed:
		return errdefs.ErrFailedPrecondition
	case http.StatusRequestedRangeNotSatisfiable:
		return errdefs.ErrOutOfRange
	case http.StatusTooManyRequests:
		return errdefs.ErrResourceExhausted
	case StatusClientClosed:
		return context.Canceled
	case http.StatusNotImplemented:
		return errdefs.ErrNotImplemented
	case http.StatusServiceUnavailable:
		return errdefs.ErrUnavailable
	case http.StatusGatewayTimeout:
		return context.DeadlineExceeded
	}
	if status < http.StatusBadRequest {
		return nil
	}
	return errdefs.ErrInternal
}

// Temporary reports whether the same call may succeed later, unchanged.
func Temporary(err error) bool {
	return errors.Is(err, errdefs.ErrUnavailable) || errors.Is(err, errdefs.ErrResourceExhausted) ||
		errors.Is(err, context.DeadlineExceeded)
}
