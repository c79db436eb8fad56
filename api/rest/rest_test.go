package rest_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/errmap"
	"github.com/taibox/taibox/internal/reason"
)

func TestSetOutput(t *testing.T) {
	for _, c := range []struct {
		name, in  string
		truncated bool
		want      string // the JSON of stdout
	}{
		{"empty", "", false, `"stdout":""`},
		{"text", "a🚀", false, `"stdout":"a🚀"`},
		{"bytes", "\xff\xfe\x00", false, `"stdout_b64":"//4A"`},
		{"cut_by_us", "a🚀"[:3], true, `"stdout":"a"`},
		{"cut_by_itself", "a🚀"[:3], false, `"stdout_b64":"YfCf"`},
		{"cut_after_a_character", "a🚀", true, `"stdout":"a🚀"`},
		{"all_of_it_cut", "🚀"[:2], true, `"stdout":""`},
		{"bytes_and_cut", "\xffa🚀"[:3], true, `"stdout_b64":"/2E="`},
		{"continuation_only", strings.Repeat("\x80", 8), true, `"stdout_b64":"gICAgICAgIA="`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rest.ExecResult{Truncated: c.truncated}
			r.SetOutput([]byte(c.in), nil)
			raw, err := json.Marshal(r)
			if err != nil || !strings.Contains(string(raw), c.want) || !strings.Contains(string(raw), `"stderr":""`) {
				t.Errorf("%s %v", raw, err)
			}
		})
	}
}

func FuzzSetOutput(f *testing.F) {
	f.Add([]byte("a🚀"), 3)
	f.Fuzz(func(t *testing.T, out []byte, cut int) {
		if cut < 0 || cut > len(out) {
			t.Skip()
		}
		r := rest.ExecResult{Truncated: true}
		r.SetOutput(out[:cut], nil)
		if utf8.Valid(out) && r.Stdout == nil {
			t.Errorf("text became bytes by the cut: %q", out[:cut])
		}
		if r.Stdout != nil && !utf8.ValidString(*r.Stdout) {
			t.Errorf("not text: %q", *r.Stdout)
		}
	})
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
