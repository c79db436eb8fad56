package server_test

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

const filesOf = "/v1/sandboxes/b1/files"

func pathQuery(name string) string { return "?path=" + url.QueryEscape(name) }

func TestFilesByHTTP(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1"})
	octets := []string{"Content-Type", "application/octet-stream"}
	status, _, body := w.call("PUT", filesOf+pathQuery("/tmp/a/b")+"&parents=true&mode=0640", "hello", octets...)
	if status != http.StatusOK || !strings.Contains(body, `"mode":"0640"`) || !strings.Contains(body, `"size":5`) {
		t.Fatalf("%d %s", status, body)
	}
	status, header, body := w.call("GET", filesOf+pathQuery("/tmp/a/b"), "")
	if status != http.StatusOK || body != "hello" || header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%d %v %s", status, header, body)
	}
	status, header, body = w.call("HEAD", filesOf+pathQuery("/tmp/a/b"), "")
	raw, err := base64.StdEncoding.DecodeString(header.Get(rest.HeaderFile))
	var f rest.File
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	if status != http.StatusOK || body != "" || err != nil || f.Path != "/tmp/a/b" || f.Type != "file" || f.Size != 5 {
		t.Errorf("%d %+v %v", status, f, err)
	}
	if _, _, body = w.call("GET", filesOf+pathQuery("/tmp/a/b")+"&offset=1&limit=2", ""); body != "el" {
		t.Errorf("a part is %q", body)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"GET", filesOf + pathQuery("/none"), "", http.StatusNotFound, "FILE_NOT_FOUND"},
		{"GET", filesOf + pathQuery("/tmp"), "", http.StatusBadRequest, "FILE_KIND"},
		{"GET", filesOf + pathQuery("tmp"), "", http.StatusBadRequest, "BAD_REQUEST"},
		{"GET", filesOf + pathQuery("/a\x00b"), "", http.StatusBadRequest, "BAD_REQUEST"},
		{"GET", filesOf, "", http.StatusBadRequest, "BAD_REQUEST"},
		{"GET", filesOf + "?path_b64=%%", "", http.StatusBadRequest, ""},
		{"GET", filesOf + pathQuery("/tmp/a/b") + "&offset=-1", "", http.StatusBadRequest, "BAD_REQUEST"},
		{"PUT", filesOf + pathQuery("/tmp/x") + "&mode=9", "x", http.StatusBadRequest, "BAD_REQUEST"},
		{"PUT", filesOf + pathQuery("/tmp/x") + "&mode=4755", "x", http.StatusBadRequest, "BAD_REQUEST"},
		{"PUT", filesOf + pathQuery("/tmp/x") + "&user=nobody-there", "x", http.StatusBadRequest, "USER_NOT_FOUND"},
		{"PUT", filesOf + pathQuery("/no/such/dir"), "x", http.StatusNotFound, "FILE_NOT_FOUND"},
		{"PUT", "/v1/sandboxes/b1/archive" + pathQuery("/tmp"), "no archive", http.StatusBadRequest, "ARCHIVE_INVALID"},
		{"DELETE", filesOf + pathQuery("/tmp/a"), "", http.StatusConflict, "FILE_BUSY"},
		{"POST", filesOf + "/mkdir", `{"path":"/tmp/a"}`, http.StatusConflict, "FILE_EXISTS"},
		{"POST", filesOf + "/rename", `{"path":"/tmp/a"}`, http.StatusBadRequest, "BAD_REQUEST"},
		{"GET", filesOf + "/list" + pathQuery("/none"), "", http.StatusNotFound, "FILE_NOT_FOUND"},
		{"GET", "/v1/sandboxes/none/files" + pathQuery("/tmp"), "", http.StatusNotFound, "BOX_NOT_FOUND"},
	} {
		head := octets
		if c.method == http.MethodPost {
			head = []string{"Content-Type", "application/json"}
		}
		status, _, body := w.call(c.method, c.path, c.body, head...)
		if got := failure(t, body); status != c.status || c.code != "" && got.Code != c.code {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
		}
	}
	// What a form of a web page could send.
	if status, _, body := w.call("PUT", filesOf+pathQuery("/tmp/x"), "x", "Content-Type", "text/plain"); status != http.StatusUnsupportedMediaType {
		t.Errorf("%d %s", status, body)
	}
}

// K08: a name is bytes, and each call takes it as what it is.
func TestK08OddNamesByHTTP(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1"})
	ctx, o := t.Context(), taisandbox.FileOptions{}
	if err := w.MakeDir(ctx, "b1", "/tmp/d", o); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a\nb", "\xff\xfe", "-rf", "a b", `"`, "'", "%2F", "é", "e\u0301", "🚀", strings.Repeat("x", 255), ".git", "trailing ", "*", "a\r\nX-Evil: 1", "a&path=b"} {
		at := "/tmp/d/" + name
		if _, err := w.WriteFile(ctx, "b1", at, strings.NewReader(name), o); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		list, err := w.ListFiles(ctx, "b1", "/tmp/d", o)
		if err != nil || len(list) != 1 || list[0].Name != name {
			t.Errorf("%q: listed is %+v, %v", name, list, err)
		}
		r, info, err := w.ReadFile(ctx, "b1", at, o)
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		data, err := io.ReadAll(r)
		r.Close()
		if string(data) != name || err != nil || info.Name != name {
			t.Errorf("%q: read was %q, %v as %q", name, data, err, info.Name)
		}
		if err := errors.Join(w.RenameFile(ctx, "b1", at, at[:len(at)-1]+"_", o), w.RemoveFile(ctx, "b1", at[:len(at)-1]+"_", o)); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if _, err := w.StatFile(ctx, "b1", at, o); !errors.Is(err, taisandbox.ErrFileNotFound) {
			t.Errorf("%q: it is still there, %v", name, err)
		}
	}
}

func TestArchivesByHTTP(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1"})
	ctx, o := t.Context(), taisandbox.FileOptions{}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	var in bytes.Buffer
	tw := tar.NewWriter(&in)
	err := errors.Join(
		tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "t/", Mode: 0o750}),
		tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "t/f", Mode: 0o600, Uid: 7, Size: int64(len(big))}),
	)
	if _, werr := tw.Write(big); err != nil || werr != nil || tw.Close() != nil {
		t.Fatal(err, werr)
	}
	if err := w.CopyTo(ctx, "b1", "/tmp", bytes.NewReader(in.Bytes()), taisandbox.FileOptions{Owners: true}); err != nil {
		t.Fatal(err)
	}
	if info, err := w.StatFile(ctx, "b1", "/tmp/t/f", o); err != nil || info.UID != 7 || info.Size != int64(len(big)) {
		t.Errorf("%+v, %v", info, err)
	}
	r, err := w.CopyFrom(ctx, "b1", "/tmp/t", o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out, err := io.ReadAll(r)
	if err != nil || !bytes.Contains(out, big) {
		t.Errorf("%d bytes came back, %v", len(out), err)
	}
	// A body that is not read is answered all the same.
	if err := w.CopyTo(ctx, "b1", "/none", bytes.NewReader(make([]byte, 64<<20)), o); !errors.Is(err, taisandbox.ErrFileNotFound) {
		t.Errorf("to nowhere: %v", err)
	}
	if _, err := w.CopyFrom(ctx, "b1", "/none", o); !errors.Is(err, taisandbox.ErrFileNotFound) {
		t.Errorf("from nowhere: %v", err)
	}
}
