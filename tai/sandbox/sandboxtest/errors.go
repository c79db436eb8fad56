package sandboxtest

import (
	"math"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/errmap"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

func errorClasses(e *env) {
	e.cases([]testCase{
		{"I01-bad-ids", badIDs},
		{"bad-specs", badSpecs},
		{"bad-execs", badExecs},
		{"unknown-objects", unknownObjects},
		{"taken", taken},
		{"classes", classes},
		{"messages", messages},
	})
}

// evilIDs are what no box, exec or anything else may be called.
func evilIDs() []string {
	return []string{
		"", ".", "..", "../x", "a/b", "/", "a/..", "%2f", "a%2e", "A", "aB", "a_b", "a b", " a", "-x", "x-", "-",
		strings.Repeat("x", sandbox.MaxIDLen+1), strings.Repeat("x", 300), "ä", "a\x00b", "a\nb", "a\x1b[31m", "a\u202eb", "a;b", "$(x)", "a.b",
	}
}

func badIDs(e *env) {
	for _, id := range evilIDs() {
		spec := e.spec(func(s *sandbox.Spec) { s.ID = id })
		_, err := e.d.Create(e.ctx, spec)
		e.wantErr(err, sandbox.ErrInvalidSpec)
		e.wantErr(err, errdefs.ErrInvalidArgument)
		if err == nil {
			e.removeLater(id)
			continue
		}
		if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' && r != '\n' || r == '\u202e' }) || len(err.Error()) > 1000 {
			e.Errorf("the error for %.20q could do harm to a terminal: %q", id, clip(err.Error()))
		}
		// Looking for one is as harmless.
		_, err = e.d.Inspect(e.ctx, id)
		e.wantErr(err, sandbox.ErrNotFound)
		e.wantErr(e.d.Remove(e.ctx, id), sandbox.ErrNotFound)
		if id != "" {
			_, err = e.d.ExecStream(e.ctx, e.box(), sandbox.ExecSpec{ID: id, Args: e.commands.Echo("x")})
			e.wantErr(err, sandbox.ErrInvalidSpec)
		}
		_, err = e.d.InspectExec(e.ctx, e.box(), id)
		e.wantErr(err, sandbox.ErrExecNotFound)
	}
}

