package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/keystore"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
	"github.com/taibox/taibox/workspace"
)

func TestMounts(t *testing.T) {
	w := newWorld(t)
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "ws-a"})
	w.createWorkspace(rest.CreateWorkspace{ID: "ws-b"})
	dir := t.TempDir()
	want := []rest.Mount{
		{WorkspaceID: "ws-a", Target: "/data", ReadOnly: true}, {WorkspaceID: "ws-b", Target: "/b"}, {Source: dir, Target: "/m", ReadOnly: true},
	}
	b := w.create(rest.CreateBox{ID: "b1", WorkspaceID: "ws-a", MountMode: "ro", MountPath: "/data", Mounts: want[1:]})
	if diff := cmp.Diff(want, b.Mounts); diff != "" || b.WorkspaceID != "ws-a" || b.WorkDir != "/data" || b.NodeID != "local" {
		t.Errorf("made is %+v (-want +got):\n%s", b, diff)
	}
	w.restart()
	b, err := w.GetBox(w.ctx, "b1")
	if diff := cmp.Diff(want, b.Mounts); err != nil || diff != "" || b.WorkspaceID != "ws-a" {
		t.Errorf("after a restart it is %+v, %v (-want +got):\n%s", b, err, diff)
	}
	// Where a workspace lies on the machine is told to nobody.
	if _, _, body := w.call(http.MethodGet, "/v1/sandboxes/b1", ""); strings.Contains(body, w.dir) {
		t.Errorf("the answer has the directory of the workspaces: %s", body)
	}
	if err := ws.Delete(w.ctx); err == nil {
		t.Error("a mounted workspace was deleted")
	}
	// A box without mounts says so with a list.
	if _, _, body := w.call(http.MethodPost, "/v1/sandboxes", `{}`); !strings.Contains(body, `"mounts":[]`) || strings.Contains(body, "workspace_id") {
		t.Errorf("made is %s", body)
	}
	for body, status := range map[string]int{
		`{"workspace_id":"nosuch"}`:                                       http.StatusNotFound,
		`{"workspace_id":"ws-a","mount_mode":"rx"}`:                       http.StatusBadRequest,
		`{"workspace_id":"ws-a","mount_path":"/proc"}`:                    http.StatusBadRequest,
		`{"mount_path":"/x"}`:                                             http.StatusBadRequest,
		`{"mounts":[{"target":"/x"}]}`:                                    http.StatusBadRequest,
		`{"mounts":[{"source":"/no/such","target":"/x"}]}`:                http.StatusConflict,
		`{"mounts":[{"source":"/srv","workspace_id":"a","target":"/x"}]}`: http.StatusNotFound, // told of what it may know first
	} {
		if got, _, answer := w.call(http.MethodPost, "/v1/sandboxes", body); got != status {
			t.Errorf("%s: %d %s; wanted is %d", body, got, answer, status)
		}
	}
}

