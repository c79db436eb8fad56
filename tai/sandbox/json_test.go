package sandbox_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/tai/sandbox"
)

// TestJSONKeepsBytes: what is not UTF-8 comes back, and what is has no second form.
func TestJSONKeepsBytes(t *testing.T) {
	for _, word := range []string{"é", "\xff", "\xc3(\x00"} {
		words := []string{"x", word}
		exec := sandbox.ExecInfo{ID: "x", Args: words, Signal: "SIGKILL"}
		spec := sandbox.Spec{ID: "x", Entrypoint: &words, Env: map[string]string{"A": word, "B": "b"}, Pids: 3}
		for _, c := range []struct{ in, out any }{{&exec, new(sandbox.ExecInfo)}, {exec, new(sandbox.ExecInfo)}, {spec, new(sandbox.Spec)}} {
			raw, err := json.Marshal(c.in)
			if err == nil {
				err = json.Unmarshal(raw, c.out)
			}
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(raw), "_b64") != (word != "é") {
				t.Errorf("%q is %s", word, raw)
			}
			var want any = &exec
			if _, ok := c.in.(sandbox.Spec); ok {
				want = &spec
			}
			if d := cmp.Diff(want, c.out); d != "" {
				t.Errorf("%s (-want +got):\n%s", raw, d)
			}
		}
	}
}
