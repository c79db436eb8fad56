package sandboxtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/taibox/taibox/tai/sandbox"
)

// mounts: directories of the machine in boxes.
func mounts(e *env) {
	e.test("invalid", invalidMounts)
	if !e.has(sandbox.FeatureMounts) {
		return // optional sees to it that it says so
	}
	e.cases([]testCase{
		{"seen-both-ways", mountSeenBothWays},
		{"read-only", mountReadOnly},
		{"shared", mountShared},
		{"target-is-made", mountTargetMade},
		{"work-dir-inside", mountWorkDir},
		{"nested", mountNested},
		{"K01-owner", mountOwner},
		{"bad-source", mountBadSource},
		{"source-vanished", mountSourceVanished},
	})
	e.test("survives", mountSurvives)
}

// withMount mounts a directory as a workspace.
func withMount(source, target string, mods ...func(*sandbox.Mount)) func(*sandbox.Spec) {
	m := sandbox.Mount{Source: source, Target: target, Workspace: "ws-test"}
	for _, mod := range mods {
		mod(&m)
	}
	return func(s *sandbox.Spec) { s.Mounts = append(s.Mounts, m) }
}

func readOnlyMount(m *sandbox.Mount) { m.ReadOnly = true }

// shared returns a directory with the file "hello".
func (e *env) sharedDir() string {
	e.Helper()
	dir, err := filepath.EvalSymlinks(e.TempDir())
	e.ok(err)
	e.ok(os.WriteFile(filepath.Join(dir, "hello"), []byte("from outside\n"), 0o644))
	return dir
}

func (e *env) wantOutside(file, want string) {
	e.Helper()
	data, err := os.ReadFile(file)
	if err != nil || string(data) != want {
		e.Errorf("outside there is %q, %v; wanted is %q", data, err, want)
	}
}

func (e *env) wantInside(id, file, want string) {
	e.Helper()
	if res := e.run(id, e.commands.Cat(file)); string(res.Stdout) != want {
		e.Errorf("inside there is %q (%s); wanted is %q", res.Stdout, clip(string(res.Stderr)), want)
	}
}

func invalidMounts(e *env) {
	ok := sandbox.Mount{Source: "/srv/a", Target: "/data"}
	for name, mod := range map[string]func(*sandbox.Spec){
		"relative-source": func(s *sandbox.Spec) { s.Mounts[0].Source = "srv" },
		"unclean-source":  func(s *sandbox.Spec) { s.Mounts[0].Source = "/srv/../a" },
		"no-source":       func(s *sandbox.Spec) { s.Mounts[0].Source = "" },
		"relative-target": func(s *sandbox.Spec) { s.Mounts[0].Target = "data" },
		"unclean-target":  func(s *sandbox.Spec) { s.Mounts[0].Target = "/data/" },
		"nul":             func(s *sandbox.Spec) { s.Mounts[0].Target = "/da\x00ta" },
		"root":            func(s *sandbox.Spec) { s.Mounts[0].Target = "/" },
		"proc":            func(s *sandbox.Spec) { s.Mounts[0].Target = "/proc" },
		"sys":             func(s *sandbox.Spec) { s.Mounts[0].Target = "/sys/fs" },
		"dev":             func(s *sandbox.Spec) { s.Mounts[0].Target = "/dev/taibox" },
		"twice":           func(s *sandbox.Spec) { s.Mounts = append(s.Mounts, ok) },
		"on-tmpfs":        func(s *sandbox.Spec) { s.Tmpfs = []string{"/data:size=4096"} },
		"bad-workspace":   func(s *sandbox.Spec) { s.Mounts[0].Workspace = "../x" },
		"too-many": func(s *sandbox.Spec) {
			for range sandbox.MaxMounts {
				s.Mounts = append(s.Mounts, ok)
			}
		},
	} {
		e.test(name, func(e *env) {
			s := e.spec(func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{ok} }, mod)
			_, err := e.d.Create(e.ctx, s)
			e.wantErr(err, sandbox.ErrInvalidSpec)
		})
	}
}

