package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/danielgtaylor/huma/v2"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/errmap"
	"github.com/taibox/taibox/internal/reason"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// retryAfter is what a 429 and a 503 advise, in seconds.
const retryAfter = "1"

// bodyError is an answer that is not a success. To huma it is an error with
// status and headers.
type bodyError struct {
	Source string     `json:"source"`
	Body   rest.Error `json:"error"`
	status int
	header http.Header // beside what the status asks for
}

func (e *bodyError) Error() string  { return e.Body.Message }
func (e *bodyError) GetStatus() int { return e.status }
func (e *bodyError) GetHeaders() http.Header {
	switch {
	case e.header != nil:
		return e.header
	case e.status == http.StatusTooManyRequests, e.status == http.StatusServiceUnavailable:
		return http.Header{"Retry-After": {retryAfter}}
	case e.status == http.StatusUnauthorized:
		return http.Header{"Www-Authenticate": {"Bearer"}}
	}
	return nil
}

// fail makes the answer of a handler's error, and logs what is for us. It is
// the one place where that happens.
func (s *Server) fail(ctx context.Context, err error) *bodyError {
	switch cause := context.Cause(ctx); {
	case cause == nil:
	case errors.Is(cause, rest.ErrStopping):
		err = fmt.Errorf("%w: %w", rest.ErrStopping, err)
	case errors.Is(cause, rest.ErrUnauthenticated): // its key ended meanwhile
		err = cause
	}
	e := newBodyError(ctx, err)
	if e.status >= http.StatusInternalServerError && !e.Body.Retryable {
		s.log.LogAttrs(ctx, slog.LevelError, "request failed", slog.String("request_id", e.Body.RequestID), slog.Any("err", err))
	}
	return e
}

func newBodyError(ctx context.Context, err error) *bodyError {
	id, _ := ctx.Value(requestIDKey).(string)
	e := &bodyError{status: statusOf(err), Source: rest.SourceManager, Body: rest.Error{
		Code: reason.Of(err), Message: err.Error(), Details: map[string]any{}, Hint: reason.Hint(err),
		Retryable: errmap.Temporary(err), RequestID: id,
	}}
	if d, ok := errors.AsType[*detailedError](err); ok {
		e.Body.Details = d.details
	}
	if e.Body.Code == "" {
		e.Body.Code = codeOf(e.status)
	}
	if r, ok := errors.AsType[*rateError](err); ok {
		e.header = r.header()
	}
	if h, ok := errors.AsType[*headerError](err); ok {
		e.header = h.head
	}
	noteOf(ctx).failed(e.Body.Code)
	if e.status == http.StatusInternalServerError {
		e.Body.Message, e.Body.Details = publicText(err), map[string]any{}
	}
	return e
}

// publicText is what a caller is told of a 500: the declared text of its
// reason, which holds nothing of ours, else nothing. Lost data is the caller's
// own, in an archive say: that text tells which.
func publicText(err error) string {
	if errdefs.IsDataLoss(err) {
		return err.Error()
	}
	if r, ok := errors.AsType[*reason.Error](err); ok {
		return r.Msg
	}
	return rest.ErrInternal.Msg
}

// statusOf is [errmap.HTTPStatus], but for what only HTTP knows.
func statusOf(err error) int {
	if _, ok := errors.AsType[*precondition](err); ok {
		return http.StatusPreconditionFailed
	}
	switch {
	case errors.Is(err, rest.ErrRange):
		return http.StatusRequestedRangeNotSatisfiable
	case errors.Is(err, rest.ErrMethod):
		return http.StatusMethodNotAllowed
	case errors.Is(err, rest.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, taisandbox.ErrImageCorrupt):
		return http.StatusUnprocessableEntity // what came was not whole: nothing here is broken
	case errors.Is(err, rest.ErrMediaType):
		return http.StatusUnsupportedMediaType
	}
	return errmap.HTTPStatus(err)
}

// codeOf names a failure that has a class and no reason.
func codeOf(status int) string {
	switch status {
	case http.StatusInternalServerError:
		return rest.ErrInternal.Reason
	case errmap.StatusClientClosed:
		return "CANCELED"
	}
	return strings.ReplaceAll(strings.ToUpper(http.StatusText(status)), " ", "_")
}

// detailedError carries facts for the details of an answer.
type detailedError struct {
	err     error
	details map[string]any
}

func (d *detailedError) Error() string { return d.err.Error() }
func (d *detailedError) Unwrap() error { return d.err }

// write sends e.
func (e *bodyError) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), e.GetHeaders())
	writeJSON(w, e.status, e)
}

// problem is one thing wrong with a request.
type problem struct {
	Location string `json:"location"`
	Message  string `json:"message"`
}

// useOurErrors makes huma answer what it finds wrong with a request in our
// form. Its hooks are variables of the package.
var useOurErrors = sync.OnceFunc(func() {
	huma.ValidateStrictCasing = true
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return newBodyError(context.Background(), requestError(status, msg, errs))
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		return newBodyError(ctx.Context(), requestError(status, msg, errs))
	}
})

// requestError is the error for what huma says of a request.
func requestError(status int, msg string, errs []error) error {
	problems := []problem{}
	texts := []string{}
	for _, err := range errs {
		if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return fmt.Errorf("%w: at most %d bytes are possible here", rest.ErrTooLarge, tooLarge.Limit)
		}
		p := problem{Message: err.Error()}
		if d, ok := err.(huma.ErrorDetailer); ok {
			p = problem{Location: d.ErrorDetail().Location, Message: d.ErrorDetail().Message}
		}
		problems = append(problems, p)
		texts = append(texts, strings.TrimPrefix(p.Location+": "+p.Message, ": "))
	}
	if len(texts) == 0 {
		texts = append(texts, msg)
	}
	class := rest.ErrRequest
	switch {
	case status == http.StatusUnsupportedMediaType:
		class = rest.ErrMediaType
	case status == http.StatusInternalServerError && len(errs) == 0:
		class = rest.ErrInternal
	}
	const most = 8 // of the problems in the text; the details have all
	if len(texts) > most {
		texts = append(texts[:most], fmt.Sprintf("and %d more", len(texts)-most))
	}
	return &detailedError{fmt.Errorf("%w: %s", class, strings.Join(texts, "; ")), map[string]any{"problems": problems}}
}
