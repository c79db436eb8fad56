package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/taibox/taibox/api/rest"
)

// TestBodiesAreUTF8: a body with other bytes is refused, and not taken for one
// with other characters.
func TestBodiesAreUTF8(t *testing.T) {
	w := boxWorld(t)
	w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	for path, body := range map[string]string{
		"/v1/sandboxes":                  "{\"labels\":{\"a\":\"\xff\"}}",
		"/v1/sandboxes/b1/exec":          "{\"cmd\":[\"echo\",\"\xff\"]}",
		"/v1/sandboxes/b1/files/mkdir":   "{\"path\":\"/\xe9\"}",
		"/v1/workspaces/w1/files/rename": "{\"path\":\"a\",\"to\":\"\xc3\"}",
		"/v1/images/pull":                "{\"image\":\"a\xffb\"}",
	} {
		for _, mend := range []bool{false, true} {
			if mend {
				body = strings.ToValidUTF8(body, "\uFFFD")
			}
			status, _, answer := w.call(http.MethodPost, path, body)
			refused := status == http.StatusBadRequest && strings.Contains(answer, "UTF-8")
			if refused == mend {
				t.Errorf("%s %q: %d %s", path, body, status, answer)
			}
		}
	}
	s := w.dial(t, "b1/exec/ws")
	s.send("{\"type\":\"start\",\"cmd\":[\"echo\",\"\xff\"]}")
	if f := s.want(rest.FrameError); f.Error == nil || f.Error.Code != rest.ErrRequest.Reason {
		t.Errorf("%+v", f)
	}
}
