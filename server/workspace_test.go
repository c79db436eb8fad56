package server_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/internal/keystore"
	"github.com/taibox/taibox/internal/treesync"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/workspace"
)

var (
	volumeWrite = volume.WriteOptions{Parents: true}
	volumeOpen  = volume.OpenOptions{}
)

func mkfifo(t *testing.T, name string) {
	t.Helper()
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (w *world) write(t *testing.T, ws *client.Workspace, name, text string) {
	t.Helper()
	if _, err := ws.Write(w.ctx, name, strings.NewReader(text), volumeWrite); err != nil {
		t.Fatalf("write %q: %v", name, err)
	}
}

func (w *world) read(t *testing.T, ws *client.Workspace, name string) string {
	t.Helper()
	r, _, err := ws.Open(w.ctx, name, volumeOpen)
	if err != nil {
		t.Fatalf("open %q: %v", name, err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %q: %v", name, err)
	}
	return string(data)
}

func TestWorkspaceLifecycle(t *testing.T) {
	w := newWorld(t)
	made, err := w.CreateWorkspace(w.ctx, rest.CreateWorkspace{ID: "w1", Name: "proj", Owner: "u1", Labels: map[string]string{"k": "v"}})
	if err != nil || made.Name != "proj" || made.Owner != "u1" || made.NodeID != "local" || made.Labels["k"] != "v" || made.CreatedAt.IsZero() {
		t.Fatalf("%+v %v", made, err)
	}
	if _, err := w.CreateWorkspace(w.ctx, rest.CreateWorkspace{ID: "w1"}); !errors.Is(err, workspace.ErrAlreadyExists) {
		t.Errorf("twice: %v", err)
	}
	other, err := w.CreateWorkspace(w.ctx, rest.CreateWorkspace{})
	if err != nil || other.Name != other.ID {
		t.Fatalf("%+v %v", other, err)
	}
	for i, c := range []struct {
		list rest.ListWorkspaces
		want int
	}{
		{rest.ListWorkspaces{}, 2},
		{rest.ListWorkspaces{PageSize: 1}, 2},
		{rest.ListWorkspaces{Owner: "u1"}, 1},
		{rest.ListWorkspaces{Owner: "u2"}, 0},
		{rest.ListWorkspaces{Node: "local"}, 2},
		{rest.ListWorkspaces{Node: "none"}, 0},
		{rest.ListWorkspaces{Labels: map[string]string{"k": "v"}}, 1},
		{rest.ListWorkspaces{Labels: map[string]string{"k": "w"}}, 0},
	} {
		if list, err := w.ListWorkspaces(w.ctx, c.list); err != nil || len(list) != c.want {
			t.Errorf("list %d: %v %v", i, list, err)
		}
	}
	ws := w.Workspace("w1")
	name := "other"
	if got, err := ws.Update(w.ctx, rest.UpdateWorkspace{Name: &name, Labels: &map[string]string{}}); err != nil || got.Name != name || len(got.Labels) != 0 || got.Owner != "u1" {
		t.Errorf("%+v %v", got, err)
	}
	bad := int64(-1)
	if _, err := ws.Update(w.ctx, rest.UpdateWorkspace{QuotaBytes: &bad}); !errors.Is(err, workspace.ErrInvalid) {
		t.Errorf("a negative quota: %v", err)
	}
	w.write(t, ws, "a/b", "text")
	if u, err := ws.Usage(w.ctx); err != nil || u.Files < 2 || u.Bytes == 0 || len(u.Boxes) != 0 {
		t.Errorf("%+v %v", u, err)
	}
	w.restart()
	if got, err := ws.Get(w.ctx); err != nil || got.Name != name {
		t.Errorf("after a restart: %+v %v", got, err)
	}
	if text := w.read(t, ws, "a/b"); text != "text" {
		t.Errorf("after a restart: %q", text)
	}
	if err := ws.Delete(w.ctx); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{"delete": ws.Delete(w.ctx), "remove": ws.Remove(w.ctx, "a", true)} {
		if !errors.Is(err, workspace.ErrNotFound) {
			t.Errorf("%s of one that is gone: %v", what, err)
		}
	}
	for _, body := range []string{`{"id":"A"}`, `{"id":"../x"}`, `{"name":"a\u0000b"}`, `{"quota_bytes":-1}`, `{"labels":{"":"x"}}`, `{"unknown":1}`, `{"node_id":"nowhere"}`} {
		if status, _, answer := w.call("POST", "/v1/workspaces", body); status != 400 && status != 404 {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
}

// A create that is repeated with its key is the same workspace.
func TestWorkspaceIdempotency(t *testing.T) {
	w := newWorld(t)
	key := []string{"Idempotency-Key", "k1"}
	create := func(body string) (int, string) {
		status, _, answer := w.call("POST", "/v1/workspaces", body, key...)
		return status, answer
	}
	status, first := create(`{"name":"a"}`)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, first)
	}
	w.restart()
	if status, again := create(`{"name":"a"}`); status != http.StatusCreated || again != first {
		t.Errorf("%d %s\nfirst: %s", status, again, first)
	}
	if status, answer := create(`{"name":"b"}`); status != http.StatusConflict || failure(t, answer).Code != "IDEMPOTENCY_KEY_USED" {
		t.Errorf("%d %s", status, answer)
	}
	if list, err := w.ListWorkspaces(w.ctx, rest.ListWorkspaces{}); err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
}

// A workspace of another owner is in no list, and its id tells nothing when it
// is chosen again.
func TestWorkspaceOwners(t *testing.T) {
	k := newKeyed(t, nil)
	_, one := k.key(t, keystore.Key{Owner: "u1"})
	_, two := k.key(t, keystore.Key{Owner: "u2"})
	status, _, body := k.call("POST", "/v1/workspaces", `{"id":"w1"}`, one...)
	if status != http.StatusCreated || !strings.Contains(body, `"owner":"u1"`) {
		t.Fatalf("%d %s", status, body)
	}
	if status, _, body := k.call("POST", "/v1/workspaces", `{"id":"w2","owner":"u1"}`, two...); status != http.StatusForbidden {
		t.Errorf("%d %s", status, body)
	}
	for _, q := range []string{"", "?owner=u1", "?label=a=b", "?limit=1"} {
		if status, _, body := k.call("GET", "/v1/workspaces"+q, "", two...); status != http.StatusOK || strings.Contains(body, "w1") {
			t.Errorf("%s: %d %s", q, status, body)
		}
	}
	status, _, body = k.call("POST", "/v1/workspaces", `{"id":"w1"}`, two...)
	if status != http.StatusConflict || strings.Contains(body, "local") || strings.Contains(body, "u1") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := k.call("POST", "/v1/workspaces", `{"id":"w1"}`, append(two, "Idempotency-Key", "k")...); status != http.StatusConflict || strings.Contains(body, "u1") {
		t.Errorf("%d %s", status, body)
	}
	// The audit log has what was changed and who was refused.
	k.call("PUT", "/v1/workspaces/w1/files?path=f", "x", append(two, "Content-Type", "application/octet-stream")...)
	data, err := os.ReadFile(k.audit)
	if err != nil || !bytes.Contains(data, []byte(`"kind":"workspace","id":"w1"`)) || !bytes.Contains(data, []byte(`WORKSPACE_NOT_FOUND`)) {
		t.Errorf("%s %v", data, err)
	}
}

// J01: no spelling of a path leads out of a workspace, by any route.
func TestJ01PathsByHTTP(t *testing.T) {
	w := newWorld(t)
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	w.write(t, ws, "in/f", "inside")
	dir, err := w.workspaces.MountPath(w.ctx, "w1")
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 12)
	for name, target := range map[string]string{"esc": "/", "leak": outside, "up": "../../..", "rel": up + outside[1:], "dangling": filepath.Join(filepath.Dir(outside), "new"), "in/deep": up} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	const base = "/v1/workspaces/w1"
	octets := []string{"Content-Type", "application/octet-stream"}
	tarBody := []string{"Content-Type", "application/x-tar"}
	before := snapshotOf(t, filepath.Dir(outside))
	for _, raw := range []string{
		"../x", "in/../../x", "..", "/etc/passwd", "//etc/passwd", "esc/etc/passwd", "esc/tmp/new", "leak", "rel", "up/x", "dangling", "in/deep/etc/passwd",
		"in/deep" + outside, "esc" + outside, "a\x00b", "in/f\x00", "in/..", "in/f/.", "./../x", "leak/.", "esc/..",
	} {
		q := pathQuery(raw)
		esc := strings.NewReplacer("+", "%20", "%2F", "/").Replace(q)
		dotted := strings.ReplaceAll(esc, ".", "%2e")
		b64 := "?path_b64=" + url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(raw)))
		for _, query := range []string{q, esc, dotted, b64} {
			for _, c := range []struct {
				method, path, body string
				header             []string
			}{
				{"GET", "/files", "", nil},
				{"GET", "/archive", "", nil},
				{"PUT", "/files", "bad", octets},
				{"PUT", "/archive", "", tarBody},
				{"GET", "/files/list", "", nil},
				{"POST", "/sync/index", "{}", []string{"Content-Type", "application/json"}},
			} {
				status, _, body := w.call(c.method, base+c.path+query, c.body, c.header...)
				if strings.Contains(body, "outside") && !strings.Contains(body, `"error"`) || strings.Contains(body, "root:") {
					t.Errorf("%s %s%s: %d told what is outside: %.200q", c.method, c.path, query, status, body)
				}
				if status >= 500 {
					t.Errorf("%s %s%s: %d %s", c.method, c.path, query, status, body)
				}
			}
		}
		for path, body := range map[string]string{
			"/files/mkdir": `{"path_b64":%q}`, "/files/rename": `{"path":"in/f","to_b64":%q}`, "/files/copy": `{"path":"in/f","to_b64":%q}`,
			"/pack": `{"path_b64":%q,"to":"out.tar"}`, "/extract": `{"path":"in/f","to_b64":%q,"format":"gzip"}`,
		} {
			if status, _, answer := w.call("POST", base+path, fmt.Sprintf(body, base64.StdEncoding.EncodeToString([]byte(raw)))); status >= 500 {
				t.Errorf("POST %s of %q: %d %s", path, raw, status, answer)
			}
			ws.Rename(w.ctx, raw, "in/f") // if it went inside
			if _, err := ws.Stat(w.ctx, "in/f"); err != nil {
				w.write(t, ws, "in/f", "inside")
			}
		}
		if out, err := os.ReadFile(outside); string(out) != "outside" || err != nil {
			t.Fatalf("%q wrote outside: %q %v", raw, out, err)
		}
	}
	if after := snapshotOf(t, filepath.Dir(outside)); after != before {
		t.Errorf("outside changed:\n%s\n%s", before, after)
	}
	if _, err := os.Stat("/x"); err == nil {
		t.Error("/x was made")
	}
	for _, p := range []string{base + "/%2e%2e/w1", base + "/../w1", "//v1/workspaces/w1", "/v1/workspaces/w1%2f..%2fw1", "/v1/workspaces/%2e%2e/files/list"} {
		conn := w.dialRaw(t)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: taibox\r\nConnection: close\r\n\r\n", p)
		answer, _ := io.ReadAll(conn)
		if !bytes.HasPrefix(answer, []byte("HTTP/1.1 40")) {
			t.Errorf("%s: %.80q", p, answer)
		}
	}
}

