package export_test

import (
	"compress/gzip"
	"context"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/taibox/taibox/internal/tracing/export"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sink is a collector.
type sink struct {
	*httptest.Server
	answer func(http.ResponseWriter) bool // true: it has

	mu      sync.Mutex
	got     []*collector.ExportTraceServiceRequest
	headers []http.Header
	paths   []string
}

func newSink(t *testing.T, start func(*httptest.Server)) *sink {
	t.Helper()
	s := &sink{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		data, err := io.ReadAll(body)
		req := new(collector.ExportTraceServiceRequest)
		if err == nil {
			err = proto.Unmarshal(data, req)
		}
		if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s, %v", r.Header.Get("Content-Type"), err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.headers, s.paths = append(s.headers, r.Header), append(s.paths, r.URL.Path)
		if s.answer != nil && s.answer(w) {
			return
		}
		s.got = append(s.got, req)
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	start(s.Server)
	t.Cleanup(s.Close)
	return s
}

// spans are the names of those that came, in order.
func (s *sink) spans() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, req := range s.got {
		for _, r := range req.GetResourceSpans() {
			for _, scope := range r.GetScopeSpans() {
				for _, span := range scope.GetSpans() {
					names = append(names, span.GetName())
				}
			}
		}
	}
	return names
}

func (s *sink) resource() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for _, a := range s.got[0].GetResourceSpans()[0].GetResource().GetAttributes() {
		out[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return out
}

func open(t *testing.T, cfg export.Config) *export.Exporter {
	t.Helper()
	e, err := export.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close(context.Background()) })
	return e
}

func span(e *export.Exporter, name string, parent trace.SpanContext) {
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), parent)
	_, s := e.Provider().Tracer("test").Start(ctx, name)
	s.End()
}

// Close sends what waits, with the headers and the resource that were asked for.
func TestSent(t *testing.T) {
	s := newSink(t, (*httptest.Server).Start)
	e := open(t, export.Config{
		Endpoint: s.URL + "/base/v1/traces", Headers: map[string]string{"X-Key": "hush"},
		Version: "1.2", Instance: "0a1b2c3d", Attributes: map[string]string{"site": "lab", "service.name": "overruled"},
	})
	span(e, "a", trace.SpanContext{})
	span(e, "b", trace.SpanContext{})
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.spans(), " "); got != "a b" {
		t.Fatalf("there came %q", got)
	}
	if s.headers[0].Get("X-Key") != "hush" || s.paths[0] != "/base/v1/traces" {
		t.Errorf("%v at %s", s.headers[0], s.paths[0])
	}
	for k, want := range map[string]string{"service.name": "taibox", "service.version": "1.2", "service.instance.id": "0a1b2c3d", "site": "lab"} {
		if got := s.resource()[k]; got != want {
			t.Errorf("%s is %q, want %q", k, got, want)
		}
	}
	span(e, "late", trace.SpanContext{})
	if err := e.Close(t.Context()); err != nil {
		t.Error("again:", err)
	}
	if n := len(s.spans()); n != 2 {
		t.Errorf("%d spans after the end", n)
	}
}

func TestTLS(t *testing.T) {
	s := newSink(t, (*httptest.Server).StartTLS)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	e := open(t, export.Config{Endpoint: s.URL + "/v1/traces", CAFile: file})
	span(e, "a", trace.SpanContext{})
	if err := e.Close(t.Context()); err != nil || len(s.spans()) != 1 {
		t.Errorf("%v, %v", s.spans(), err)
	}
	// Whose certificate is not known gets nothing.
	e = open(t, export.Config{Endpoint: s.URL + "/v1/traces"})
	span(e, "b", trace.SpanContext{})
	e.Close(t.Context())
	if n := len(s.spans()); n != 1 {
		t.Errorf("%d spans went to a stranger", n)
	}
}

func TestSampling(t *testing.T) {
	sampled := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true})
	unsampled := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{2}, SpanID: trace.SpanID{1}, Remote: true})
	for _, c := range []struct {
		sampler string
		arg     float64
		want    string // of root, on, off
	}{
		{"", 0, "root on"},
		{export.ParentOn, 0, "root on"},
		{export.ParentOff, 0, "on"},
		{export.ParentRatio, 0, "on"},
		{export.ParentRatio, 1, "root on"},
		{export.AlwaysOn, 0, "root on off"},
		{export.AlwaysOff, 0, ""},
		{export.Ratio, 1, "root on off"},
		{export.Ratio, 0, ""},
	} {
		t.Run(c.sampler, func(t *testing.T) {
			s := newSink(t, (*httptest.Server).Start)
			e := open(t, export.Config{Endpoint: s.URL + "/v1/traces", Sampler: c.sampler, SamplerArg: c.arg})
			span(e, "root", trace.SpanContext{})
			span(e, "on", sampled)
			span(e, "off", unsampled)
			if err := e.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(s.spans(), " "); got != c.want {
				t.Errorf("there came %q, want %q", got, c.want)
			}
		})
	}
}

// A collector that does not answer, or answers badly, holds nobody up and is
// complained of.
func TestCollectorFails(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter) bool{
		"refuses": func(w http.ResponseWriter) bool { w.WriteHeader(http.StatusForbidden); return true },
		"busy":    func(w http.ResponseWriter) bool { w.WriteHeader(http.StatusServiceUnavailable); return true },
		"redirects": func(w http.ResponseWriter) bool {
			w.Header().Set("Location", "/v1/traces")
			w.WriteHeader(http.StatusTemporaryRedirect)
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSink(t, (*httptest.Server).Start)
			s.answer = answer
			var log lockedLog
			e := open(t, export.Config{
				Endpoint: s.URL + "/v1/traces", Headers: map[string]string{"X-Key": "hush"}, Timeout: time.Second,
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			for range 1000 {
				span(e, "a", trace.SpanContext{})
			}
			begin := time.Now()
			err := e.Close(t.Context())
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("the end took %v", took)
			}
			if len(s.spans()) != 0 {
				t.Error("spans came")
			}
			if name == "redirects" && len(s.paths) > 2 {
				t.Errorf("%d requests: the redirect was followed", len(s.paths))
			}
			if n := strings.Count(log.String(), "spans were dropped"); n > 1 || n == 0 && err == nil || strings.Contains(log.String(), "hush") {
				t.Errorf("the log says:\n%s", log.String())
			}
		})
	}
}

// lockedLog is a log that goroutines write to.
type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]export.Config{
		"no_url":   {Endpoint: "collector:4318"},
		"password": {Endpoint: "http://u:hush@collector/v1/traces"},
		"sampler":  {Endpoint: "http://c/v1/traces", Sampler: "sometimes"},
		"ratio":    {Endpoint: "http://c/v1/traces", SamplerArg: 2},
	} {
		e, err := export.Open(t.Context(), cfg)
		if e != nil || !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := export.Open(t.Context(), export.Config{Endpoint: "https://c/v1/traces", CAFile: "/no/such"}); err == nil {
		t.Error("a missing certificate is fine")
	}
}
