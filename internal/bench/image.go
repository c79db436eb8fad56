package bench

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	goruntime "runtime"

	"github.com/taibox/taibox/internal/reason"
)

// Image is the name of the image that all peers run.
const Image = "taibox.test/bench:1"

const busybox = "/bin/busybox"

// imageArchive makes a Docker archive with the machine's busybox, as sh, true
// and sleep. Docker and Taibox read the same bytes.
func imageArchive() ([]byte, error) {
	const hint = "apt-get install busybox-static"
	f, err := elf.Open(busybox)
	if err != nil {
		return nil, reason.WithHint(fmt.Errorf("the benchmark's image is made of busybox: %w", err), hint)
	}
	defer f.Close() //nolint:errcheck // only read
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, reason.WithHint(fmt.Errorf("the benchmark's image is made of busybox: %s is not static", busybox), hint)
		}
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	layer, err := archive(
		entry{name: "bin/", mode: 0o755},
		entry{name: "bin/busybox", mode: 0o755, data: program},
		entry{name: "bin/sh", link: "busybox"},
		entry{name: "bin/true", link: "busybox"},
		entry{name: "bin/sleep", link: "busybox"},
	)
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": goruntime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(layer)}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": sum(config) + ".json", "RepoTags": []string{Image}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return nil, err
	}
	return archive(
		entry{name: sum(config) + ".json", mode: 0o644, data: config},
		entry{name: "layer.tar", mode: 0o644, data: layer},
		entry{name: "manifest.json", mode: 0o644, data: manifest},
	)
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// entry is one member of an archive: a link, a file, or a directory if the
// name ends in a slash.
type entry struct {
	name, link string
	mode       int64
	data       []byte
}

func archive(entries ...entry) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Mode: e.mode, Size: int64(len(e.data))}
		if e.link != "" {
			h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
