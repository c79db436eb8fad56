package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

// pick is an image of an archive that is to be kept.
type pick struct {
	candidate
	names []string // as records have them
}

// Load implements [sandbox.Image]. An image that has no name, and gets none, is
// kept under its digest.
func (s *Store) Load(ctx context.Context, r io.Reader, name string) (_ []sandbox.ImageInfo, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("load image: %w", err)
		}
	}()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if name != "" {
		if name, err = newName(name); err != nil {
			return nil, err
		}
	}
	ctx = s.context(ctx)
	lease, err := s.leases.Create(ctx, leases.WithID(sandbox.NewID("load-")))
	if err != nil {
		return nil, local(err)
	}
	garbage := true
	defer func() { s.endLease(ctx, lease, garbage) }()
	ctx = leases.WithLease(ctx, lease.ID)

	in, stop := source(ctx, r)
	a, err := readArchive(ctx, s.content, lease.ID, in)
	stop()
	if err != nil {
		return nil, cause(ctx, err)
	}
	groups, err := a.contents(ctx)
	if err != nil {
		return nil, cause(ctx, err)
	}
	picks, err := choose(groups, name)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, p := range picks {
		there := func(_ context.Context, i int) error { return a.check(p.manifest.Layers[i]) }
		if err := s.unpack(ctx, &p, lease.ID, there); err != nil {
			return nil, cause(ctx, fmt.Errorf("%s: %w", p.title(), err))
		}
		used[p.desc.Digest.String()], used[p.manifest.Config.Digest.String()] = true, true
		for _, l := range p.manifest.Layers {
			used[l.Digest.String()] = true
		}
	}
	moved, err := s.record(ctx, picks)
	if err != nil {
		return nil, cause(ctx, err)
	}
	garbage = moved || len(used) < len(a.blobs)
	return loaded(picks), nil
}

// cause says that the caller gave up, where that is what lies behind err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && reason.Of(err) == "" {
		return c
	}
	return local(err)
}

func loaded(picks []pick) []sandbox.ImageInfo {
	var infos []sandbox.ImageInfo
	for _, p := range picks {
		for _, name := range p.names {
			infos = append(infos, imageInfo(name, p.desc, p.manifest, p.config))
		}
	}
	slices.SortFunc(infos, func(a, b sandbox.ImageInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos
}

// endLease lets go of what a load made: names hold what is to stay.
func (s *Store) endLease(ctx context.Context, lease leases.Lease, garbage bool) {
	ctx = context.WithoutCancel(ctx)
	err := s.leases.Delete(ctx, lease)
	if garbage {
		err = errors.Join(err, s.collect(ctx))
	}
	if err != nil && !errdefs.IsNotFound(err) {
		s.log.Warn("what a load left is removed later", slog.Any("err", err))
	}
}

// title names a pick in errors.
func (p *pick) title() string {
	names := make([]string, len(p.names))
	for i, n := range p.names {
		names[i] = displayName(n)
	}
	return strings.Join(names, ", ")
}

// choose picks the images that this machine runs, and gives them their names.
func choose(groups []group, name string) ([]pick, error) {
	var picks []pick
	for _, g := range groups {
		best, err := g.best()
		if err != nil {
			return nil, err
		}
		for _, c := range best {
			i := slices.IndexFunc(picks, func(p pick) bool { return p.desc.Digest == c.desc.Digest })
			if i < 0 {
				i = len(picks)
				picks = append(picks, pick{candidate: c})
			}
			if g.name != "" {
				picks[i].names = append(picks[i].names, g.name)
			}
		}
	}
	if len(picks) == 0 {
		return nil, corrupt("the archive has no image")
	}
	return picks, rename(picks, name)
}

// rename makes full names of those in the archive, and gives name to the only
// image, or to the only one without a name.
func rename(picks []pick, name string) error {
	if name != "" && len(picks) == 1 {
		picks[0].names = []string{name}
		return nil
	}
	var nameless []*pick
	for i := range picks {
		p := &picks[i]
		for j, n := range p.names {
			full, err := newName(n)
			if err != nil {
				return reason.WithHint(fmt.Errorf("the archive's name for it: %w", err), "give it another one: taibox image load -i FILE --name NAME")
			}
			p.names[j] = full
		}
		slices.Sort(p.names)
		p.names = slices.Compact(p.names)
		if len(p.names) == 0 {
			p.names = []string{p.desc.Digest.String()}
			nameless = append(nameless, p)
		}
	}
	if name == "" {
		return nil
	}
	if len(nameless) != 1 {
		return fmt.Errorf("%w: the archive has %d images, and a name can be given to one", sandbox.ErrImageRef, len(picks))
	}
	nameless[0].names = []string{name}
	return nil
}

// best returns what fits this machine best: one manifest for a name, and as
// many as there are where there is none.
func (g *group) best() ([]candidate, error) {
	here := platforms.Only(platforms.DefaultSpec())
	title := g.name
	if title == "" {
		title = "without a name"
	}
	var fit []candidate
	var others []string
	for _, c := range g.candidates {
		if here.Match(c.platform) {
			fit = append(fit, c)
		} else {
			others = append(others, platforms.Format(c.platform))
		}
	}
	for _, m := range g.missing {
		switch {
		case m.Platform == nil:
		case here.Match(*m.Platform) && len(fit) == 0:
			return nil, corrupt("image %s: its manifest %s is not in the archive", title, m.Digest)
		default:
			others = append(others, platforms.Format(*m.Platform))
		}
	}
	if len(fit) == 0 && len(others) > 0 {
		slices.Sort(others)
		return nil, fmt.Errorf("image %s: %w: it is for %s, this machine is %s", title, sandbox.ErrImagePlatform,
			strings.Join(slices.Compact(others), ", "), platforms.Format(platforms.Normalize(platforms.DefaultSpec())))
	}
	if len(fit) == 0 {
		return nil, corrupt("image %s: nothing in it can be run", title)
	}
	slices.SortStableFunc(fit, func(a, b candidate) int { return better(here, a.platform, b.platform) })
	end := 1
	for g.name == "" && end < len(fit) && better(here, fit[0].platform, fit[end].platform) == 0 {
		end++
	}
	return fit[:end], nil
}

func better(m platforms.MatchComparer, a, b ocispec.Platform) int {
	switch {
	case m.Less(a, b):
		return -1
	case m.Less(b, a):
		return 1
	}
	return 0
}
