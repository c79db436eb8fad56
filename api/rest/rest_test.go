package rest_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/errmap"
	"github.com/taibox/taibox/internal/reason"
)

func TestSetOutput(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", `"stdout":""`},
		{"text", "a🚀", `"stdout":"a🚀"`},
		{"bytes", "\xff\xfe\x00", `"stdout_b64":"//4A"`},
		{"half_a_character", "a🚀"[:3], `"stdout_b64":"YfCf"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r rest.ExecResult
			r.SetOutput([]byte(c.in), nil)
			raw, err := json.Marshal(r)
			if err != nil || !strings.Contains(string(raw), c.want) || !strings.Contains(string(raw), `"stderr":""`) {
				t.Errorf("%s %v", raw, err)
			}
		})
	}
}

// TestWords: any command comes back as it was.
func TestWords(t *testing.T) {
	for _, words := range [][]string{{"ls", "é"}, {"ls", "\xff", "é"}, {"\xc3"}} {
		var req, got rest.ExecRequest
		req.SetCmd(words)
		if err := rest.CheckText(req); err != nil {
			t.Errorf("%q: %v", words, err)
		}
		raw, err := json.Marshal(req)
		if err == nil {
			err = json.Unmarshal(raw, &got)
		}
		if err != nil {
			t.Fatal(err)
		}
		back, err := rest.WordsOf("cmd", got.Cmd, got.CmdB64)
		if err != nil || !slices.Equal(back, words) {
			t.Errorf("%q came back as %q, %v", words, back, err)
		}
	}
	if _, err := rest.WordsOf("cmd", []string{"a"}, [][]byte{{'a'}}); !errors.Is(err, rest.ErrRequest) || !strings.Contains(err.Error(), "cmd_b64") {
		t.Errorf("both: %v", err)
	}
}

func TestCheckText(t *testing.T) {
	const bad = "a\xff"
	for where, req := range map[string]any{
		"cmd[1]":           rest.ExecRequest{Cmd: []string{"x", bad}},
		`env["A"]`:         rest.StartFrame{ExecRequest: rest.ExecRequest{Env: map[string]string{"A": bad}}},
		`env["a\xff"]`:     rest.ExecRequest{Env: map[string]string{bad: "x"}},
		"entrypoint[0]":    &rest.CreateBox{Entrypoint: &[]string{bad}},
		"mounts[0].target": rest.CreateBox{Mounts: []rest.Mount{{Target: bad}}},
	} {
		if err := rest.CheckText(req); !errors.Is(err, rest.ErrRequest) || !strings.Contains(err.Error(), where+" ") {
			t.Errorf("%s: %v", where, err)
		}
	}
	for _, req := range []any{nil, rest.ExecRequest{Cmd: []string{"é"}, StdinB64: []byte(bad), IdempotencyKey: bad}, rest.CreateBox{}} {
		if err := rest.CheckText(req); err != nil {
			t.Errorf("%+v: %v", req, err)
		}
	}
}

// TestReasons: each has a class that the status table knows.
func TestReasons(t *testing.T) {
	for name, e := range reason.NewTable(rest.Reasons()) {
		if e.Msg == "" || e.Class == nil || name != strings.ToUpper(name) {
			t.Errorf("%+v", e)
		}
		if errmap.HTTPStatus(e) == 500 && e != rest.ErrInternal && e != rest.ErrInputLost {
			t.Errorf("%s is a 500", name)
		}
	}
}
