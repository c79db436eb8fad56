package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/keystore"
	"github.com/taibox/taibox/server"
)

// TestKeysGrantNoMoreThanTheyHave: a key makes none that may do what it may
// not, or that outlives it.
func TestKeysGrantNoMoreThanTheyHave(t *testing.T) {
	k := newKeyed(t, nil)
	_, full := k.key(t, keystore.Key{Admin: true})
	_, some := k.key(t, keystore.Key{Admin: true, Verbs: []string{"create", "list"}})
	_, brief := k.key(t, keystore.Key{Admin: true, Expires: time.Now().Add(time.Hour)})
	for name, c := range map[string]struct {
		header []string
		body   string
		status int
	}{
		"full":              {full, `{"admin":true}`, http.StatusCreated},
		"full-some":         {full, `{"admin":true,"verbs":["exec"]}`, http.StatusCreated},
		"some-all":          {some, `{"admin":true}`, http.StatusForbidden},
		"some-all-of-owner": {some, `{"owner":"o"}`, http.StatusForbidden},
		"some-no-verbs":     {some, `{"admin":true,"verbs":[]}`, http.StatusForbidden},
		"some-other":        {some, `{"admin":true,"verbs":["create","exec"]}`, http.StatusForbidden},
		"some-fewer":        {some, `{"admin":true,"verbs":["list"]}`, http.StatusCreated},
		"some-the-same":     {some, `{"owner":"o","verbs":["list","create"]}`, http.StatusCreated},
		"brief-for-ever":    {brief, `{"admin":true}`, http.StatusForbidden},
		"brief-longer":      {brief, `{"owner":"o","expires_in_ms":7200000}`, http.StatusForbidden},
		"brief-shorter":     {brief, `{"admin":true,"expires_in_ms":60000}`, http.StatusCreated},
	} {
		before := len(k.store.List())
		status, _, answer := k.call(http.MethodPost, "/v1/keys", c.body, c.header...)
		if status != c.status {
			t.Errorf("%s: %d %s; wanted is %d", name, status, answer, c.status)
		}
		if made := len(k.store.List()) - before; made != 0 && c.status != http.StatusCreated {
			t.Errorf("%s: a key was made", name)
		}
		if c.status == http.StatusForbidden && failure(t, answer).Hint == "" {
			t.Errorf("%s: no hint in %s", name, answer)
		}
	}
}

// TestMachineNeedsExec: what a box is given of the machine is asked for like
// anything else, and is for admins whose key may exec.
func TestMachineNeedsExec(t *testing.T) {
	a := &authority{}
	k := newKeyed(t, func(c *server.Config) { c.Authorizer = a })
	quoted, err := json.Marshal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := string(quoted)
	bodies := map[string]string{
		"mount":    `{"mounts":[{"source":` + dir + `,"target":"/m"}]}`,
		"mount-ro": `{"mounts":[{"source":` + dir + `,"target":"/m","read_only":true}]}`,
		"device":   `{"devices":["vendor.com/gpu=0"]}`,
	}
	for name, c := range map[string]struct {
		key    keystore.Key
		status int
	}{
		"admin":         {keystore.Key{Admin: true}, http.StatusCreated},
		"admin-exec":    {keystore.Key{Admin: true, Verbs: []string{"create", "exec"}}, http.StatusCreated},
		"admin-no-exec": {keystore.Key{Admin: true, Verbs: []string{"create", "get", "list", "start"}}, http.StatusForbidden},
		"owner":         {keystore.Key{Owner: "o"}, http.StatusForbidden},
	} {
		_, header := k.key(t, c.key)
		for what, body := range bodies {
			a.take()
			if status, _, answer := k.call(http.MethodPost, "/v1/sandboxes", body, header...); status != c.status {
				t.Errorf("%s for %s: %d %s; wanted is %d", what, name, status, answer, c.status)
			}
			asked := a.take()
			if last := asked[len(asked)-1]; len(asked) != 2 || last.Kind != server.KindHost || last.Node != "local" || !strings.Contains(body, last.ID) {
				t.Errorf("%s for %s: asked about %+v", what, name, asked)
			}
		}
	}
	if boxes, err := k.ListBoxes(k.ctx, rest.ListBoxes{}); err != nil || len(boxes) != 2*len(bodies) {
		t.Errorf("%d boxes, %v", len(boxes), err)
	}
}