func badSpecs(e *env) {
	for name, mod := range map[string]func(*sandbox.Spec){
		"no-image":         func(s *sandbox.Spec) { s.Image = "" },
		"isolation":        func(s *sandbox.Spec) { s.Isolation = "magic" },
		"network":          func(s *sandbox.Spec) { s.Network = "host" },
		"memory-negative":  func(s *sandbox.Spec) { s.MemoryBytes = -1 },
		"memory-tiny":      func(s *sandbox.Spec) { s.MemoryBytes = 1 },
		"memory-huge":      func(s *sandbox.Spec) { s.MemoryBytes = math.MaxInt64 },
		"cpus-negative":    func(s *sandbox.Spec) { s.CPUs = -0.5 },
		"cpus-nan":         func(s *sandbox.Spec) { s.CPUs = math.NaN() },
		"cpus-infinite":    func(s *sandbox.Spec) { s.CPUs = math.Inf(1) },
		"cpus-tiny":        func(s *sandbox.Spec) { s.CPUs = 1e-9 },
		"pids-negative":    func(s *sandbox.Spec) { s.Pids = -1 },
		"pids-huge":        func(s *sandbox.Spec) { s.Pids = math.MaxInt64 },
		"files-huge":       func(s *sandbox.Spec) { s.OpenFiles = math.MaxUint64 },
		"dir-relative":     func(s *sandbox.Spec) { s.WorkDir = "tmp" },
		"dir-nul":          func(s *sandbox.Spec) { s.WorkDir = "/a\x00b" },
		"dir-long":         func(s *sandbox.Spec) { s.WorkDir = "/" + strings.Repeat("x", 5000) },
		"user-slash":       func(s *sandbox.Spec) { s.User = "../root" },
		"user-newline":     func(s *sandbox.Spec) { s.User = "a\nroot" },
		"user-colons":      func(s *sandbox.Spec) { s.User = "a:b:c" },
		"env-equals":       func(s *sandbox.Spec) { s.Env = map[string]string{"a=b": "c"} },
		"env-empty":        func(s *sandbox.Spec) { s.Env = map[string]string{"": "c"} },
		"env-nul":          func(s *sandbox.Spec) { s.Env = map[string]string{"A": "\x00"} },
		"label-space":      func(s *sandbox.Spec) { s.Labels = map[string]string{"a b": "c"} },
		"label-long":       func(s *sandbox.Spec) { s.Labels = map[string]string{"a": strings.Repeat("x", 5000)} },
		"hostname":         func(s *sandbox.Spec) { s.Hostname = "a_b" },
		"hostname-newline": func(s *sandbox.Spec) { s.Hostname = "a\nb" },
		"host-line":        func(s *sandbox.Spec) { s.ExtraHosts = []string{"evil\n1.2.3.4 bank"} },
		"host-address":     func(s *sandbox.Spec) { s.ExtraHosts = []string{"a:notanaddress"} },
		"tmpfs-root":       func(s *sandbox.Spec) { s.Tmpfs = []string{"/"} },
		"tmpfs-relative":   func(s *sandbox.Spec) { s.Tmpfs = []string{"a"} },
		"tmpfs-option":     func(s *sandbox.Spec) { s.Tmpfs = []string{"/a:exec"} },
		"entrypoint-nul":   func(s *sandbox.Spec) { s.Entrypoint = &[]string{"a\x00"} },
	} {
		spec := e.spec(mod)
		_, err := e.d.Create(e.ctx, spec)
		if err == nil {
			e.removeLater(spec.ID)
		}
		e.test(name, func(e *env) {
			e.wantErr(err, sandbox.ErrInvalidSpec)
			_, err = e.d.Inspect(e.ctx, spec.ID)
			e.wantErr(err, sandbox.ErrNotFound)
		})
	}
	for _, ref := range []string{"UPPER", "a b", "a:b:c", "../x", "-", "a\nb", strings.Repeat("x", 5000)} {
		spec := e.spec(func(s *sandbox.Spec) { s.Image = ref })
		_, err := e.d.Create(e.ctx, spec)
		e.wantErr(err, errdefs.ErrInvalidArgument)
		_, err = e.d.Inspect(e.ctx, spec.ID)
		e.wantErr(err, sandbox.ErrNotFound)
	}
}

