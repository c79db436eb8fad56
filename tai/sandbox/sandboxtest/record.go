package sandboxtest

import (
	"slices"
	"strings"

	"github.com/taibox/taibox/tai/sandbox"
)

// longRecord: a command gets every word, its record the beginning.
func longRecord(e *env) {
	id := e.box()
	text := strings.Repeat("a\n<", 30<<10)
	res := e.run(id, e.commands.Echo(text), func(s *sandbox.ExecSpec) {
		s.Env = map[string]string{strings.Repeat("N", 50<<10): "x"}
	})
	e.wantEnd(res.ExecInfo, sandbox.ReasonExit, 0)
	if string(res.Stdout) != text+"\n" {
		e.Errorf("the command got %d bytes, not %d", len(res.Stdout)-1, len(text))
	}
	inspected, err := e.d.InspectExec(e.ctx, id, res.ID)
	e.ok(err)
	list, err := e.d.ListExecs(e.ctx, id)
	e.ok(err)
	i := slices.IndexFunc(list, func(x sandbox.ExecInfo) bool { return x.ID == res.ID })
	if i < 0 {
		e.Fatalf("exec %s is not in the list", res.ID)
	}
	for _, x := range []sandbox.ExecInfo{res.ExecInfo, inspected, list[i]} {
		if n := len(x.Args); x.TextBytes() > 2*sandbox.MaxRecordList+1024 || n == 0 || !strings.HasSuffix(x.Args[n-1], "…") {
			e.Errorf("the record has %d arguments and %d bytes", n, x.TextBytes())
		}
	}
}
