package server_test

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
	"github.com/taibox/taibox/workspace"
)

// What is beyond the limits is refused by name; defaults stay within them.
func TestLimits(t *testing.T) {
	w := newWorldWith(t, func(c *server.Config) {
		c.Defaults = server.Defaults{Memory: 2 << 30, Pids: 10}
		c.Max = server.Limits{Memory: 1 << 30, CPUs: 2, Pids: 50}
	})
	b, err := w.CreateBox(w.ctx, rest.CreateBox{ID: "b1"})
	if err != nil || b.MemoryBytes != 1<<30 || b.CPUs != 2 || b.Pids != 10 {
		t.Errorf("got %d, %v, %d, %v", b.MemoryBytes, b.CPUs, b.Pids, err)
	}
	for _, c := range []struct{ body, names string }{
		{`{"memory_bytes":1073741825}`, "memory_bytes"},
		{`{"memory_bytes":0}`, "memory_bytes"},
		{`{"cpus":2.5}`, "cpus"},
		{`{"pids":51,"cpus":0}`, "cpus pids"},
	} {
		status, _, body := w.call(http.MethodPost, "/v1/sandboxes", c.body)
		e := failure(t, body)
		if status != http.StatusBadRequest || e.Code != "INVALID_SPEC" {
			t.Errorf("%s: %d %s", c.body, status, e.Code)
		}
		for name := range strings.FieldsSeq(c.names) {
			if !strings.Contains(e.Message, name) {
				t.Errorf("%s: %s", c.body, e.Message)
			}
		}
	}
}

// The default idle timeout is for sessions that say nothing of it.
func TestTimeouts(t *testing.T) {
	w := newWorldWith(t, func(c *server.Config) { c.Defaults.IdleTimeout = 30 * time.Minute })
	ms := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		req  rest.CreateBox
		idle int64
	}{
		{rest.CreateBox{}, 1_800_000},
		{rest.CreateBox{Policy: "session"}, 1_800_000},
		{rest.CreateBox{Policy: "session", IdleTimeoutMs: ms(0)}, 0},
		{rest.CreateBox{IdleTimeoutMs: ms(5000), MaxLifetimeMs: 60_000}, 5000},
		{rest.CreateBox{Policy: "longrunning"}, 0},
		{rest.CreateBox{Policy: "longrunning", IdleTimeoutMs: ms(5000)}, 5000},
		{rest.CreateBox{Policy: "persistent"}, 0},
	} {
		b, err := w.CreateBox(w.ctx, c.req)
		if err != nil || b.IdleTimeoutMs != c.idle || b.MaxLifetimeMs != c.req.MaxLifetimeMs || b.Busy == nil {
			t.Errorf("%+v: %+v, %v", c.req, b, err)
		}
	}
	for _, body := range []string{`{"idle_timeout_ms":-1}`, `{"max_lifetime_ms":-1}`} {
		status, _, answer := w.call(http.MethodPost, "/v1/sandboxes", body)
		if e := failure(t, answer); status != http.StatusBadRequest || e.Code != "INVALID_SPEC" {
			t.Errorf("%s: %d %s", body, status, e.Code)
		}
	}
	if _, err := server.New(server.Config{Manager: &sandbox.Manager{}, Max: server.Limits{Pids: -1}}); err == nil {
		t.Error("a negative limit was taken")
	}
}