func mountSeenBothWays(e *env) {
	dir := e.sharedDir()
	id := e.started(withMount(dir, "/data"))
	e.wantInside(id, "/data/hello", "from outside\n")
	e.wantEnd(e.run(id, e.commands.Write("/data/back", "from inside")).ExecInfo, sandbox.ReasonExit, 0)
	e.wantOutside(filepath.Join(dir, "back"), "from inside\n")
	e.ok(os.WriteFile(filepath.Join(dir, "later"), []byte("later\n"), 0o644))
	e.wantInside(id, "/data/later", "later\n")
	want := []sandbox.Mount{{Source: dir, Target: "/data", Workspace: "ws-test"}}
	if got := e.inspect(id).Mounts; !slices.Equal(got, want) {
		e.Errorf("the box says that it has %+v; wanted is %+v", got, want)
	}
	if f, ok := sandbox.As[sandbox.Files](e.d); ok && e.has(sandbox.FeatureFiles) {
		if _, err := f.WriteFile(e.ctx, id, "/data/by-call", strings.NewReader("call\n"), sandbox.FileOptions{}); err != nil {
			e.Error(err)
		}
		e.wantOutside(filepath.Join(dir, "by-call"), "call\n")
	}
	e.ok(e.d.Remove(e.ctx, id))
	e.wantOutside(filepath.Join(dir, "back"), "from inside\n")
}

func mountReadOnly(e *env) {
	dir := e.sharedDir()
	id := e.started(withMount(dir, "/data", readOnlyMount))
	e.wantInside(id, "/data/hello", "from outside\n")
	if x := e.run(id, e.commands.Write("/data/hello", "no")).ExecInfo; code(x) == 0 {
		e.Error("a file of a read-only mount was written")
	}
	if e.commands.Shell != nil {
		x := e.run(id, e.commands.Shell(`mount -o remount,rw /data; mount -o bind,remount,rw /data; umount /data; echo no >/data/new`)).ExecInfo
		if code(x) == 0 {
			e.Error("the mount was made writable")
		}
	}
	e.wantOutside(filepath.Join(dir, "hello"), "from outside\n")
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		e.Error("there is a new file outside")
	}
}

func mountShared(e *env) {
	dir := e.sharedDir()
	one := e.started(withMount(dir, "/data"))
	two := e.started(withMount(dir, "/elsewhere"), func(s *sandbox.Spec) { s.User = "1000" })
	e.wantEnd(e.run(one, e.commands.Write("/data/from-one", "1")).ExecInfo, sandbox.ReasonExit, 0)
	e.wantInside(two, "/elsewhere/from-one", "1\n")
	// Both are its owner, whoever they run as.
	e.wantEnd(e.run(two, e.commands.Write("/elsewhere/from-one", "2")).ExecInfo, sandbox.ReasonExit, 0)
	e.wantInside(one, "/data/from-one", "2\n")
}

func mountTargetMade(e *env) {
	dir := e.sharedDir()
	id := e.started(withMount(dir, "/some/deep/place"))
	e.wantInside(id, "/some/deep/place/hello", "from outside\n")
}

// mountWorkDir: a directory to begin in is made in the mount too, and is its
// owner's.
func mountWorkDir(e *env) {
	dir := e.sharedDir()
	id := e.started(withMount(dir, "/data"), func(s *sandbox.Spec) { s.WorkDir, s.User = "/data/a/b", "1000" })
	if res := e.run(id, e.commands.Pwd()); string(res.Stdout) != "/data/a/b\n" {
		e.Errorf("commands begin in %q", res.Stdout)
	}
	e.wantEnd(e.run(id, e.commands.Write("/data/a/b/c", "x")).ExecInfo, sandbox.ReasonExit, 0)
	e.wantOutside(filepath.Join(dir, "a", "b", "c"), "x\n")
}

// mountNested: whatever order they are asked for in.
func mountNested(e *env) {
	outer, inner := e.sharedDir(), e.sharedDir()
	e.ok(os.WriteFile(filepath.Join(inner, "hello"), []byte("inner\n"), 0o644))
	id := e.started(withMount(inner, "/t/data/in"), withMount(outer, "/t/data"), func(s *sandbox.Spec) { s.Tmpfs = []string{"/t"} })
	e.wantInside(id, "/t/data/hello", "from outside\n")
	e.wantInside(id, "/t/data/in/hello", "inner\n")
}

