package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/reason"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHosts(t *testing.T) {
	for host, ok := range map[string]bool{
		"unix:///run/taibox/taibox.sock": true, "http://127.0.0.1:7600": true, "https://box.example/": true,
		"": false, "unix://": false, "unix://relative/path": false, "/run/taibox.sock": false, "tcp://x:1": false,
		"http://": false, "http://h/path": false, "http://h:x": false, "://": false,
	} {
		_, err := New(host)
		if (err == nil) != ok {
			t.Errorf("%q: %v", host, err)
		}
		if err != nil && (!errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), fmt.Sprintf("%q", host))) {
			t.Errorf("%q: %v", host, err)
		}
	}
}

// answering is a server that always answers so.
func answering(t *testing.T, opts []Option, status int, contentType, body string) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer k1" {
			t.Errorf("no key: %v", r.Header)
		}
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	c, err := New(s.URL, append(opts, WithAPIKey("k1"))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestErrors(t *testing.T) {
	mine := &reason.Error{Reason: "MINE", Msg: "mine", Class: errdefs.ErrConflict}
	body := func(code string) string {
		return `{"error":{"code":"` + code + `","message":"remove box b1: it is not there","details":{"a":1},"hint":"look again","retryable":false,"request_id":"r1"}}`
	}
	for _, c := range []struct {
		name   string
		status int
		body   string
		is     []error
		reason string
		text   string
	}{
		{"known", 404, body("BOX_NOT_FOUND"), []error{taisandbox.ErrNotFound, errdefs.ErrNotFound}, "BOX_NOT_FOUND", "remove box b1: it is not there"},
		{"given", 409, body("MINE"), []error{mine, errdefs.ErrConflict}, "MINE", "remove box b1: it is not there"},
		{"unknown", 429, body("NEW_ONE"), []error{errdefs.ErrResourceExhausted}, "NEW_ONE", "remove box b1: it is not there"},
		{"of_the_api", 413, body("TOO_LARGE"), []error{rest.ErrTooLarge, errdefs.ErrInvalidArgument}, "TOO_LARGE", "remove box b1: it is not there"},
		{"internal", 500, body("INTERNAL"), []error{rest.ErrInternal}, "INTERNAL", "remove box b1: it is not there (request r1)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := answering(t, []Option{WithReasons([]*reason.Error{mine})}, c.status, "application/json", c.body)
			check := func(err error) {
				t.Helper()
				for _, is := range c.is {
					if !errors.Is(err, is) {
						t.Errorf("%v is not %v", err, is)
					}
				}
				e, ok := errors.AsType[*Error](err)
				if !ok || e.Body.RequestID != "r1" || e.Body.Details["a"] != 1.0 {
					t.Errorf("%+v", err)
				}
				if reason.Of(err) != c.reason || reason.Hint(err) != "look again" || err.Error() != c.text {
					t.Errorf("%q %q %q", reason.Of(err), reason.Hint(err), err)
				}
			}
			check(cl.RemoveBox(t.Context(), "b1"))
			_, err := cl.Exec(t.Context(), "b1", rest.ExecRequest{Cmd: []string{"true"}})
			check(err)
			_, err = cl.Attach(t.Context(), "b1", "e1", taisandbox.AttachOptions{})
			check(err)
			_, err = cl.LoadImage(t.Context(), strings.NewReader("x"), "n")
			check(err)
		})
	}
}

// TestNotOurServer: something else that speaks HTTP is told as such.
func TestNotOurServer(t *testing.T) {
	for _, c := range []struct {
		status            int
		contentType, body string
	}{
		{404, "text/html", "<html>"}, {502, "application/json", `{"oops":1}`}, {400, "application/json", `{`}, {302, "text/plain", ""},
	} {
		err := answering(t, nil, c.status, c.contentType, c.body).RemoveBox(t.Context(), "b1")
		if err == nil || !strings.Contains(err.Error(), "not how a Taibox server speaks") {
			t.Errorf("%d: %v", c.status, err)
		}
	}
	if _, err := answering(t, nil, 200, "text/html", "<html>").GetBox(t.Context(), "b1"); err == nil {
		t.Error("HTML is a box")
	}
	if _, err := answering(t, nil, 200, "text/html", "<html>").Exec(t.Context(), "b1", rest.ExecRequest{}); err == nil {
		t.Error("HTML is a stream")
	}
}

// TestIDsThatArePathsAreNotSent: they could mean another object.
func TestIDsThatArePathsAreNotSent(t *testing.T) {
	c, err := New("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", ".", "..", "a/b", "../x", "a b", "%2e", "a\nb", strings.Repeat("x", 300)} {
		_, getErr := c.GetBox(t.Context(), id)
		_, execErr := c.GetExec(t.Context(), "b1", id)
		_, wsErr := c.Exec(t.Context(), id, rest.ExecRequest{})
		_, attachErr := c.Attach(t.Context(), "b1", id, taisandbox.AttachOptions{})
		for _, err := range []error{getErr, execErr, wsErr, attachErr, c.RemoveBox(t.Context(), id), c.StopBox(t.Context(), id, nil), c.KillExec(t.Context(), "b1", id, taisandbox.KillOptions{})} {
			if !errors.Is(err, taisandbox.ErrInvalidSpec) {
				t.Errorf("%q: %v", id, err)
			}
		}
	}
}

func TestUnreachable(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	c, err := New("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	wantUnreachable := func(cause error) {
		t.Helper()
		_, err := c.Version(t.Context())
		if !errors.Is(err, rest.ErrUnreachable) || !errors.Is(err, errdefs.ErrUnavailable) || !errors.Is(err, cause) || !strings.Contains(err.Error(), socket) {
			t.Errorf("%v", err)
		}
	}
	wantUnreachable(syscall.ENOENT)
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
	wantUnreachable(syscall.ECONNREFUSED)

	if err := c.linkError(t.Context(), &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}); !errors.Is(err, errdefs.ErrPermissionDenied) || !errors.Is(err, fs.ErrPermission) || reason.Hint(err) == "" {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("because"))
	if err := c.linkError(ctx, errors.New("x")); err == nil || err.Error() != "because" {
		t.Errorf("%v", err)
	}
}

// TestExecInfoIsWhole: a field that is added to the record travels.
func TestExecInfoIsWhole(t *testing.T) {
	var e rest.Exec
	fill(reflect.ValueOf(&e).Elem())
	info := execInfo(e)
	for field, v := range reflect.ValueOf(info).Fields() {
		if v.IsZero() {
			t.Errorf("%s is left out", field.Name)
		}
	}
}

// fill gives every field of a struct some value.
func fill(v reflect.Value) {
	for _, f := range v.Fields() {
		switch f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Int, reflect.Int64:
			f.SetInt(1)
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		default: // a time
			f.Set(reflect.ValueOf(someTime))
		}
	}
}
