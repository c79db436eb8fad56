package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/server"
	"github.com/taibox/taibox/tai/registry"
)

// fullAPI is the list of routes: a new one is added here, knowingly.
var fullAPI = []string{
	"DELETE /v1/images/{ref}",
	"DELETE /v1/keys/{id}",
	"DELETE /v1/sandboxes/{id}",
	"GET /healthz",
	"GET /openapi.json",
	"GET /v1/images",
	"GET /v1/images/{ref}",
	"GET /v1/keys",
	"GET /v1/nodes",
	"GET /v1/sandboxes",
	"GET /v1/sandboxes/{id}",
	"GET /v1/sandboxes/{id}/exec/ws",
	"GET /v1/sandboxes/{id}/execs",
	"GET /v1/sandboxes/{id}/execs/{exec}",
	"GET /v1/sandboxes/{id}/execs/{exec}/output",
	"GET /v1/sandboxes/{id}/execs/{exec}/wait",
	"GET /v1/sandboxes/{id}/execs/{exec}/ws",
	"GET /metrics",
	"GET /v1/events",
	"GET /v1/stats",
	"GET /v1/sandboxes/{id}/processes",
	"GET /v1/sandboxes/{id}/ports",
	"GET /v1/sandboxes/{id}/stats",
	"GET /v1/sandboxes/{id}/wait",
	"GET /v1/version",
	"POST /v1/images/load",
	"POST /v1/keys",
	"POST /v1/images/prune",
	"POST /v1/images/pull",
	"POST /v1/images/save",
	"POST /v1/sandboxes",
	"POST /v1/sandboxes/{id}/commit",
	"POST /v1/sandboxes/{id}/exec",
	"POST /v1/sandboxes/{id}/execs/{exec}/kill",
	"POST /v1/sandboxes/{id}/start",
	"POST /v1/sandboxes/{id}/stop",
	"GET /v1/sandboxes/{id}/files", "HEAD /v1/sandboxes/{id}/files", "PUT /v1/sandboxes/{id}/files", "DELETE /v1/sandboxes/{id}/files",
	"GET /v1/sandboxes/{id}/files/list", "GET /v1/sandboxes/{id}/files/stat", "POST /v1/sandboxes/{id}/files/mkdir",
	"POST /v1/sandboxes/{id}/files/rename", "GET /v1/sandboxes/{id}/archive", "PUT /v1/sandboxes/{id}/archive",
	"POST /v1/sandboxes/{id}/files", "GET /v1/sandboxes/{id}/files/watch",
	"POST /v1/workspaces", "GET /v1/workspaces", "GET /v1/workspaces/{id}", "PATCH /v1/workspaces/{id}", "DELETE /v1/workspaces/{id}",
	"GET /v1/workspaces/{id}/usage", "GET /v1/workspaces/{id}/diff", "POST /v1/workspaces/{id}/pack", "POST /v1/workspaces/{id}/extract",
	"POST /v1/workspaces/{id}/snapshots", "GET /v1/workspaces/{id}/snapshots", "DELETE /v1/workspaces/{id}/snapshots/{name}",
	"POST /v1/workspaces/{id}/snapshots/{name}/restore",
	"GET /v1/workspaces/{id}/files", "HEAD /v1/workspaces/{id}/files", "PUT /v1/workspaces/{id}/files", "POST /v1/workspaces/{id}/files", "DELETE /v1/workspaces/{id}/files",
	"GET /v1/workspaces/{id}/files/list", "GET /v1/workspaces/{id}/files/stat", "POST /v1/workspaces/{id}/files/mkdir", "POST /v1/workspaces/{id}/files/rename",
	"POST /v1/workspaces/{id}/files/copy", "GET /v1/workspaces/{id}/files/watch", "GET /v1/workspaces/{id}/archive", "PUT /v1/workspaces/{id}/archive",
	"POST /v1/workspaces/{id}/sync/index", "POST /v1/workspaces/{id}/sync/hashes", "POST /v1/workspaces/{id}/sync/fetch", "POST /v1/workspaces/{id}/sync/apply",
}

