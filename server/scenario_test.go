package server_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/server"
	"github.com/taibox/taibox/tai/registry"
)

// scenario is one request and what has to come of it.
type scenario struct {
	name         string
	method, path string
	body         string
	header       []string

	status int
	code   string   // of an error
	has    []string // in the body
	not    []string
}

func (s scenario) run(t *testing.T, w *world) {
	t.Helper()
	status, header, body := w.call(s.method, s.path, s.body, s.header...)
	if status != s.status {
		t.Errorf("status %d, want %d: %s", status, s.status, body)
	}
	if status >= http.StatusBadRequest {
		e := failure(t, body)
		if e.Code != s.code {
			t.Errorf("code %s, want %s: %s", e.Code, s.code, body)
		}
		if e.RequestID != header.Get("X-Request-Id") {
			t.Errorf("request id %q in the body, %q in the header", e.RequestID, header.Get("X-Request-Id"))
		}
		retryable := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
		if e.Retryable != retryable || (header.Get("Retry-After") != "") != retryable {
			t.Errorf("retryable %v, Retry-After %q", e.Retryable, header.Get("Retry-After"))
		}
	}
	if ct := header.Get("Content-Type"); body != "" && ct != "application/json" {
		t.Errorf("content type %q", ct)
	}
	for _, text := range s.has {
		if !strings.Contains(body, text) {
			t.Errorf("no %q in %s", text, body)
		}
	}
	for _, text := range s.not {
		if strings.Contains(body, text) {
			t.Errorf("%q in %s", text, body)
		}
	}
}

