package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// repeat posts an exec that collects, with an idempotency key.
func (w *world) repeat(t *testing.T, box, key, body string) (status int, res rest.ExecResult, answer string) {
	t.Helper()
	status, _, answer = w.call(http.MethodPost, "/v1/sandboxes/"+box+"/exec", body, rest.HeaderIdempotencyKey, key)
	if status == http.StatusOK {
		if err := json.Unmarshal([]byte(answer), &res); err != nil {
			t.Fatal(err)
		}
	}
	return status, res, answer
}

// wantExecs checks how many execs a box has had.
func (w *world) wantExecs(t *testing.T, box string, n int) {
	t.Helper()
	if execs, err := w.ListExecs(w.ctx, box); err != nil || len(execs) != n {
		t.Errorf("box %s has %d execs, %v; want %d", box, len(execs), err, n)
	}
}

// TestG11_IdempotencyKeyOfAnExec: a request that is repeated runs nothing
// twice, also after a restart.
func TestG11_IdempotencyKeyOfAnExec(t *testing.T) {
	w := boxWorld(t)
	const body = `{"cmd":["cat"],"stdin_b64":"aGk=","env":{"A":"1"}}`
	_, first, _ := w.repeat(t, "b1", "k", body)
	if first.Stdout == nil || *first.Stdout != "hi" {
		t.Fatalf("%+v", first)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			w.restart()
		}
		status, again, answer := w.repeat(t, "b1", "k", body)
		if status != http.StatusOK || again.ExecID != first.ExecID || again.Stdout == nil || *again.Stdout != "hi" || *again.ExitCode != 0 {
			t.Errorf("restarted %v: %d %s", restart, status, answer)
		}
	}
	for _, other := range []string{
		`{"cmd":["cat","-"],"stdin_b64":"aGk=","env":{"A":"1"}}`, `{"cmd":["cat"],"stdin_b64":"aG8=","env":{"A":"1"}}`,
		`{"cmd":["cat"],"stdin_b64":"aGk=","env":{"A":"2"}}`, `{"cmd":["cat"],"env":{"A":"1"},"detach":true}`,
	} {
		if status, _, answer := w.repeat(t, "b1", "k", other); status != http.StatusConflict || failure(t, answer).Code != sandbox.ErrIdempotencyKey.Reason || !strings.Contains(answer, first.ExecID) {
			t.Errorf("%s: %d %s", other, status, answer)
		}
	}
	if status, _, answer := w.repeat(t, "b1", "k2", `{"id":"e1","cmd":["true"]}`); status != http.StatusBadRequest {
		t.Errorf("with an id: %d %s", status, answer)
	}
	w.wantExecs(t, "b1", 1)
	w.create(rest.CreateBox{ID: "b2"})
	if status, there, answer := w.repeat(t, "b2", "k", body); status != http.StatusOK || there.ExecID == first.ExecID {
		t.Errorf("in another box: %d %s", status, answer)
	}
	if status, there, answer := w.repeat(t, "b1", "k3", body); status != http.StatusOK || there.ExecID == first.ExecID {
		t.Errorf("with another key: %d %s", status, answer)
	}
	w.wantExecs(t, "b1", 2)
}

