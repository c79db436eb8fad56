package oci_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/tai/sandbox"
)

// TestG05StoreOfVersion1: what the first layout of records says of a box and
// its execs is known after an upgrade, and the box starts. A change of layout
// gets a fixture of its own and leaves this one alone.
func TestG05StoreOfVersion1(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	dir := filepath.Join(cfg.DataDir, "boxes", "v1")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "v1"))); err != nil {
		t.Fatal(err)
	}
	upper := filepath.Join(dir, "fs", "upper")
	if err := errors.Join(os.MkdirAll(upper, 0o700), os.Mkdir(filepath.Join(dir, "fs", "work"), 0o700), os.Chmod(upper, 0o755)); err != nil {
		t.Fatal(err)
	}
	d := open(t, cfg)
	at := func(s string) time.Time {
		when, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}

	got, err := d.Inspect(t.Context(), "v1")
	if err != nil {
		t.Fatal(err)
	}
	want := sandbox.Info{
		ID: "v1", ContainerID: got.ContainerID, Image: sandbox.HostFS,
		Labels: map[string]string{
			"managed-by": "taibox-sandbox", "sandbox-id": "v1", "sandbox-node-id": "local", "sandbox-owner": "ann", "sandbox-policy": "persistent",
			"taibox-attempt": "8ea250d5e7c79c6b", "taibox-idempotency": "71a6cc1453a908374ca069200a933db5:9048fc5240c80dd14301dafc81c9d5e0",
			"taibox-instance": "00c0a07e", "taibox-stop-timeout": "3s", "team": "red",
		},
		Isolation: sandbox.IsolationContainer, Network: sandbox.NetworkInternet, User: "1000:1000", WorkDir: "/tmp", Cmd: []string{"/bin/sh"},
		State: sandbox.StateStopped, Reason: "user",
		CreatedAt: at("2026-11-30T11:01:18.407780968Z"), StartedAt: at("2026-11-30T11:01:18.514376948Z"), StoppedAt: at("2026-11-30T11:01:18.580276626Z"),
		LastExecAt:  at("2026-11-30T11:01:18.54802035Z"),
		MemoryBytes: 64 << 20, CPUs: 0.5, Pids: 100, OpenFiles: 20000,
		Phases: []sandbox.Phase{
			{Name: "image", Duration: 19870},
			{Name: "record", Duration: 1226868},
			{Name: "namespaces", Duration: 597956},
			{Name: "rootfs", Duration: 66511110},
			{Name: "runtime", Duration: 34330220},
			{Name: "bridge", Duration: 3325820},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	execs, err := d.ListExecs(t.Context(), "v1")
	if err != nil {
		t.Fatal(err)
	}
	three, killed := 3, 137
	if diff := cmp.Diff([]sandbox.ExecInfo{
		{
			ID: "e1", Box: "v1", Args: []string{"sh", "-c", "echo kept; exit 3"}, EnvNames: []string{"HOME", "LANG", "MODE", "PATH", "TOKEN"},
			User: "1000:1000", WorkDir: "/tmp", PID: 13, Started: at("2026-11-30T11:01:18.523854297Z"), Ended: at("2026-11-30T11:01:18.52727663Z"),
			State: sandbox.ExecExited, ExitCode: &three, Reason: sandbox.ReasonExit, Bytes: 5,
		},
		{
			ID: "e2", Box: "v1", Args: []string{"sleep", "1000"}, EnvNames: []string{"HOME", "LANG", "MODE", "PATH"},
			User: "1000:1000", WorkDir: "/tmp", PID: 14, Started: at("2026-11-30T11:01:18.536259086Z"), Ended: at("2026-11-30T11:01:18.54802035Z"),
			State: sandbox.ExecExited, ExitCode: &killed, Signal: "SIGKILL", Reason: sandbox.ReasonKilled,
		},
	}, execs); diff != "" {
		t.Error(diff)
	}
	s, err := d.AttachExec(t.Context(), "v1", "e1", sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var output []byte
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		output = append(output, c.Data...)
	}
	if string(output) != "kept\n" {
		t.Errorf("the output is %q", output)
	}

	if err := d.Start(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if res := sh(t, d, "v1", `echo $(id -u):$(id -g) $MODE $(hostname); grep -c '^10.0.0.1' /etc/hosts; df -k /scratch | tail -1 | awk '{print $2}'`); string(res.Stdout) != "1000:1000 fast old\n1\n1024\n" {
		t.Errorf("it says %q, %q", res.Stdout, res.Stderr)
	}
}
