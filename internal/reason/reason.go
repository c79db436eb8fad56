// Package reason names the failures a caller may act on.
//
// A failure is declared once, in the package that owns the noun, as an
// [Error]: a sentinel, its name on the wire and its class in one value. The
// class is one of github.com/containerd/errdefs and alone decides HTTP and
// gRPC status (see internal/errmap). A [Table] turns wire names back into the
// sentinels, so that errors.Is holds in a remote program too.
package reason

import (
	"errors"
	"slices"
)

// Error is a sentinel with a stable wire name. Compare it with errors.Is.
type Error struct {
	Reason string // wire name, never changed once released: "BOX_NOT_FOUND"
	Msg    string // for people, may change
	Class  error  // one errdefs class; decides gRPC code and HTTP status
}

// Error returns the text for people.
func (e *Error) Error() string { return e.Msg }

// Unwrap returns the class.
func (e *Error) Unwrap() error { return e.Class }

// Of returns the wire name of the outermost [Error] in err's chain, or "".
func Of(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}

// Table finds a sentinel by its wire name.
type Table map[string]*Error

// NewTable joins the lists of the packages a client speaks for. A name
// declared twice is a programming error, so it panics.
func NewTable(lists ...[]*Error) Table {
	t := Table{}
	for _, e := range slices.Concat(lists...) {
		if t[e.Reason] != nil {
			panic("reason: declared twice: " + e.Reason)
		}
		t[e.Reason] = e
	}
	return t
}

// hinted carries advice beside an error.
type hinted struct {
	err  error
	hint string
}

func (h *hinted) Error() string { return h.err.Error() }
func (h *hinted) Unwrap() error { return h.err }

// WithHint attaches advice on what to do next. The text of err is unchanged.
func WithHint(err error, hint string) error {
	if err == nil {
		return nil
	}
	return &hinted{err, hint}
}

// Hint returns the outermost advice in err's chain, or "".
func Hint(err error) string {
	if h, ok := errors.AsType[*hinted](err); ok {
		return h.hint
	}
	return ""
}