// isWorkspace reports whether a path or route is about one workspace.
func isWorkspace(path string) bool { return strings.Contains(path, "/workspaces/") }

func TestOpenAPI(t *testing.T) {
	w := newWorld(t)
	status, _, body := w.call("GET", "/openapi.json", "")
	var spec struct {
		Paths      map[string]map[string]any
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal([]byte(body), &spec); status != http.StatusOK || err != nil {
		t.Fatalf("%d %v", status, err)
	}
	var got []string
	for path, ops := range spec.Paths {
		for method := range ops {
			got = append(got, strings.ToUpper(method)+" "+path)
		}
	}
	if diff := diffSets(fullAPI, got); diff != "" {
		t.Errorf("routes:%s", diff)
	}
	for _, s := range []string{"Box", "CreateBox", "ExecRequest", "ExecResult", "Exec", "ErrorBody", "Image"} {
		if spec.Components.Schemas[s] == nil {
			t.Errorf("no schema %s", s)
		}
	}
	for _, p := range []string{"/docs", "/openapi.yaml", "/schemas/Box.json"} {
		if status, _, _ := w.call("GET", p, ""); status != http.StatusNotFound {
			t.Errorf("GET %s: %d", p, status)
		}
	}
}

func diffSets(want, got []string) string {
	var b strings.Builder
	seen := map[string]int{}
	for _, s := range want {
		seen[s]++
	}
	for _, s := range got {
		seen[s]--
	}
	for s, n := range seen {
		if n != 0 {
			b.WriteString(map[bool]string{true: "\n- ", false: "\n+ "}[n > 0] + s)
		}
	}
	return b.String()
}

// authority is an authoriser that a test looks into.
type authority struct {
	mu    sync.Mutex
	asked []server.Object
	deny  func(server.Verb, server.Object) error
}

func (a *authority) Authorize(_ context.Context, c server.Caller, v server.Verb, o server.Object) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, o)
	if a.deny != nil {
		return a.deny(v, o)
	}
	return server.Border{}.Authorize(context.Background(), c, v, o)
}

func (a *authority) take() []server.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.asked
	a.asked = nil
	return o
}

// request makes a request that the route would take.
func request(t *testing.T, route string) (method, path, body string, header []string) {
	t.Helper()
	method, path, _ = strings.Cut(route, " ")
	path = strings.NewReplacer("/workspaces/{id}", "/workspaces/w1", "{id}", "b1", "{exec}", "e1", "{ref}", "hostfs", "{name}", "s1").Replace(path)
	if strings.HasSuffix(path, "/ws") {
		header = []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
	}
	switch {
	case path == "/v1/keys" && method == http.MethodPost:
		body = `{"owner":"o"}`
	case strings.HasPrefix(path, "/v1/keys/"):
		path = "/v1/keys/k1"
	case strings.HasSuffix(path, "/exec"):
		body = `{"cmd":["true"]}`
	case path == "/v1/sandboxes" && method == http.MethodPost:
		body = `{"id":"b2","owner":"o"}`
	case strings.HasSuffix(path, "/commit"):
		body = `{"image":"x"}`
	case path == "/v1/workspaces" && method == http.MethodPost:
		body = `{"id":"w2","owner":"o"}`
	case strings.HasSuffix(path, "/files/mkdir"), strings.HasSuffix(path, "/files/rename"), strings.HasSuffix(path, "/files/copy"), path == "/v1/images/prune",
		method == http.MethodPatch, strings.HasSuffix(path, "/pack"), strings.HasSuffix(path, "/extract"), strings.HasSuffix(path, "/snapshots") && method == http.MethodPost:
		body = `{}`
	case strings.HasSuffix(path, "/sync/index"):
		body, header = `{}`, []string{"Content-Type", "application/json"}
	case strings.Contains(path, "/sync/"):
		body, header = "x", []string{"Content-Type", treesync.ContentType}
	case path == "/v1/images/pull", path == "/v1/images/save":
		body, header = `{}`, []string{"Content-Type", "application/json"}
	case path == "/v1/images/load":
		body, header = "x", []string{"Content-Type", "application/x-tar"}
	}
	return method, path, body, header
}

