package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// TestListsArePaged: page by page there is what one page holds, in the same
// order.
func TestListsArePaged(t *testing.T) {
	w := newWorld(t, fake.WithRegistry(map[string]taisandbox.ImageConfig{"example.test/a:1": {}, "example.test/a/b:1": {}}))
	for i := range 3 {
		w.create(rest.CreateBox{ID: fmt.Sprintf("b%d", i)})
		w.run("b0", "true")
		w.createWorkspace(rest.CreateWorkspace{ID: fmt.Sprintf("w%d", i)})
		if _, err := w.CreateKey(w.ctx, rest.CreateKey{Owner: "o"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, ref := range []string{"example.test/a:1", "example.test/a/b:1"} {
		if err := w.PullImage(w.ctx, rest.PullImage{Image: ref}, func(rest.PullEvent) {}); err != nil {
			t.Fatal(err)
		}
	}
	ws := w.Workspace("w0")
	for i, name := range []string{"c", "a", "b\xff"} {
		if _, err := w.WriteFile(w.ctx, "b0", "/d/"+name, strings.NewReader(""), taisandbox.FileOptions{All: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := ws.CreateSnapshot(w.ctx, fmt.Sprintf("s%d", i)); err != nil {
			t.Fatal(err)
		}
		w.write(t, ws, name, "text")
	}
	for path, n := range map[string]int{
		"/v1/sandboxes?": 3, "/v1/sandboxes/b0/execs?": 3, "/v1/images?": 3, "/v1/keys?": 3, "/v1/nodes?": 1, "/v1/workspaces?": 3,
		"/v1/stats?": 3, "/v1/sandboxes/b0/files/list?path=/d&": 3,
		"/v1/workspaces/w0/files/list?": 3, "/v1/workspaces/w0/snapshots?": 3, "/v1/workspaces/w0/diff?from=s0&": 3,
	} {
		t.Run(path, func(t *testing.T) {
			get := func(q url.Values) (items []any, next string) {
				t.Helper()
				status, _, body := w.call(http.MethodGet, path+q.Encode(), "")
				var page struct {
					Items     []any
					NextToken string `json:"next_token"`
				}
				if err := json.Unmarshal([]byte(body), &page); err != nil || status != http.StatusOK {
					t.Fatalf("%d %s %v", status, body, err)
				}
				return page.Items, page.NextToken
			}
			all, next := get(nil)
			if len(all) != n || next != "" {
				t.Errorf("%d items and the token %q, want %d and none", len(all), next, n)
			}
			var paged []any
			for q := (url.Values{"limit": {"1"}}); ; {
				items, next := get(q)
				if len(items) != 1 {
					t.Fatalf("%d items on a page of 1", len(items))
				}
				paged = append(paged, items...)
				if next == "" {
					break
				}
				q.Set("next_token", next)
			}
			moving := cmpopts.IgnoreMapEntries(func(k string, _ any) bool { return path == "/v1/stats?" && k != "id" })
			if diff := cmp.Diff(all, paged, moving); diff != "" {
				t.Errorf("page by page (-all +paged):\n%s", diff)
			}
			for _, q := range []string{"limit=50000", "limit=-1", "next_token=AAAA"} {
				if status, _, body := w.call(http.MethodGet, path+q, ""); status != http.StatusBadRequest {
					t.Errorf("%s: %d %s", q, status, body)
				}
			}
		})
	}
}

// TestStateOfAList: a state that no box can have is no empty list.
func TestStateOfAList(t *testing.T) {
	w := newWorld(t)
	for state, want := range map[string]int{
		"": 200, "creating": 200, "created": 200, "running": 200, "stopping": 200, "stopped": 200, "removing": 200, "failed": 200,
		"bogus": 400, "Running": 400, "running,stopped": 400,
	} {
		status, _, body := w.call(http.MethodGet, "/v1/sandboxes?status="+state, "")
		if status != want || want != http.StatusOK && !strings.Contains(failure(t, body).Message, "stopped, removing") {
			t.Errorf("%s: %d %s", state, status, body)
		}
	}
}
