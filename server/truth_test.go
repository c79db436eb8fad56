package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/taibox/taibox/api/rest"
)

// TestL07_StartBody: a start has nothing to say, and what is said all the same
// is refused by name.
func TestL07_StartBody(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1"})
	if status, _, body := w.call(http.MethodPost, "/v1/sandboxes/b1/stop", ""); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	status, _, body := w.call(http.MethodPost, "/v1/sandboxes/b1/start", `{"grace":1}`, "Content-Type", "application/json")
	if status != http.StatusBadRequest || !strings.Contains(body, "grace") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := w.call(http.MethodGet, "/v1/sandboxes/b1", ""); status != http.StatusOK || !strings.Contains(body, `"stopped"`) {
		t.Errorf("it was started all the same: %s", body)
	}
	for _, empty := range []string{"", "{}"} {
		header := []string{}
		if empty != "" {
			header = []string{"Content-Type", "application/json"}
		}
		if status, _, body := w.call(http.MethodPost, "/v1/sandboxes/b1/start", empty, header...); status != http.StatusOK {
			t.Errorf("%q: %d %s", empty, status, body)
		}
	}
}

// The list has the number of processes that there are now.
func TestListCountsProcesses(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1"})
	if status, _, body := w.call(http.MethodPost, "/v1/sandboxes/b1/exec", `{"cmd":["sleep","600"],"detach":true}`, "Content-Type", "application/json"); status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	list, err := w.ListBoxes(t.Context(), rest.ListBoxes{})
	if err != nil || len(list) != 1 || list[0].ProcessCount < 2 {
		t.Errorf("%+v, %v", list, err)
	}
	one, err := w.GetBox(t.Context(), "b1")
	if err != nil || one.ProcessCount != list[0].ProcessCount {
		t.Errorf("alone it has %d processes, %v", one.ProcessCount, err)
	}
}

// An archive that is not whole is the sender's affair: it is told what is wrong.
func TestLoadCorrupt(t *testing.T) {
	w := newWorld(t)
	status, _, body := w.call(http.MethodPost, "/v1/images/load", strings.Repeat("no archive ", 100), "Content-Type", "application/x-tar")
	if status != http.StatusUnprocessableEntity || !strings.Contains(body, `"IMAGE_CORRUPT"`) || strings.Contains(body, rest.ErrInternal.Msg) {
		t.Errorf("%d %s", status, body)
	}
}