// snapshotOf lists what is in a directory, with contents.
func snapshotOf(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		fmt.Fprintf(&b, "%s %q\n", e.Name(), data)
	}
	return b.String()
}

// K08: a name is bytes, and each call takes it as what it is.
func TestK08OddNamesInWorkspaces(t *testing.T) {
	w := newWorld(t)
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	ctx := t.Context()
	events := make(chan volume.FileEvent, 1000)
	ready := make(chan struct{})
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(events)
		for e, err := range ws.Watch(watching, "", func() { close(ready) }) {
			if err != nil {
				return
			}
			events <- e
		}
	}()
	<-ready
	for _, name := range []string{"a\nb", "\xff\xfe", "-rf", "a b", `"`, "'", "%2F", "é", "e\u0301", "🚀", strings.Repeat("x", 255), ".git", "trailing ", "*", "a\r\nX-Evil: 1", "a&path=b", "C:\\x"} {
		at := "d/" + name
		w.write(t, ws, at, name)
		if got := w.read(t, ws, at); got != name {
			t.Errorf("%q: read was %q", name, got)
		}
		list, err := ws.List(ctx, "d")
		if err != nil || len(list) != 1 || list[0].Name != name || list[0].Path != at {
			t.Errorf("%q: listed is %+v, %v", name, list, err)
		}
		if info, err := ws.Stat(ctx, at); err != nil || info.Name != name || info.Size != int64(len(name)) {
			t.Errorf("%q: %+v, %v", name, info, err)
		}
		if err := ws.MkdirAll(ctx, "e/"+name, 0); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if _, err := ws.CreateSnapshot(ctx, "s"); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		err = errors.Join(ws.Copy(ctx, at, "e/"+name+"/c"), ws.Rename(ctx, at, "e/"+name+"/"+name), ws.Remove(ctx, "e/"+name+"/c", false))
		if err != nil {
			t.Errorf("%q: %v", name, err)
		}
		changes, err := ws.Diff(ctx, "s", "")
		if err != nil || len(changes) == 0 || changes[0].Path != at || changes[0].Kind != volume.Removed {
			t.Errorf("%q: changes %+v, %v", name, changes, err)
		}
		var got bytes.Buffer
		if r, err := ws.CopyFrom(ctx, "e"); err != nil {
			t.Errorf("%q: %v", name, err)
		} else {
			io.Copy(&got, r)
			r.Close()
		}
		if err := errors.Join(ws.Remove(ctx, "e", true), ws.CopyTo(ctx, "back", &got)); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if text := w.read(t, ws, "back/e/"+name+"/"+name); text != name {
			t.Errorf("%q: through tar it is %q", name, text)
		}
		var index []string
		for e, err := range ws.SyncEnd("back/e/"+name).Index(ctx, volume.IndexOptions{}) {
			if err != nil {
				t.Errorf("%q: %v", name, err)
			}
			index = append(index, e.Path)
		}
		if len(index) != 1 || index[0] != name {
			t.Errorf("%q: index %q", name, index)
		}
		if err := errors.Join(ws.Remove(ctx, "back", true), ws.RemoveSnapshot(ctx, "s")); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		for told := false; !told; {
			select {
			case e := <-events:
				told = e.Path == at || e.Kind == volume.FileGap
			case <-time.After(time.Minute):
				t.Fatalf("%q: its event does not come", name)
			}
		}
	}
}

