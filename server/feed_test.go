package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/keystore"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// late is a program that reads its input when it is let, and says what it was.
func late(let <-chan struct{}) fake.Option {
	return fake.WithProgram("late", func(ctx context.Context, p *fake.Proc) int {
		fmt.Fprint(p.Stdout, "ready ")
		select {
		case <-let:
		case <-ctx.Done():
			return 1
		}
		data, err := io.ReadAll(p.Stdin)
		fmt.Fprintf(p.Stdout, "%d %08x", len(data), crc32.ChecksumIEEE(data))
		if err != nil {
			return 1
		}
		return 0
	})
}

// asked lets everybody in and keeps the life of the first exec's request.
type asked struct {
	server.Border
	once sync.Once
	life chan context.Context
}

func (a *asked) Authorize(ctx context.Context, c server.Caller, v server.Verb, o server.Object) error {
	if v == server.VerbExec {
		a.once.Do(func() { a.life <- ctx })
	}
	return a.Border.Authorize(ctx, c, v, o)
}

// input is more than is ever on its way, of which every part is another.
func input() []byte {
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i*7 + i>>8*13 + i>>16)
	}
	return data
}

// feeding is an exec that does not read its input yet, and its request.
type feeding struct {
	*world
	let   func()
	body  string
	want  string // its output
	leave func() // the client goes, and the server knows it
}

func newFeeding(t *testing.T) *feeding {
	t.Helper()
	let := make(chan struct{})
	a := &asked{life: make(chan context.Context, 1)}
	f := &feeding{let: sync.OnceFunc(func() { close(let) })}
	f.world = newWorldWith(t, func(c *server.Config) { c.Authorizer = a }, late(let))
	t.Cleanup(f.let)
	f.create(rest.CreateBox{ID: "b1"})
	data := input()
	raw, err := json.Marshal(rest.ExecRequest{Cmd: []string{"late"}, StdinB64: data})
	if err != nil {
		t.Fatal(err)
	}
	f.body, f.want = string(raw), fmt.Sprintf("ready %d %08x", len(data), crc32.ChecksumIEEE(data))
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://taibox/v1/sandboxes/b1/exec", strings.NewReader(f.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(rest.HeaderIdempotencyKey, "k")
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := f.http.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-left
	})
	eventually(t, "the command is ready", func() bool {
		execs, err := f.ListExecs(f.ctx, "b1")
		return err == nil && len(execs) == 1 && execs[0].Bytes > 0
	})
	life := <-a.life
	f.leave = func() {
		cancel()
		<-left
		<-life.Done()
	}
	return f
}

// joins repeats the request, lets the command read, and wants its result.
func (f *feeding) joins(t *testing.T) {
	t.Helper()
	type result struct {
		status int
		res    rest.ExecResult
		answer string
	}
	done := make(chan result, 1)
	go func() {
		status, res, answer := f.repeat(t, "b1", "k", f.body)
		done <- result{status, res, answer}
	}()
	f.let()
	r := <-done
	if r.status != http.StatusOK || r.res.Stdout == nil || *r.res.Stdout != f.want || r.res.ExitCode == nil || *r.res.ExitCode != 0 {
		t.Errorf("%d %s, want %s", r.status, r.answer, f.want)
	}
	f.wantExecs(t, "b1", 1)
}

// TestG11_InputOutlivesItsClient: a command gets all of the input that its
// request held, though the client left before it was read, and before it comes
// again.
func TestG11_InputOutlivesItsClient(t *testing.T) {
	f := newFeeding(t)
	f.leave()
	f.let()
	execs, err := f.ListExecs(f.ctx, "b1")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := f.WaitExec(f.ctx, "b1", execs[0].ID); err != nil || e.Bytes != int64(len(f.want)) {
		t.Errorf("%+v %v", e, err)
	}
	f.joins(t)
}

// TestG11_InputOutlivesTheServer: where the server ended amid the input, the
// repeat goes on behind what the command has got.
func TestG11_InputOutlivesTheServer(t *testing.T) {
	f := newFeeding(t)
	f.restart()
	f.restart()
	f.joins(t)
}

// TestG11_InputOfAnother: an input that somebody else went on with is not one
// to go on with.
func TestG11_InputOfAnother(t *testing.T) {
	f := newFeeding(t)
	f.restart()
	execs, err := f.ListExecs(f.ctx, "b1")
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.Attach(f.ctx, "b1", execs[0].ID, taisandbox.AttachOptions{Hold: true})
	if err != nil {
		t.Fatal(err)
	}
	f.let()
	if _, err := s.Write(make([]byte, 2<<20)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := f.manager.Get(f.ctx, "b1")
	if err != nil {
		t.Fatal(err)
	}
	// The server lets go a moment after it said that it would.
	eventually(t, "the exec is free", func() bool {
		s, err := b.AttachExec(f.ctx, execs[0].ID, taisandbox.AttachOptions{Hold: true})
		return err == nil && s.Close() == nil
	})
	status, _, answer := f.repeat(t, "b1", "k", f.body)
	if e := failure(t, answer); status != http.StatusConflict || e.Code != sandbox.ErrIdempotencyKey.Reason || e.Hint == "" || e.Details["exec_id"] != execs[0].ID {
		t.Errorf("%d %s", status, answer)
	}
}

// TestInputOfEndedKey: a key that ends takes its request with it, whatever is
// still to be fed.
func TestInputOfEndedKey(t *testing.T) {
	let := make(chan struct{})
	a, store := &asked{life: make(chan context.Context, 1)}, keystore.New()
	t.Cleanup(store.Close)
	w := newWorldWith(t, func(c *server.Config) { c.Authorizer, c.Keys = a, store }, late(let))
	t.Cleanup(sync.OnceFunc(func() { close(let) }))
	w.create(rest.CreateBox{ID: "b1", Owner: "ann"})
	key, token, err := store.Create(keystore.Key{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(rest.ExecRequest{Cmd: []string{"late"}, StdinB64: input()})
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	var status int
	var answer string
	go func() {
		defer close(answered)
		status, _, answer = w.call(http.MethodPost, "/v1/sandboxes/b1/exec", string(raw), "Authorization", "Bearer "+token)
	}()
	<-a.life
	eventually(t, "the command runs", func() bool {
		execs, err := w.ListExecs(w.ctx, "b1")
		return err == nil && len(execs) == 1 && execs[0].State == "running"
	})
	if _, err := store.Remove(key.ID); err != nil {
		t.Fatal(err)
	}
	<-answered
	if status != http.StatusUnauthorized || strings.Contains(answer, "ready") {
		t.Errorf("%d %s", status, answer)
	}
}
