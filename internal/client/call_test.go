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
	"github.com/taibox/taibox/tai/volume"
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
	var stops, revived atomic.Int32 // how often it still does, and was started
	c := serving(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/version":
			answer(w, http.StatusOK, rest.Version{})
		case stops.Add(-1) >= 0:
			answer(w, http.StatusServiceUnavailable, stopping)
		default:
			answer(w, http.StatusOK, rest.Exec{ID: "e1"})
		}
	}, func(context.Context) error {
		revived.Add(1)
		return nil
	})
	for _, call := range []struct {
		name  string
		stops int32
		do    func() (rest.Exec, error)
		ok    bool
		waits bool
	}{
		{"wait", 4, func() (rest.Exec, error) { return c.WaitExec(t.Context(), "b1", "e1") }, true, true},
		{"wait_for_box", 4, func() (rest.Exec, error) { _, err := c.WaitBox(t.Context(), "b1"); return rest.Exec{}, err }, true, true},
		{"get", 1, func() (rest.Exec, error) { return c.GetExec(t.Context(), "b1", "e1") }, true, false},
		{"get_in_vain", 2, func() (rest.Exec, error) { return c.GetExec(t.Context(), "b1", "e1") }, false, false},
		{"post_with_key", 1, func() (rest.Exec, error) {
			return c.ExecDetached(t.Context(), "b1", rest.ExecRequest{IdempotencyKey: "k"})
		}, true, false},
		{"post", 1, func() (rest.Exec, error) { return c.ExecDetached(t.Context(), "b1", rest.ExecRequest{}) }, false, false},
	} {
		stops.Store(call.stops)
		revived.Store(0)
		if _, err := call.do(); (err == nil) != call.ok || !call.ok && !errors.Is(err, rest.ErrStopping) {
			t.Errorf("%s: %v", call.name, err)
		}
		if n := revived.Load(); call.waits && n > 0 {
			t.Errorf("%s: had the server started %d times that was told to stop", call.name, n)
		}
	}
}

// TestStoppedServerStaysStopped: a wait that was told that the server stops
// waits for another one, and has none started, also when nothing answers any
// more. Where a server vanished without a word it has.
func TestStoppedServerStaysStopped(t *testing.T) {
	for name, told := range map[string]bool{"told": true, "vanished": false} {
		t.Run(name, func(t *testing.T) {
			var asked, revived atomic.Int32
			cl := serving(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/version" {
					answer(w, http.StatusOK, rest.Version{})
					return
				}
				switch n := asked.Add(1); {
				case n == 1 && told:
					answer(w, http.StatusServiceUnavailable, stopping)
				case n <= 3:
					panic(http.ErrAbortHandler) // the connection ends without an answer
				default:
					answer(w, http.StatusOK, rest.Exec{ID: "e1"})
				}
			}, func(context.Context) error {
				revived.Add(1)
				return nil
			})
			if e, err := cl.WaitExec(t.Context(), "b1", "e1"); err != nil || e.ID != "e1" || told != (revived.Load() == 0) {
				t.Errorf("%+v %v, revived %d times", e, err, revived.Load())
			}
		})
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
			items = append(items, map[string]string{"id": id, "name": id, "tai_id": id, "path": id, "mode": "0644", "type": "file"})
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
	stats, err := c.AllStats(t.Context())
	checkList(t, "stats", stats, err, func(s rest.BoxStats) string { return s.ID }, want)
	snapshots, err := c.Workspace("w1").ListSnapshots(t.Context())
	checkList(t, "snapshots", snapshots, err, func(s rest.Snapshot) string { return s.Name }, want)
	changes, err := c.Workspace("w1").Diff(t.Context(), "s1", "")
	checkList(t, "changes", changes, err, func(c volume.Change) string { return c.Path }, want)
	files, err := c.Workspace("w1").List(t.Context(), "d")
	checkList(t, "files", files, err, func(f volume.FileInfo) string { return f.Name }, want)
	inBox, err := c.ListFiles(t.Context(), "b1", "/d", taisandbox.FileOptions{User: "u"})
	checkList(t, "files in a box", inBox, err, func(f taisandbox.FileInfo) string { return f.Name }, want)
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