func TestScenarios(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, s := range []scenario{
		// Not part of the API.
		{name: "no_route", method: "GET", path: "/v1/nothing", status: 404, code: "NO_ROUTE", has: []string{"/v1/nothing"}},
		{name: "root", method: "GET", path: "/", status: 404, code: "NO_ROUTE"},
		{name: "method", method: "PUT", path: "/v1/sandboxes", status: 405, code: "METHOD_NOT_ALLOWED"},
		{name: "method_of_ws", method: "POST", path: "/v1/sandboxes/b1/exec/ws", status: 405, code: "METHOD_NOT_ALLOWED"},
		{name: "dots", method: "GET", path: "/v1/sandboxes/../sandboxes", status: 404, code: "NO_ROUTE"},
		{name: "double_slash", method: "GET", path: "/v1//sandboxes", status: 404, code: "NO_ROUTE"},
		{name: "trailing_slash", method: "GET", path: "/v1/sandboxes/", status: 404, code: "NO_ROUTE"},
		{name: "plain_request_to_ws", method: "GET", path: "/v1/sandboxes/b1/exec/ws", status: 400, code: "BAD_REQUEST"},

		// L07: what is not known is named.
		{name: "L07_key", method: "POST", path: "/v1/sandboxes", body: `{"memry_bytes":1}`, status: 400, code: "BAD_REQUEST", has: []string{"body.memry_bytes", "problems"}},
		{name: "L07_case", method: "POST", path: "/v1/sandboxes", body: `{"Image":"hostfs"}`, status: 400, code: "BAD_REQUEST", has: []string{"body.Image"}},
		{name: "L07_nested", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["true"],"timeout":1}`, status: 400, code: "BAD_REQUEST", has: []string{"body.timeout"}},
		{name: "L07_query", method: "GET", path: "/v1/sandboxes?ownr=x", status: 400, code: "BAD_REQUEST", has: []string{"query.ownr"}},
		{name: "L07_query_of_raw", method: "GET", path: "/v1/sandboxes/b1/execs/e1/output?sinse=1", status: 400, code: "BAD_REQUEST", has: []string{"query.sinse"}},

		// Bodies that are none.
		{name: "no_body", method: "POST", path: "/v1/sandboxes", status: 400, code: "BAD_REQUEST"},
		{name: "no_json", method: "POST", path: "/v1/sandboxes", body: `{"id":`, status: 400, code: "BAD_REQUEST"},
		{name: "two_values", method: "POST", path: "/v1/sandboxes", body: `{} {}`, status: 400, code: "BAD_REQUEST"},
		{name: "array", method: "POST", path: "/v1/sandboxes", body: `[]`, status: 400, code: "BAD_REQUEST"},
		{name: "type", method: "POST", path: "/v1/sandboxes", body: `{"memory_bytes":"2g"}`, status: 400, code: "BAD_REQUEST", has: []string{"body.memory_bytes"}},
		{name: "no_echo", method: "POST", path: "/v1/sandboxes", body: `{"env":{"A":"secret"},"x":1}`, status: 400, code: "BAD_REQUEST", not: []string{"secret"}},
		{name: "too_large", method: "POST", path: "/v1/sandboxes", body: `{"image":"` + strings.Repeat("x", 4<<20) + `"}`, status: 413, code: "TOO_LARGE"},
		{name: "form", method: "POST", path: "/v1/sandboxes", body: `a=b`, header: []string{"Content-Type", "application/x-www-form-urlencoded"}, status: 415, code: "MEDIA_TYPE"},

		// Values that nothing can have.
		{name: "memory", method: "POST", path: "/v1/sandboxes", body: `{"memory_bytes":-1}`, status: 400, code: "INVALID_SPEC"},
		{name: "cpus", method: "POST", path: "/v1/sandboxes", body: `{"cpus":1e9}`, status: 400, code: "INVALID_SPEC"},
		{name: "pids", method: "POST", path: "/v1/sandboxes", body: `{"pids":-5}`, status: 400, code: "INVALID_SPEC"},
		{name: "number", method: "POST", path: "/v1/sandboxes", body: `{"memory_bytes":1e300}`, status: 400, code: "BAD_REQUEST"},
		{name: "policy", method: "POST", path: "/v1/sandboxes", body: `{"policy":"for ever"}`, status: 400, code: "INVALID_SPEC"},
		{name: "stop_timeout", method: "POST", path: "/v1/sandboxes", body: `{"stop_timeout_ms":-1}`, status: 400, code: "INVALID_SPEC"},
		{name: "stop_timeout_absurd", method: "POST", path: "/v1/sandboxes", body: `{"stop_timeout_ms":9223372036854775807}`, status: 400, code: "INVALID_SPEC"},
		{name: "image", method: "POST", path: "/v1/sandboxes", body: `{"image":"no/such:1"}`, status: 404, code: "IMAGE_NOT_FOUND", has: []string{"no/such:1"}},
		{name: "node", method: "POST", path: "/v1/sandboxes", body: `{"node_id":"nowhere"}`, status: 404, code: "NODE_NOT_FOUND"},
		{name: "isolation", method: "POST", path: "/v1/sandboxes", body: `{"isolation":"magic"}`, status: 400, code: "INVALID_SPEC"},
		{name: "label_of_ours", method: "POST", path: "/v1/sandboxes", body: `{"labels":{"sandbox-id":"x"}}`, status: 400, code: "INVALID_SPEC"},

		// I01: an id that is none is refused alike everywhere.
		{name: "I01_dots", method: "POST", path: "/v1/sandboxes", body: `{"id":"../x"}`, status: 400, code: "INVALID_SPEC"},
		{name: "I01_space", method: "POST", path: "/v1/sandboxes", body: `{"id":"a b"}`, status: 400, code: "INVALID_SPEC"},
		{name: "I01_control", method: "POST", path: "/v1/sandboxes", body: `{"id":"a\nb"}`, status: 400, code: "INVALID_SPEC"},
		{name: "I01_nul", method: "POST", path: "/v1/sandboxes", body: `{"id":"a\u0000"}`, status: 400, code: "INVALID_SPEC"},
		{name: "I01_upper", method: "POST", path: "/v1/sandboxes", body: `{"id":"Box"}`, status: 400, code: "INVALID_SPEC"},
		{name: "I01_long", method: "POST", path: "/v1/sandboxes", body: `{"id":"` + long + `"}`, status: 400, code: "INVALID_SPEC"},
		{name: "I01_path", method: "GET", path: "/v1/sandboxes/a%2fb", status: 400, code: "INVALID_SPEC"},
		{name: "I01_path_dots", method: "DELETE", path: "/v1/sandboxes/..%2fx", status: 404, code: "NO_ROUTE"},
		{name: "I01_path_upper", method: "DELETE", path: "/v1/sandboxes/BOX", status: 400, code: "INVALID_SPEC"},
		{name: "I01_path_exec", method: "GET", path: "/v1/sandboxes/b1/execs/E_1", status: 400, code: "INVALID_SPEC"},

		// What is not there, and what is in the way.
		{name: "box", method: "GET", path: "/v1/sandboxes/nosuch", status: 404, code: "BOX_NOT_FOUND", has: []string{"nosuch"}},
		{name: "remove", method: "DELETE", path: "/v1/sandboxes/nosuch", status: 404, code: "BOX_NOT_FOUND"},
		{name: "start", method: "POST", path: "/v1/sandboxes/nosuch/start", status: 404, code: "BOX_NOT_FOUND"},
		{name: "exec_in_none", method: "POST", path: "/v1/sandboxes/nosuch/exec", body: `{"cmd":["true"]}`, status: 404, code: "BOX_NOT_FOUND"},
		{name: "exec", method: "GET", path: "/v1/sandboxes/b1/execs/nosuch", status: 404, code: "EXEC_NOT_FOUND"},
		{name: "exec_output", method: "GET", path: "/v1/sandboxes/b1/execs/nosuch/output", status: 404, code: "EXEC_NOT_FOUND"},
		{name: "kill", method: "POST", path: "/v1/sandboxes/b1/execs/nosuch/kill", status: 404, code: "EXEC_NOT_FOUND"},
		{name: "kill_signal", method: "POST", path: "/v1/sandboxes/b1/execs/ended/kill", body: `{"signal":999}`, status: 400, code: "INVALID_SPEC"},
		{name: "kill_ended", method: "POST", path: "/v1/sandboxes/b1/execs/ended/kill", status: 409, code: "EXEC_ENDED"},
		{name: "taken", method: "POST", path: "/v1/sandboxes", body: `{"id":"b1"}`, status: 409, code: "BOX_EXISTS"},
		{name: "stopped", method: "POST", path: "/v1/sandboxes/b0/exec", body: `{"cmd":["true"]}`, status: 409, code: "BOX_NOT_RUNNING"},
		{name: "exec_taken", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"id":"ended","cmd":["true"]}`, status: 409, code: "EXEC_EXISTS"},
		{name: "image_none", method: "GET", path: "/v1/images/no/such:1", status: 404, code: "IMAGE_NOT_FOUND"},
		{name: "image_in_use", method: "DELETE", path: "/v1/images/example.test/used:1", status: 409, code: "IMAGE_IN_USE"},
		{name: "image_node", method: "GET", path: "/v1/images?node=nowhere", status: 404, code: "NODE_NOT_FOUND"},
		{name: "archive_type", method: "POST", path: "/v1/images/load", body: "x", status: 415, code: "MEDIA_TYPE"},
		{name: "archive_corrupt", method: "POST", path: "/v1/images/load", body: "no archive", header: []string{"Content-Type", "application/x-tar"}, status: 422, code: "IMAGE_CORRUPT", has: []string{"image is corrupt"}},

		// Commands.
		{name: "no_command", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{}`, status: 400, code: "INVALID_SPEC"},
		{name: "user", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["true"],"user":"nobody-such"}`, status: 400, code: "USER_NOT_FOUND"},
		{name: "directory", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["true"],"work_dir":"/no/such"}`, status: 400, code: "DIR_NOT_FOUND"},
		{name: "timeout", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["true"],"timeout_ms":-1}`, status: 400, code: "INVALID_SPEC", has: []string{"timeout_ms"}},
		{name: "max_output", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["true"],"max_output":1099511627776}`, status: 400, code: "INVALID_SPEC"},
		{name: "terminal_size", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["true"],"tty":true,"cols":65535,"rows":65535}`, status: 400, code: "INVALID_SPEC"},
		{name: "terminal_half", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["true"],"tty":true,"cols":80}`, status: 400, code: "INVALID_SPEC"},
		{name: "detach_kill", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["true"],"detach":true,"on_disconnect":"kill"}`, status: 400, code: "INVALID_SPEC"},
		{name: "detach_input", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["cat"],"detach":true,"stdin_b64":"eA=="}`, status: 400, code: "INVALID_SPEC"},
		{name: "base64", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["cat"],"stdin_b64":"???"}`, status: 400, code: "BAD_REQUEST"},

		// Lists.
		{name: "limit", method: "GET", path: "/v1/sandboxes?limit=5000", status: 400, code: "BAD_REQUEST"},
		{name: "limit_no_number", method: "GET", path: "/v1/sandboxes?limit=many", status: 400, code: "BAD_REQUEST"},
		{name: "token", method: "GET", path: "/v1/sandboxes?next_token=AAAA", status: 400, code: "BAD_REQUEST"},
		{name: "label", method: "GET", path: "/v1/sandboxes?label=x", status: 400, code: "BAD_REQUEST"},
		{name: "since", method: "GET", path: "/v1/sandboxes/b1/execs/ended/output?since=-2", status: 400, code: "BAD_REQUEST"},

		// And what is right.
		{name: "box_b1", method: "GET", path: "/v1/sandboxes/b1", status: 200, has: []string{
			`"id":"b1"`, `"container_id":"`, `"node_id":"local"`, `"owner":"me"`, `"status":"running"`, `"policy":"session"`, `"image":"hostfs"`,
			`"isolation":"container"`, `"labels":{"team":"x"}`, `"created_at":"`, `"last_active":"`, `"network":"internet"`, `"entrypoint":[]`, `"phases":[`,
		}},
		{name: "missing_program", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["/no/such"]}`, status: 200, has: []string{`"exit_code":127`, `"source":"command"`, `"error":"`}},
		{name: "failing_program", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["false"]}`, status: 200, has: []string{`"exit_code":1,`, `"reason":"exit"`, `"stdout":""`, `"truncated":false`}},
		{name: "output", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["echo","hi"]}`, status: 200, has: []string{`"stdout":"hi\n"`, `"exit_code":0`, `"exec_id":"`, `"duration_ms":`}},
		{name: "null_is_absent", method: "POST", path: "/v1/sandboxes/b1/exec", body: `{"cmd":["true"],"env":null}`, status: 200},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, scenarioWorld(t)) })
	}
}

