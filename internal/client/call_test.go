package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// serving returns a client of a server in memory.
func serving(t *testing.T, h http.HandlerFunc, revive func(context.Context) error) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := New(s.URL, WithRevive(revive))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

var stopping = rest.Failure(rest.Error{Code: rest.ErrStopping.Reason, Message: "server is stopping"})

// TestStoppingServer: a server that says that it stops is one that went away.
// What waits comes again as often as that happens, and what may be repeated is
// so once.
func TestStoppingServer(t *testing.T) {
	var stops atomic.Int32 // how often it still does
	c := serving(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/version":
			answer(w, http.StatusOK, rest.Version{})
		case stops.Add(-1) >= 0:
			answer(w, http.StatusServiceUnavailable, stopping)
		default:
			answer(w, http.StatusOK, rest.Exec{ID: "e1"})
		}
	}, func(context.Context) error { return nil })
	for _, call := range []struct {
		name  string
		stops int32
		do    func() (rest.Exec, error)
		ok    bool
	}{
		{"wait", 4, func() (rest.Exec, error) { return c.WaitExec(t.Context(), "b1", "e1") }, true},
		{"wait_for_box", 4, func() (rest.Exec, error) { _, err := c.WaitBox(t.Context(), "b1"); return rest.Exec{}, err }, true},
		{"get", 1, func() (rest.Exec, error) { return c.GetExec(t.Context(), "b1", "e1") }, true},
		{"get_in_vain", 2, func() (rest.Exec, error) { return c.GetExec(t.Context(), "b1", "e1") }, false},
		{"post_with_key", 1, func() (rest.Exec, error) {
			return c.ExecDetached(t.Context(), "b1", rest.ExecRequest{IdempotencyKey: "k"})
		}, true},
		{"post", 1, func() (rest.Exec, error) { return c.ExecDetached(t.Context(), "b1", rest.ExecRequest{}) }, false},
	} {
		stops.Store(call.stops)
		if _, err := call.do(); (err == nil) != call.ok || !call.ok && !errors.Is(err, rest.ErrStopping) {
			t.Errorf("%s: %v", call.name, err)
		}
	}
}

// TestServerThatDoesNotComeBack ends a wait, after as long as an exec outlives
// its link, or at once where that is known.
func TestServerThatDoesNotComeBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		revive error
		after  time.Duration
	}{
		{"gone", rest.ErrUnreachable, taisandbox.DefaultLease},
		{"refused", rest.ErrForbidden, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl, err := New("unix:///nonexistent", WithRevive(func(context.Context) error { return c.revive }))
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				_, err = cl.WaitExec(t.Context(), "b1", "e1")
				if took := time.Since(began); !errors.Is(err, c.revive) || took < c.after || took > c.after+2*retryMost {
					t.Errorf("%v after %v, want %v after %v", err, took, c.revive, c.after)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				left := errors.New("left")
				time.AfterFunc(retryFirst/2, func() { cancel(left) })
				if _, err := cl.WaitExec(ctx, "b1", "e1"); !errors.Is(err, left) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// TestListsAreReadToTheEnd page by page.
func TestListsAreReadToTheEnd(t *testing.T) {
	pages := map[string][]string{"": {"a", "b"}, "t1": {"c"}, "t2": {}}
	next := map[string]string{"": "t1", "t1": "t2"}
	c := serving(t, func(w http.ResponseWriter, r *http.Request) {
		at := r.URL.Query().Get("next_token")
		items := []map[string]string{}
		for _, id := range pages[at] {
			items = append(items, map[string]string{"id": id, "name": id, "tai_id": id})
		}
		answer(w, http.StatusOK, map[string]any{"items": items, "next_token": next[at]})
	}, nil)
	want := []string{"a", "b", "c"}
	boxes, err := c.ListBoxes(t.Context(), rest.ListBoxes{})
	checkList(t, "boxes", boxes, err, func(b rest.Box) string { return b.ID }, want)
	execs, err := c.ListExecs(t.Context(), "b1")
	checkList(t, "execs", execs, err, func(e rest.Exec) string { return e.ID }, want)
	images, err := c.ListImages(t.Context())
	checkList(t, "images", images, err, func(i rest.Image) string { return i.Name }, want)
	keys, err := c.ListKeys(t.Context())
	checkList(t, "keys", keys, err, func(k rest.Key) string { return k.ID }, want)
	workspaces, err := c.ListWorkspaces(t.Context(), rest.ListWorkspaces{})
	checkList(t, "workspaces", workspaces, err, func(w rest.Workspace) string { return w.ID }, want)
	nodes, err := c.Nodes(t.Context())
	checkList(t, "nodes", nodes, err, func(n rest.Node) string { return n.TaiID }, want)
}

func checkList[T any](t *testing.T, what string, items []T, err error, id func(T) string, want []string) {
	t.Helper()
	var got []string
	for _, i := range items {
		got = append(got, id(i))
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: %v %v, want %v", what, got, err, want)
	}
}