func TestEveryRouteAsksTheAuthorizer(t *testing.T) {
	for name, refusal := range map[string]struct {
		err    error
		status int
		code   string
	}{
		"denied":  {rest.ErrForbidden, http.StatusForbidden, "FORBIDDEN"},
		"unknown": {rest.ErrNoRoute, http.StatusNotFound, "NO_ROUTE"},
	} {
		t.Run(name, func(t *testing.T) {
			a := &authority{}
			w := newWorldWith(t, func(c *server.Config) { c.Authorizer = a })
			w.create(rest.CreateBox{ID: "b1", Owner: "owner"})
			w.createWorkspace(rest.CreateWorkspace{ID: "w1", Owner: "owner"})
			a.deny = func(server.Verb, server.Object) error { return refusal.err }
			a.take()
			for _, route := range fullAPI {
				method, path, body, header := request(t, route)
				status, _, answer := w.call(method, path, body, header...)
				if status != refusal.status || method != http.MethodHead && failure(t, answer).Code != refusal.code {
					t.Errorf("%s: %d %s", route, status, answer)
				}
				asked := a.take()
				if len(asked) != 1 {
					t.Errorf("%s: asked %d times", route, len(asked))
				}
				if isWorkspace(path) && asked[0] != (server.Object{Kind: server.KindWorkspace, ID: "w1", Owner: "owner", Node: "local"}) {
					t.Errorf("%s: asked about %+v", route, asked[0])
				}
				if strings.Contains(path, "/b1") && asked[0] != (server.Object{Kind: server.KindBox, ID: "b1", Owner: "owner", Node: "local"}) {
					t.Errorf("%s: asked about %+v", route, asked[0])
				}
			}
			a.deny = nil
			if boxes, err := w.ListBoxes(w.ctx, rest.ListBoxes{}); err != nil || len(boxes) != 1 || boxes[0].Status != "running" {
				t.Errorf("something was done: %v %v", boxes, err)
			}
		})
	}
}

func TestListShowsWhatTheCallerMayGet(t *testing.T) {
	a := &authority{}
	w := newWorldWith(t, func(c *server.Config) { c.Authorizer = a })
	w.create(rest.CreateBox{ID: "b1", Owner: "mine"})
	w.create(rest.CreateBox{ID: "b2", Owner: "yours"})
	a.deny = func(v server.Verb, o server.Object) error {
		if v == server.VerbGet && o.Owner == "yours" {
			return rest.ErrForbidden
		}
		return nil
	}
	boxes, err := w.ListBoxes(w.ctx, rest.ListBoxes{})
	if err != nil || len(boxes) != 1 || boxes[0].ID != "b1" {
		t.Errorf("%v %v", boxes, err)
	}
}

// A wrong key is refused on the socket too, where none is needed.
func TestWrongKey(t *testing.T) {
	w := newWorld(t)
	for _, header := range [][]string{{"Authorization", "Bearer x"}, {"Authorization", ""}, {"X-API-Key", "x"}} {
		for _, route := range fullAPI {
			method, path, body, h := request(t, route)
			status, _, answer := w.call(method, path, body, append(h, header...)...)
			if method == http.MethodHead { // its answer has no body
				if status != http.StatusUnauthorized {
					t.Errorf("%s: %d", route, status)
				}
				continue
			}
			if e := failure(t, answer); status != http.StatusUnauthorized || e.Code != "UNAUTHENTICATED" || e.Hint == "" {
				t.Errorf("%s with %s: %d %s", route, header[0], status, answer)
			}
		}
	}
}

