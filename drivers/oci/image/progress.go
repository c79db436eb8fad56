package image

import (
	"context"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/taibox/taibox/tai/sandbox"
)

// rank orders what happens to a layer: nothing goes back.
var rank = []string{sandbox.PullWaiting, sandbox.PullDownloading, sandbox.PullDownloaded, sandbox.PullExtracting, sandbox.PullDone}

// expect says which layers are to come.
func (p *pull) expect(layers []ocispec.Descriptor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range layers {
		if p.find(l) == nil {
			p.layers = append(p.layers, sandbox.PullProgress{Status: sandbox.PullWaiting, Layer: l.Digest.String(), Total: l.Size})
		}
	}
}

func (p *pull) find(desc ocispec.Descriptor) *sandbox.PullProgress {
	for i := range p.layers {
		if p.layers[i].Layer == desc.Digest.String() {
			return &p.layers[i]
		}
	}
	return nil
}

// note says how far a layer is. What is fetched a second time is no step back.
func (p *pull) note(desc ocispec.Descriptor, status string, current int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.find(desc)
	l.Current = max(l.Current, current)
	if slices.Index(rank, status) > slices.Index(rank, l.Status) {
		l.Status = status
	}
}

// snapshot returns the layers that differ from what was shown, and keeps them there.
func (p *pull) snapshot(shown map[string]sandbox.PullProgress) []sandbox.PullProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	var news []sandbox.PullProgress
	for _, l := range p.layers {
		if shown[l.Layer] != l {
			shown[l.Layer] = l
			news = append(news, l)
		}
	}
	return news
}

// outcome is the last element of a pull that has ended.
func (p *pull) outcome() sandbox.PullProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return sandbox.PullProgress{Error: p.err.Error(), Err: p.err}
	}
	return sandbox.PullProgress{Status: sandbox.PullComplete, Digest: p.digest}
}

// follow shows one caller a pull until it, or ctx, has ended.
func (s *Store) follow(ctx context.Context, p *pull, out chan sandbox.PullProgress) {
	defer close(out)
	defer s.leave(p)
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	shown := map[string]sandbox.PullProgress{}
	news := []sandbox.PullProgress{{Status: sandbox.PullResolving}}
	for ended := false; ; {
		for _, n := range append(news, p.snapshot(shown)...) {
			select {
			case out <- n:
			case <-ctx.Done():
				giveUp(ctx, out)
				return
			}
		}
		news = nil
		if ended {
			select {
			case out <- p.outcome():
			case <-ctx.Done():
				giveUp(ctx, out)
			}
			return
		}
		select {
		case <-tick.C:
		case <-p.done:
			ended = true
		case <-ctx.Done():
			giveUp(ctx, out)
			return
		}
	}
}

// giveUp makes the end of ctx the last element of out, whether or not anybody
// reads on.
func giveUp(ctx context.Context, out chan sandbox.PullProgress) {
	err := context.Cause(ctx)
	for {
		select {
		case out <- sandbox.PullProgress{Error: err.Error(), Err: err}:
			return
		default:
		}
		select {
		case <-out:
		default:
		}
	}
}
