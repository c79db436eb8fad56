package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

const pulledImage = "example.test/pulled:1"

func newPullWorld(t *testing.T) *world {
	return newWorld(t, fake.WithRegistry(map[string]taisandbox.ImageConfig{pulledImage: {Cmd: []string{"echo", "pulled"}}}))
}

func TestPull(t *testing.T) {
	w := newPullWorld(t)
	var events []rest.PullEvent
	err := w.PullImage(w.ctx, rest.PullImage{Image: pulledImage, Auth: &rest.RegistryAuth{Username: "u", Password: "p"}}, func(e rest.PullEvent) { events = append(events, e) })
	if err != nil || len(events) < 3 || events[1].Layer == "" || events[1].Total == 0 {
		t.Fatalf("%+v, %v", events, err)
	}
	if last := events[len(events)-1]; last.Status != taisandbox.PullComplete || last.Digest == "" {
		t.Errorf("it ends with %+v", last)
	}
	if i, err := w.GetImage(w.ctx, pulledImage); err != nil || len(i.Config.Cmd) != 2 {
		t.Errorf("%+v %v", i, err)
	}
	for ref, want := range map[string]error{"example.test/none:1": taisandbox.ErrRegistryNotFound, "UPPER": taisandbox.ErrImageRef, "hostfs": taisandbox.ErrImageRef} {
		if err := w.PullImage(w.ctx, rest.PullImage{Image: ref}, func(rest.PullEvent) {}); !errors.Is(err, want) {
			t.Errorf("pull %s: %v", ref, err)
		}
	}
	removed, err := w.PruneImages(w.ctx, true)
	if err != nil || len(removed) != 1 || removed[0].Name != pulledImage {
		t.Errorf("%+v %v", removed, err)
	}
}

// TestR01_PullInTheAnswer: the status is 200 before it is known how a pull
// ends; the last line says it, and an answer without one is a failure.
func TestR01_PullInTheAnswer(t *testing.T) {
	w := newPullWorld(t)
	status, _, body := w.call(http.MethodPost, "/v1/images/pull", `{"image":"example.test/none:1"}`, "Content-Type", "application/json")
	lines := strings.Split(strings.TrimSpace(body), "\n")
	if last := lines[len(lines)-1]; status != http.StatusOK || !strings.Contains(last, `"code":"REGISTRY_NOT_FOUND"`) {
		t.Errorf("%d %s", status, body)
	}
	for _, bad := range []string{``, `{`, `[]`, `{"image":"a","more":1}`} {
		if status, _, body := w.call(http.MethodPost, "/v1/images/pull", bad, "Content-Type", "application/json"); status != http.StatusBadRequest {
			t.Errorf("%q: %d %s", bad, status, body)
		}
	}
	if status, _, _ := w.call(http.MethodPost, "/v1/images/pull", `{"image":"a"}`, "Content-Type", "text/plain"); status != http.StatusUnsupportedMediaType {
		t.Errorf("as text: %d", status)
	}
	const ok, failed = `{"status":"complete","digest":"sha256:0"}`, `{"error":{"code":"REGISTRY_AUTH","message":"no"}}`
	for answer, want := range map[string]error{
		ok: nil, "": errdefs.ErrUnavailable, `{"status":"downloading"}` + "\n": errdefs.ErrUnavailable, ok[:10]: errdefs.ErrUnavailable,
		failed: taisandbox.ErrRegistryAuth, failed + "\n" + ok: taisandbox.ErrRegistryAuth,
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, answer) }))
		c, err := client.New(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.PullImage(t.Context(), rest.PullImage{Image: "a"}, func(rest.PullEvent) {}); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%q: %v", answer, err)
		}
		c.Close()
		s.Close()
	}
}

// TestSaveAndCommit: what the driver cannot do is said as everywhere.
func TestSaveAndCommit(t *testing.T) {
	w := newPullWorld(t)
	w.create(rest.CreateBox{ID: "b1"})
	var buf bytes.Buffer
	if err := w.SaveImages(w.ctx, []string{pulledImage}, &buf); !errors.Is(err, taisandbox.ErrUnsupported) || buf.Len() > 0 {
		t.Errorf("save: %v, %d bytes", err, buf.Len())
	}
	if _, err := w.CommitBox(w.ctx, "b1", rest.CommitBox{Image: "x"}); !errors.Is(err, taisandbox.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), "b1") {
		t.Errorf("commit: %v", err)
	}
	if _, err := w.CommitBox(w.ctx, "none", rest.CommitBox{Image: "x"}); !errors.Is(err, taisandbox.ErrNotFound) {
		t.Errorf("commit of no box: %v", err)
	}
}