// TestS08_CrossSite: no page of another site gets through, on a socket or not.
func TestS08_CrossSite(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1"})
	for _, header := range [][]string{
		{"Origin", "https://evil"},
		{"Origin", "null"},
		{"Origin", "https://taibox.evil"},
		{"Origin", "http://taibox:81"},
		{"Sec-Fetch-Site", "cross-site"},
	} {
		for _, route := range []string{"POST /v1/sandboxes/{id}/stop", "GET /v1/sandboxes/{id}/exec/ws", "GET /v1/sandboxes"} {
			method, path, body, h := request(t, route)
			status, _, answer := w.call(method, path, body, append(h, header...)...)
			if status != http.StatusForbidden || failure(t, answer).Code != "ORIGIN" {
				t.Errorf("%s with %v: %d %s", route, header, status, answer)
			}
		}
	}
	if status, _, _ := w.call("GET", "/v1/version", "", "Origin", "http://taibox"); status != http.StatusOK {
		t.Errorf("own origin: %d", status)
	}
	status, _, answer := w.call("POST", "/v1/sandboxes", `{"id":"b2"}`, "Content-Type", "text/plain")
	if status != http.StatusUnsupportedMediaType || failure(t, answer).Code != "MEDIA_TYPE" {
		t.Errorf("text/plain: %d %s", status, answer)
	}
}

// TestNobodyIsKnownOverTCP also checks Host, against names that were made to
// resolve to us.
func TestNobodyIsKnownOverTCP(t *testing.T) {
	w := newWorld(t)
	s, err := server.New(server.Config{Manager: w.manager})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	w.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
	}}}
	defer w.http.CloseIdleConnections()
	for host, want := range map[string]int{
		"127.0.0.1:" + port: http.StatusUnauthorized, "localhost:" + port: http.StatusUnauthorized,
		"evil.test:" + port: http.StatusForbidden, "localhost": http.StatusForbidden, "127.0.0.2:" + port: http.StatusForbidden, "[::1]:" + port: http.StatusForbidden,
	} {
		for _, route := range fullAPI {
			method, path, body, h := request(t, route)
			if status, _, answer := w.call(method, path, body, append(h, "Host", host)...); status != want {
				t.Errorf("%s with host %s: %d %s", route, host, status, answer)
			}
		}
	}
}

func TestHandlerAloneKnowsNobody(t *testing.T) {
	w := newWorld(t)
	s, err := server.New(server.Config{Manager: w.manager})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", w.socket+"2")
	if err != nil {
		t.Fatal(err)
	}
	hs := &http.Server{Handler: s.Handler()}
	go hs.Serve(ln)
	defer hs.Close()
	w.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.socket+"2")
	}}}
	defer w.http.CloseIdleConnections()
	if status, _, answer := w.call("GET", "/v1/version", ""); status != http.StatusForbidden {
		t.Errorf("%d %s", status, answer)
	}
}

func TestConfig(t *testing.T) {
	if _, err := server.New(server.Config{Defaults: server.Defaults{Memory: -1}}); err == nil || !bytes.Contains([]byte(err.Error()), []byte("manager")) {
		t.Errorf("%v", err)
	}
}

func TestServerFacts(t *testing.T) {
	w := newWorld(t)
	v, err := w.Version(w.ctx)
	if err != nil || v.Version != "v1" || v.Instance != "test" || v.PID == 0 || v.DataDir != w.dir || v.Host != "unix://"+w.socket {
		t.Errorf("%+v %v", v, err)
	}
	nodes, err := w.Nodes(w.ctx)
	if err != nil || len(nodes) != 1 || nodes[0].TaiID != registry.Local || nodes[0].Mode != "local" || nodes[0].Runtime != "fake" || nodes[0].Status != "online" {
		t.Errorf("%+v %v", nodes, err)
	}
	if status, _, body := w.call("GET", "/healthz", ""); status != http.StatusOK || body != `{"status":"ok"}`+"\n" {
		t.Errorf("%d %s", status, body)
	}
}
