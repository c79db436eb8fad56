package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// watcher is a driver that watches files, and tells of what it is asked for.
type watcher struct {
	taisandbox.Sandbox
	ended chan struct{} // closed once nobody listens any more
}

func (d *watcher) Unwrap() taisandbox.Sandbox { return d.Sandbox }

func (d *watcher) Features() taisandbox.Features {
	f := d.Sandbox.Features()
	f[taisandbox.FeatureFileWatch] = true
	return f
}

func (d *watcher) WatchFiles(ctx context.Context, id, path string, o taisandbox.FileOptions) (<-chan taisandbox.FileEvent, error) {
	events := make(chan taisandbox.FileEvent)
	go func() {
		defer close(d.ended)
		defer close(events)
		for _, e := range []taisandbox.FileEvent{
			{Kind: taisandbox.FileCreated, Path: path + "/" + id + "/" + o.User, Dir: true},
			{Kind: taisandbox.FileModified, Path: "/\xff"},
			{Kind: taisandbox.FileGap},
		} {
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
		<-ctx.Done()
	}()
	return events, nil
}

// What changes in a box comes as server-sent events, until the client goes.
func TestWatchBoxFiles(t *testing.T) {
	ended := make(chan struct{})
	w := (&world{t: t, wrap: func(d *fake.Driver) taisandbox.Sandbox { return &watcher{d, ended} }}).begin()
	w.create(rest.CreateBox{ID: "b1"})
	ctx, leave := context.WithCancel(w.ctx)
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://taibox/v1/sandboxes/b1/files/watch?path=/srv&user=me", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s, %v", resp.Status, resp.Header)
	}
	var got []rest.FileEvent
	for lines := bufio.NewScanner(resp.Body); len(got) < 3 && lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var e rest.FileEvent
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			got = append(got, e)
		}
	}
	want := []rest.FileEvent{
		{Kind: "created", Path: "/srv/b1/me", Dir: true},
		{Kind: "modified", Path: "/\uFFFD", PathB64: []byte("/\xff")},
		{Kind: "gap"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
	leave()
	<-ended // the driver is not left listening

	status, _, body := w.call(http.MethodGet, "/v1/sandboxes/b1/files/watch?path=srv", "")
	if status != http.StatusBadRequest {
		t.Errorf("a relative path: %d %s", status, body)
	}
}

// A driver that cannot watch says so.
func TestWatchUnsupported(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "b1"})
	status, _, body := w.call(http.MethodGet, "/v1/sandboxes/b1/files/watch?path=/", "")
	if status != http.StatusNotImplemented || !strings.Contains(body, "file_watch") {
		t.Errorf("%d %s", status, body)
	}
}