// A workspace gets the limit, or less if that is asked for.
func TestLimitOfWorkspace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("what enforces a quota needs root")
	}
	const most = 64 << 20
	w := newWorldWith(t, func(c *server.Config) { c.Max.Disk = most })
	for _, c := range []struct {
		quota, want int64
		fails       error
	}{{0, most, nil}, {most / 2, most / 2, nil}, {most, most, nil}, {most + 1, 0, workspace.ErrInvalid}, {-1, 0, workspace.ErrInvalid}} {
		made, err := w.CreateWorkspace(w.ctx, rest.CreateWorkspace{QuotaBytes: c.quota})
		if !errors.Is(err, c.fails) || made.QuotaBytes != c.want {
			t.Errorf("asked for %d: %d, %v", c.quota, made.QuotaBytes, err)
		}
		if err != nil {
			continue
		}
		for _, more := range []int64{0, most + 1} {
			if _, err := w.Workspace(made.ID).Update(w.ctx, rest.UpdateWorkspace{QuotaBytes: &more}); !errors.Is(err, workspace.ErrInvalid) {
				t.Errorf("changed to %d: %v", more, err)
			}
		}
		if err := w.Workspace(made.ID).Delete(w.ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestG11_IdempotencyKeyOfAWorkspace: a repeat is compared by what was asked
// for, whatever the limit has become meanwhile.
func TestG11_IdempotencyKeyOfAWorkspace(t *testing.T) {
	var most int64
	w := newWorldWith(t, func(c *server.Config) { c.Max.Disk = most })
	const body = `{"name":"n"}`
	create := func(key, body string) (int, string) {
		status, _, answer := w.call(http.MethodPost, "/v1/workspaces", body, rest.HeaderIdempotencyKey, key)
		return status, answer
	}
	_, first := create("k", body)
	most = 64 << 20
	w.restart()
	if status, again := create("k", body); status != http.StatusCreated || again != first {
		t.Errorf("%d %s; the first was %s", status, again, first)
	}
	if limited, err := w.CreateWorkspace(w.ctx, rest.CreateWorkspace{Name: "n", IdempotencyKey: "limited"}); err == nil { // what enforces it needs root
		most *= 2
		w.restart()
		again, err := w.CreateWorkspace(w.ctx, rest.CreateWorkspace{Name: "n", IdempotencyKey: "limited"})
		if err != nil || again.ID != limited.ID {
			t.Errorf("%+v, %v; the first was %+v", again, err, limited)
		}
		if err := w.Workspace(limited.ID).Delete(w.ctx); err != nil {
			t.Error(err)
		}
	}
	if status, answer := create("k", `{"name":"n","quota_bytes":33554432}`); status != http.StatusConflict || failure(t, answer).Code != sandbox.ErrIdempotencyKey.Reason {
		t.Errorf("with a quota: %d %s", status, answer)
	}
	if status, answer := create("k", `{"name":"n","quota_files":100}`); status != http.StatusConflict || failure(t, answer).Code != sandbox.ErrIdempotencyKey.Reason {
		t.Errorf("with a quota of files: %d %s", status, answer)
	}
}

// TestG11_IdempotencyKeyOverDefaults: the same body is the same box, whatever
// the server fills in meanwhile.
func TestG11_IdempotencyKeyOverDefaults(t *testing.T) {
	var d server.Defaults
	w := newWorldWith(t, func(c *server.Config) { c.Defaults = d })
	first := w.create(rest.CreateBox{IdempotencyKey: "k"})
	d = server.Defaults{Memory: 64 << 20, IdleTimeout: time.Hour}
	w.restart()
	if again := w.create(rest.CreateBox{IdempotencyKey: "k"}); again.ID != first.ID {
		t.Errorf("another box: %s and %s", first.ID, again.ID)
	}
	if _, err := w.CreateBox(w.ctx, rest.CreateBox{IdempotencyKey: "k", KeepAlive: true}); !errors.Is(err, sandbox.ErrIdempotencyKey) {
		t.Errorf("another body: %v", err)
	}
}

// TestLengthOfIdempotencyKey is what is promised, for whatever is made.
func TestLengthOfIdempotencyKey(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/v1/sandboxes", "/v1/workspaces"} {
		for n, want := range map[int]int{256: http.StatusCreated, 257: http.StatusBadRequest} {
			if status, _, answer := w.call(http.MethodPost, path, "{}", rest.HeaderIdempotencyKey, strings.Repeat("k", n)); status != want {
				t.Errorf("%s with %d bytes: %d %s", path, n, status, answer)
			}
		}
	}
}
