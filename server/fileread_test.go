package server_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/taibox/taibox/api/rest"
)

// filePlace is where the files of a box, or of a workspace, are.
type filePlace struct {
	name  string
	files string // the route
	root  string // what a path begins with
}

var filePlaces = []filePlace{
	{"box", "/v1/sandboxes/b1/files", "/tmp/"},
	{"workspace", "/v1/workspaces/w1/files", ""},
}

func (p filePlace) at(name string) string { return p.files + pathQuery(p.root+name) }

// eachPlace runs a test on the files of a box and on those of a workspace:
// they are the same to a client.
func eachPlace(t *testing.T, test func(t *testing.T, w *world, p filePlace)) {
	t.Helper()
	for _, p := range filePlaces {
		t.Run(p.name, func(t *testing.T) {
			w := newWorld(t)
			w.create(rest.CreateBox{ID: "b1"})
			w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
			test(t, w, p)
		})
	}
}

// put writes a file and returns its ETag.
func (w *world) put(t *testing.T, at, text string) string {
	t.Helper()
	status, header, body := w.call("PUT", at, text, "Content-Type", "application/octet-stream")
	if status != http.StatusOK || header.Get("ETag") == "" {
		t.Fatalf("PUT %s: %d %s", at, status, body)
	}
	return header.Get("ETag")
}

func TestRanges(t *testing.T) {
	eachPlace(t, func(t *testing.T, w *world, p filePlace) {
		tag := w.put(t, p.at("f"), "0123456789")
		w.put(t, p.at("empty"), "")
		for _, c := range []struct {
			header []string
			status int
			body   string
			part   string
		}{
			{nil, 200, "0123456789", ""},
			{[]string{"Range", "bytes=0-0"}, 206, "0", "bytes 0-0/10"},
			{[]string{"Range", "bytes=3-5"}, 206, "345", "bytes 3-5/10"},
			{[]string{"Range", "bytes=7-"}, 206, "789", "bytes 7-9/10"},
			{[]string{"Range", "bytes=7-999"}, 206, "789", "bytes 7-9/10"},
			{[]string{"Range", "bytes=0-9223372036854775807"}, 206, "0123456789", "bytes 0-9/10"},
			{[]string{"Range", "bytes=-3"}, 206, "789", "bytes 7-9/10"},
			{[]string{"Range", "bytes=-999"}, 206, "0123456789", "bytes 0-9/10"},
			{[]string{"Range", "bytes=10-"}, 416, "", "bytes */10"},
			{[]string{"Range", "bytes=-0"}, 416, "", "bytes */10"},
			{[]string{"Range", "bytes=5-3"}, 200, "0123456789", ""},
			{[]string{"Range", "bytes=a-b"}, 200, "0123456789", ""},
			{[]string{"Range", "bytes=99999999999999999999-"}, 200, "0123456789", ""},
			{[]string{"Range", "bytes=+1-2"}, 200, "0123456789", ""},
			{[]string{"Range", "lines=1-2"}, 200, "0123456789", ""},
			{[]string{"Range", "bytes=0-1,4-5"}, 200, "0123456789", ""},
			{[]string{"Range", "bytes=0-1", "If-Range", tag}, 206, "01", "bytes 0-1/10"},
			{[]string{"Range", "bytes=0-1", "If-Range", `"other"`}, 200, "0123456789", ""},
			{[]string{"Range", "bytes=0-1", "If-Range", "W/" + tag}, 200, "0123456789", ""},
			{[]string{"Range", "bytes=0-1", "If-Range", "Mon, 02 Jan 2006 15:04:05 GMT"}, 200, "0123456789", ""},
		} {
			status, header, body := w.call("GET", p.at("f"), "", c.header...)
			if status != c.status || status < 400 && body != c.body || header.Get("Content-Range") != c.part {
				t.Errorf("%q: %d %q, Content-Range %q; want %+v", c.header, status, body, header.Get("Content-Range"), c)
			}
			if status == 416 && failure(t, body).Code != "RANGE" {
				t.Errorf("%q: %s", c.header, body)
			}
			if status < 400 && (header.Get("Accept-Ranges") != "bytes" || header.Get("Content-Length") != fmt.Sprint(len(body)) || header.Get("ETag") != tag) {
				t.Errorf("%q: header %v", c.header, header)
			}
		}
		if status, header, body := w.call("GET", p.at("empty"), ""); status != 200 || body != "" || header.Get("ETag") == "" {
			t.Errorf("an empty file: %d %q %v", status, body, header)
		}
		if status, _, body := w.call("GET", p.at("empty"), "", "Range", "bytes=0-"); status != 416 {
			t.Errorf("a part of an empty file: %d %q", status, body)
		}
	})
}

