package server_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/keystore"
	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/server"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/workspace"
)

// withhold sends a request without its body, and returns once the server waits
// for that. send sends it.
func (w *world) withhold(t *testing.T, method, path string, body []byte, header ...string) (send func() (status int, answer string)) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: taibox\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n", method, path, len(body))
	for i := 0; i < len(header); i += 2 {
		fmt.Fprintf(conn, "%s: %s\r\n", header[i], header[i+1])
	}
	io.WriteString(conn, "\r\n")
	in := bufio.NewReader(conn)
	answer := func() (int, string) {
		t.Helper()
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if status, text := answer(); status != http.StatusContinue {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	return func() (int, string) {
		t.Helper()
		conn.Write(body)
		return answer()
	}
}

// J05: a request that an owner was let in with does not reach the workspace
// that another one has under that id by the time the body comes.
func TestJ05RequestOutlivesWorkspace(t *testing.T) {
	var names, removes, form, archive bytes.Buffer
	media := multipart.NewWriter(&form)
	part, err := media.CreateFormFile("file", "f")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(part, "mine")
	tw := tar.NewWriter(&archive)
	tw.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: 4})
	io.WriteString(tw, "mine")
	for _, err := range []error{treesync.WriteNames(&names, []string{"f"}), treesync.WriteApply(&removes, []string{"f"}, strings.NewReader("")), media.Close(), tw.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	k := newKeyed(t, nil)
	_, one := k.key(t, keystore.Key{Owner: "u1"})
	for _, c := range []struct {
		name, method, path, media string
		body                      []byte
		status                    int
	}{
		{"index", "POST", "/sync/index", "application/json", []byte("{}"), 404},
		{"hashes", "POST", "/sync/hashes", treesync.ContentType, names.Bytes(), 404},
		{"fetch", "POST", "/sync/fetch", treesync.ContentType, names.Bytes(), 200}, // and what went wrong in the stream
		{"apply", "POST", "/sync/apply", treesync.ContentType, removes.Bytes(), 404},
		{"upload", "POST", "/files", media.FormDataContentType(), form.Bytes(), 404},
		{"upload-renamed", "POST", "/files?rename=true", media.FormDataContentType(), form.Bytes(), 404},
		{"write", "PUT", "/files?path=f", "application/octet-stream", []byte("mine"), 404},
		{"archive", "PUT", "/archive", "application/x-tar", archive.Bytes(), 404},
	} {
		t.Run(c.name, func(t *testing.T) {
			k.createWorkspace(rest.CreateWorkspace{ID: "proj", Owner: "u1"})
			send := k.withhold(t, c.method, "/v1/workspaces/proj"+c.path, c.body, append(one, "Content-Type", c.media)...)
			if status, _, body := k.call("DELETE", "/v1/workspaces/proj", "", one...); status != http.StatusNoContent {
				t.Fatalf("%d %s", status, body)
			}
			theirs := k.createWorkspace(rest.CreateWorkspace{ID: "proj", Owner: "u2"})
			k.write(t, theirs, "f", "theirs")
			status, body := send()
			if status != c.status {
				t.Errorf("%d %q", status, body)
			}
			got := t.TempDir()
			if err := treesync.Dir(got).Apply(k.ctx, nil, strings.NewReader(body)); err == nil {
				t.Errorf("the answer is a tree: %q", body)
			}
			if files, err := os.ReadDir(got); err != nil || len(files) > 0 {
				t.Errorf("got %v, %v", files, err)
			}
			if text := k.read(t, theirs, "f"); text != "theirs" {
				t.Errorf("the other's file has %q", text)
			}
			if files, err := theirs.List(k.ctx, ""); err != nil || len(files) != 1 {
				t.Errorf("the other has %v, %v", files, err)
			}
			if err := theirs.Delete(k.ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Boxes of other owners are not named to who may not know of them.
func TestMountedByOthers(t *testing.T) {
	k := newKeyed(t, nil)
	_, one := k.key(t, keystore.Key{Owner: "u1"})
	k.createWorkspace(rest.CreateWorkspace{ID: "w1", Owner: "u1"})
	for _, c := range []struct{ box, owner, says string }{
		{"theirs", "u2", "in 1 box of others"},
		{"theirs-2", "u2", "in 2 boxes of others"},
		{"own", "u1", "in boxes own and 2 more"},
	} {
		k.create(rest.CreateBox{ID: c.box, Owner: c.owner, WorkspaceID: "w1"})
		status, _, body := k.call("DELETE", "/v1/workspaces/w1", "", one...)
		e := failure(t, body)
		if status != http.StatusConflict || e.Code != "WORKSPACE_MOUNTED" || !strings.Contains(e.Message, c.says) || strings.Contains(body, "theirs") {
			t.Errorf("%d %s; wanted is %q", status, body, c.says)
		}
	}
	if _, _, body := k.call("DELETE", "/v1/workspaces/w1", ""); !strings.Contains(body, "theirs-2") {
		t.Errorf("an admin is told %s", body)
	}
}

// G11: creates with one key at the same time are one workspace.
func TestG11WorkspaceCreatesInParallel(t *testing.T) {
	w := newWorld(t)
	for round := range 5 {
		var wg sync.WaitGroup
		answers := make([]string, 8)
		for i := range answers {
			wg.Go(func() {
				status, _, answer := w.call("POST", "/v1/workspaces", `{"name":"a"}`, "Idempotency-Key", fmt.Sprint(round))
				answers[i] = fmt.Sprint(status, " ", answer)
			})
		}
		wg.Wait()
		for _, a := range answers {
			if a != answers[0] || !strings.HasPrefix(a, "201 ") {
				t.Errorf("%s\nand: %s", a, answers[0])
			}
		}
	}
}

// meanwhile is a volume in which something happens after a file is described.
type meanwhile struct {
	volume.Volume
	happens func()
}

func (m *meanwhile) Pin(ctx context.Context, id string, created time.Time) (volume.Volume, error) {
	v, err := m.Volume.Pin(ctx, id, created)
	return &meanwhile{v, m.happens}, err
}

func (m *meanwhile) Stat(ctx context.Context, id, path string) (volume.FileInfo, error) {
	info, err := m.Volume.Stat(ctx, id, path)
	m.happens()
	return info, err
}

// A removal by If-Match does not remove what was written since it was compared.
func TestRemoveIfMatch(t *testing.T) {
	w := &world{t: t}
	written := ""
	w.change = func(c *server.Config) {
		vol := &meanwhile{w.volume, func() {
			if written == "" {
				return
			}
			if _, err := w.volume.WriteFile(w.ctx, "w1", "f", strings.NewReader(written), volumeWrite); err != nil {
				t.Error(err)
			}
		}}
		reg := registry.New()
		node := registry.TaiNode{
			NodeSnapshot: registry.NodeSnapshot{TaiID: registry.Local, Runtime: "fake"},
			Client:       tai.NewClient(w.driver, w.driver, tai.WithVolume(vol)),
		}
		var err error
		if c.Workspaces, err = workspace.New(workspace.Config{Registry: reg}); err == nil {
			err = reg.Register(node)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.begin()
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	const file = "/v1/workspaces/w1/files?path=f"
	w.write(t, ws, "f", "old")
	for _, c := range []struct {
		written string
		status  int
	}{{"new", http.StatusPreconditionFailed}, {"", http.StatusNoContent}} {
		_, header, _ := w.call("GET", file, "")
		written = c.written
		status, _, body := w.call("DELETE", file, "", "If-Match", header.Get("ETag"))
		written = ""
		if status != c.status {
			t.Errorf("%d %s; wanted is %d", status, body, c.status)
		}
		if status, _, body := w.call("GET", file, ""); c.written != "" && body != c.written || c.written == "" && status != http.StatusNotFound {
			t.Errorf("%d %s", status, body)
		}
	}
	w.write(t, ws, "f", "any")
	if status, _, body := w.call("DELETE", file, "", "If-Match", "*"); status != http.StatusNoContent {
		t.Errorf("%d %s", status, body)
	}
}

// One owner's watches leave some for others.
func TestWatchesOfOneOwner(t *testing.T) {
	k := newKeyed(t, nil)
	watch := func(id string, header []string) (status int, end func()) {
		ctx, cancel := context.WithCancelCause(t.Context())
		t.Cleanup(func() { cancel(nil) })
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://taibox/v1/workspaces/"+id+"/files/watch", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(header[0], header[1])
		resp, err := k.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, func() {
			cancel(nil)
			resp.Body.Close()
		}
	}
	headers := map[string][]string{}
	for _, owner := range []string{"u1", "u2"} {
		k.createWorkspace(rest.CreateWorkspace{ID: owner, Owner: owner})
		_, headers[owner] = k.key(t, keystore.Key{Owner: owner})
	}
	var last func()
	for range 16 {
		status, end := watch("u1", headers["u1"])
		if last = end; status != http.StatusOK {
			t.Fatal(status)
		}
	}
	if status, end := watch("u1", headers["u1"]); status != http.StatusTooManyRequests {
		t.Errorf("one too many: %d", status)
	} else {
		end()
	}
	if status, _ := watch("u2", headers["u2"]); status != http.StatusOK {
		t.Errorf("another owner's: %d", status)
	}
	last()
	eventually(t, "it has one again", func() bool {
		status, end := watch("u1", headers["u1"])
		if status != http.StatusOK {
			end()
		}
		return status == http.StatusOK
	})
}

// A part of a workspace's file is by its bytes, also where there are none.
func TestWorkspaceSlices(t *testing.T) {
	w := newWorld(t)
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	w.write(t, ws, "f", "0123456789")
	w.write(t, ws, "empty", "")
	const most = 1<<63 - 1
	for _, c := range []struct {
		name          string
		offset, limit int64
		want          string
	}{
		{"f", 0, 3, "012"},
		{"f", 8, 9, "89"},
		{"f", 5, most, "56789"},
		{"f", most, most, ""},
		{"f", 10, 1, ""},
		{"f", 11, 0, ""},
		{"empty", 0, 10, ""},
		{"empty", 1, 0, ""},
	} {
		r, info, err := ws.Open(w.ctx, c.name, volume.OpenOptions{Offset: c.offset, Limit: c.limit})
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got, err := io.ReadAll(r); err != nil || string(got) != c.want || info.Path != c.name {
			t.Errorf("%+v: %q of %q, %v", c, got, info.Path, err)
		}
		r.Close()
	}
}
