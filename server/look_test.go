package server_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/server"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func TestAllStats(t *testing.T) {
	w := newWorld(t)
	if all, err := w.AllStats(w.ctx); err != nil || all == nil || len(all) != 0 {
		t.Errorf("without boxes: %v, %v", all, err)
	}
	for _, id := range []string{"s1", "s2", "s3"} {
		w.create(rest.CreateBox{ID: id, Owner: "ann"})
	}
	if err := w.StopBox(w.ctx, "s2", nil); err != nil {
		t.Fatal(err)
	}
	all, err := w.AllStats(w.ctx)
	if err != nil || len(all) != 2 || all[0].ID != "s1" || all[1].ID != "s3" {
		t.Fatalf("stats %+v, %v", all, err)
	}
	if all[0].Owner != "ann" || all[0].Pids == 0 || all[0].Time.IsZero() || all[0].OverheadBytes == 0 {
		t.Errorf("stats %+v", all[0])
	}
}

func TestProcesses(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "p1"})
	if _, err := w.ExecDetached(w.ctx, "p1", rest.ExecRequest{Cmd: []string{"sleep", "100"}}); err != nil {
		t.Fatal(err)
	}
	list, err := w.Processes(w.ctx, "p1")
	if err != nil || len(list) != 2 || list[0].PID != 1 || !strings.Contains(list[1].Command, "sleep 100") {
		t.Errorf("processes %+v, %v", list, err)
	}
	if err := w.StopBox(w.ctx, "p1", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Processes(w.ctx, "p1"); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("of a stopped box: %v", err)
	}
	if _, err := w.Processes(w.ctx, "nosuch"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("of no box: %v", err)
	}
}

// What a process calls itself is there as it is.
func TestProcessOfOtherBytes(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "p1"})
	b, err := w.manager.Get(w.ctx, "p1")
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.OpenExec(w.ctx, taisandbox.ExecSpec{Args: []string{"sleep", "100", "\xff"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := w.Processes(w.ctx, "p1")
	if err != nil || len(list) != 2 || list[1].Command != "sleep 100 \uFFFD" || string(list[1].CommandB64) != "sleep 100 \xff" || list[0].CommandB64 != nil {
		t.Errorf("processes %+v, %v", list, err)
	}
}

// silent is a machine with a box that cannot be measured.
type silent struct{ *fake.Driver }

func (s silent) Stats(ctx context.Context, id string) (taisandbox.Stats, error) {
	if id == "s2" {
		return taisandbox.Stats{}, taisandbox.ErrBridgeLost
	}
	return s.Driver.Stats(ctx, id)
}

// TestL08_SilentBoxStaysInTheList: a box that is there is in the list, and hides
// no other.
func TestL08_SilentBoxStaysInTheList(t *testing.T) {
	w := (&world{t: t, wrap: func(d *fake.Driver) taisandbox.Sandbox { return silent{d} }}).begin()
	memory := int64(64 << 20)
	for _, id := range []string{"s1", "s2", "s3"} {
		w.create(rest.CreateBox{ID: id, MemoryBytes: &memory})
	}
	all, err := w.AllStats(w.ctx)
	if err != nil || len(all) != 3 || all[1].ID != "s2" || all[0].Error+all[2].Error != "" || all[0].Pids == 0 || all[2].Pids == 0 {
		t.Fatalf("stats %+v, %v", all, err)
	}
	if s := all[1]; !strings.Contains(s.Error, taisandbox.ErrBridgeLost.Msg) || s.Time.IsZero() || s.MemoryLimitBytes != memory {
		t.Errorf("stats %+v", s)
	}
}

// A node that cannot measure or list says so, and hides no other.
func TestLookWithoutFeatures(t *testing.T) {
	w := newWorld(t, fake.WithoutFeatures(taisandbox.FeatureStats, taisandbox.FeatureProcesses))
	w.create(rest.CreateBox{ID: "p1"})
	if all, err := w.AllStats(w.ctx); err != nil || len(all) != 0 {
		t.Errorf("stats %v, %v", all, err)
	}
	if _, err := w.Processes(w.ctx, "p1"); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("processes: %v", err)
	}
}

// metricsText scrapes.
func (w *world) metricsText() string {
	w.t.Helper()
	status, _, body := w.call(http.MethodGet, "/metrics", "")
	if status != http.StatusOK {
		w.t.Fatalf("metrics: %d %s", status, body)
	}
	return body
}

func TestMetrics(t *testing.T) {
	w := newWorld(t)
	w.create(rest.CreateBox{ID: "secret-id", Owner: "secret-owner"})
	w.create(rest.CreateBox{ID: "m2"})
	w.run("m2", "false")
	if _, err := w.CreateBox(w.ctx, rest.CreateBox{Image: "none:1"}); err == nil {
		t.Fatal("made of no image")
	}
	if err := w.RemoveBox(w.ctx, "m2"); err != nil {
		t.Fatal(err)
	}
	w.call(http.MethodGet, "/nosuch/"+strings.Repeat("x", 20), "")
	var body string
	eventually(t, "the events are counted, and the socket is closed", func() bool {
		body = w.metricsText()
		return strings.Contains(body, `taibox_removes_total{reason="user"} 1`) && strings.Contains(body, `taibox_execs_total{reason="exit"} 1`) &&
			strings.Contains(body, "taibox_websockets 0")
	})
	for _, want := range []string{
		`taibox_boxes{state="running"} 1`, `taibox_boxes{state="failed"} 0`,
		`taibox_creates_total{result="ok"} 2`, `taibox_creates_total{result="IMAGE_NOT_FOUND"} 1`,
		`taibox_removes_total{reason="create-failed"} 1`,
		`taibox_create_duration_seconds_count{phase="total"} 2`, `taibox_create_duration_seconds_count{phase="image"} 2`,
		`taibox_exec_duration_seconds_count 1`,
		`taibox_http_requests_total{route="POST /v1/sandboxes",status="201"} 2`,
		`taibox_http_requests_total{route="none",status="404"} 1`,
		`taibox_cgroups{node="local"} 1`, `taibox_namespaces{node="local"} 2`, `taibox_mounts{node="local"} 0`,
		`taibox_image_bytes{node="local"}`, `taibox_websockets 0`, `taibox_event_streams 0`,
		`taibox_build_info{`, "go_goroutines ", "process_open_fds ",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s", want)
		}
	}
	// Labels have few values: none is chosen by a caller.
	for _, secret := range []string{"secret-id", "secret-owner", "nosuch", "m2"} {
		if strings.Contains(body, secret) {
			t.Errorf("%s is in the metrics", secret)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}

// What is counted over all owners is for those who may see all.
func TestMetricsAreGuarded(t *testing.T) {
	w := newWorldWith(t, func(c *server.Config) { c.Authorizer = noMetrics{} })
	if status, _, body := w.call(http.MethodGet, "/metrics", ""); status != http.StatusForbidden {
		t.Errorf("%d %s", status, body)
	}
}

type noMetrics struct{}

func (noMetrics) Authorize(_ context.Context, _ server.Caller, _ server.Verb, o server.Object) error {
	if o.Kind == server.KindMetrics {
		return rest.ErrForbidden
	}
	return nil
}
