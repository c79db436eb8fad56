package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/audit"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/internal/keystore"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
	"github.com/taibox/taibox/workspace"
)

// keyed is a world with keys.
type keyed struct {
	*world
	store *keystore.Store
	audit string
}

func newKeyed(t *testing.T, change func(*server.Config)) *keyed {
	t.Helper()
	k := &keyed{store: keystore.New(), audit: filepath.Join(t.TempDir(), "audit.log")}
	t.Cleanup(k.store.Close)
	log, err := audit.Open(k.audit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	k.world = newWorldWith(t, func(c *server.Config) {
		c.Keys, c.Audit = k.store, log
		if change != nil {
			change(c)
		}
	})
	return k
}

// key makes a key and returns the headers that show it.
func (k *keyed) key(t *testing.T, key keystore.Key) (id string, header []string) {
	t.Helper()
	made, token, err := k.store.Create(key)
	if err != nil {
		t.Fatal(err)
	}
	return made.ID, []string{"Authorization", "Bearer " + token}
}

// ask sends a request and reads no more of a success than its status: some
// answers have no end. One that does not come within patience is no refusal.
func (k *keyed) ask(t *testing.T, patience time.Duration, method, path, body string, header ...string) (status int, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://taibox"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := k.http.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return 0, "" // it waits for something, so it was let in
	}
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < http.StatusBadRequest {
		return resp.StatusCode, ""
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

// Routes that are not about one box, and are for more than admins.
var (
	forAll    = []string{"GET /healthz", "GET /openapi.json", "GET /v1/version"}
	forOwners = []string{"GET /v1/images", "GET /v1/images/{ref}", "GET /v1/sandboxes", "POST /v1/sandboxes", "GET /v1/workspaces", "POST /v1/workspaces", "GET /v1/events", "GET /v1/stats"}
)

// TestEveryRouteForEveryCaller is the table of who may do what.
func TestEveryRouteForEveryCaller(t *testing.T) {
	k := newKeyed(t, nil)
	show := func(key keystore.Key) []string { _, h := k.key(t, key); return h }
	gone, removed := k.key(t, keystore.Key{Admin: true})
	if _, err := k.store.Remove(gone); err != nil {
		t.Fatal(err)
	}
	token := strings.TrimPrefix(removed[1], "Bearer ")
	reads := []string{"list", "get"}
	const admin, mine, others, onlyReads, adminReads, nobody = "admin", "mine", "others", "mine, reads", "admin, reads", "nobody"
	for _, caller := range []struct {
		name, is string
		header   []string
	}{
		{"socket", admin, nil},
		{"admin", admin, show(keystore.Key{Admin: true})},
		{"admin-reads", adminReads, show(keystore.Key{Admin: true, Verbs: reads})},
		{"owner", mine, show(keystore.Key{Owner: "o"})},
		{"owner-lasting", mine, show(keystore.Key{Owner: "o", Expires: time.Now().Add(time.Hour)})},
		{"owner-reads", onlyReads, show(keystore.Key{Owner: "o", Verbs: reads})},
		{"other", others, show(keystore.Key{Owner: "p"})},
		{"other-similar", others, show(keystore.Key{Owner: "O"})},
		{"other-reads", others, show(keystore.Key{Owner: "p", Verbs: reads})},
		{"expired", nobody, show(keystore.Key{Admin: true, Expires: time.Now().Add(-time.Second)})},
		{"removed", nobody, removed},
		{"wrong", nobody, []string{"Authorization", "Bearer nonsense"}},
		{"empty", nobody, []string{"Authorization", ""}},
		{"basic", nobody, []string{"Authorization", "Basic " + token}},
		{"wrong-plain", nobody, []string{"X-API-Key", "nonsense"}},
	} {
		t.Run(caller.name, func(t *testing.T) {
			for _, route := range fullAPI {
				if _, err := k.GetBox(k.ctx, "b1"); errors.Is(err, sandbox.ErrNotFound) {
					k.create(rest.CreateBox{ID: "b1", Owner: "o"})
				}
				k.StartBox(k.ctx, "b1")
				k.RemoveBox(k.ctx, "b2")
				if _, err := k.Workspace("w1").Get(k.ctx); errors.Is(err, workspace.ErrNotFound) {
					k.createWorkspace(rest.CreateWorkspace{ID: "w1", Owner: "o"})
				}
				k.Workspace("w2").Delete(k.ctx)
				method, path, body, header := request(t, route)
				read := (method == http.MethodGet || method == http.MethodHead) && !strings.HasSuffix(route, "/exec/ws") ||
					strings.Contains(route, "/sync/") && !strings.HasSuffix(route, "/sync/apply")
				var listed bool
				for _, r := range forOwners {
					listed = listed || r == route
				}
				want := ""
				isBox := strings.Contains(route, "/sandboxes/{id}") || isWorkspace(route)
				notFound := "BOX_NOT_FOUND"
				if isWorkspace(route) {
					notFound = "WORKSPACE_NOT_FOUND"
				}
				switch {
				case caller.is == nobody:
					want = "UNAUTHENTICATED"
				case strings.Contains(strings.Join(forAll, ","), route):
				case isBox && caller.is == others:
					want = notFound
				case strings.HasSuffix(route, "/commit") && caller.is != admin:
					want = "FORBIDDEN" // images are the whole machine's
				case (caller.is == onlyReads || caller.is == adminReads) && !read,
					caller.is == others && !read,
					!isBox && !listed && (caller.is == mine || caller.is == others || caller.is == onlyReads):
					want = "FORBIDDEN"
				}
				patience := 30 * time.Second
				if want == "" {
					patience = 300 * time.Millisecond // some wait for what does not happen
				}
				status, answer := k.ask(t, patience, method, path, body, append(header, caller.header...)...)
				code := ""
				switch {
				case method == http.MethodHead: // its answer has no body
					code = map[int]string{http.StatusUnauthorized: "UNAUTHENTICATED", http.StatusForbidden: "FORBIDDEN", http.StatusNotFound: notFound}[status]
				case status >= http.StatusBadRequest:
					code = failure(t, answer).Code
				}
				switch code {
				case "UNAUTHENTICATED", "FORBIDDEN", notFound:
				default: // let in, whatever it then found
					code = ""
				}
				if code != want {
					t.Errorf("%s: %d %q, want %q: %s", route, status, code, want, answer)
				}
				if want != notFound {
					continue
				}
				// To the byte what is said of a box that does not exist.
				id := []string{"X-Request-Id", "same"}
				_, there := k.ask(t, patience, method, path, body, append(append(header, caller.header...), id...)...)
				_, absent := k.ask(t, patience, method, strings.NewReplacer("/b1", "/b9", "/w1", "/w9").Replace(path), body, append(append(header, caller.header...), id...)...)
				if there != strings.NewReplacer("b9", "b1", "w9", "w1").Replace(absent) {
					t.Errorf("%s: another's is told apart:\n%s\n%s", route, there, absent)
				}
			}
		})
	}
}

// A box of another owner is in no list, and its id tells nothing when it is
// chosen again.
func TestOwnersDoNotSeeEachOther(t *testing.T) {
	k := newKeyed(t, nil)
	_, one := k.key(t, keystore.Key{Owner: "u1"})
	_, two := k.key(t, keystore.Key{Owner: "u2"})
	k.create(rest.CreateBox{ID: "free"}) // nobody's: admins' only
	status, _, body := k.call("POST", "/v1/sandboxes", `{"id":"b1"}`, one...)
	if status != http.StatusCreated || !strings.Contains(body, `"owner":"u1"`) {
		t.Fatalf("%d %s", status, body)
	}
	if status, _, body := k.call("POST", "/v1/sandboxes", `{"id":"b2","owner":"u1"}`, two...); status != http.StatusForbidden {
		t.Errorf("as another: %d %s", status, body)
	}
	if status, _, body := k.call("POST", "/v1/sandboxes", `{"id":"b2","devices":["vendor.com/gpu=0"]}`, two...); status != http.StatusForbidden {
		t.Errorf("with a device: %d %s", status, body)
	}
	for _, query := range []string{"", "?owner=u1", "?owner=", "?status=running", "?limit=1"} {
		if status, _, body := k.call("GET", "/v1/sandboxes"+query, "", two...); status != http.StatusOK || strings.Contains(body, "b1") || strings.Contains(body, "free") || strings.Contains(body, "next_token\":\"") {
			t.Errorf("list%s: %d %s", query, status, body)
		}
	}
	if _, _, body := k.call("GET", "/v1/sandboxes", "", one...); !strings.Contains(body, `"b1"`) || strings.Contains(body, "free") {
		t.Errorf("own list: %s", body)
	}

	// The same answer whatever state the other's box is in.
	_, _, before := k.call("POST", "/v1/sandboxes", `{"id":"b1"}`, append(two, "X-Request-Id", "same")...)
	if err := k.StopBox(k.ctx, "b1", nil); err != nil {
		t.Fatal(err)
	}
	status, _, after := k.call("POST", "/v1/sandboxes", `{"id":"b1"}`, append(two, "X-Request-Id", "same")...)
	e := failure(t, after)
	if status != http.StatusConflict || e.Code != "BOX_EXISTS" && e.Code != sandbox.ErrAlreadyExists.Reason || before != after || strings.Contains(after, "local") || strings.Contains(after, "u1") {
		t.Errorf("taken id: %d\n%s\n%s", status, before, after)
	}
	if status, _, body := k.call("POST", "/v1/sandboxes", `{"id":"b1"}`, one...); status != http.StatusConflict || !strings.Contains(body, "stopped") {
		t.Errorf("own id: %d %s", status, body)
	}
	// So it is while the other's box is given time to end: nobody else waits for that.
	if err := k.RemoveBox(k.ctx, "b1"); err != nil {
		t.Fatal(err)
	}
	dying := `{"id":"b1","entrypoint":["trap"],"max_lifetime_ms":1,"stop_timeout_ms":300000}`
	if status, _, body := k.call("POST", "/v1/sandboxes", dying, one...); status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	eventually(t, "the box is being removed", func() bool {
		box, err := k.GetBox(k.ctx, "b1")
		return err == nil && box.Status == "removing"
	})
	if _, _, after := k.call("POST", "/v1/sandboxes", `{"id":"b1"}`, append(two, "X-Request-Id", "same")...); before != after {
		t.Errorf("taken id:\n%s\n%s", before, after)
	}
	if err := k.RemoveBox(k.ctx, "b1"); err != nil {
		t.Fatal(err)
	}
}

// Who reaches the limit learns nothing of who else has boxes.
func TestLimitNamesNoOthers(t *testing.T) {
	k := newKeyed(t, nil)
	_, two := k.key(t, keystore.Key{Owner: "u2"})
	for i := range 50 {
		k.create(rest.CreateBox{ID: fmt.Sprintf("b%d", i), Owner: "somebody-else", NoStart: true})
	}
	status, _, body := k.call("POST", "/v1/sandboxes", `{}`, two...)
	if e := failure(t, body); status != http.StatusTooManyRequests || e.Code != "TOO_MANY_CONTAINERS" || strings.Contains(body, "somebody") || strings.Contains(body, "50") {
		t.Errorf("%d %s", status, body)
	}
}

// Keys are made, listed and removed by the API; a removed one ends at once,
// with what was under way.
func TestKeyLife(t *testing.T) {
	k := newKeyed(t, nil)
	made, err := k.CreateKey(k.ctx, rest.CreateKey{Owner: "u1", Name: "n", Verbs: []string{"get", "exec"}, ExpiresInMs: 3_600_000})
	if err != nil || made.Secret == "" || made.Owner != "u1" || made.ExpiresAt == nil || time.Until(*made.ExpiresAt) > time.Hour {
		t.Fatalf("%+v %v", made.Key, err)
	}
	all, err := k.ListKeys(k.ctx)
	if err != nil || len(all) != 1 || all[0].ID != made.ID || all[0].Admin || len(all[0].Verbs) != 2 {
		t.Errorf("%+v %v", all, err)
	}
	if _, _, body := k.call("GET", "/v1/keys", ""); strings.Contains(body, made.Secret[21:]) {
		t.Error("the list tells the secret")
	}
	for _, bad := range []string{`{}`, `{"owner":"u","admin":true}`, `{"owner":"u","verbs":["fly"]}`, `{"owner":"u","expires_in_ms":-1}`, `{"owner":"u","scope":"all"}`} {
		if status, _, body := k.call("POST", "/v1/keys", bad); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}

	k.create(rest.CreateBox{ID: "b1", Owner: "u1"})
	mine, err := client.New("unix://"+k.socket, client.WithAPIKey(made.Secret), client.WithReasons(sandbox.Reasons()))
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	waits := make(chan error, 1)
	go func() { _, err := mine.WaitBox(k.ctx, "b1"); waits <- err }()
	s, err := mine.Exec(k.ctx, "b1", rest.ExecRequest{Cmd: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := k.RemoveKey(k.ctx, made.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; !errors.Is(err, rest.ErrUnauthenticated) {
		t.Errorf("the wait: %v", err)
	}
	if _, err := s.Recv(); !errors.Is(err, rest.ErrUnauthenticated) {
		t.Errorf("the stream: %v", err)
	}
	if _, err := mine.Version(k.ctx); !errors.Is(err, rest.ErrUnauthenticated) {
		t.Errorf("later: %v", err)
	}
	if err := k.RemoveKey(k.ctx, made.ID); !errors.Is(err, rest.ErrKeyNotFound) {
		t.Errorf("removed twice: %v", err)
	}
}

func TestRateOfAKey(t *testing.T) {
	k := newKeyed(t, func(c *server.Config) { c.Rate, c.Burst = 0.001, 3 })
	_, one := k.key(t, keystore.Key{Owner: "u1"})
	_, two := k.key(t, keystore.Key{Owner: "u2"})
	for range 3 {
		if status, _, body := k.call("GET", "/healthz", "", one...); status != http.StatusOK {
			t.Fatal(status, body)
		}
	}
	status, header, body := k.call("GET", "/healthz", "", one...)
	// The next request is due a thousand seconds after the first one.
	after, err := strconv.Atoi(header.Get("Retry-After"))
	if e := failure(t, body); status != http.StatusTooManyRequests || e.Code != "RATE_LIMITED" || !e.Retryable || err != nil || after < 900 || after > 1000 {
		t.Errorf("%d %v %s", status, header, body)
	}
	if status, _, _ := k.call("GET", "/healthz", "", two...); status != http.StatusOK {
		t.Errorf("another key: %d", status)
	}
	for range 10 { // the machine's own admin is not bounded
		if status, _, _ := k.call("GET", "/healthz", ""); status != http.StatusOK {
			t.Errorf("the socket: %d", status)
		}
	}
}

// The audit log tells who changed what and who was refused, and no secret.
func TestAudit(t *testing.T) {
	k := newKeyed(t, nil)
	made, err := k.CreateKey(k.ctx, rest.CreateKey{Owner: "u1"})
	if err != nil {
		t.Fatal(err)
	}
	one := []string{"Authorization", "Bearer " + made.Secret}
	k.call("POST", "/v1/sandboxes", `{"env":{"PASSWORD":"hunter2"}}`, one...)
	k.call("GET", "/v1/sandboxes", "", one...) // a read that is granted is no news
	k.call("GET", "/v1/sandboxes/b9", "", one...)
	k.call("GET", "/v1/nodes", "", one...)
	k.call("GET", "/v1/version?token=hunter2", "", "Authorization", "Bearer hunter2")
	data, err := os.ReadFile(k.audit)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(data)) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Time.IsZero() || e.RequestID == "" || e.Caller.UID == nil || *e.Caller.UID != os.Getuid() || e.Caller.PID != os.Getpid() {
			t.Errorf("%s", line)
		}
		if e.Verb == "create" && e.Object.ID == "" {
			t.Errorf("the id is missing: %s", line)
		}
		who := strings.ReplaceAll(e.Caller.Key, made.ID, "KEY")
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %d", who, e.Verb, e.Object.Kind, e.Result, e.Status)))
	}
	want := []string{
		"socket create key ok 201", "KEY create box ok 201", "KEY get box BOX_NOT_FOUND 404", "KEY list node FORBIDDEN 403",
		"UNAUTHENTICATED 401",
	}
	if diff := strings.Join(got, "\n"); strings.Join(strings.Fields(diff), " ") != strings.Join(strings.Fields(strings.Join(want, "\n")), " ") {
		t.Errorf("got:\n%s", diff)
	}
	if strings.Contains(string(data), "hunter2") || strings.Contains(string(data), made.Secret) {
		t.Errorf("a secret is in it: %s", data)
	}
}

// TestS08_TCP: over TCP a key is needed, and the Host must be ours.
func TestS08_TCP(t *testing.T) {
	k := newKeyed(t, nil)
	_, admin := k.key(t, keystore.Key{Admin: true})
	token := strings.TrimPrefix(admin[1], "Bearer ")
	s, err := server.New(server.Config{Manager: k.manager, Keys: k.store, OwnName: func(n string) bool { return n == "box.example" }})
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
	k.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
	}}}
	defer k.http.CloseIdleConnections()
	own := "127.0.0.1:" + port
	ws := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
	for _, c := range []struct {
		path   string
		header []string
		want   int
	}{
		{"/v1/sandboxes", []string{"Host", own, "X-API-Key", token}, http.StatusOK},
		{"/v1/sandboxes", append([]string{"Host", own}, admin...), http.StatusOK},
		{"/v1/sandboxes", append([]string{"Host", "box.example:" + port}, admin...), http.StatusOK},
		{"/v1/sandboxes", append([]string{"Host", own, "Origin", "http://" + own}, admin...), http.StatusOK},
		{"/v1/sandboxes", []string{"Host", own}, http.StatusUnauthorized},
		{"/v1/sandboxes", []string{"Host", own, "X-API-Key", token + "x"}, http.StatusUnauthorized},
		{"/v1/sandboxes", []string{"Host", own, "X-API-Key", token, "Authorization", "Bearer " + token}, http.StatusUnauthorized},
		{"/v1/sandboxes?api_key=" + token, []string{"Host", own}, http.StatusUnauthorized}, // S10: never in a URL
		{"/v1/sandboxes", append([]string{"Host", "evil.test:" + port}, admin...), http.StatusForbidden},
		{"/v1/sandboxes", append([]string{"Host", "box.example.evil:" + port}, admin...), http.StatusForbidden},
		{"/v1/sandboxes", append([]string{"Host", own, "Origin", "null"}, admin...), http.StatusForbidden},
		{"/v1/sandboxes", append([]string{"Host", own, "Origin", "http://127.0.0.1:1"}, admin...), http.StatusForbidden},
		{"/v1/sandboxes/b1/exec/ws", append(append([]string{"Host", own, "Origin", "https://evil.test"}, ws...), admin...), http.StatusForbidden},
		{"/v1/sandboxes/b1/exec/ws", append(append([]string{"Host", own, "Origin", "null"}, ws...), admin...), http.StatusForbidden},
		{"/v1/sandboxes/b1/exec/ws", append([]string{"Host", own}, ws...), http.StatusUnauthorized},
	} {
		if status, _, body := k.call("GET", c.path, "", c.header...); status != c.want {
			t.Errorf("%s %v: %d, want %d: %s", c.path, c.header[:2], status, c.want, body)
		}
	}
}