func TestConditions(t *testing.T) {
	eachPlace(t, func(t *testing.T, w *world, p filePlace) {
		old := w.put(t, p.at("f"), "old")
		tag := w.put(t, p.at("f"), "new")
		if old == tag {
			t.Fatalf("a write kept the ETag %s", tag)
		}
		_, header, _ := w.call("GET", p.at("f"), "")
		modified := header.Get("Last-Modified")
		const past, future = "Mon, 02 Jan 2006 15:04:05 GMT", "Fri, 31 Dec 2100 00:00:00 GMT"
		for _, c := range []struct {
			method string
			header []string
			status int
		}{
			{"GET", []string{"If-None-Match", tag}, 304},
			{"GET", []string{"If-None-Match", "W/" + tag}, 304},
			{"GET", []string{"If-None-Match", `"x", ` + tag}, 304},
			{"GET", []string{"If-None-Match", "*"}, 304},
			{"GET", []string{"If-None-Match", old}, 200},
			{"GET", []string{"If-None-Match", `nonsense"`}, 200},
			{"GET", []string{"If-Modified-Since", modified}, 304},
			{"GET", []string{"If-Modified-Since", future}, 304},
			{"GET", []string{"If-Modified-Since", past}, 200},
			{"GET", []string{"If-Modified-Since", "yesterday"}, 200},
			{"GET", []string{"If-None-Match", old, "If-Modified-Since", future}, 200}, // the tag wins
			{"GET", []string{"If-Match", tag}, 200},
			{"GET", []string{"If-Match", "*"}, 200},
			{"GET", []string{"If-Match", old}, 412},
			{"GET", []string{"If-Match", "W/" + tag}, 412},
			{"GET", []string{"If-Unmodified-Since", past}, 412},
			{"GET", []string{"If-Unmodified-Since", future}, 200},
			{"HEAD", []string{"If-None-Match", tag}, 304},
			{"HEAD", []string{"If-Match", old}, 412},
			{"HEAD", nil, 200},
			{"DELETE", []string{"If-Match", old}, 412},
			{"PUT", []string{"If-Match", old}, 412},
			{"PUT", []string{"If-None-Match", "*"}, 412},
			{"PUT", []string{"If-None-Match", tag}, 412},
		} {
			header := append(slices.Clone(c.header), "Content-Type", "application/octet-stream")
			status, got, body := w.call(c.method, p.at("f"), map[bool]string{true: "bad"}[c.method == "PUT"], header...)
			if status != c.status || status == 304 && (body != "" || got.Get("ETag") != tag) {
				t.Errorf("%s with %q: %d %q %v, want %d", c.method, c.header, status, body, got, c.status)
			}
		}
		if _, _, body := w.call("GET", p.at("f"), ""); body != "new" {
			t.Errorf("what must not be written was: %q", body)
		}
		for _, c := range []struct {
			name, tag string
			status    int
		}{{"f", tag, 200}, {"f", "*", 200}, {"f", `"x"`, 412}, {"none", "*", 412}, {"none", tag, 412}} {
			if status, _, body := w.call("PUT", p.at(c.name), "again", "If-Match", c.tag, "Content-Type", "application/octet-stream"); status != c.status {
				t.Errorf("PUT %s with If-Match %s: %d %s", c.name, c.tag, status, body)
			}
		}
		if status, _, body := w.call("PUT", p.at("g"), "x", "If-None-Match", "*", "Content-Type", "application/octet-stream"); status != 200 {
			t.Errorf("PUT of a new file: %d %s", status, body)
		}
	})
}