// scenarioWorld has a running box b1 with an ended exec, a stopped box b0, and
// a box on an image.
func scenarioWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1", Owner: "me", Labels: map[string]string{"team": "x"}})
	w.runReq("b1", rest.ExecRequest{ID: "ended", Cmd: []string{"true"}})
	w.create(rest.CreateBox{ID: "b0"})
	if err := w.StopBox(w.ctx, "b0", nil); err != nil {
		t.Fatal(err)
	}
	w.load(t, usedImage)
	w.create(rest.CreateBox{ID: "bi", Image: usedImage})
	return w
}

func TestFailuresOfTheNode(t *testing.T) {
	fault, err := fake.Failpoints("create.rootfs:1*error(NO_SPACE)->1*error(secret path /var/x)->off")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, fake.WithFault(fault))
	create := scenario{method: "POST", path: "/v1/sandboxes", body: `{"id":"b1"}`}
	full, broken := create, create
	full.status, full.code = 429, "NO_SPACE"
	full.run(t, w)
	broken.status, broken.code, broken.has, broken.not = 500, "INTERNAL", []string{`"internal error"`}, []string{"secret"}
	broken.header = []string{"X-Request-Id", "my-id-1"}
	broken.has = append(broken.has, "my-id-1")
	broken.run(t, w)
	if log := w.log.String(); !strings.Contains(log, "secret path") || !strings.Contains(log, "request_id=my-id-1") {
		t.Errorf("the log does not explain: %s", log)
	}
	bad := scenario{method: "GET", path: "/v1/version", header: []string{"X-Request-Id", "a b\tc"}, status: 200}
	bad.run(t, w)
}

