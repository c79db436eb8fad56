package hostfs_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/oci/image/hostfs"
)

func TestSmoke(t *testing.T) {
	d := t.TempDir()
	h, err := hostfs.Open(t.Context(), hostfs.Config{Dir: filepath.Join(d, "hostfs"), RunDir: filepath.Join(d, "run"), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		start := time.Now()
		v, err := h.Use(t.Context())
		t.Log(time.Since(start), v.ID, v.Mounts, err)
		e, _ := os.ReadDir(v.Root + "/etc")
		t.Log(len(e))
		e, _ = os.ReadDir(v.Mounts[0].Source)
		t.Log(e)
		v.Release()
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
}
