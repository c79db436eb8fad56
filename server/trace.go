package server

import (
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/taibox/taibox/internal/tracing"
)

// traced makes a span of each request, as a part of the trace that its
// traceparent names. Of the address only the route is kept, which has neither
// names nor a query in it. Without a place for spans the handler stays as it is.
func (s *Server) traced(next http.Handler) http.Handler {
	if s.cfg.Traces == nil {
		return next
	}
	tracer := s.cfg.Traces.Tracer(tracing.Name)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := tracer.Start(ctx, spanMethod(r.Method), trace.WithSpanKind(trace.SpanKindServer))
		rec, _ := w.(*recorder)
		if !span.IsRecording() || rec == nil {
			defer span.End()
			next.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		id, _ := ctx.Value(requestIDKey).(string)
		span.SetAttributes(attribute.String("http.request.method", spanMethod(r.Method)), attribute.String("taibox.request_id", id))
		finished := false
		defer func() {
			status := rec.status
			switch {
			case !finished && status == 0: // it panics; the edge answers
				status = http.StatusInternalServerError
			case status == 0:
				status = http.StatusOK
			}
			if rec.route != "" {
				span.SetName(rec.route)
				_, path, _ := strings.Cut(rec.route, " ")
				span.SetAttributes(attribute.String("http.route", path))
			}
			span.SetAttributes(attribute.Int("http.response.status_code", status))
			if status >= http.StatusInternalServerError {
				span.SetAttributes(tracing.Fault.String(strconv.Itoa(status)))
				span.SetStatus(codes.Error, "")
			}
			span.End()
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
		finished = true
	})
}

// spanMethod is a request's method, if it is one that there is: names of spans
// are not for callers to choose.
func spanMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "_OTHER"
}
