package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// claims lets what has a name be done by one request at a time. The zero value
// is ready to use.
type claims struct {
	mu    sync.Mutex
	taken map[string]chan struct{}
}

// take waits until the name is free.
func (c *claims) take(ctx context.Context, name string) (release func(), err error) {
	for {
		c.mu.Lock()
		held := c.taken[name]
		if held == nil {
			break
		}
		c.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer c.mu.Unlock()
	if c.taken == nil {
		c.taken = map[string]chan struct{}{}
	}
	free := make(chan struct{})
	c.taken[name] = free
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.taken, name)
		close(free)
	}, nil
}

// digest names what the parts say, in so many bytes. It does not tell them.
func digest(bytes int, parts ...string) string {
	h := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(h[:bytes])
}

// openExec starts an exec. One that is asked for again with its idempotency key
// is joined from its first byte on instead: fed it is no more.
func (s *Server) openExec(ctx context.Context, b *sandbox.Box, in *execInput, spec taisandbox.ExecSpec) (stream taisandbox.Stream, joined bool, err error) {
	if in.Key != "" {
		var release func()
		if joined, release, err = s.repeated(ctx, b, in, &spec); err != nil {
			return nil, false, err
		}
		defer release()
	}
	if joined {
		stream, err = b.AttachExec(ctx, spec.ID, taisandbox.AttachOptions{})
	} else {
		stream, err = b.OpenExec(ctx, spec)
	}
	if err == nil {
		noteExec(ctx, stream.ID())
	}
	return stream, joined, err
}

// repeated names the exec after its idempotency key and the request, and says
// whether there is one by that name: the box's record of it is what lasts, over
// restarts too. Until release nobody else may start one with the key.
func (s *Server) repeated(ctx context.Context, b *sandbox.Box, in *execInput, spec *taisandbox.ExecSpec) (found bool, release func(), err error) {
	if spec.ID != "" {
		return false, nil, fmt.Errorf("%w: id with Idempotency-Key, which makes the id: give one of them", taisandbox.ErrInvalidSpec)
	}
	body, err := json.Marshal(&in.Body)
	if err != nil {
		return false, nil, fmt.Errorf("encode request: %w", err)
	}
	ofKey := "e-" + digest(12, owner(ctx), b.ID(), in.Key) + "-"
	spec.ID = ofKey + digest(8, in.Key, string(body)) // with the key, since the body may hold a secret that can be guessed
	if release, err = s.starts.take(ctx, ofKey); err != nil {
		return false, nil, err
	}
	execs, err := b.Execs(ctx)
	for _, e := range execs {
		if e.ID != spec.ID && strings.HasPrefix(e.ID, ofKey) {
			err = fmt.Errorf("%w: with another request, for exec %s", sandbox.ErrIdempotencyKey, e.ID)
		}
		found = found || e.ID == spec.ID
	}
	if err != nil {
		release()
		return false, nil, err
	}
	return found, release, nil
}