func TestPanicIsCaught(t *testing.T) {
	a := &authority{}
	w := newWorldWith(t, func(c *server.Config) { c.Authorizer = a })
	a.deny = func(server.Verb, server.Object) error { panic("boom") }
	for _, route := range fullAPI {
		method, path, body, header := request(t, route)
		status, _, answer := w.call(method, path, body, header...)
		if method == http.MethodHead && status == http.StatusInternalServerError {
			continue // its answer has no body
		}
		if status != http.StatusInternalServerError || failure(t, answer).Code != "INTERNAL" || strings.Contains(answer, "boom") {
			t.Errorf("%s: %d %s", route, status, answer)
		}
	}
}

func TestLists(t *testing.T) {
	w := newWorld(t)
	var want []string
	for _, id := range []string{"c", "a", "e", "b", "d"} {
		owner := map[bool]string{true: "x", false: "y"}[id < "c"]
		w.create(rest.CreateBox{ID: id, Owner: owner, Labels: map[string]string{"k": id, "all": "=1"}})
		want = append(want, id)
	}
	ids := func(l rest.ListBoxes) []string {
		t.Helper()
		boxes, err := w.ListBoxes(w.ctx, l)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, b := range boxes {
			got = append(got, b.ID)
		}
		return got
	}
	for size := range 7 {
		if got := ids(rest.ListBoxes{PageSize: size}); !slices.Equal(got, want) {
			t.Errorf("pages of %d: %v", size, got)
		}
	}
	if err := w.StopBox(w.ctx, "d", nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		list rest.ListBoxes
		want []string
	}{
		{rest.ListBoxes{Owner: "x"}, []string{"a", "b"}},
		{rest.ListBoxes{Owner: "nobody"}, []string{}},
		{rest.ListBoxes{Node: registry.Local, Status: "stopped"}, []string{"d"}},
		{rest.ListBoxes{Labels: map[string]string{"k": "e", "all": "=1"}}, []string{"e"}},
		{rest.ListBoxes{Labels: map[string]string{"k": "e", "all": "2"}}, []string{}},
		{rest.ListBoxes{Status: "running", PageSize: 1}, []string{"c", "a", "e", "b"}},
	} {
		if got := ids(c.list); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.list, got, c.want)
		}
	}
	// A page that goes on after its last box was removed.
	status, _, body := w.call("GET", "/v1/sandboxes?limit=2", "")
	if status != http.StatusOK {
		t.Fatal(body)
	}
	token := body[strings.Index(body, `"next_token":"`)+14:]
	token = token[:strings.Index(token, `"`)]
	if err := w.RemoveBox(w.ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, _, body := w.call("GET", "/v1/sandboxes?limit=2&next_token="+token, ""); !strings.Contains(body, `"id":"e"`) || !strings.Contains(body, `"id":"b"`) {
		t.Errorf("after a remove: %s", body)
	}
	if _, _, body := w.call("GET", "/v1/sandboxes?owner=nobody", ""); body != `{"items":[]}`+"\n" {
		t.Errorf("an empty list: %s", body)
	}
}

