package fake

import (
	"cmp"
	"context"
	"fmt"
	"io"
	goruntime "runtime"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/taibox/taibox/tai/sandbox"
)

// Exists reports whether there is an image.
func (d *Driver) Exists(_ context.Context, ref string) (bool, error) {
	name, err := normalise(ref)
	if err != nil {
		return false, fmt.Errorf("look for image: %w", err)
	}
	_, err = d.m.image(name)
	return err == nil, nil
}

// Pull takes an image from the registry of [WithRegistry]. It has one layer.
func (d *Driver) Pull(ctx context.Context, ref string, _ sandbox.PullOptions) (<-chan sandbox.PullProgress, error) {
	if err := d.need(sandbox.FeatureImagePull); err != nil {
		return nil, fmt.Errorf("pull image: %w", err)
	}
	name, err := normalise(ref)
	if err == nil && name == sandbox.HostFS {
		err = fmt.Errorf("%w: %s is built in", sandbox.ErrImageRef, name)
	}
	if err != nil {
		return nil, fmt.Errorf("pull image: %w", err)
	}
	const size = 1000
	layer := digest.FromString(name).String()
	steps := []sandbox.PullProgress{
		{Status: sandbox.PullResolving},
		{Status: sandbox.PullDownloading, Layer: layer, Total: size},
		{Status: sandbox.PullDone, Layer: layer, Current: size, Total: size},
	}
	last := sandbox.PullProgress{Status: sandbox.PullComplete}
	config, ok := d.registry[name]
	err = d.step(ctx, "image.pull", name)
	if err == nil && !ok {
		err = sandbox.ErrRegistryNotFound
	}
	if err != nil {
		err = fmt.Errorf("pull image %s: %w", name, err)
		steps, last = steps[:1], sandbox.PullProgress{Error: err.Error(), Err: err}
	} else {
		im := sandbox.ImageInfo{
			Name: name, Digest: digest.FromString("image " + name).String(), Platform: "linux/" + goruntime.GOARCH,
			SizeBytes: size, CreatedAt: time.Now(), Config: config,
		}
		d.m.mu.Lock()
		d.m.images[name] = im
		d.m.mu.Unlock()
		last.Digest = im.Digest
	}
	out := make(chan sandbox.PullProgress, len(steps)+1)
	for _, s := range append(steps, last) {
		out <- s
	}
	close(out)
	return out, nil
}

// Save is not possible: layers are not kept.
func (d *Driver) Save(context.Context, []string, io.Writer) error {
	return fmt.Errorf("save image: %w", sandbox.ErrUnsupported)
}

// Commit is not possible: boxes share one image's files.
func (d *Driver) Commit(_ context.Context, box, _ string, _ sandbox.ImageChange) (sandbox.ImageInfo, error) {
	return sandbox.ImageInfo{}, fmt.Errorf("commit box %s: %w", box, sandbox.ErrUnsupported)
}

// Prune removes images that no box is made of.
func (d *Driver) Prune(ctx context.Context, all bool) ([]sandbox.ImageInfo, error) {
	if err := d.step(ctx, "image.prune", ""); err != nil {
		return nil, fmt.Errorf("prune images: %w", err)
	}
	used := map[string]bool{}
	for _, b := range d.m.all() {
		used[b.snapshot().ImageDigest] = true
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	var removed []sandbox.ImageInfo
	for name, im := range d.m.images {
		if !im.BuiltIn && !used[im.Digest] && (all || name == im.Digest) {
			removed = append(removed, im)
			delete(d.m.images, name)
		}
	}
	slices.SortFunc(removed, func(a, b sandbox.ImageInfo) int { return cmp.Compare(a.Name, b.Name) })
	return removed, nil
}
