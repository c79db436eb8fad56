package server_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/audit"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// entries returns what the audit log says of results.
func (k *keyed) entries(t *testing.T) (got []string) {
	t.Helper()
	data, err := os.ReadFile(k.audit)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %d %s", e.Verb, e.Object.ID, e.Result, e.Status, e.Object.Exec)))
	}
	return got
}

// TestAuditOfExecs: the log tells which exec was started, and of a socket not
// that it was opened but what came of it.
func TestAuditOfExecs(t *testing.T) {
	k := newKeyed(t, nil)
	k.create(rest.CreateBox{ID: "b1"})
	want := []string{"create b1 ok 201"}
	then := func(entry string) {
		t.Helper()
		want = append(want, entry)
		eventually(t, entry, func() bool { return len(k.entries(t)) >= len(want) })
		if diff := cmp.Diff(want, k.entries(t)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
	s := k.startRaw(t, "b1", `{"type":"start","id":"good","cmd":["sleep","infinity"]}`)
	then("exec b1 ok 101 good") // while it runs
	if err := k.KillExec(k.ctx, "b1", "good", taisandbox.KillOptions{}); err != nil {
		t.Fatal(err)
	}
	s.want(rest.FrameExit)
	then("exec b1 ok 204 good")

	for start, code := range map[string]string{
		`{"type":"start","cmd":["true"],"user":"nosuch"}`: taisandbox.ErrUserNotFound.Reason,
		`{"type":"start","cmd":["true"],"rows":1}`:        taisandbox.ErrInvalidSpec.Reason,
		`{"type":"finish"}`:                               rest.ErrRequest.Reason,
	} {
		s := k.dial(t, "b1/exec/ws")
		s.send(start)
		s.want(rest.FrameError)
		s.wantClose(rest.CloseFailed)
		then("exec b1 " + code + " 101")
	}
	k.dial(t, "b1/exec/ws").ws.CloseNow()
	then("exec b1 CANCELED 101")

	if _, err := k.ExecDetached(k.ctx, "b1", rest.ExecRequest{ID: "bg", Cmd: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	then("exec b1 ok 201 bg")
	if status, _, answer := k.call("POST", "/v1/sandboxes/b1/exec", `{"cmd":["true"],"id":"col"}`); status != 200 {
		t.Fatal(status, answer)
	}
	then("exec b1 ok 200 col")
	if err := k.StopBox(k.ctx, "b1", nil); err != nil {
		t.Fatal(err)
	}
	then("stop b1 ok 200")
	s = k.dial(t, "b1/exec/ws")
	s.send(`{"type":"start","cmd":["true"]}`)
	s.want(rest.FrameError)
	then("exec b1 " + taisandbox.ErrNotRunning.Reason + " 101")
}
