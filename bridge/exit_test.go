package bridge_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/tai/sandbox"
)

// TestA01OneCodeEverywhere starts what cannot be started, many at once: the
// stream, the record and the watcher all say the same.
func TestA01OneCodeEverywhere(t *testing.T) {
	b := start(t)
	w, err := b.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()

	const each = 50
	var mu sync.Mutex
	want := map[string]int{}
	var wg sync.WaitGroup
	for i := range 2 * each {
		wg.Go(func() {
			arg, code := "/nope", 127
			if i%2 == 1 {
				arg, code = "/etc", 126
			}
			res, err := b.tryExec(sandbox.ExecSpec{Args: []string{arg}})
			if err != nil {
				t.Error(err)
				return
			}
			info, err := b.InspectExec(t.Context(), res.ID)
			if err != nil || *res.ExitCode != code || *info.ExitCode != code || info.Error == "" ||
				!strings.HasPrefix(string(res.Stderr), "taibox: "+arg) {
				t.Errorf("%s: code %d, record %+v, stderr %q, %v", arg, *res.ExitCode, info, res.Stderr, err)
			}
			mu.Lock()
			want[res.ID] = code
			mu.Unlock()
		})
	}
	wg.Wait()
	for seen := 0; seen < len(want); {
		info, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if !info.Done() {
			continue // it was starting when the watcher came
		}
		seen++
		if *info.ExitCode != want[info.ID] {
			t.Fatalf("the watcher says %+v", info)
		}
	}
}

func TestA02CodeIsNeverEarly(t *testing.T) {
	b := start(t)
	for range 100 {
		wantCode(t, b.exec(sh("exit 7")).ExecInfo, 7, sandbox.ReasonExit)
		s := b.start(sh("exit 7"))
		info, err := b.WaitExec(t.Context(), s.ID())
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, info, 7, sandbox.ReasonExit)
		s.Close()
	}
	s := b.start(sh("sleep 30"))
	info, err := b.InspectExec(t.Context(), s.ID())
	if err != nil || info.ExitCode != nil || info.State != sandbox.ExecRunning {
		t.Fatalf("a running exec says %+v, %v", info, err)
	}
}

// TestA04EndIsNotTheEndOfAStream breaks links: that ends no command, and an
// end that is told belongs to a process that is gone.
func TestA04EndIsNotTheEndOfAStream(t *testing.T) {
	b := start(t)
	file := t.TempDir() + "/go-on"
	s := b.start(sh("echo 1; while [ ! -e " + file + " ]; do sleep 0.05; done; for i in 2 3 4 5; do echo $i; done"))
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if info, err := b.InspectExec(t.Context(), s.ID()); err != nil || info.Done() {
		t.Fatalf("after a broken link: %+v, %v", info, err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := b.AttachExec(t.Context(), s.ID(), sandbox.AttachOptions{Hold: true})
	if err != nil {
		t.Fatal(err)
	}
	res, err := sandbox.Collect(t.Context(), again, nil, false, 0)
	if err != nil || string(res.Stdout) != "1\n2\n3\n4\n5\n" {
		t.Fatalf("%q, %v", res.Stdout, err)
	}
	wantCode(t, res.ExecInfo, 0, sandbox.ReasonExit)
}

func TestA05CannotStart(t *testing.T) {
	b := start(t)
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	file := func(name, content string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	plain := file("plain", "no program", 0o644)
	script := file("script", "#!/no/such/interpreter\n", 0o755)
	junk := file("junk", "\x00\x01\x02 not a program", 0o755)
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		code int
		text string
	}{
		"not_in_path":      {[]string{"nosuchprog"}, nil, 127, "command not found"},
		"no_such_file":     {[]string{"/no/such"}, nil, 127, "no such file"},
		"directory":        {[]string{"/etc"}, nil, 126, "is a directory"},
		"below_a_file":     {[]string{"/etc/passwd/x"}, nil, 127, "no such file"},
		"not_executable":   {[]string{plain}, nil, 126, "permission denied"},
		"only_unrunnable":  {[]string{"plain"}, map[string]string{"PATH": dir}, 126, "permission denied"},
		"interpreter":      {[]string{script}, nil, 127, "interpreter"},
		"format":           {[]string{junk}, nil, 126, "exec format"},
		"own_path_counts":  {[]string{"sh"}, map[string]string{"PATH": dir}, 127, "command not found"},
		"argument_too_big": {[]string{"/bin/true", strings.Repeat("x", 128<<10)}, nil, 126, "argument 1 is 131072 bytes long"},
		"variable_too_big": {[]string{"/bin/true"}, map[string]string{"BIG": strings.Repeat("x", 128<<10)}, 126, `variable "BIG"`},
	} {
		t.Run(name, func(t *testing.T) {
			res := b.exec(sandbox.ExecSpec{Args: c.args, Env: c.env})
			wantCode(t, res.ExecInfo, c.code, sandbox.ReasonExit)
			if !strings.Contains(res.Error, c.text) || string(res.Stderr) != "taibox: "+res.Error+"\n" || len(res.Stdout) > 0 {
				t.Errorf("error %q, stderr %q", res.Error, res.Stderr)
			}
		})
	}
}

// TestA07OutOfMemory plays the kernel: the count of kills is in a file.
func TestA07OutOfMemory(t *testing.T) {
	b := start(t)
	counter := filepath.Join(t.TempDir(), "memory.events")
	write := func(s string) {
		if err := os.WriteFile(counter, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
	f, err := os.Open(counter)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := b.Setup(t.Context(), bridge.Setup{Box: "testbox", OOMEvents: f}); err != nil {
		t.Fatal(err)
	}
	res := b.exec(sh("sed -i 's/oom_kill 3/oom_kill 3/' " + counter + "; kill -9 $$"))
	wantCode(t, res.ExecInfo, 137, sandbox.ReasonSignal)

	res = b.exec(sh("echo 'oom_kill 4' >" + counter + "; kill -9 $$"))
	wantCode(t, res.ExecInfo, 137, sandbox.ReasonSignal) // sed made another file than the one we hold

	write("low 0\noom 1\noom_kill 5\n")
	g, err := os.Open(counter)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := b.Setup(t.Context(), bridge.Setup{Box: "testbox", OOMEvents: g}); err != nil {
		t.Fatal(err)
	}
	res = b.exec(sh("echo 'oom_kill 6' >" + counter + "; kill -9 $$"))
	wantCode(t, res.ExecInfo, 137, sandbox.ReasonOOM)
	if res.OOMKills != 1 || res.Signal != "SIGKILL" {
		t.Errorf("%+v", res.ExecInfo)
	}
	res = b.exec(sh("echo 'oom_kill 8' >" + counter + "; echo fine"))
	wantCode(t, res.ExecInfo, 0, sandbox.ReasonExit)
	if res.OOMKills != 2 {
		t.Errorf("a child's end is not told: %+v", res.ExecInfo)
	}
	s := b.start(sh("echo 'oom_kill 9' >" + counter + "; echo go; exec sleep 30"))
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := b.KillExec(t.Context(), s.ID(), sandbox.KillOptions{Signal: 9}); err != nil {
		t.Fatal(err)
	}
	info, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, info, 137, sandbox.ReasonKilled)
}

func TestA10CodeComesFromWait(t *testing.T) {
	b := start(t)
	for script, code := range map[string]int{
		"exec echo hi": 0, "exit 3": 3, "set -e; false; echo x": 1, "trap 'exit 9' EXIT; true": 9,
		"kill -9 $$": 137, "kill -SEGV $$": 139, "cat <<E\nx\nE": 0, "echo \"": 2, "exit 255": 255,
	} {
		t.Run(strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' {
				return r
			}
			return '_'
		}, script), func(t *testing.T) {
			res := b.exec(sh(script))
			reason := sandbox.ReasonExit
			if code > 128 && code < 255 {
				reason = sandbox.ReasonSignal
			}
			wantCode(t, res.ExecInfo, code, reason)
		})
	}
}