func TestDefaultsAreFilledIn(t *testing.T) {
	w := newWorldWith(t, func(c *server.Config) { c.Defaults = server.Defaults{Memory: 2 << 30, CPUs: 1} })
	if b := w.create(rest.CreateBox{}); b.MemoryBytes != 2<<30 || b.CPUs != 1 || b.Image != "hostfs" || b.NodeID != "local" || b.ID == "" {
		t.Errorf("%+v", b)
	}
	mem, cpus := int64(0), 0.0
	if b := w.create(rest.CreateBox{MemoryBytes: &mem, CPUs: &cpus}); b.MemoryBytes != 0 || b.CPUs != 0 {
		t.Errorf("explicit zeros: %+v", b)
	}
	mem, cpus = 64<<20, 0.5
	if b := w.create(rest.CreateBox{MemoryBytes: &mem, CPUs: &cpus, StopTimeoutMs: 1500}); b.MemoryBytes != 64<<20 || b.CPUs != 0.5 || b.StopTimeoutMs != 1500 {
		t.Errorf("explicit values: %+v", b)
	}
}

// TestG11_IdempotencyKey: the same key with the same body is the same box.
func TestG11_IdempotencyKey(t *testing.T) {
	w := newWorld(t)
	first := w.create(rest.CreateBox{Owner: "o", IdempotencyKey: "k1"})
	for range 3 {
		if again := w.create(rest.CreateBox{Owner: "o", IdempotencyKey: "k1"}); again.ID != first.ID {
			t.Errorf("another box: %s and %s", first.ID, again.ID)
		}
	}
	if boxes, err := w.ListBoxes(w.ctx, rest.ListBoxes{}); err != nil || len(boxes) != 1 {
		t.Errorf("%d boxes, %v", len(boxes), err)
	}
	scenario{
		method: "POST", path: "/v1/sandboxes", body: `{"owner":"o","hostname":"other"}`, header: []string{"Idempotency-Key", "k1"},
		status: 409, code: "IDEMPOTENCY_KEY_USED",
	}.run(t, w)
}

