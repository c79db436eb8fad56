package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/taibox/taibox/internal/reason"
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

// openExec starts an exec, or, if it is asked for again with its idempotency
// key, joins the one that there is. The caller is to feed the input, if feed is
// set, from the offset at on.
func (s *Server) openExec(ctx context.Context, b *sandbox.Box, in *execInput, spec taisandbox.ExecSpec) (stream taisandbox.Stream, at int64, feed bool, err error) {
	joined := false
	if in.Key != "" {
		var release func()
		if joined, release, err = s.repeated(ctx, b, in, &spec); err != nil {
			return nil, 0, false, err
		}
		defer release()
	}
	fed := spec.Stdin && !in.Body.Detach
	switch {
	case joined && fed:
		stream, at, feed, err = joinFed(ctx, b, spec.ID, int64(len(in.Body.StdinB64)))
	case joined:
		stream, err = b.AttachExec(ctx, spec.ID, taisandbox.AttachOptions{})
	}
	// One of which it was not known whether it began may turn out not to have.
	if !joined || errors.Is(err, taisandbox.ErrExecNotFound) {
		feed = fed
		stream, err = b.OpenExec(ctx, spec)
	}
	if err == nil {
		noteExec(ctx, stream.ID())
	}
	return stream, at, feed, err
}

// joinFed joins an exec from its first byte on. If nobody feeds it any more and
// its input of so many bytes has not ended, because the server did before, the
// caller goes on with it: else the command would wait for ever.
func joinFed(ctx context.Context, b *sandbox.Box, id string, size int64) (stream taisandbox.Stream, at int64, feed bool, err error) {
	stream, err = b.AttachExec(ctx, id, taisandbox.AttachOptions{Hold: true})
	if errors.Is(err, taisandbox.ErrExecBusy) { // who holds it feeds it
		stream, err = b.AttachExec(ctx, id, taisandbox.AttachOptions{})
		return stream, 0, false, err
	}
	if err != nil {
		return nil, 0, false, err
	}
	info, err := b.InspectExec(ctx, id) // while nobody else can feed it
	if err == nil && info.InputOpen && info.InputBytes > size {
		err = &detailedError{reason.WithHint(
			fmt.Errorf("%w: for exec %s in box %s, which another client went on to feed: it got %d bytes, and this input has %d", sandbox.ErrIdempotencyKey, id, b.ID(), info.InputBytes, size),
			"attach to the exec, or kill it and use another key"), map[string]any{"exec_id": id}}
	}
	if err != nil {
		return nil, 0, false, errors.Join(err, stream.Close())
	}
	if !info.InputOpen {
		return stream, 0, false, nil
	}
	return stream, info.InputBytes, true, nil
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
