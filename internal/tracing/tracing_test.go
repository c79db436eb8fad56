package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/taibox/taibox/internal/tracing"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Without a span in the context nothing is made, and nothing is allocated.
func TestOffCostsNothing(t *testing.T) {
	ctx, err := t.Context(), errors.New("no")
	began := time.Now()
	if n := testing.AllocsPerRun(100, func() {
		ctx, span := tracing.Start(ctx, "step")
		span.Set(tracing.Box, "b1").SetInt(tracing.Code, 1)
		tracing.Done(ctx, "phase", began)
		span.End(err)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	got, span := tracing.Start(ctx, "step")
	if got != ctx || span != nil || tracing.Keep(ctx, ctx) != ctx {
		t.Error("the context is another one")
	}
}

// What is not sampled costs nothing below either.
func TestNotSampled(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec), sdktrace.WithSampler(sdktrace.NeverSample()))
	ctx, root := p.Tracer("test").Start(t.Context(), "root")
	if _, span := tracing.Start(ctx, "step"); span != nil {
		t.Error("a step is recorded in a trace that is not")
	}
	root.End()
	if n := len(rec.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
}

func TestSpans(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
	ctx, root := p.Tracer("test").Start(t.Context(), "root")
	inner, span := tracing.Start(ctx, "step")
	began := time.Now().Add(-time.Minute)
	tracing.Done(inner, "phase", began)
	span.Set(tracing.Box, "b1").End(fmt.Errorf("create box b1 with SECRET=hunter2: %w", taisandbox.ErrAlreadyExists))
	_, other := tracing.Start(tracing.Keep(context.Background(), ctx), "shared")
	other.End(nil)
	root.End()

	got := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range rec.Ended() {
		got[s.Name()] = s
		if text := fmt.Sprintf("%v %v", s.Attributes(), s.Status()); strings.Contains(text, "hunter2") {
			t.Errorf("an error's text is in a span: %s", text)
		}
	}
	if got["step"].Parent().SpanID() != got["root"].SpanContext().SpanID() || got["phase"].Parent().SpanID() != got["step"].SpanContext().SpanID() ||
		got["shared"].Parent().SpanID() != got["root"].SpanContext().SpanID() {
		t.Error("the spans are not where they belong")
	}
	if s := got["step"].Status(); s.Code != codes.Error || s.Description != taisandbox.ErrAlreadyExists.Reason {
		t.Errorf("its status is %+v", s)
	}
	if !got["phase"].StartTime().Equal(began) {
		t.Errorf("the phase began at %v, want %v", got["phase"].StartTime(), began)
	}
}

func TestKind(t *testing.T) {
	for want, err := range map[string]error{
		taisandbox.ErrNotFound.Reason: fmt.Errorf("x: %w", taisandbox.ErrNotFound),
		"CANCELED":                    context.Canceled,
		"DEADLINE_EXCEEDED":           fmt.Errorf("x: %w", context.DeadlineExceeded),
		"ERROR":                       errors.New("text"),
	} {
		if got := tracing.Kind(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}
