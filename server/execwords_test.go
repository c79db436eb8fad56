package server_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/taibox/taibox/api/rest"
)

// TestCommandsOfAnyBytes: JSON is text, and commands need not be.
func TestCommandsOfAnyBytes(t *testing.T) {
	w := boxWorld(t)
	words := []string{"echo", "\xff\xfe", "é"}
	var req rest.ExecRequest
	req.SetCmd(words)
	r := w.collect("b1", req)
	if want := "\xff\xfe é\n"; string(r.StdoutB64) != want {
		t.Errorf("collected %q %v", r.StdoutB64, r.Stdout)
	}
	if c := w.runReq("b1", req); string(c.stdout) != "\xff\xfe é\n" {
		t.Errorf("a socket gave %q", c.stdout)
	}
	x, err := w.GetExec(w.ctx, "b1", r.ExecID)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := rest.WordsOf("args", nil, x.ArgsB64); err != nil || !slices.Equal(got, words) || x.Args[0] != "echo" || x.Args[1] != "\uFFFD" {
		t.Errorf("the record has %q and %q, %v", x.Args, x.ArgsB64, err)
	}
	if x, err := w.GetExec(w.ctx, "b1", w.collect("b1", rest.ExecRequest{Cmd: []string{"true"}}).ExecID); err != nil || x.ArgsB64 != nil {
		t.Errorf("of text the record has %q, %v", x.ArgsB64, err)
	}

	var box rest.CreateBox
	box.ID = "raw"
	box.SetEntrypoint(words)
	b := w.create(box)
	if got, err := rest.WordsOf("entrypoint", nil, b.EntrypointB64); err != nil || !slices.Equal(got, words) {
		t.Errorf("the entrypoint is %q, %v", got, err)
	}

	_, err = w.Exec(w.ctx, "b1", rest.ExecRequest{Cmd: words})
	if !errors.Is(err, rest.ErrRequest) || !strings.Contains(err.Error(), "cmd[1]") {
		t.Errorf("as text: %v", err)
	}
	for _, c := range []struct{ path, body, says string }{
		{"/v1/sandboxes/b1/exec", `{"cmd":["true"],"cmd_b64":["dHJ1ZQ=="]}`, "cmd_b64"},
		{"/v1/sandboxes", `{"entrypoint":[],"entrypoint_b64":["dHJ1ZQ=="]}`, "entrypoint_b64"},
		{"/v1/sandboxes/b1/exec", "{\"cmd\":[\"echo\",\"\xff\"]}", "UTF-8"},
	} {
		if status, _, body := w.call(http.MethodPost, c.path, c.body); status != http.StatusBadRequest || !strings.Contains(body, c.says) {
			t.Errorf("%q: %d %s", c.body, status, body)
		}
	}
}

// TestE02_MergedOutput: one pipe for both, in order.
func TestE02_MergedOutput(t *testing.T) {
	w := boxWorld(t)
	if r := w.collect("b1", rest.ExecRequest{Cmd: []string{"both", "4"}, MergeOutput: true}); *r.Stdout != "1\n2\n3\n4\n" || *r.Stderr != "" {
		t.Errorf("%+v", r)
	}
}
