package bridge_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/tai/sandbox"
)

// TestA07OthersOOM kills a command that was there when the kernel killed
// another one. The kernel's count of kills is played by a file.
func TestA07OthersOOM(t *testing.T) {
	b := start(t)
	counter := filepath.Join(t.TempDir(), "memory.events")
	if err := os.WriteFile(counter, []byte("oom_kill 5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(counter)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := b.Setup(t.Context(), bridge.Setup{Box: "testbox", OOMEvents: f}); err != nil {
		t.Fatal(err)
	}
	sleeper := func() (sandbox.Stream, string) {
		t.Helper()
		s := b.start(sh("echo $$; exec sleep 1000"))
		c, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return s, strings.TrimSpace(string(c.Data))
	}
	end := func(s sandbox.Stream) sandbox.ExecInfo {
		t.Helper()
		info, err := s.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	other, pid := sleeper()
	victim := b.exec(sh(fmt.Sprintf("echo 'oom_kill 6' >%s; kill -9 $$", counter)))
	wantCode(t, victim.ExecInfo, 137, sandbox.ReasonOOM)
	b.exec(sh("kill -9 " + pid))
	info := end(other)
	wantCode(t, info, 137, sandbox.ReasonSignal)
	if info.OOMKills != 1 {
		t.Errorf("%d kills while it ran", info.OOMKills)
	}

	// Two that are killed at once both are.
	first, pid := sleeper()
	second := b.exec(sh(fmt.Sprintf("echo 'oom_kill 8' >%s; kill -9 %s $$", counter, pid)))
	wantCode(t, second.ExecInfo, 137, sandbox.ReasonOOM)
	wantCode(t, end(first), 137, sandbox.ReasonOOM)
}