func badExecs(e *env) {
	id := e.started()
	before, err := e.d.ListExecs(e.ctx, id)
	e.ok(err)
	for name, c := range map[string]struct {
		mod  func(*sandbox.ExecSpec)
		want error
	}{
		"no-command":      {func(s *sandbox.ExecSpec) { s.Args = nil }, sandbox.ErrInvalidSpec},
		"empty-command":   {func(s *sandbox.ExecSpec) { s.Args = []string{""} }, sandbox.ErrInvalidSpec},
		"nul":             {func(s *sandbox.ExecSpec) { s.Args = []string{"a\x00b"} }, sandbox.ErrInvalidSpec},
		"dir-relative":    {func(s *sandbox.ExecSpec) { s.WorkDir = "x" }, sandbox.ErrInvalidSpec},
		"env":             {func(s *sandbox.ExecSpec) { s.Env = map[string]string{"=": ""} }, sandbox.ErrInvalidSpec},
		"timeout":         {func(s *sandbox.ExecSpec) { s.Timeout = -1 }, sandbox.ErrInvalidSpec},
		"timeout-huge":    {func(s *sandbox.ExecSpec) { s.Timeout = math.MaxInt64 }, sandbox.ErrInvalidSpec},
		"grace":           {func(s *sandbox.ExecSpec) { s.KillGrace = -time.Second }, sandbox.ErrInvalidSpec},
		"lease":           {func(s *sandbox.ExecSpec) { s.Lease = -time.Second }, sandbox.ErrInvalidSpec},
		"disconnect":      {func(s *sandbox.ExecSpec) { s.OnDisconnect = "explode" }, sandbox.ErrInvalidSpec},
		"log":             {func(s *sandbox.ExecSpec) { s.MaxLog = -1 }, sandbox.ErrInvalidSpec},
		"T01-size-zero":   {func(s *sandbox.ExecSpec) { s.TTY, s.Size = true, sandbox.Size{Cols: 80} }, sandbox.ErrInvalidSpec},
		"T01-size-huge":   {func(s *sandbox.ExecSpec) { s.TTY, s.Size = true, sandbox.Size{Cols: 65535, Rows: 65535} }, sandbox.ErrInvalidSpec},
		"user":            {func(s *sandbox.ExecSpec) { s.User = "nosuchuser" }, sandbox.ErrUserNotFound},
		"group":           {func(s *sandbox.ExecSpec) { s.User = "root:nosuchgroup" }, sandbox.ErrUserNotFound},
		"dir-missing":     {func(s *sandbox.ExecSpec) { s.WorkDir = "/no/such/dir" }, sandbox.ErrDirNotFound},
		"dir-is-a-file":   {func(s *sandbox.ExecSpec) { s.WorkDir = "/etc/passwd" }, sandbox.ErrDirNotFound},
		"entrypoint-none": {func(s *sandbox.ExecSpec) { s.Args, s.Entrypoint = []string{}, true }, nil},
	} {
		spec := execSpec(e.commands.Echo("x"), []func(*sandbox.ExecSpec){c.mod})
		s, err := e.d.ExecStream(e.ctx, id, spec)
		if err == nil {
			s.Close()
		}
		if c.want == nil {
			continue // whether there is one is the image's affair
		}
		e.test(name, func(e *env) {
			e.wantErr(err, c.want)
			e.wantErr(err, errdefs.ErrInvalidArgument)
		})
	}
	after, err := e.d.ListExecs(e.ctx, id)
	e.ok(err)
	if n := len(after) - len(before); n > 1 {
		e.Errorf("refused execs left %d records: %+v", n, after)
	}
}

func unknownObjects(e *env) {
	ctx, none := e.ctx, sandbox.NewID("none-")
	spec := sandbox.ExecSpec{Args: e.commands.Echo("x")}
	for name, call := range map[string]func(id string) error{
		"start":   func(id string) error { return e.d.Start(ctx, id) },
		"stop":    func(id string) error { return e.d.Stop(ctx, id, 0) },
		"remove":  func(id string) error { return e.d.Remove(ctx, id) },
		"exec":    func(id string) error { _, err := e.d.Exec(ctx, id, spec); return err },
		"stream":  func(id string) error { _, err := e.d.ExecStream(ctx, id, spec); return err },
		"attach":  func(id string) error { _, err := e.d.AttachExec(ctx, id, "x", sandbox.AttachOptions{}); return err },
		"execs":   func(id string) error { _, err := e.d.ListExecs(ctx, id); return err },
		"record":  func(id string) error { _, err := e.d.InspectExec(ctx, id, "x"); return err },
		"wait":    func(id string) error { _, err := e.d.WaitExec(ctx, id, "x"); return err },
		"kill":    func(id string) error { return e.d.KillExec(ctx, id, "x", sandbox.KillOptions{}) },
		"inspect": func(id string) error { _, err := e.d.Inspect(ctx, id); return err },
	} {
		err := call(none)
		e.wantErr(err, sandbox.ErrNotFound)
		if err != nil && !strings.Contains(err.Error(), none) {
			e.Errorf("%s: the error does not name the box: %q", name, err)
		}
	}
	for name, call := range map[string]func(x string) error{
		"attach": func(x string) error {
			_, err := e.d.AttachExec(ctx, e.box(), x, sandbox.AttachOptions{})
			return err
		},
		"record": func(x string) error { _, err := e.d.InspectExec(ctx, e.box(), x); return err },
		"wait":   func(x string) error { _, err := e.d.WaitExec(ctx, e.box(), x); return err },
		"kill":   func(x string) error { return e.d.KillExec(ctx, e.box(), x, sandbox.KillOptions{}) },
	} {
		err := call(none)
		e.wantErr(err, sandbox.ErrExecNotFound)
		if err != nil && !strings.Contains(err.Error(), none) {
			e.Errorf("%s: the error does not name the exec: %q", name, err)
		}
	}
}