func TestWorkspaceArchives(t *testing.T) {
	w := newWorld(t)
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	ctx := t.Context()
	w.write(t, ws, "src/a", "A")
	w.write(t, ws, "src/d/b", strings.Repeat("B", 100_000))
	for _, c := range []struct{ file, format, want string }{{"x.zip", "", "zip"}, {"x.tar", "", "tar"}, {"x.tar.gz", "", "tgz"}, {"x.tgz", "", "tgz"}, {"odd", "zip", "zip"}, {"odd2", "tgz", "tgz"}} {
		packed, err := ws.Pack(ctx, "src", c.file, c.format)
		if err != nil || packed.Format != c.want || packed.Bytes != 100_001 {
			t.Fatalf("pack %s: %+v %v", c.file, packed, err)
		}
		// The name does not count for an archive that says what it is.
		if err := ws.Rename(ctx, c.file, "archive.bin"); err != nil {
			t.Fatal(err)
		}
		got, err := ws.Extract(ctx, "archive.bin", "out", "", volume.ArchiveOptions{})
		if err != nil || got.Format != c.want || got.Bytes != 100_001 {
			t.Errorf("extract %s: %+v %v", c.file, got, err)
		}
		found := false
		for _, at := range []string{"out/src/a", "out/a"} {
			if _, err := ws.Stat(ctx, at); err == nil {
				found = w.read(t, ws, at) == "A"
			}
		}
		if !found {
			list, _ := ws.List(ctx, "out")
			t.Errorf("%s: a is not there: %+v", c.file, list)
		}
		if err := ws.Remove(ctx, "out", true); err != nil {
			t.Error(err)
		}
	}
	if _, err := ws.Pack(ctx, "src/a", "a.gz", ""); err != nil {
		t.Error(err)
	}
	if got, err := ws.Extract(ctx, "a.gz", "a2", "", volume.ArchiveOptions{}); err != nil || got.Format != "gzip" || w.read(t, ws, "a2") != "A" {
		t.Errorf("%+v %v", got, err)
	}
	for what, call := range map[string]func() error{
		"no format":   func() error { _, err := ws.Pack(ctx, "src", "x", ""); return err },
		"bad format":  func() error { _, err := ws.Pack(ctx, "src", "x", "rar"); return err },
		"no archive":  func() error { _, err := ws.Extract(ctx, "src/a", "x", "", volume.ArchiveOptions{}); return err },
		"bad extract": func() error { _, err := ws.Extract(ctx, "a.gz", "x", "rar", volume.ArchiveOptions{}); return err },
	} {
		if err := call(); !errors.Is(err, rest.ErrRequest) && !errors.Is(err, volume.ErrArchive) {
			t.Errorf("%s: %v", what, err)
		}
	}
	var evil bytes.Buffer
	z := zip.NewWriter(&evil)
	f, err := z.Create("../../esc")
	if err == nil {
		_, err = f.Write([]byte("x"))
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	w.write(t, ws, "evil.zip", evil.String())
	if _, err := ws.Extract(ctx, "evil.zip", "evil", "", volume.ArchiveOptions{}); !errors.Is(err, volume.ErrArchive) {
		t.Errorf("an evil one: %v", err)
	}
	var cut bytes.Buffer
	tw := tar.NewWriter(&cut)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o600, Size: 100}); err != nil {
		t.Fatal(err)
	}
	if err := ws.CopyTo(ctx, "cut", &cut); !errors.Is(err, volume.ErrArchive) {
		t.Errorf("a tar stream that is cut: %v", err)
	}
	if _, err := ws.Stat(ctx, "cut/f"); !errors.Is(err, volume.ErrFileNotFound) {
		t.Errorf("what it had is there: %v", err)
	}
}

