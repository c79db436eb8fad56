package repo_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
)

// routes asks a server which routes it has.
func routes(t *testing.T) []string {
	t.Helper()
	manager, err := sandbox.New(sandbox.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(server.Config{Manager: manager})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx, listener) }()
	defer func() {
		cancel(nil)
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()

	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://taibox/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	var found []string
	for path, methods := range doc.Paths {
		for method := range methods {
			found = append(found, strings.ToUpper(method)+" "+path)
		}
	}
	return found
}

// The table of routes in docs/api.md is the server's.
func TestAPIDocs(t *testing.T) {
	var documented []string
	for _, match := range regexp.MustCompile("(?m)^\\| `([A-Z]+ /[^`]*)` \\|").FindAllStringSubmatch(read(t, "docs/api.md"), -1) {
		documented = append(documented, match[1])
	}
	served := routes(t)
	slices.Sort(documented)
	slices.Sort(served)
	if diff := cmp.Diff(documented, served); diff != "" {
		t.Errorf("routes differ (-docs/api.md +server):\n%s", diff)
	}
}
