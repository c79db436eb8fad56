package server_test

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/server"
)

// tracedWorld is a world whose spans are recorded.
func tracedWorld(t *testing.T) (*world, *tracetest.SpanRecorder) {
	rec := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
	return newWorldWith(t, func(c *server.Config) { c.Traces = p }), rec
}

func attr(s sdktrace.ReadOnlySpan, key string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

// send makes a request and returns the spans of its trace, by name.
func (w *world) send(rec *tracetest.SpanRecorder, method, path, body string, header ...string) (int, map[string]sdktrace.ReadOnlySpan) {
	w.t.Helper()
	rec.Reset()
	req, err := http.NewRequestWithContext(w.ctx, method, "http://taibox"+path, bytes.NewBufferString(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for pair := range slices.Chunk(header, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	resp, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body.Close()
	server := func(s sdktrace.ReadOnlySpan) bool { return s.SpanKind() == trace.SpanKindServer }
	for deadline := time.Now().Add(time.Minute); !slices.ContainsFunc(rec.Ended(), server); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatal("the request's span does not end")
		}
	}
	spans := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range rec.Ended() {
		spans[s.Name()] = s
	}
	return resp.StatusCode, spans
}

func TestTraces(t *testing.T) {
	w, rec := tracedWorld(t)
	const secret = "hunter2"
	var all []sdktrace.ReadOnlySpan

	// A create goes on with the caller's trace, and shows its phases.
	status, spans := w.send(rec, "POST", "/v1/sandboxes",
		`{"id":"b1","image":"hostfs","env":{"TOKEN":"`+secret+`"},"labels":{"x":"`+secret+`"}}`,
		"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", rest.HeaderRequestID, "req-1", "X-API-Key-Hint", secret)
	root, create := spans["POST /v1/sandboxes"], spans["box.create"]
	if status != http.StatusCreated || root == nil || create == nil {
		t.Fatalf("%d, %v", status, spans)
	}
	if root.SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || root.Parent().SpanID().String() != "b7ad6b7169203331" || !root.Parent().IsRemote() {
		t.Errorf("it does not go on with the caller's trace: %v, %v", root.SpanContext(), root.Parent())
	}
	for key, want := range map[string]string{"http.request.method": "POST", "http.route": "/v1/sandboxes", "http.response.status_code": "201", "taibox.request_id": "req-1"} {
		if got := attr(root, key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if create.Parent().SpanID() != root.SpanContext().SpanID() || attr(create, "taibox.box") != "b1" || attr(create, "taibox.image") != "hostfs" {
		t.Errorf("create: %v", create.Attributes())
	}
	for _, phase := range []string{"box.image", "box.network", "box.rootfs", "box.runtime", "box.bridge"} {
		if s := spans[phase]; s == nil || s.Parent().SpanID() != create.SpanContext().SpanID() {
			t.Errorf("there is no phase %s in the create", phase)
		}
	}
	all = append(all, rec.Ended()...)

	status, spans = w.send(rec, "POST", "/v1/sandboxes/b1/exec", `{"cmd":["echo","`+secret+`"],"env":{"TOKEN":"`+secret+`"}}`)
	if exec := spans["box.exec"]; status != http.StatusOK || exec == nil || attr(exec, "taibox.code") != "0" || attr(exec, "taibox.box") != "b1" || attr(exec, "taibox.reason") != "exit" {
		t.Errorf("exec: %d, %v", status, exec.Attributes())
	}
	all = append(all, rec.Ended()...)

	// Of an address neither the query nor a name is kept; an error has a name only.
	status, spans = w.send(rec, "GET", "/v1/sandboxes/b1/files?path=/"+secret, "")
	for _, s := range spans {
		if s.SpanKind() == trace.SpanKindServer && (status != http.StatusNotFound || !strings.Contains(s.Name(), "{id}") || s.Status().Code == codes.Error) {
			t.Errorf("files: %d, %q, %v", status, s.Name(), s.Status())
		}
	}
	all = append(all, rec.Ended()...)
	w.send(rec, "GET", "/no/such/"+secret, "")
	all = append(all, rec.Ended()...)
	w.send(rec, "BREW"+strings.ToUpper(secret), "/v1/sandboxes", "")
	all = append(all, rec.Ended()...)

	_, spans = w.send(rec, "POST", "/v1/sandboxes", `{"id":"b1","image":"hostfs"}`)
	if create := spans["box.create"]; create == nil || create.Status().Code != codes.Error || attr(create, "error.type") != "BOX_EXISTS" {
		t.Errorf("a create that fails: %v", spans)
	}
	all = append(all, rec.Ended()...)
	status, spans = w.send(rec, "DELETE", "/v1/sandboxes/b1", "")
	if remove := spans["box.remove"]; status >= 300 || remove == nil || attr(remove, "taibox.box") != "b1" {
		t.Errorf("remove: %d, %v", status, spans)
	}
	all = append(all, rec.Ended()...)

	for _, s := range all {
		if text := strings.ToLower(fmt.Sprint(s.Name(), s.Attributes(), s.Events(), s.Status())); strings.Contains(text, secret) {
			t.Errorf("a secret is in the span %q: %s", s.Name(), text)
		}
	}
}

// A request without a trace begins one; what the caller does not want recorded
// is not.
func TestTraceParents(t *testing.T) {
	w, rec := tracedWorld(t)
	_, spans := w.send(rec, "GET", "/v1/version", "", "traceparent", "not one")
	if root := spans["GET /v1/version"]; root == nil || root.Parent().IsValid() {
		t.Errorf("it is no root: %v", spans)
	}
	rec.Reset()
	req, err := http.NewRequestWithContext(w.ctx, http.MethodGet, "http://taibox/v1/version", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	resp, err := w.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	// The next one's span comes after this one's would have.
	if _, spans := w.send(rec, "GET", "/v1/version", ""); len(spans) != 1 || len(rec.Ended()) != 1 {
		t.Errorf("%d spans", len(rec.Ended()))
	}
}