// mountOwner: what the machine writes the box's user can change, and what it
// writes, however private, belongs to the owner outside.
func mountOwner(e *env) {
	dir := e.sharedDir()
	e.ok(os.WriteFile(filepath.Join(dir, "mine"), []byte("outside\n"), 0o640))
	id := e.started(withMount(dir, "/data"), func(s *sandbox.Spec) { s.User = "10001" })
	e.wantInside(id, "/data/mine", "outside\n")
	e.wantEnd(e.run(id, e.commands.Write("/data/mine", "inside")).ExecInfo, sandbox.ReasonExit, 0)
	e.wantOutside(filepath.Join(dir, "mine"), "inside\n")
	e.wantEnd(e.run(id, e.commands.Write("/data/new", "new")).ExecInfo, sandbox.ReasonExit, 0)
	if e.commands.Shell != nil {
		e.wantEnd(e.run(id, e.commands.Shell(`umask 077; mkdir /data/d && echo secret >/data/d/new && chmod 600 /data/new && test "$(stat -c %u:%g /data/mine)" = "$(id -u):$(id -g)"`)).ExecInfo, sandbox.ReasonExit, 0)
		e.wantOutside(filepath.Join(dir, "d", "new"), "secret\n")
	}
	for _, name := range []string{"mine", "new"} {
		var st syscall.Stat_t
		e.ok(syscall.Lstat(filepath.Join(dir, name), &st))
		if int(st.Uid) != os.Geteuid() {
			e.Errorf("outside %s belongs to uid %d, and the directory to %d", name, st.Uid, os.Geteuid())
		}
	}
	// Root inside is nobody's root: the owner's files are its to change, and
	// what it makes is not the owner's.
	x := e.run(id, e.commands.Write("/data/by-root", "root"), func(s *sandbox.ExecSpec) { s.User = "0" }).ExecInfo
	e.wantEnd(x, sandbox.ReasonExit, 0)
}

func mountBadSource(e *env) {
	dir := e.sharedDir()
	e.ok(os.Symlink(dir, filepath.Join(dir, "link")))
	e.ok(os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	for name, source := range map[string]string{
		"missing": filepath.Join(dir, "nothing"), "file": filepath.Join(dir, "hello"),
		"link": filepath.Join(dir, "link"), "behind-a-link": filepath.Join(dir, "link", "sub"),
	} {
		e.test(name, func(e *env) {
			_, err := e.d.Create(e.ctx, e.spec(withMount(source, "/data")))
			e.wantErr(err, sandbox.ErrMountSource)
		})
	}
}

func mountSourceVanished(e *env) {
	dir := filepath.Join(e.sharedDir(), "sub")
	e.ok(os.Mkdir(dir, 0o755))
	id := e.started(withMount(dir, "/data"))
	e.ok(e.d.Stop(e.ctx, id, 0))
	e.ok(os.Remove(dir))
	e.wantErr(e.d.Start(e.ctx, id), sandbox.ErrMountSource)
	e.wantState(id, sandbox.StateStopped)
	// Somebody else's directory is not taken for it by a link.
	e.ok(os.Symlink("/etc", dir))
	e.wantErr(e.d.Start(e.ctx, id), sandbox.ErrMountSource)
	e.ok(os.Remove(dir))
	e.ok(os.Mkdir(dir, 0o755))
	e.ok(e.d.Start(e.ctx, id))
}

func mountSurvives(e *env) {
	dir := e.sharedDir()
	id := e.started(withMount(dir, "/data"))
	e.ok(e.d.Stop(e.ctx, id, 0))
	if f, ok := sandbox.As[sandbox.Files](e.d); ok && e.has(sandbox.FeatureFiles) { // of a stopped box too
		if _, err := f.WriteFile(e.ctx, id, "/data/stopped", strings.NewReader("s\n"), sandbox.FileOptions{}); err != nil {
			e.Error(err)
		}
		e.wantOutside(filepath.Join(dir, "stopped"), "s\n")
	}
	e.ok(e.d.Start(e.ctx, id))
	e.wantInside(id, "/data/hello", "from outside\n")
	if !e.has(sandbox.FeatureSurvives) {
		return
	}
	e.reopened()
	e.wantEnd(e.run(id, e.commands.Write("/data/again", "again")).ExecInfo, sandbox.ReasonExit, 0)
	e.wantOutside(filepath.Join(dir, "again"), "again\n")
	if m := e.inspect(id).Mounts; len(m) != 1 || m[0].Source != dir {
		e.Errorf("after reopening the box has the mounts %+v", m)
	}
}