// Of many writers over one version one wins.
func TestOneWriterWins(t *testing.T) {
	eachPlace(t, func(t *testing.T, w *world, p filePlace) {
		tag := w.put(t, p.at("f"), "0")
		var wg sync.WaitGroup
		statuses := make([]int, 20)
		for i := range statuses {
			wg.Go(func() {
				statuses[i], _, _ = w.call("PUT", p.at("f"), fmt.Sprint(i), "If-Match", tag, "Content-Type", "application/octet-stream")
			})
		}
		wg.Wait()
		slices.Sort(statuses)
		if statuses[0] != 200 || statuses[1] != 412 || statuses[19] != 412 {
			t.Errorf("%v", statuses)
		}
	})
}

// form makes the body of an upload.
func form(t *testing.T, files ...string) (body, contentType string) {
	t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		part, err := m.CreateFormFile("file", files[i])
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(part, files[i+1])
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), m.FormDataContentType()
}

func TestUploads(t *testing.T) {
	eachPlace(t, func(t *testing.T, w *world, p filePlace) {
		body, media := form(t, "a.txt", "one", "b b.txt", "two", "../../evil", "inside")
		status, _, answer := w.call("POST", p.at("up")+"&parents=true&mode=0600", body, "Content-Type", media)
		if status != http.StatusCreated || strings.Count(answer, `"mode":"0600"`) != 3 {
			t.Fatalf("%d %s", status, answer)
		}
		for name, want := range map[string]string{"up/a.txt": "one", "up/b b.txt": "two", "up/evil": "inside"} {
			if _, _, got := w.call("GET", p.at(name), ""); got != want {
				t.Errorf("%s is %q", name, got)
			}
		}
		body, media = form(t, "a.txt", "new", ".hidden", "h")
		if status, _, answer := w.call("POST", p.at("up")+"&rename=true", body, "Content-Type", media); status != http.StatusCreated || !strings.Contains(answer, `"a (1).txt"`) {
			t.Errorf("%d %s", status, answer)
		}
		body, media = form(t, "c.txt", "c", "a.txt", "lost")
		status, _, answer = w.call("POST", p.at("up"), body, "Content-Type", media, "If-None-Match", "*")
		if status != http.StatusPreconditionFailed || !strings.Contains(answer, `"written":[{"name":"c.txt"`) {
			t.Errorf("%d %s", status, answer)
		}
		if _, _, got := w.call("GET", p.at("up/a.txt"), ""); got != "one" {
			t.Errorf("a.txt is %q", got)
		}
		for name, c := range map[string]struct {
			body, media string
			status      int
		}{
			"no-form":     {"x", "application/octet-stream", 415},
			"no-boundary": {"x", "multipart/form-data", 400},
			"empty":       {"--x--\r\n", "multipart/form-data; boundary=x", 400},
			"cut":         {"--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"cut\"\r\n\r\nhalf", "multipart/form-data; boundary=x", 400},
			"no-file":     {"--x\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\nv\r\n--x--\r\n", "multipart/form-data; boundary=x", 400},
			"dots":        {"--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"..\"\r\n\r\nv\r\n--x--\r\n", "multipart/form-data; boundary=x", 400},
		} {
			status, _, answer := w.call("POST", p.at("up"), c.body, "Content-Type", c.media)
			if status != c.status {
				t.Errorf("%s: %d %s", name, status, answer)
			}
		}
		if status, _, got := w.call("GET", p.at("up/cut"), ""); status != http.StatusNotFound {
			t.Errorf("half a file was written: %d %q", status, got)
		}
	})
}

