package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/taibox/taibox/api/rest"
)

// A body that brings nothing any more ends its request, and a handler that
// does not read it does not wait.
func TestStalledBody(t *testing.T) {
	read := make(chan error, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := steady(w, r)
		b.patience = 50 * time.Millisecond
		defer b.leave()
		if r.URL.Path == "/unread" {
			return
		}
		_, err := io.Copy(io.Discard, r.Body)
		read <- err
	}))
	defer s.Close()
	for _, path := range []string{"/read", "/unread"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "PUT "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nsome")
		if path == "/read" {
			if err := <-read; !errors.Is(err, rest.ErrRequest) {
				t.Errorf("got %v, want %v", err, rest.ErrRequest)
			}
		}
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 ") {
			t.Errorf("%s: the answer is %q, %v", path, answer, err)
		}
	}
}

// The limit is for each read alone, and for no time in which nobody reads.
func TestSteadyBody(t *testing.T) {
	var limits []bool
	body := func(r io.Reader) *steadyBody {
		limits = nil
		return &steadyBody{ReadCloser: io.NopCloser(r), patience: time.Hour, deadline: func(end time.Time) error {
			limits = append(limits, !end.IsZero())
			return nil
		}}
	}
	check := func(what string, want ...bool) {
		t.Helper()
		if len(limits) != len(want) {
			t.Errorf("%s: set was %v, want %v", what, limits, want)
			return
		}
		for i := range want {
			if limits[i] != want[i] {
				t.Errorf("%s: set was %v, want %v", what, limits, want)
			}
		}
	}
	b := body(strings.NewReader("x"))
	b.Read(make([]byte, 1))
	check("a read", true, false)
	b.leave()
	check("the rest", true, false, true)
	b = body(strings.NewReader(""))
	b.Read(make([]byte, 1))
	b.leave()
	check("the end", true, false)
	b = body(iotest.ErrReader(os.ErrDeadlineExceeded))
	b.Read(make([]byte, 1))
	b.leave()
	check("a stall", true)
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	steady(httptest.NewRecorder(), r).leave()
	if r.Body != nil {
		t.Error("a request has a body that had none")
	}
}