// TestMountsOfOwners: an owner's boxes mount its own workspaces, and nothing of
// the machine.
func TestMountsOfOwners(t *testing.T) {
	k := newKeyed(t, nil)
	k.createWorkspace(rest.CreateWorkspace{ID: "mine", Owner: "o"})
	k.createWorkspace(rest.CreateWorkspace{ID: "theirs", Owner: "p"})
	k.createWorkspace(rest.CreateWorkspace{ID: "nobodys"})
	_, owner := k.key(t, keystore.Key{Owner: "o"})
	_, noExec := k.key(t, keystore.Key{Owner: "o", Verbs: []string{"create", "get", "list"}})
	_, admin := k.key(t, keystore.Key{Admin: true})
	dir, err := json.Marshal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	machine := `{"mounts":[{"source":` + string(dir) + `,"target":"/x"}]}`
	for name, c := range map[string]struct {
		header []string
		body   string
		status int
	}{
		"own":             {owner, `{"workspace_id":"mine"}`, http.StatusCreated},
		"own-mount":       {owner, `{"mounts":[{"workspace_id":"mine","target":"/x"}]}`, http.StatusCreated},
		"others":          {owner, `{"workspace_id":"theirs"}`, http.StatusNotFound},
		"others-ro":       {owner, `{"workspace_id":"theirs","mount_mode":"ro"}`, http.StatusNotFound},
		"others-mount":    {owner, `{"workspace_id":"mine","mounts":[{"workspace_id":"theirs","target":"/x"}]}`, http.StatusNotFound},
		"nobodys":         {owner, `{"workspace_id":"nobodys"}`, http.StatusNotFound},
		"unknown":         {owner, `{"workspace_id":"nosuch"}`, http.StatusNotFound},
		"machine":         {owner, machine, http.StatusForbidden},
		"machine-missing": {owner, `{"mounts":[{"source":"/no/such","target":"/x"}]}`, http.StatusForbidden},
		"no-exec":         {noExec, `{"workspace_id":"mine"}`, http.StatusForbidden},
		"no-exec-ro":      {noExec, `{"workspace_id":"mine","mount_mode":"ro"}`, http.StatusCreated},
		"admin":           {admin, `{"workspace_id":"theirs","owner":"o"}`, http.StatusCreated},
		"admin-machine":   {admin, machine, http.StatusCreated},
	} {
		if got, _, answer := k.call(http.MethodPost, "/v1/sandboxes", c.body, c.header...); got != c.status {
			t.Errorf("%s: %d %s; wanted is %d", name, got, answer, c.status)
		}
	}
	// To the letter what is said of one that does not exist.
	texts := map[string]string{}
	for _, id := range []string{"theirs", "nosuch"} {
		_, _, answer := k.call(http.MethodPost, "/v1/sandboxes", `{"workspace_id":"`+id+`"}`, owner...)
		var body struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal([]byte(answer), &body); err != nil {
			t.Fatal(err)
		}
		texts[id] = body.Error.Code + strings.ReplaceAll(body.Error.Message, id, "ID")
	}
	if texts["theirs"] != texts["nosuch"] {
		t.Errorf("another owner's workspace is told from none: %q", texts)
	}
}

// border is the server's own, and says which workspaces it let somebody use.
type border struct {
	server.Border
	let chan string
}

func (b border) Authorize(ctx context.Context, c server.Caller, verb server.Verb, o server.Object) error {
	err := b.Border.Authorize(ctx, c, verb, o)
	if err == nil && o.Kind == server.KindWorkspace && verb == server.VerbExec {
		b.let <- o.ID
	}
	return err
}

// J05: a box does not get the workspace that another owner has by the time its
// turn comes under an ID that its own owner was let in with.
func TestJ05BoxOutlivesWorkspace(t *testing.T) {
	let := make(chan string, 16)
	k := newKeyed(t, func(c *server.Config) { c.Authorizer = border{let: let} })
	_, one := k.key(t, keystore.Key{Owner: "u1"})
	k.createWorkspace(rest.CreateWorkspace{ID: "busy", Owner: "u1"})
	proj := k.createWorkspace(rest.CreateWorkspace{ID: "proj", Owner: "u1"})
	release, err := k.workspaces.Hold(k.ctx, "busy")
	if err != nil {
		t.Fatal(err)
	}
	deleting, giveUp := context.WithCancelCause(k.ctx)
	deleted := make(chan error, 1)
	go func() { deleted <- k.workspaces.Delete(deleting, "busy") }()
	eventually(t, "a delete of it waits, and who wants to hold it with that", func() bool {
		ctx, cancel := context.WithTimeoutCause(k.ctx, 10*time.Millisecond, context.DeadlineExceeded)
		defer cancel()
		again, err := k.workspaces.Hold(ctx, "busy")
		if err == nil {
			again()
		}
		return err != nil
	})
	type answer struct {
		status int
		body   string
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		a.status, _, a.body = k.call(http.MethodPost, "/v1/sandboxes",
			`{"id":"b1","mounts":[{"workspace_id":"busy","target":"/busy"},{"workspace_id":"proj","target":"/proj"}]}`, one...)
		answers <- a
	}()
	for id := range let {
		if id == "proj" {
			break
		}
	}
	if err := proj.Delete(k.ctx); err != nil {
		t.Fatal(err)
	}
	k.createWorkspace(rest.CreateWorkspace{ID: "proj", Owner: "u2"})
	giveUp(nil)
	<-deleted
	release()
	if a := <-answers; a.status != http.StatusNotFound || !strings.Contains(a.body, workspace.ErrNotFound.Reason) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if _, err := k.GetBox(k.ctx, "b1"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("the box: %v", err)
	}
}