// TestIdempotencyKeyAtOnce: of many that come at once one starts the exec, and
// all get its result. One with another body gets none.
func TestIdempotencyKeyAtOnce(t *testing.T) {
	w := boxWorld(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for i := range 8 {
		cmd := []string{`{"cmd":["echo","a"]}`, `{"cmd":["echo","b"]}`}[i%2]
		wg.Go(func() {
			status, _, _ := w.repeat(t, "b1", "k", cmd)
			mu.Lock()
			defer mu.Unlock()
			codes[status]++
		})
	}
	wg.Wait()
	if codes[http.StatusOK] != 4 || codes[http.StatusConflict] != 4 {
		t.Errorf("answers: %v", codes)
	}
	w.wantExecs(t, "b1", 1)
}

// TestIdempotencyKeyJoins what runs: the first client is gone, and the second
// gets the whole result.
func TestIdempotencyKeyJoins(t *testing.T) {
	w := boxWorld(t)
	const body = `{"cmd":["trap-exit","3"]}`
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://taibox/v1/sandboxes/b1/exec", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(rest.HeaderIdempotencyKey, "k")
	left := make(chan error, 1)
	go func() {
		resp, err := w.http.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		left <- err
	}()
	var id string
	eventually(t, "the command is ready", func() bool {
		execs, err := w.ListExecs(w.ctx, "b1")
		if err != nil || len(execs) == 0 || execs[0].Bytes == 0 {
			return false
		}
		id = execs[0].ID
		return true
	})
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	joined := make(chan rest.ExecResult, 1)
	go func() {
		_, res, _ := w.repeat(t, "b1", "k", body)
		joined <- res
	}()
	if err := w.KillExec(w.ctx, "b1", id, taisandbox.KillOptions{Signal: 15}); err != nil {
		t.Fatal(err)
	}
	if res := <-joined; res.ExecID != id || res.ExitCode == nil || *res.ExitCode != 3 || res.Stdout == nil || !strings.HasPrefix(*res.Stdout, "ready") {
		t.Errorf("%+v", res)
	}
	w.wantExecs(t, "b1", 1)
}

// TestIdempotencyKeyDetached: the record of the first is the answer.
func TestIdempotencyKeyDetached(t *testing.T) {
	w := boxWorld(t)
	req := rest.ExecRequest{Cmd: []string{"sleep", "infinity"}, IdempotencyKey: "k"}
	first, err := w.ExecDetached(w.ctx, "b1", req)
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.ExecDetached(w.ctx, "b1", req)
	if err != nil || again.ID != first.ID || again.State != "running" {
		t.Errorf("%+v %v", again, err)
	}
	w.wantExecs(t, "b1", 1)
}

// TestIdempotencyKeyOfAKey: a repeat makes no second API key, and names the
// first.
func TestIdempotencyKeyOfAKey(t *testing.T) {
	k := newKeyed(t, nil)
	made, err := k.CreateKey(k.ctx, rest.CreateKey{Owner: "u1", IdempotencyKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	status, _, answer := k.call(http.MethodPost, "/v1/keys", `{"owner":"u1"}`, rest.HeaderIdempotencyKey, "k")
	if e := failure(t, answer); status != http.StatusConflict || e.Code != sandbox.ErrIdempotencyKey.Reason || e.Details["key_id"] != made.ID || e.Hint == "" {
		t.Errorf("%d %s", status, answer)
	}
	if n := len(k.store.List()); n != 1 || strings.Contains(answer, made.Secret) {
		t.Errorf("%d keys; %s", n, answer)
	}
	// The key of another caller is another one.
	mine, err := k.CreateKey(k.ctx, rest.CreateKey{Admin: true})
	if err != nil {
		t.Fatal(err)
	}
	if status, _, answer := k.call(http.MethodPost, "/v1/keys", `{"owner":"u1"}`, rest.HeaderIdempotencyKey, "k", "X-API-Key", mine.Secret); status != http.StatusCreated {
		t.Errorf("%d %s", status, answer)
	}
}

// doubtful is a machine that gave the first exec no answer, and lists it until
// somebody asks for it: it did not begin.
type doubtful struct {
	*fake.Driver
	asked  *atomic.Bool
	listed *atomic.Pointer[taisandbox.ExecInfo]
}

func (d doubtful) ExecStream(ctx context.Context, id string, spec taisandbox.ExecSpec) (taisandbox.Stream, error) {
	if d.asked.Swap(true) {
		return d.Driver.ExecStream(ctx, id, spec)
	}
	d.listed.Store(&taisandbox.ExecInfo{ID: spec.ID, Box: id, State: taisandbox.ExecStarting})
	return nil, taisandbox.ErrBridgeLost
}

func (d doubtful) ListExecs(ctx context.Context, id string) ([]taisandbox.ExecInfo, error) {
	infos, err := d.Driver.ListExecs(ctx, id)
	if e := d.listed.Load(); e != nil {
		infos = append(infos, *e)
	}
	return infos, err
}

func (d doubtful) AttachExec(ctx context.Context, id, exec string, o taisandbox.AttachOptions) (taisandbox.Stream, error) {
	d.listed.Store(nil)
	return d.Driver.AttachExec(ctx, id, exec, o)
}

// TestIdempotencyKeyOfADoubtfulExec: a repeat starts the exec, and feeds it, if
// it turns out that the first request did not.
func TestIdempotencyKeyOfADoubtfulExec(t *testing.T) {
	for name, body := range map[string]string{"plain": `{"cmd":["echo","hi"]}`, "fed": `{"cmd":["cat"],"stdin_b64":"aGkK"}`} {
		t.Run(name, func(t *testing.T) {
			w := (&world{t: t, wrap: func(d *fake.Driver) taisandbox.Sandbox {
				return doubtful{d, new(atomic.Bool), new(atomic.Pointer[taisandbox.ExecInfo])}
			}}).begin()
			w.create(rest.CreateBox{ID: "b1"})
			if status, _, answer := w.repeat(t, "b1", "k", body); status != http.StatusServiceUnavailable {
				t.Fatalf("no answer: %d %s", status, answer)
			}
			if status, res, answer := w.repeat(t, "b1", "k", body); status != http.StatusOK || res.Stdout == nil || *res.Stdout != "hi\n" {
				t.Errorf("again: %d %s", status, answer)
			}
			w.wantExecs(t, "b1", 1)
		})
	}
}
