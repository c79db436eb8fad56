package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	goruntime "runtime"
	"strings"
	"time"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// edge is what every request passes first: it gets an id, its panic is caught,
// and it is noted.
func (s *Server) edge(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := requestID(r)
		n := &note{}
		ctx := context.WithValue(context.WithValue(r.Context(), requestIDKey, id), noteKey, n)
		r = r.WithContext(ctx)
		rec := &recorder{ResponseWriter: w, began: func(status int) { s.audit(r, n, status) }}
		h := w.Header()
		h.Set(rest.HeaderRequestID, id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		defer func() {
			p := recover()
			if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // net/http compares it so, too
				s.recovered(ctx, p)
				answer := newBodyError(ctx, rest.ErrInternal)
				if rec.status == 0 {
					answer.write(rec)
					p = nil
				}
			}
			if p == nil {
				rec.begin(http.StatusOK) // what net/http sends if nobody says more
			}
			if rec.status == http.StatusSwitchingProtocols { // its result is known by now, whatever it is
				n.leaveOpen(false)
				s.audit(r, n, rec.status)
			}
			s.metrics.request(rec.route, rec.status)
			s.log.LogAttrs(ctx, slog.LevelDebug, "request",
				slog.String("request_id", id), slog.String("method", r.Method), slog.String("path", r.URL.Path),
				slog.Int("status", rec.status), slog.Duration("dur", time.Since(start)))
			if p != nil { // a part must not pass for the whole: cut the connection
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

// recovered logs a panic.
func (s *Server) recovered(ctx context.Context, p any) {
	stack := make([]byte, 16<<10)
	stack = stack[:goruntime.Stack(stack, false)]
	id, _ := ctx.Value(requestIDKey).(string)
	s.log.LogAttrs(ctx, slog.LevelError, "panic", slog.String("request_id", id), slog.Any("err", p), slog.String("stack", string(stack)))
}

// requestID takes the caller's id for the request, if it is one.
func requestID(r *http.Request) string {
	id := r.Header.Get(rest.HeaderRequestID)
	bad := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	}
	if id == "" || len(id) > 64 || strings.ContainsFunc(id, bad) {
		return taisandbox.NewID("")
	}
	return id
}

// recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
	route  string // the pattern that it is for
	began  func(status int)
}

func (r *recorder) WriteHeader(status int) {
	r.begin(status)
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.begin(http.StatusOK)
	return r.ResponseWriter.Write(p)
}

func (r *recorder) begin(status int) {
	if r.status == 0 {
		r.status = status
		r.began(status)
	}
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// serve finds out who asks, and finds the route.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	caller, err := s.identify(r)
	if err == nil {
		noteOf(r.Context()).admitted(&caller)
		if caller.Key {
			err = s.rates.take(caller.Name)
		}
	}
	if err == nil {
		ctx, release := caller.while(context.WithValue(r.Context(), callerKey, caller))
		defer release()
		r = r.WithContext(ctx)
		err = s.route(w, r)
	}
	if err != nil {
		s.fail(r.Context(), err).write(w)
	}
}

func (s *Server) route(w http.ResponseWriter, r *http.Request) error {
	if p := r.URL.Path; path.Clean(p) != p {
		return fmt.Errorf("%.128q: %w", p, rest.ErrNoRoute) // the mux would redirect
	}
	h, pattern := s.mux.Handler(r)
	if pattern != "" {
		if rec, ok := w.(*recorder); ok {
			rec.route = pattern
		}
		s.mux.ServeHTTP(w, r)
		return nil
	}
	// The mux knows whether another method would do, and has its own words for it.
	probe := &discard{header: http.Header{}}
	h.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", probe.header.Get("Allow"))
		return fmt.Errorf("%s %.128q: %w", r.Method, r.URL.Path, rest.ErrMethod)
	}
	return fmt.Errorf("%.128q: %w", r.URL.Path, rest.ErrNoRoute)
}

// discard is an answer that is not sent.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

// limitBody bounds the size of a JSON body and the time that it may take.
// huma would leave its time limit on the connection, where it ends requests
// that go on after their body.
func limitBody(w http.ResponseWriter, r *http.Request, limit int64) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	rc := http.NewResponseController(w)
	if rc.SetReadDeadline(time.Now().Add(bodyTimeout)) != nil {
		return // not on a connection
	}
	r.Body = &timedBody{ReadCloser: http.MaxBytesReader(w, r.Body, limit), clear: func() {
		rc.SetReadDeadline(time.Time{}) //nolint:errcheck // it worked before; without a connection it does not matter
	}}
}

// timedBody lifts the time limit at the end of the body.
type timedBody struct {
	io.ReadCloser
	clear func()
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.clear()
	}
	return n, err
}

func (b *timedBody) Close() error {
	b.clear()
	return b.ReadCloser.Close()
}
