package apiclient_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	"github.com/taibox/taibox/test/apiclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api is a server with the fake driver, and ways to reach it.
type api struct {
	server *server.Server
	socket string
	addr   string // over TCP
}

func start(t *testing.T) *api {
	t.Helper()
	dir, err := os.MkdirTemp("", "tba") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	d := fake.New()
	nodes := registry.New()
	client := tai.NewClient(d, d)
	if err := nodes.Register(registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: registry.Local, Runtime: "fake"}, Client: client}); err != nil {
		t.Fatal(err)
	}
	m, err := sandbox.New(sandbox.Config{Instance: "test", Registry: nodes})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{Manager: m, Version: "v1", Instance: "test"})
	if err != nil {
		t.Fatal(err)
	}
	a := &api{server: s, socket: filepath.Join(dir, "s")}
	unix, err := net.Listen("unix", a.socket)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.addr = tcp.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, unix, tcp) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return a
}

// client is one on the socket, who may everything; or one with a key.
func (a *api) client(t *testing.T, key string) *apiclient.ClientWithResponses {
	t.Helper()
	transport, base := &http.Transport{}, "http://"+a.addr
	if key == "" {
		base = "http://taibox"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", a.socket)
		}
	}
	t.Cleanup(transport.CloseIdleConnections)
	c, err := apiclient.NewClientWithResponses(base,
		apiclient.WithHTTPClient(&http.Client{Transport: transport}),
		apiclient.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			if key != "" {
				r.Header.Set("Authorization", "Bearer "+key)
			}
			return nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *api) box(t *testing.T, c *apiclient.ClientWithResponses, id string) *apiclient.Box {
	t.Helper()
	made, err := c.PostSandboxesWithResponse(t.Context(), nil, apiclient.CreateBox{Id: &id, Image: new("hostfs"), Labels: &map[string]string{"by": "test"}})
	if err != nil || made.StatusCode() != http.StatusCreated && made.StatusCode() != http.StatusOK {
		t.Fatalf("%+v, %v", made, err)
	}
	box := new(apiclient.Box)
	decode(t, made.Body, box)
	return box
}

// TestBoxes: create, list, run, stop, remove.
func TestBoxes(t *testing.T) {
	a := start(t)
	c := a.client(t, "")
	if box := a.box(t, c, "b1"); box.Id != "b1" || box.Status != "running" || box.Labels["by"] != "test" {
		t.Errorf("%+v", box)
	}
	list, err := c.GetSandboxesWithResponse(t.Context(), &apiclient.GetSandboxesParams{})
	if err != nil || list.JSON200 == nil || len(*list.JSON200.Items) != 1 || (*list.JSON200.Items)[0].Id != "b1" {
		t.Fatalf("%+v, %v", list, err)
	}
	res, err := c.PostSandboxesIdExecWithResponse(t.Context(), "b1", nil, apiclient.ExecRequest{Cmd: &[]string{"echo", "hello"}})
	if err != nil || res.StatusCode() != http.StatusOK {
		t.Fatalf("%+v, %v", res, err)
	}
	var out apiclient.ExecResult
	decode(t, res.Body, &out)
	if out.Stdout == nil || *out.Stdout != "hello\n" || out.ExitCode == nil || *out.ExitCode != 0 {
		t.Errorf("%+v", out)
	}
	execs, err := c.GetSandboxesIdExecsWithResponse(t.Context(), "b1", nil)
	if err != nil || execs.JSON200 == nil || len(*execs.JSON200.Items) != 1 {
		t.Errorf("%+v, %v", execs, err)
	}
	if stopped, err := c.PostSandboxesIdStopWithResponse(t.Context(), "b1", apiclient.PostSandboxesIdStopJSONRequestBody{}); err != nil || stopped.JSON200 == nil || stopped.JSON200.Status != "stopped" {
		t.Errorf("%+v, %v", stopped, err)
	}
	if gone, err := c.DeleteSandboxesIdWithResponse(t.Context(), "b1"); err != nil || gone.StatusCode() != http.StatusNoContent {
		t.Errorf("%+v, %v", gone, err)
	}
}