// K11: uploads of one name at the same time all find a name of their own.
func TestK11UploadsWithOneName(t *testing.T) {
	eachPlace(t, func(t *testing.T, w *world, p filePlace) {
		const n = 50
		var wg sync.WaitGroup
		for i := range n {
			body, media := form(t, "a.txt", fmt.Sprintf("content %d", i))
			wg.Go(func() {
				if status, _, answer := w.call("POST", p.at("up")+"&parents=true&rename=true", body, "Content-Type", media); status != http.StatusCreated {
					t.Errorf("%d %s", status, answer)
				}
			})
		}
		wg.Wait()
		seen := map[string]bool{}
		for i := range n {
			name := "up/a.txt"
			if i > 0 {
				name = fmt.Sprintf("up/a (%d).txt", i)
			}
			status, _, body := w.call("GET", p.at(name), "")
			if status != http.StatusOK || seen[body] || !strings.HasPrefix(body, "content ") {
				t.Errorf("%s: %d %q", name, status, body)
			}
			seen[body] = true
		}
	})
}

// K04, K13: a file is there as it was sent, whatever its size, and its parents
// are made only if asked for.
func TestK04Sizes(t *testing.T) {
	eachPlace(t, func(t *testing.T, w *world, p filePlace) {
		all := bytes.Repeat([]byte("0123456789abcde\n"), 20<<20/16)
		for _, n := range []int{0, 1, 4095, 4096, 4097, 18_000, 18_500, 19_000, 65_535, 65_536, 65_537, 128<<10 - 1, 128 << 10, 128<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 4<<20 - 1, 4 << 20, 4<<20 + 1, 20 << 20} {
			w.put(t, p.at("f"), string(all[:n]))
			if _, _, got := w.call("GET", p.at("f"), ""); got != string(all[:n]) {
				t.Errorf("of %d bytes %d came back, or others", n, len(got))
			}
		}
		if status, _, body := w.call("PUT", p.at("no/such/dir/f"), "x", "Content-Type", "application/octet-stream"); status != http.StatusNotFound {
			t.Errorf("%d %s", status, body)
		}
		w.put(t, p.at("no/such/dir/f")+"&parents=true", "x")
	})
}

// A request that breaks off writes nothing, and one that is answered by a part
// is never ended as if it were all.
func TestBrokenUploads(t *testing.T) {
	eachPlace(t, func(t *testing.T, w *world, p filePlace) {
		w.put(t, p.at("f"), "old")
		for _, head := range []string{"Content-Length: 100\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"} {
			conn := w.dialRaw(t)
			fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: taibox\r\nContent-Type: application/octet-stream\r\n%s", p.at("f"), head)
			conn.Close()
		}
		eventually(t, "both are done", func() bool { return strings.Count(w.log.String(), "method=PUT path="+p.files) >= 3 })
		if _, _, got := w.call("GET", p.at("f"), ""); got != "old" {
			t.Errorf("%q", got)
		}
	})
}

