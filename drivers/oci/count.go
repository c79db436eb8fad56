package oci

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
)

// ProcessCounts implements [sandbox.ProcessCounter]: one small file a box.
func (d *Driver) ProcessCounts(ctx context.Context) (map[string]int, error) {
	d.mu.Lock()
	boxes := make([]*box, 0, len(d.boxes))
	for _, b := range d.boxes {
		boxes = append(boxes, b)
	}
	d.mu.Unlock()
	counts := map[string]int{}
	for _, b := range boxes {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		b.mu.Lock()
		runs := b.live != nil
		b.mu.Unlock()
		dir := d.cgroups.controller(b.id, "pids")
		if !runs || dir == "" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, "pids.current"))
		if err != nil {
			continue // it has ended meanwhile
		}
		if n, err := strconv.Atoi(string(bytes.TrimSpace(data))); err == nil {
			counts[b.id] = n
		}
	}
	return counts, nil
}
