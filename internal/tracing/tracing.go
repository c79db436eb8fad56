// Package tracing makes spans of what is done for a request.
//
// # Model
//
// A span is a child of the one in the context: whoever serves a request begins
// the first, and everything below that is handed the context adds its own. In a
// context without a recording span nothing is made, and nothing is allocated;
// so there is no switch, and no configuration below the server.
//
// Attributes are names of things: boxes, execs, images, nodes, routes. Never a
// command's arguments, environment, input or output, a query, a header, or the
// text of an error, which may quote any of these.
//
// # Concurrency
//
// Functions and spans are safe for concurrent use.
package tracing

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/taibox/taibox/internal/reason"
)

// Name is the instrumentation scope of all spans.
const Name = "github.com/taibox/taibox"

// Keys of attributes.
const (
	Box   = attribute.Key("taibox.box")
	Exec  = attribute.Key("taibox.exec")
	Image = attribute.Key("taibox.image")
	Node  = attribute.Key("taibox.node")
	Layer = attribute.Key("taibox.layer")  // digest
	Bytes = attribute.Key("taibox.bytes")  // of a layer
	Code  = attribute.Key("taibox.code")   // exit code
	Why   = attribute.Key("taibox.reason") // of an exec's end
	Fault = attribute.Key("error.type")    // wire name of an error
)

// Span is a step that is under way. The nil Span is one that is not recorded.
type Span struct{ span trace.Span }

// Start begins a step as a child of the span in ctx. The returned context is
// for what belongs to the step.
func Start(ctx context.Context, name string) (context.Context, *Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	ctx, span := parent.TracerProvider().Tracer(Name).Start(ctx, name)
	return ctx, &Span{span}
}

// Set adds an attribute.
func (s *Span) Set(key attribute.Key, value string) *Span {
	if s != nil {
		s.span.SetAttributes(key.String(value))
	}
	return s
}

// SetInt adds an attribute.
func (s *Span) SetInt(key attribute.Key, value int64) *Span {
	if s != nil {
		s.span.SetAttributes(key.Int64(value))
	}
	return s
}

// End ends the step. Of an error only its name is kept.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		name := Kind(err)
		s.span.SetAttributes(Fault.String(name))
		s.span.SetStatus(codes.Error, name)
	}
	s.span.End()
}

// Done records a step that lasted from began until now.
func Done(ctx context.Context, name string, began time.Time) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return
	}
	_, span := parent.TracerProvider().Tracer(Name).Start(ctx, name, trace.WithTimestamp(began))
	span.End()
}

// Keep returns a context that ends with life and belongs to the span of ctx:
// for work that several callers share, and that the first one began.
func Keep(life, ctx context.Context) context.Context {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return life
	}
	return trace.ContextWithSpan(life, span)
}

// Kind is the name of an error: its wire name where it has one.
func Kind(err error) string {
	switch name := reason.Of(err); {
	case name != "":
		return name
	case errors.Is(err, context.Canceled):
		return "CANCELED"
	case errors.Is(err, context.DeadlineExceeded):
		return "DEADLINE_EXCEEDED"
	}
	return "ERROR"
}