// K08: a header names a file whatever its name has in it.
func TestK08NamesInHeaders(t *testing.T) {
	eachPlace(t, func(t *testing.T, w *world, p filePlace) {
		for name, want := range map[string]string{
			"a b.txt":          `attachment; filename="a b.txt"; filename*=UTF-8''a%20b.txt`,
			`q"uo\te`:          `attachment; filename="q_uo_te"; filename*=UTF-8''q%22uo%5Cte`,
			"a\r\nX-Evil: 1":   `attachment; filename="a__X-Evil: 1"; filename*=UTF-8''a%0D%0AX-Evil%3A%201`,
			"é文":               `attachment; filename="__"; filename*=UTF-8''%C3%A9%E6%96%87`,
			"\xff\xfe":         `attachment; filename="__"; filename*=UTF-8''%EF%BF%BD`,
			"100% +sure;x=y":   `attachment; filename="100_ +sure;x=y"; filename*=UTF-8''100%25%20%2Bsure%3Bx%3Dy`,
			"-rf":              `attachment; filename="-rf"; filename*=UTF-8''-rf`,
			"<script>.html":    `attachment; filename="<script>.html"; filename*=UTF-8''%3Cscript%3E.html`,
			"trailing ":        `attachment; filename="trailing "; filename*=UTF-8''trailing%20`,
			"'single' quotes'": `attachment; filename="'single' quotes'"; filename*=UTF-8''%27single%27%20quotes%27`,
		} {
			at := p.files + "?path_b64=" + url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(p.root+name)))
			w.put(t, at, "x")
			for _, method := range []string{"GET", "HEAD"} {
				status, header, _ := w.call(method, at, "")
				if got := header.Get("Content-Disposition"); status != 200 || got != want || header.Get("X-Evil") != "" {
					t.Errorf("%s %q: %d %s\nwant %s", method, name, status, got, want)
				}
				if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Content-Type") != "application/octet-stream" {
					t.Errorf("%s %q: %v", method, name, header)
				}
			}
		}
	})
}

// Large files go through in constant memory.
func TestLargeFilesInConstantMemory(t *testing.T) {
	w := newWorld(t)
	ws := w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	const size = 256 << 20
	goruntime.GC()
	var before goruntime.MemStats
	goruntime.ReadMemStats(&before)
	most := watchHeap(t)
	if _, err := ws.Write(w.ctx, "big", io.LimitReader(zeros{}, size), volumeWrite); err != nil {
		t.Fatal(err)
	}
	r, info, err := ws.Open(w.ctx, "big", volumeOpen)
	if err != nil || info.Size != size {
		t.Fatalf("%+v %v", info, err)
	}
	n, err := io.Copy(io.Discard, r)
	r.Close()
	if err != nil || n != size {
		t.Errorf("%d bytes, %v", n, err)
	}
	if peak := most(); peak > before.HeapInuse+64<<20 {
		t.Errorf("the heap had %d MiB, and %d before", peak>>20, before.HeapInuse>>20)
	}
}

// watchHeap returns how much the heap had at most since.
func watchHeap(t *testing.T) func() uint64 {
	t.Helper()
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		var most uint64
		for {
			var m goruntime.MemStats
			goruntime.ReadMemStats(&m)
			most = max(most, m.HeapInuse)
			select {
			case <-stop:
				done <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() uint64 { close(stop); return <-done }
}

// J07: what has no end is refused, or bounded.
func TestJ07EndlessFiles(t *testing.T) {
	w := newWorld(t)
	w.createWorkspace(rest.CreateWorkspace{ID: "w1"})
	dir, err := w.workspaces.MountPath(w.ctx, "w1")
	if err != nil {
		t.Fatal(err)
	}
	p := filePlaces[1]
	for name, target := range map[string]string{"zero": "/dev/zero", "kmsg": "/proc/kmsg", "up": "../../../../../../../../dev/zero"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if status, _, body := w.call("GET", p.at(name), ""); status < 400 || status >= 500 {
			t.Errorf("%s: %d, %d bytes", name, status, len(body))
		}
	}
	mkfifo(t, filepath.Join(dir, "pipe"))
	if status, _, body := w.call("GET", p.at("pipe"), ""); status != 400 || failure(t, body).Code != "FILE_KIND" {
		t.Errorf("a pipe: %d %s", status, body)
	}
	// One that grows ends where it ended when it was opened.
	f, err := os.OpenFile(filepath.Join(dir, "grows"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	for range 4 {
		f.Write(chunk)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for range 200 {
			select {
			case <-stop:
				return
			default:
				f.Write(chunk)
			}
		}
	}()
	status, header, body := w.call("GET", p.at("grows"), "")
	close(stop)
	<-stopped
	if status != 200 || header.Get("Content-Length") != fmt.Sprint(len(body)) || len(body) < 4<<20 {
		t.Errorf("%d, %d bytes, %v", status, len(body), header)
	}
}