func TestWorkspaceSnapshots(t *testing.T) {
	w := newWorld(t)
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	ctx := t.Context()
	w.write(t, ws, "f", "one")
	s, err := ws.CreateSnapshot(ctx, "s1")
	if err != nil || s.Name != "s1" || s.Files == 0 {
		t.Fatalf("%+v %v", s, err)
	}
	w.write(t, ws, "f", "two")
	w.write(t, ws, "g", "new")
	if s, err := ws.CreateSnapshot(ctx, ""); err != nil || s.Name == "" {
		t.Errorf("%+v %v", s, err)
	}
	if _, err := ws.CreateSnapshot(ctx, "s1"); !errors.Is(err, volume.ErrSnapshotExists) {
		t.Error(err)
	}
	changes, err := ws.Diff(ctx, "s1", "")
	if err != nil || len(changes) != 2 || changes[0] != (volume.Change{Path: "f", Kind: volume.Modified}) || changes[1] != (volume.Change{Path: "g", Kind: volume.Added}) {
		t.Errorf("%+v %v", changes, err)
	}
	if list, err := ws.ListSnapshots(ctx); err != nil || len(list) != 2 || list[0].Name != "s1" {
		t.Errorf("%+v %v", list, err)
	}
	if err := ws.RestoreSnapshot(ctx, "s1"); err != nil || w.read(t, ws, "f") != "one" {
		t.Error(err)
	}
	if err := ws.RemoveSnapshot(ctx, "s1"); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{"restore": ws.RestoreSnapshot(ctx, "s1"), "remove": ws.RemoveSnapshot(ctx, "s1")} {
		if !errors.Is(err, volume.ErrSnapshotNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := ws.Diff(ctx, "", ""); !errors.Is(err, rest.ErrRequest) {
		t.Error(err)
	}
}

// A sync over HTTP does what one on the machine does, and twice sends nothing.
func TestSyncOverHTTP(t *testing.T) {
	w := newWorld(t)
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	ctx := t.Context()
	src, dst := t.TempDir(), t.TempDir()
	for i := range 50 {
		name := filepath.Join(src, fmt.Sprintf("d%d", i%5), fmt.Sprintf("f%d", i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, bytes.Repeat([]byte{byte(i)}, i*1000), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(src, "empty"), 0o700), os.Symlink("d1/f1", filepath.Join(src, "link"))); err != nil {
		t.Fatal(err)
	}
	res, err := treesync.Sync(ctx, treesync.Dir(src), ws.SyncEnd("t"), volume.SyncOptions{})
	if err != nil || res.FilesSynced < 50 {
		t.Fatalf("%+v %v", res, err)
	}
	if res, err := treesync.Sync(ctx, treesync.Dir(src), ws.SyncEnd("t"), volume.SyncOptions{Checksum: true}); err != nil || res.FilesSynced != 0 {
		t.Errorf("again: %+v %v", res, err)
	}
	w.write(t, ws, "t/extra", "x")
	if res, err := treesync.Sync(ctx, treesync.Dir(src), ws.SyncEnd("t"), volume.SyncOptions{Delete: true}); err != nil || res.FilesRemoved != 1 {
		t.Errorf("%+v %v", res, err)
	}
	if _, err := treesync.Sync(ctx, ws.SyncEnd("t"), treesync.Dir(dst), volume.SyncOptions{}); err != nil {
		t.Fatal(err)
	}
	if res, err := treesync.Sync(ctx, treesync.Dir(src), treesync.Dir(dst), volume.SyncOptions{Checksum: true, DryRun: true, Delete: true}); err != nil || res.FilesSynced != 0 || res.FilesRemoved != 0 {
		t.Errorf("what came back differs: %+v %v", res, err)
	}
	if _, err := treesync.Sync(ctx, ws.SyncEnd("../x"), treesync.Dir(dst), volume.SyncOptions{}); !errors.Is(err, volume.ErrPath) {
		t.Errorf("from outside: %v", err)
	}
	if _, err := treesync.Sync(ctx, treesync.Dir(src), w.Workspace("none").SyncEnd(""), volume.SyncOptions{}); !errors.Is(err, workspace.ErrNotFound) {
		t.Errorf("to nowhere: %v", err)
	}
	for _, route := range []string{"hashes", "fetch", "apply"} {
		for _, body := range []string{"", "x", strings.Repeat("\xff", 100), "\x00\x00\x00\x00\x00\x00\x00\x01x"} {
			status, _, answer := w.call("POST", "/v1/workspaces/w1/sync/"+route, body, "Content-Type", treesync.ContentType)
			if status != http.StatusBadRequest {
				t.Errorf("%s of %q: %d %s", route, body, status, answer)
			}
		}
	}
}

// What a box and a workspace share: the mount keeps it from being deleted.
func TestMountedWorkspace(t *testing.T) {
	w := newWorld(t)
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "w1", Owner: "o"})
	if !w.driver.Features().Has(taisandbox.FeatureMounts) {
		t.Skip("the driver cannot mount")
	}
	status, _, body := w.call("POST", "/v1/sandboxes", `{"id":"b1","owner":"o","workspace_id":"w1"}`)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	if err := ws.Delete(w.ctx); err == nil || !strings.Contains(err.Error(), "b1") {
		t.Errorf("a mounted one: %v", err)
	}
	if u, err := ws.Usage(w.ctx); err != nil || len(u.Boxes) != 1 || u.Boxes[0] != "b1" {
		t.Errorf("%+v %v", u, err)
	}
	if err := w.RemoveBox(w.ctx, "b1"); err != nil {
		t.Fatal(err)
	}
	if err := ws.Delete(w.ctx); err != nil {
		t.Error(err)
	}
}

func FuzzWorkspacePath(f *testing.F) {
	for _, s := range []string{"a", "", ".", "../x", "/etc/passwd", "a/../b", "a//b", "a/.", "\x00", "\xff", "l/x", strings.Repeat("a/", 3000), "a\r\nb"} {
		f.Add(s, "bytes=0-1", `"x"`)
	}
	w := newWorld(f)
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	dir, err := w.workspaces.MountPath(w.ctx, "w1")
	if err != nil {
		f.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "l")); err != nil {
		f.Fatal(err)
	}
	if _, err := ws.Write(w.ctx, "a", strings.NewReader("text"), volumeWrite); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path, ranges, tag string) {
		q := "?path_b64=" + url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(path)))
		for _, c := range []struct{ method, route, body string }{{"GET", "/files", ""}, {"HEAD", "/files", ""}, {"PUT", "/files", "x"}, {"GET", "/files/list", ""}, {"GET", "/archive", ""}, {"DELETE", "/files", ""}} {
			req, err := http.NewRequestWithContext(t.Context(), c.method, "http://taibox/v1/workspaces/w1"+c.route+q, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/octet-stream")
			for name, v := range map[string]string{"Range": ranges, "If-None-Match": tag, "If-Range": tag} {
				if !strings.ContainsAny(v, "\r\n\x00") {
					req.Header.Set(name, v)
				}
			}
			resp, err := w.http.Do(req)
			if err != nil {
				continue // no header that can be sent
			}
			var text strings.Builder
			copyLimited(&text, resp.Body)
			resp.Body.Close()
			if resp.StatusCode >= http.StatusInternalServerError || strings.Contains(w.log.String(), "level=ERROR") {
				t.Errorf("%s %s %q: %d %s", c.method, c.route, path, resp.StatusCode, text.String())
			}
			if strings.Contains(text.String(), "root:x:0") {
				t.Errorf("%s %s %q leads out", c.method, c.route, path)
			}
		}
	})
}
