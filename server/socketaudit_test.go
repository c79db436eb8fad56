package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
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
		entry := fmt.Sprintf("%s %s %s %d %s", e.Verb, e.Object.ID, e.Result, e.Status, e.Object.Exec)
		if e.Verb == "end" {
			entry = fmt.Sprintf("%s ends %s %s: %s (%s)", e.Caller.Key, e.Object.ID, e.Object.Exec, e.Result, e.Reason)
		}
		got = append(got, strings.TrimSpace(entry))
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

// brittle is a machine on which a command cannot be started.
type brittle struct{ *fake.Driver }

func (brittle) ExecStream(context.Context, string, taisandbox.ExecSpec) (taisandbox.Stream, error) {
	panic("boom")
}

// TestAuditOfPanic: what fails beyond all expectation is in the log too, after
// the connection was taken over.
func TestAuditOfPanic(t *testing.T) {
	k := newKeyed(t, nil)
	k.stop()
	k.wrap = func(d *fake.Driver) taisandbox.Sandbox { return brittle{d} }
	k.start()
	k.create(rest.CreateBox{ID: "b1"})
	s := k.dial(t, "b1/exec/ws")
	s.send(`{"type":"start","cmd":["true"]}`)
	want := []string{"create b1 ok 201", "exec b1 " + rest.ErrInternal.Reason + " 101"}
	eventually(t, "the entry", func() bool { return len(k.entries(t)) >= len(want) })
	if diff := cmp.Diff(want, k.entries(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestA07_ReasonOutlivesTheBox: why a box or a command ended is known after the
// box is gone.
func TestA07_ReasonOutlivesTheBox(t *testing.T) {
	k := newKeyed(t, nil)
	k.create(rest.CreateBox{ID: "b1", Owner: "ann"})
	k.create(rest.CreateBox{ID: "b2", Policy: "oneshot"})
	if r := k.collect("b1", rest.ExecRequest{ID: "e1", Cmd: []string{"oom"}}); r.Reason != "oom" {
		t.Fatalf("%+v", r)
	}
	if err := k.driver.Break("b1", "oom"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the box failed", func() bool {
		b, err := k.GetBox(k.ctx, "b1")
		return err == nil && b.Status == "failed"
	})
	k.restart() // one that failed is told of again, lest that was missed
	eventually(t, "it is told again", func() bool {
		told := slices.DeleteFunc(k.entries(t), func(e string) bool { return e != "system ends b1 : failed (oom)" })
		return len(told) == 2
	})
	if err := k.RemoveBox(k.ctx, "b1"); err != nil {
		t.Fatal(err)
	}
	k.run("b2", "true")
	want := []string{
		"create b1 ok 201", "create b2 ok 201", "exec b1 ok 200 e1", "remove b1 ok 204",
		"system ends b1 : failed (oom)", "system ends b1 : failed (oom)", "system ends b1 e1: exited (oom)", "system ends b2 : removed (oneshot)",
	}
	var got []string
	eventually(t, "the entries", func() bool {
		got = slices.DeleteFunc(k.entries(t), func(e string) bool { return strings.HasPrefix(e, "exec b2") })
		slices.Sort(got)
		return len(got) >= len(want)
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	data, err := os.ReadFile(k.audit)
	if err != nil || !strings.Contains(string(data), `"verb":"end","object":{"kind":"box","id":"b1","owner":"ann","node":"local"},"result":"failed","reason":"oom"}`) {
		t.Errorf("%s %v", data, err)
	}
}