func TestTooManyBoxes(t *testing.T) {
	w := newWorld(t)
	for range 50 {
		w.create(rest.CreateBox{})
	}
	scenario{method: "POST", path: "/v1/sandboxes", body: `{}`, status: 429, code: "TOO_MANY_CONTAINERS"}.run(t, w)
}

func TestLifecycle(t *testing.T) {
	seen := &arrivals{}
	w := newWorldWith(t, func(c *server.Config) { c.Authorizer = seen })
	w.create(rest.CreateBox{ID: "b1"})
	waited := make(chan rest.Box, 1)
	go func() {
		b, err := w.WaitBox(w.ctx, "b1")
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		waited <- b
	}()
	select {
	case b := <-waited:
		t.Fatalf("wait returned at once: %+v", b)
	case <-time.After(50 * time.Millisecond):
	}
	grace := 100 * time.Millisecond
	for range 2 { // a repeat is fine
		if err := w.StopBox(w.ctx, "b1", &grace); err != nil {
			t.Fatal(err)
		}
	}
	if b := <-waited; b.Status != "stopped" || b.StopReason != "user" || b.StoppedAt.IsZero() {
		t.Errorf("waited: %+v", b)
	}
	if b, err := w.WaitBox(w.ctx, "b1"); err != nil || b.Status != "stopped" {
		t.Errorf("wait again: %+v %v", b, err)
	}
	for range 2 {
		if err := w.StartBox(w.ctx, "b1"); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := w.GetBox(w.ctx, "b1"); err != nil || b.Status != "running" {
		t.Errorf("%+v %v", b, err)
	}
	before := seen.gets.Load()
	go func() {
		b, err := w.WaitBox(w.ctx, "b1")
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		waited <- b
	}()
	eventually(t, "the request has found the box", func() bool { return seen.gets.Load() > before })
	select {
	case b := <-waited:
		t.Fatalf("wait returned at once: %+v", b)
	case <-time.After(50 * time.Millisecond):
	}
	if err := w.RemoveBox(w.ctx, "b1"); err != nil {
		t.Fatal(err)
	}
	if b := <-waited; b.Status != "removed" {
		t.Errorf("removed while waited for: %+v", b)
	}
}

func TestLook(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1"})
	e, err := w.ExecDetached(w.ctx, "b1", rest.ExecRequest{Cmd: []string{"listen", "8080"}})
	if err != nil || e.State != "running" || e.Box != "b1" {
		t.Fatalf("%+v %v", e, err)
	}
	eventually(t, "the port is listed", func() bool {
		ports, err := w.Ports(w.ctx, "b1")
		return err == nil && len(ports) == 1 && ports[0].Port == 8080
	})
	if s, err := w.Stats(w.ctx, "b1"); err != nil || s.Pids == 0 || s.Time.IsZero() {
		t.Errorf("%+v %v", s, err)
	}
	if b, err := w.GetBox(w.ctx, "b1"); err != nil || b.RunningExecs != 1 || b.ProcessCount == 0 {
		t.Errorf("%+v %v", b, err)
	}
}