func TestA13Reasons(t *testing.T) {
	b := start(t)
	wantCode(t, b.exec(sh("kill -TERM $$")).ExecInfo, 143, sandbox.ReasonSignal)

	killed := b.start(sh("exec sleep 30"))
	if err := b.KillExec(t.Context(), killed.ID(), sandbox.KillOptions{}); err != nil {
		t.Fatal(err)
	}
	info, err := killed.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, info, 143, sandbox.ReasonKilled)
	if info.Signal != "SIGTERM" {
		t.Error(info.Signal)
	}
	wantErr(t, b.KillExec(t.Context(), killed.ID(), sandbox.KillOptions{}), sandbox.ErrExecEnded)
	wantErr(t, b.KillExec(t.Context(), killed.ID(), sandbox.KillOptions{Tree: true, Signal: 9}), sandbox.ErrExecEnded)
	wantErr(t, b.KillExec(t.Context(), "nosuch", sandbox.KillOptions{}), sandbox.ErrExecNotFound)

	handled := b.start(sh("trap 'exit 4' USR1; echo ready; while :; do sleep 0.05; done"))
	if _, err := handled.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := b.KillExec(t.Context(), handled.ID(), sandbox.KillOptions{Signal: 10}); err != nil {
		t.Fatal(err)
	}
	if info, err = handled.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, info, 4, sandbox.ReasonExit)

	stopped := b.start(sh("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"))
	if _, err := stopped.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := stopped.Recv(); err != nil {
			break
		}
	}
	if info, err = stopped.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, info, 0, sandbox.ReasonStop)
}

// TestRefused names what makes no exec at all.
func TestRefused(t *testing.T) {
	b := start(t)
	s := b.start(sandbox.ExecSpec{ID: "one", Args: []string{"sleep", "30"}})
	for name, c := range map[string]struct {
		spec sandbox.ExecSpec
		want error
	}{
		"id_taken":     {sandbox.ExecSpec{ID: "one", Args: []string{"true"}}, sandbox.ErrExecExists},
		"bad_id":       {sandbox.ExecSpec{ID: "../x", Args: []string{"true"}}, sandbox.ErrInvalidSpec},
		"no_command":   {sandbox.ExecSpec{ID: "two"}, sandbox.ErrInvalidSpec},
		"no_directory": {sandbox.ExecSpec{ID: "two", Args: []string{"true"}, WorkDir: "/no/such"}, sandbox.ErrDirNotFound},
		"file_as_dir":  {sandbox.ExecSpec{ID: "two", Args: []string{"true"}, WorkDir: "/etc/passwd"}, sandbox.ErrDirNotFound},
		"no_user":      {sandbox.ExecSpec{ID: "two", Args: []string{"true"}, User: "nobody-here"}, sandbox.ErrUserNotFound},
		"no_group":     {sandbox.ExecSpec{ID: "two", Args: []string{"true"}, User: "0:nogroup-here"}, sandbox.ErrUserNotFound},
		"too_long":     {sandbox.ExecSpec{ID: "two", Args: []string{"true", strings.Repeat("x", 5<<20)}}, sandbox.ErrInvalidSpec},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.run(c.spec)
			wantErr(t, err, c.want)
			if _, err := b.InspectExec(t.Context(), "two"); !errors.Is(err, sandbox.ErrExecNotFound) {
				t.Errorf("an exec is left: %v", err)
			}
		})
	}
	wantErr(t, b.ForgetExec(t.Context(), s.ID()), sandbox.ErrExecBusy)
}
