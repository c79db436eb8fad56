package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/internal/testimage"
	"github.com/taibox/taibox/tai/sandbox/sandboxtest"
)

// busybox is an image without the machine's tools: boxes must not need them.
const busybox = "example.test/busybox:1"

func ociDrivers() []driver {
	o := &ociMachine{}
	opts := []sandboxtest.Option{sandboxtest.WithWipe(o.wipe), sandboxtest.WithResidue(o.traces)}
	return []driver{
		{name: "oci", open: o.open, need: o.need, opts: opts},
		{name: "oci-busybox", open: o.open, need: o.need, opts: append(slices.Clone(opts),
			sandboxtest.WithImage(busybox), sandboxtest.WithPrepare(loadBusybox), sandboxtest.Quick())},
	}
}

// ociMachine remembers the instances that were made, to look for their traces.
type ociMachine struct {
	mu        sync.Mutex
	instances []string
}

// need says why the driver cannot run here.
func (*ociMachine) need() string {
	if os.Geteuid() != 0 {
		return "root is needed"
	}
	for _, name := range []string{"taibox-runc", "taibox-bridge"} {
		if _, err := os.Stat(filepath.Join(binDir(), name)); err != nil {
			return err.Error() + " (make build)"
		}
	}
	return ""
}

func binDir() string {
	if dir := os.Getenv("TAIBOX_BIN"); dir != "" {
		return dir
	}
	return "../../bin"
}

// instance is the one of a directory, so that reopening finds it.
func instance(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:4])
}

func (o *ociMachine) config(t *testing.T, dir string) oci.Config {
	t.Helper()
	bin, err := filepath.Abs(binDir())
	if err != nil {
		t.Fatal(err)
	}
	id := instance(dir)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Contains(o.instances, id) {
		o.instances = append(o.instances, id)
	}
	return oci.Config{
		DataDir: dir, Instance: id, PoolSize: 2,
		RuncPath: filepath.Join(bin, "taibox-runc"), BridgePath: filepath.Join(bin, "taibox-bridge"),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

func (o *ociMachine) open(t *testing.T, dir string) sandboxtest.Driver {
	d, err := oci.Open(t.Context(), o.config(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// wipe takes an instance off the machine.
func (o *ociMachine) wipe(t *testing.T, dir string) {
	d, err := oci.Open(context.Background(), o.config(t, dir))
	if err != nil {
		t.Errorf("open to wipe: %v", err)
		return
	}
	if err := errors.Join(d.Dismantle(context.Background()), d.Close()); err != nil {
		t.Errorf("wipe: %v", err)
	}
}

func loadBusybox(t *testing.T, d sandboxtest.Driver) {
	im, err := testimage.Busybox(busybox)
	if err != nil {
		t.Fatal(err)
	}
	data, err := testimage.OCI(im)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Load(t.Context(), bytes.NewReader(data), ""); err != nil {
		t.Fatal(err)
	}
}

// traces lists what is on the machine of the instances made so far: after each
// group that should be nothing.
func (o *ociMachine) traces(t *testing.T) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var found []string
	note := func(what, where string) {
		for _, id := range o.instances {
			if strings.Contains(where, id) {
				found = append(found, what+" "+where)
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		note("mount", strings.Fields(line)[4])
	}
	for what, root := range map[string]string{"cgroup": "/sys/fs/cgroup", "file": "/run/taibox", "interface": "/sys/class/net"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // it went away, or is not there at all
			}
			if what != "cgroup" || entry.IsDir() {
				note(what, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range processes {
		cmd, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		note("process", strings.ReplaceAll(string(cmd), "\x00", " "))
	}
	return strings.Join(found, "\n")
}