func taken(e *env) {
	spec := e.spec(func(s *sandbox.Spec) { s.Labels = map[string]string{"first": "yes"} })
	_, err := e.d.Create(e.ctx, spec)
	e.ok(err)
	e.removeLater(spec.ID)
	again := spec
	again.Labels = nil
	_, err = e.d.Create(e.ctx, again)
	e.wantErr(err, sandbox.ErrAlreadyExists)
	if e.inspect(spec.ID).Labels["first"] != "yes" {
		e.Error("a refused create changed the box")
	}
	e.ok(e.d.Start(e.ctx, spec.ID))
	res := e.run(spec.ID, e.commands.Echo("x"), func(s *sandbox.ExecSpec) { s.ID = "mine" })
	if res.ID != "mine" {
		e.Errorf("the exec is called %s", res.ID)
	}
	_, err = e.d.ExecStream(e.ctx, spec.ID, sandbox.ExecSpec{ID: "mine", Args: e.commands.Echo("y")})
	e.wantErr(err, sandbox.ErrExecExists)
}

// classes checks that each sentinel that can be provoked here has its class all
// the way to a status.
func classes(e *env) {
	_, notFound := e.d.Inspect(e.ctx, "nosuch")
	_, invalid := e.d.Create(e.ctx, sandbox.Spec{})
	created := e.create()
	_, notRunning := e.d.Exec(e.ctx, created, sandbox.ExecSpec{Args: e.commands.Echo("x")})
	_, exists := e.d.Create(e.ctx, e.spec(func(s *sandbox.Spec) { s.ID = created }))
	done := e.run(e.box(), e.commands.Exit(0))
	ended := e.d.KillExec(e.ctx, e.box(), done.ID, sandbox.KillOptions{})
	for _, c := range []struct {
		err    error
		reason string
		status int
	}{
		{notFound, "BOX_NOT_FOUND", 404},
		{invalid, "INVALID_SPEC", 400},
		{notRunning, "BOX_NOT_RUNNING", 409},
		{exists, "BOX_EXISTS", 409},
		{ended, "EXEC_ENDED", 409},
	} {
		if r, s := reason.Of(c.err), errmap.HTTPStatus(c.err); r != c.reason || s != c.status {
			e.Errorf("%q is %s, %d; wanted is %s, %d", errText(c.err), r, s, c.reason, c.status)
		}
	}
}

// messages name the object, and say all that is wrong at once.
func messages(e *env) {
	spec := e.spec(func(s *sandbox.Spec) { s.Pids, s.WorkDir = -1, "relative" })
	_, err := e.d.Create(e.ctx, spec)
	if err == nil || !strings.Contains(err.Error(), "pids") || !strings.Contains(err.Error(), "relative") {
		e.Errorf("two mistakes give %q", errText(err))
	}
	_, err = e.d.Create(e.ctx, e.spec(func(s *sandbox.Spec) { s.Image = "example.test/none:1" }))
	if err == nil || !strings.Contains(err.Error(), "example.test/none:1") {
		e.Errorf("a missing image gives %q", errText(err))
	}
	_, err = e.d.Exec(e.ctx, e.box(), sandbox.ExecSpec{Args: e.commands.Echo("x"), User: "nosuchuser"})
	if err == nil || !strings.Contains(err.Error(), "nosuchuser") {
		e.Errorf("an unknown user gives %q", errText(err))
	}
	_, err = e.d.Exec(e.ctx, e.box(), sandbox.ExecSpec{Args: e.commands.Echo("x"), WorkDir: "/no/such/dir"})
	if err == nil || !strings.Contains(err.Error(), "/no/such/dir") {
		e.Errorf("a missing directory gives %q", errText(err))
	}
}