// TestFiles: what is written is read, listed and described.
func TestFiles(t *testing.T) {
	a := start(t)
	c := a.client(t, "")
	a.box(t, c, "b1")
	data := []byte("\x00some bytes\xff")
	put, err := c.PutSandboxesIdFilesWithBodyWithResponse(t.Context(), "b1", &apiclient.PutSandboxesIdFilesParams{Path: new("/tmp/file")}, "application/octet-stream", bytes.NewReader(data))
	if err != nil || put.StatusCode() >= 300 {
		t.Fatalf("%+v, %v", put, err)
	}
	got, err := c.GetSandboxesIdFilesWithResponse(t.Context(), "b1", &apiclient.GetSandboxesIdFilesParams{Path: new("/tmp/file")})
	if err != nil || got.StatusCode() != http.StatusOK || !bytes.Equal(got.Body, data) {
		t.Errorf("%+v, %v", got, err)
	}
	list, err := c.GetSandboxesIdFilesListWithResponse(t.Context(), "b1", &apiclient.GetSandboxesIdFilesListParams{Path: new("/tmp")})
	if err != nil || list.JSON200 == nil || len(*list.JSON200.Items) != 1 || (*list.JSON200.Items)[0].Size != int64(len(data)) {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestEvents: what happens is told, as server-sent events.
func TestEvents(t *testing.T) {
	a := start(t)
	c := a.client(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	resp, err := c.GetEvents(ctx, &apiclient.GetEventsParams{})
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%+v, %v", resp, err)
	}
	defer resp.Body.Close()
	a.box(t, c, "b1")
	var seen strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(seen.String(), `"running"`) {
		n, err := resp.Body.Read(buf)
		seen.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v after %s", err, seen.String())
		}
	}
	if !strings.Contains(seen.String(), "\nid: ") && !strings.HasPrefix(seen.String(), "id: ") || !strings.Contains(seen.String(), `"b1"`) {
		t.Errorf("%s", seen.String())
	}
}

// TestErrors: a failure has its status and its name.
func TestErrors(t *testing.T) {
	a := start(t)
	c := a.client(t, "")
	a.box(t, c, "b1")
	for name, f := range map[string]struct {
		code   string
		status int
		ask    func() ([]byte, int, error)
	}{
		"absent": {"BOX_NOT_FOUND", http.StatusNotFound, func() ([]byte, int, error) {
			r, err := c.GetSandboxesIdWithResponse(t.Context(), "nope")
			return r.Body, r.StatusCode(), err
		}},
		"taken": {"BOX_EXISTS", http.StatusConflict, func() ([]byte, int, error) {
			r, err := c.PostSandboxesWithResponse(t.Context(), nil, apiclient.CreateBox{Id: new("b1")})
			return r.Body, r.StatusCode(), err
		}},
		"invalid": {"", http.StatusBadRequest, func() ([]byte, int, error) {
			r, err := c.PostSandboxesWithResponse(t.Context(), nil, apiclient.CreateBox{Id: new("UPPER")})
			return r.Body, r.StatusCode(), err
		}},
	} {
		body, status, err := f.ask()
		var e apiclient.ErrorBody
		decode(t, body, &e)
		if err != nil || status != f.status || f.code != "" && e.Error.Code != f.code || e.Error.Code == "" || e.Error.Message == "" || e.Error.RequestId == "" {
			t.Errorf("%s: %d %+v, %v", name, status, e, err)
		}
	}
}

// TestKeys: who has a key of an owner sees that owner's boxes.
func TestKeys(t *testing.T) {
	a := start(t)
	admin := a.client(t, "")
	a.box(t, admin, "b1")
	made, err := admin.PostKeysWithResponse(t.Context(), nil, apiclient.CreateKey{Owner: new("ann")})
	if err != nil || made.StatusCode() >= 300 {
		t.Fatalf("%+v, %v", made, err)
	}
	var key apiclient.NewKey
	decode(t, made.Body, &key)
	ann := a.client(t, key.Key)
	a.box(t, ann, "hers")
	list, err := ann.GetSandboxesWithResponse(t.Context(), &apiclient.GetSandboxesParams{})
	if err != nil || list.JSON200 == nil || len(*list.JSON200.Items) != 1 || (*list.JSON200.Items)[0].Owner != "ann" {
		t.Errorf("%+v, %v", list, err)
	}
	if r, err := ann.GetSandboxesIdWithResponse(t.Context(), "b1"); err != nil || r.StatusCode() != http.StatusNotFound {
		t.Errorf("another's box: %+v, %v", r, err)
	}
	keys, err := admin.GetKeysWithResponse(t.Context(), nil)
	if err != nil || keys.JSON200 == nil || !slices.ContainsFunc(*keys.JSON200.Items, func(k apiclient.Key) bool { return k.Id == key.Id }) {
		t.Errorf("%+v, %v", keys, err)
	}
	if r, err := admin.DeleteKeysIdWithResponse(t.Context(), key.Id); err != nil || r.StatusCode() != http.StatusNoContent {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := ann.GetSandboxesWithResponse(t.Context(), &apiclient.GetSandboxesParams{}); err != nil || r.StatusCode() != http.StatusUnauthorized {
		t.Errorf("with a key that is gone: %+v, %v", r, err)
	}
}

// TestFresh: the client is that of the API as it is.
func TestFresh(t *testing.T) {
	spec, err := start(t).server.OpenAPI30()
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(spec)); sum != apiclient.Spec {
		t.Error("the API has changed since the client was generated: make gen")
	}
	if os.Getenv("TAIBOX_TEST_REQUIRE") == "" {
		t.Skip("the generator is run where all is required")
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "run", "./gen", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"models.gen.go", "client.gen.go", "spec.gen.go"} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the generator writes: make gen (%v)", name, err)
		}
	}
}

func decode(t *testing.T, body []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(body, v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
}
