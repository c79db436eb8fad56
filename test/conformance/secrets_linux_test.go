package conformance

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/tai/sandbox"
)

// lookAround prints all that /proc tells of processes to whoever runs it.
const lookAround = `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n'`

// TestS01Secrets: what is secret stays with whom it was given to. Each canary
// is looked for in boxes, records, logs, on disk and among the machine's
// processes.
func TestS01Secrets(t *testing.T) {
	s := startServer(t, "S01_SERVER=canary-server-env")
	secrets := canaries{"server's environment": "canary-server-env", "registry password": "canary-registry-password", "exec's environment": "canary-exec-env"}

	admin := s.client("unix://" + s.socket)
	key, err := admin.CreateKey(t.Context(), rest.CreateKey{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	secrets["API key"] = key.Secret[strings.LastIndexByte(key.Secret, '_')+1:]
	version, err := admin.Version(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ann := s.client(version.Listen, client.WithAPIKey(key.Secret))
	refused := s.client(version.Listen, client.WithAPIKey("tbx_0123456789abcdef_canary-wrong-key"))
	if _, err := refused.ListBoxes(t.Context(), rest.ListBoxes{}); err == nil {
		t.Fatal("a wrong key lets in")
	}
	secrets["wrong key"] = "canary-wrong-key"

	basic := base64.StdEncoding.EncodeToString([]byte("bot:" + secrets["registry password"]))
	secrets["registry header"] = basic
	pullRefused(t, admin, rest.RegistryAuth{Username: "bot", Password: secrets["registry password"]}, basic)

	for _, req := range []rest.CreateBox{{ID: "b1", Image: sandbox.HostFS, Env: map[string]string{"BOX": "canary-box-env"}}, {ID: "b2", Image: sandbox.HostFS}} {
		if _, err := ann.CreateBox(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	_, err = ann.ExecDetached(t.Context(), "b1", rest.ExecRequest{ID: "holder", Cmd: []string{"sleep", "infinity"}, Env: map[string]string{"EXEC": secrets["exec's environment"]}})
	if err != nil {
		t.Fatal(err)
	}

	secrets.in(t, "what another user of the box sees", output(t, ann, "b1", "12345"))
	secrets["box's environment"] = "canary-box-env"
	secrets.in(t, "what root of another box sees", output(t, ann, "b2", "0"))

	for _, path := range []string{"/v1/sandboxes", "/v1/sandboxes/b1", "/v1/sandboxes/b1/execs", "/v1/sandboxes/b1/execs/holder", "/v1/keys", "/v1/images", "/metrics"} {
		secrets.in(t, path, s.get(path))
	}
	secrets.in(t, "the server's log", read(t, s.log))
	secrets.in(t, "the audit log", read(t, filepath.Join(s.data, "audit.log")))
	secrets.without("box's environment").inFiles(t, s.data) // which is in the box's record, for its next start
	secrets.inCommandLines(t)

	// Root of the box sees what its box was given, and so that looking works. It
	// comes last, since the output is kept.
	seen := output(t, ann, "b1", "0")
	for _, given := range []string{"exec's environment", "box's environment"} {
		if !strings.Contains(seen, secrets[given]) {
			t.Errorf("root of the box does not see the %s", given)
		}
	}
	secrets.without("exec's environment").without("box's environment").in(t, "what root of the box sees", seen)
}

// canaries are secrets, by what they are.
type canaries map[string]string

func (c canaries) without(what string) canaries {
	rest := canaries{}
	for k, v := range c {
		if k != what {
			rest[k] = v
		}
	}
	return rest
}

// in looks for them in a text.
func (c canaries) in(t *testing.T, where, text string) {
	t.Helper()
	if text == "" {
		t.Errorf("%s: there is nothing to look at", where)
	}
	for what, secret := range c {
		if strings.Contains(text, secret) {
			t.Errorf("%s: the %s is in it", where, what)
		}
	}
}

// inFiles looks for them in all files below a directory.
func (c canaries) inFiles(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil && len(data) > 0 {
			c.in(t, path, string(data))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// inCommandLines looks for them among all processes of the machine.
func (c canaries) inCommandLines(t *testing.T) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range lines {
		if data, err := os.ReadFile(file); err == nil && len(data) > 0 { // else it ended, or is the kernel's
			c.in(t, file, string(data))
		}
	}
}

// output returns what a user of a box sees of its processes.
func output(t *testing.T, c *client.Client, box, user string) string {
	t.Helper()
	s, err := c.Exec(t.Context(), box, rest.ExecRequest{Cmd: []string{"sh", "-c", lookAround}, User: user})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	res, err := sandbox.Collect(t.Context(), s, nil, false, sandbox.DefaultMaxOutput)
	if err != nil {
		t.Fatal(err)
	}
	return string(res.Stdout)
}

// pullRefused pulls from a registry that gets the credentials, and refuses them.
func pullRefused(t *testing.T, c *client.Client, auth rest.RegistryAuth, basic string) {
	t.Helper()
	got := make(chan struct{}, 100)
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Basic "+basic {
			got <- struct{}{}
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="S01"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer registry.Close()
	err := c.PullImage(t.Context(), rest.PullImage{Image: strings.TrimPrefix(registry.URL, "http://") + "/private/image:1", Auth: &auth}, func(rest.PullEvent) {})
	if err == nil || len(got) == 0 {
		t.Fatalf("the pull ended with %v, and the registry got the password %d times", err, len(got))
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// server is a server as a process, on the embedded driver.
type server struct {
	t                 *testing.T
	socket, data, log string
}

// startServer starts one with more variables, and takes all that it made off
// the machine when the test ends.
func startServer(t *testing.T, vars ...string) *server {
	t.Helper()
	program := filepath.Join(binDir(), "taibox-server")
	why := (&ociMachine{}).need()
	if _, err := os.Stat(program); why == "" && err != nil {
		why = err.Error() + " (make build)"
	}
	if why != "" {
		if required("oci") {
			t.Fatalf("it is required, and cannot run: %s", why)
		}
		t.Skip(why)
	}
	dir, err := os.MkdirTemp("", "tbx") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &server{t: t, socket: filepath.Join(dir, "s.sock"), data: filepath.Join(dir, "data"), log: filepath.Join(dir, "log")}
	log, err := os.OpenFile(s.log, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, "serve", "--host", "unix://"+s.socket, "--data-dir", s.data, "--listen", "127.0.0.1:0", "--log", "debug")
	cmd.Env = append(os.Environ(), vars...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	v := s.await(ended)
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), <-ended); err != nil {
			t.Error(err)
		}
		s.wipe(v.Instance)
	})
	return s
}

// await waits until the server answers.
func (s *server) await(ended <-chan error) rest.Version {
	s.t.Helper()
	c := s.client("unix://" + s.socket)
	limit := time.After(time.Minute)
	for {
		if v, err := c.Version(s.t.Context()); err == nil {
			return v
		}
		select {
		case err := <-ended:
			s.t.Fatalf("the server ended: %v\n%s", err, read(s.t, s.log))
		case <-limit:
			s.t.Fatalf("the server does not answer\n%s", read(s.t, s.log))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// wipe removes the boxes, and what else there is of the instance.
func (s *server) wipe(instance string) {
	bin, err := filepath.Abs(binDir())
	if err != nil {
		s.t.Fatal(err)
	}
	ctx := context.Background()
	d, err := oci.Open(ctx, oci.Config{
		DataDir: s.data, Instance: instance,
		RuncPath: filepath.Join(bin, "taibox-runc"), BridgePath: filepath.Join(bin, "taibox-bridge"),
	})
	if err != nil {
		s.t.Errorf("open to wipe: %v", err)
		return
	}
	boxes, err := d.List(ctx, sandbox.Filter{})
	for _, b := range boxes {
		err = errors.Join(err, d.Remove(ctx, b.ID))
	}
	if err := errors.Join(err, d.Dismantle(ctx), d.Close()); err != nil {
		s.t.Errorf("wipe: %v", err)
	}
}

func (s *server) client(host string, opts ...client.Option) *client.Client {
	s.t.Helper()
	c, err := client.New(host, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// get returns an answer of the API as it is.
func (s *server) get(path string) string {
	s.t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.socket)
	}}}
	resp, err := c.Get("http://taibox" + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := io.Copy(&body, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s, %v: %s", path, resp.Status, err, &body)
	}
	return body.String()
}
