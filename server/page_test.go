package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	for path, n := range map[string]int{
		"/v1/sandboxes": 3, "/v1/sandboxes/b0/execs": 3, "/v1/images": 3, "/v1/keys": 3, "/v1/nodes": 1, "/v1/workspaces": 3,
	} {
		t.Run(path, func(t *testing.T) {
			get := func(q url.Values) (items []any, next string) {
				t.Helper()
				status, _, body := w.call(http.MethodGet, path+"?"+q.Encode(), "")
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
			if diff := cmp.Diff(all, paged); diff != "" {
				t.Errorf("page by page (-all +paged):\n%s", diff)
			}
			for _, q := range []string{"limit=5000", "limit=-1", "next_token=AAAA"} {
				if status, _, body := w.call(http.MethodGet, path+"?"+q, ""); status != http.StatusBadRequest {
					t.Errorf("%s: %d %s", q, status, body)
				}
			}
		})
	}
}
