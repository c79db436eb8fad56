package rest

import (
	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/reason"
)

// Header names of the API.
const (
	HeaderRequestID      = "X-Request-Id"
	HeaderIdempotencyKey = "Idempotency-Key"
	HeaderAPIKey         = "X-Api-Key"
	// HeaderOffset is where the bytes of an output answer begin.
	HeaderOffset = "X-Taibox-Offset"
)

// ErrorBody is the body of every answer that is not a success.
type ErrorBody struct {
	Source string `json:"source" doc:"Always manager: what a command in a box says comes as command"`
	Error  Error  `json:"error"`
}

// Failure is the body for a failure of ours.
func Failure(e Error) ErrorBody { return ErrorBody{Source: SourceManager, Error: e} }

// Error says what went wrong.
type Error struct {
	Code      string         `json:"code" doc:"Stable name of the failure, e.g. BOX_NOT_FOUND"`
	Message   string         `json:"message" doc:"What happened, for people"`
	Details   map[string]any `json:"details" doc:"More facts, by name"`
	Hint      string         `json:"hint" doc:"What to do about it, for people"`
	Retryable bool           `json:"retryable" doc:"The same request may succeed later"`
	RequestID string         `json:"request_id" doc:"Finds the request in the server's log"`
}

// Failures of the API itself. What the packages behind it report keeps its own
// reason.
var (
	// ErrRequest reports a request that cannot be understood: the details name
	// each problem with its place.
	ErrRequest = &reason.Error{Reason: "BAD_REQUEST", Msg: "invalid request", Class: errdefs.ErrInvalidArgument}
	// ErrTooLarge reports a request, or its first frame, beyond the limit.
	ErrTooLarge = &reason.Error{Reason: "TOO_LARGE", Msg: "request is too large", Class: errdefs.ErrInvalidArgument}
	// ErrMediaType reports a body of a type that the route does not take.
	ErrMediaType = &reason.Error{Reason: "MEDIA_TYPE", Msg: "unsupported media type", Class: errdefs.ErrInvalidArgument}
	// ErrRange reports a range that lies behind the end of a file.
	ErrRange = &reason.Error{Reason: "RANGE", Msg: "the file has no such range", Class: errdefs.ErrOutOfRange}
	// ErrPrecondition reports a file that is not as a header of the request,
	// If-Match or another, says.
	ErrPrecondition = &reason.Error{Reason: "PRECONDITION_FAILED", Msg: "the file is not as the request expects", Class: errdefs.ErrFailedPrecondition}
	// ErrNoRoute reports a path that is not part of the API.
	ErrNoRoute = &reason.Error{Reason: "NO_ROUTE", Msg: "no such path", Class: errdefs.ErrNotFound}
	// ErrMethod reports a method that the path does not have.
	ErrMethod = &reason.Error{Reason: "METHOD_NOT_ALLOWED", Msg: "method not allowed", Class: errdefs.ErrInvalidArgument}
	// ErrUnauthenticated reports a caller that did not prove who it is.
	ErrUnauthenticated = &reason.Error{Reason: "UNAUTHENTICATED", Msg: "no valid credential", Class: errdefs.ErrUnauthenticated}
	// ErrForbidden reports a caller that may not do this.
	ErrForbidden = &reason.Error{Reason: "FORBIDDEN", Msg: "not allowed", Class: errdefs.ErrPermissionDenied}
	// ErrKeyNotFound reports an API key that does not exist.
	ErrKeyNotFound = &reason.Error{Reason: "KEY_NOT_FOUND", Msg: "key not found", Class: errdefs.ErrNotFound}
	// ErrRate reports a caller that sends more requests than it may.
	ErrRate = &reason.Error{Reason: "RATE_LIMITED", Msg: "too many requests", Class: errdefs.ErrResourceExhausted}
	// ErrOrigin reports a request that a web page of another origin sent.
	ErrOrigin = &reason.Error{Reason: "ORIGIN", Msg: "unknown host or origin", Class: errdefs.ErrPermissionDenied}
	// ErrStopping reports a server that is going down. Boxes and execs go on.
	ErrStopping = &reason.Error{Reason: "SERVER_STOPPING", Msg: "server is stopping", Class: errdefs.ErrUnavailable}
	// ErrUnreachable reports a server that cannot be reached.
	ErrUnreachable = &reason.Error{Reason: "UNREACHABLE", Msg: "server cannot be reached", Class: errdefs.ErrUnavailable}
	// ErrInputLost reports that the link broke while input was on its way: how
	// much of it the command got is unknown.
	ErrInputLost = &reason.Error{Reason: "INPUT_LOST", Msg: "link broke while input was on its way", Class: errdefs.ErrDataLoss}
	// ErrInternal is what a caller sees of a failure whose text is not for it.
	ErrInternal = &reason.Error{Reason: "INTERNAL", Msg: "internal error", Class: errdefs.ErrInternal}
)

// Reasons lists every sentinel of this package, for a [reason.Table].
func Reasons() []*reason.Error {
	return []*reason.Error{
		ErrRequest, ErrTooLarge, ErrMediaType, ErrRange, ErrPrecondition, ErrNoRoute, ErrMethod, ErrUnauthenticated, ErrForbidden, ErrKeyNotFound, ErrRate, ErrOrigin,
		ErrStopping, ErrUnreachable, ErrInputLost, ErrInternal,
	}
}
