package server_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/taibox/taibox/api/rest"
)

// FuzzRequest: no method, path or body makes a failure of ours, and every
// failure has our form.
func FuzzRequest(f *testing.F) {
	for _, route := range fullAPI {
		method, path, _ := strings.Cut(route, " ")
		path = strings.NewReplacer("/workspaces/{id}", "/workspaces/w1", "{id}", "b1", "{exec}", "e1", "{ref}", "hostfs", "{name}", "s1").Replace(path)
		f.Add(method, path, `{"cmd":["true"],"timeout_ms":50}`)
	}
	f.Add("POST", "/v1/sandboxes", `{"id":"b2","image":"hostfs","labels":{"a":"b"},"entrypoint":[],"memory_bytes":0}`)
	f.Add("POST", "/v1/sandboxes/b1/exec", `{"cmd":["cat"],"stdin_b64":"eA==","env":{"A":"b"},"tty":true,"cols":80,"rows":24}`)
	f.Add("POST", "/v1/sandboxes/b1/exec", "[[[[[[{\"\u0000\":null}]]]]]]")
	f.Add("GET", "/v1/sandboxes/%2e%2e/exec?limit=-1&label==&next_token=%00", "")
	w := newWorld(f)
	f.Add("GET", "/v1/workspaces/w1/files?path=..%2f..%2fetc%2fpasswd", "")
	f.Add("GET", "/v1/workspaces/w1/files?path_b64=YQ==", "")
	f.Add("POST", "/v1/workspaces/w1/pack", `{"path":"a","to":"b.zip","format":"zip"}`)
	f.Add("POST", "/v1/workspaces/w1/extract", `{"path":"a","to":"b","max_entries":1}`)
	f.Add("POST", "/v1/workspaces/w1/files/rename", `{"path":"a","to_b64":"/w=="}`)
	f.Add("PATCH", "/v1/workspaces/w1", `{"name":"x","labels":{"a":"b"},"quota_bytes":-1}`)
	w.create(rest.CreateBox{ID: "b1"})
	w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	w.runReq("b1", rest.ExecRequest{ID: "e1", Cmd: []string{"true"}})
	f.Fuzz(func(t *testing.T, method, path, body string) {
		u, err := url.Parse("http://taibox" + path)
		if err != nil || u.Host != "taibox" || strings.HasSuffix(u.Path, "/wait") || u.Path == "/v1/events" || strings.HasSuffix(u.Path, "/files/watch") { // these have no end
			t.Skip()
		}
		if strings.HasSuffix(u.Path, "/exec") && !strings.Contains(body, "timeout_ms") {
			t.Skip() // it may run for ever, as it should
		}
		req, err := http.NewRequestWithContext(t.Context(), method, u.String(), strings.NewReader(body))
		if err != nil {
			t.Skip()
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := w.http.Do(req)
		if err != nil {
			t.Skip() // not a request that the client would send
		}
		defer resp.Body.Close()
		var text strings.Builder
		if _, err := copyLimited(&text, resp.Body); err != nil {
			t.Fatal(err)
		}
		if resp.Header.Get("X-Request-Id") == "" {
			t.Skip() // net/http refused it before it came to us
		}
		if resp.StatusCode >= http.StatusBadRequest && method != http.MethodHead {
			e := failure(t, text.String())
			if resp.StatusCode >= http.StatusInternalServerError && !strings.HasSuffix(e.Code, "UNSUPPORTED") {
				t.Errorf("%s %q %q: %d %s\n%s", method, path, body, resp.StatusCode, text.String(), w.log.String())
			}
		}
		if w.manager == nil || strings.Contains(w.log.String(), "level=ERROR") {
			t.Errorf("%s %q %q: %s", method, path, body, w.log.String())
		}
	})
}

// FuzzFrames: no frame ends more than its own socket.
func FuzzFrames(f *testing.F) {
	f.Add(`{"type":"start","cmd":["cat"],"stdin":true}`, `{"type":"ack","offset":-9223372036854775808}`, []byte{0, 'x'})
	f.Add(`{"type":"start","cmd":["seq","1","10"],"tty":true,"cols":80,"rows":24}`, `{"type":"resize","cols":1,"rows":1}`, []byte{})
	f.Add(`{"type":"start","cmd":["sleep","1"]}`, `{"type":"signal","signal":-1}`, []byte{9})
	f.Add(`{"type":"start","cmd":["true"],"lease_ms":-1}`, `{"type":"hangup"}`, []byte{0})
	f.Add(`[]`, `{"type":"stdin_eof"}`, []byte{0, 0})
	w := newWorld(f)
	w.create(rest.CreateBox{ID: "b1"})
	f.Fuzz(func(t *testing.T, start, text string, data []byte) {
		if strings.Contains(start, `"id"`) {
			t.Skip()
		}
		ws, _, err := websocket.Dial(t.Context(), "ws://taibox/v1/sandboxes/b1/exec/ws", &websocket.DialOptions{HTTPClient: w.http})
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow()
		for _, frame := range []string{start, text, text} {
			ws.Write(t.Context(), websocket.MessageText, []byte(frame))
			ws.Write(t.Context(), websocket.MessageBinary, data)
		}
		ws.Close(websocket.StatusNormalClosure, "")
		if strings.Contains(w.log.String(), "level=ERROR") {
			t.Errorf("%q %q %q: %s", start, text, data, w.log.String())
		}
	})
}
