package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func (s *Server) execRoutes() {
	const box, exec = "/v1/sandboxes/{id}", "/v1/sandboxes/{id}/execs/{exec}"
	handle(s, http.MethodPost, box+"/exec", "Run a command and collect its output (200), or start it detached (201)", s.exec)
	handle(s, http.MethodGet, box+"/execs", "The execs of a box that are kept, oldest first", s.listExecs)
	handle(s, http.MethodGet, exec, "The record of an exec", s.getExec)
	handle(s, http.MethodGet, exec+"/wait", "Wait until the record of an exec is final", s.waitExec)
	handle(s, http.MethodPost, exec+"/kill", "Send a signal to an exec", s.killExec)
	s.raw(http.MethodGet, exec+"/output", "The output of an exec so far, both streams in one", []string{"since"}, s.execOutput)
	s.raw(http.MethodGet, box+"/exec/ws", "WebSocket: start a command, feed it and read it", nil, s.execSocket)
	s.raw(http.MethodGet, exec+"/ws", "WebSocket: attach to an exec", []string{"since", "hold", "takeover", "nofollow"}, s.attachSocket)

	// The one route with two kinds of success.
	schemas, op := s.api.OpenAPI().Components.Schemas, s.api.OpenAPI().Paths[box+"/exec"].Post
	for status, schema := range map[string]*huma.Schema{
		"200": schemas.Schema(reflect.TypeFor[rest.ExecResult](), true, ""), "201": schemas.Schema(reflect.TypeFor[rest.Exec](), true, ""),
	} {
		op.Responses[status] = &huma.Response{
			Description: op.Summary, Content: map[string]*huma.MediaType{"application/json": {Schema: schema}},
		}
	}
}

type execInput struct {
	ID   string `path:"id"`
	Key  string `header:"Idempotency-Key" maxLength:"256" doc:"The same key with the same body is the same exec, as long as that is kept"`
	Body rest.ExecRequest
}

// exec runs a command to its end. If the client goes away, on_disconnect
// applies; if the server does, the command goes on and the answer names it.
func (s *Server) exec(ctx context.Context, in *execInput) (*output[any], error) {
	b, err := s.box(ctx, VerbExec, in.ID)
	if err != nil {
		return nil, err
	}
	spec, err := specOf(&in.Body)
	if err != nil {
		return nil, err
	}
	if in.Body.Detach {
		return s.execDetached(ctx, b, in, spec)
	}
	if spec.MaxOutput > maxCollect {
		return nil, fmt.Errorf("%w: max_output of %d: at most %d are possible here; a WebSocket has no limit", taisandbox.ErrInvalidSpec, spec.MaxOutput, int64(maxCollect))
	}
	spec.Stdin = spec.Stdin || len(in.Body.StdinB64) > 0
	stream, at, feed, err := s.openExec(ctx, b, in, spec)
	if err != nil {
		return nil, err
	}
	until := ctx
	if feed && spec.OnDisconnect != taisandbox.OnDisconnectKill {
		// The command goes on without its client, so it gets all that was sent for it.
		var stop func()
		until, stop = taisandbox.Feed(ctx, stream, in.Body.StdinB64[at:])
		defer stop()
		feed = false
		// A key that ends is no client that goes.
		defer context.AfterFunc(ctx, func() {
			if errors.Is(context.Cause(ctx), rest.ErrUnauthenticated) {
				stream.Close() //nolint:errcheck // it makes Collect return
			}
		})()
	}
	defer stream.Close()                                             //nolint:errcheck // what counts was read
	defer context.AfterFunc(s.stopping, func() { stream.Close() })() //nolint:errcheck // it makes Collect return
	res, err := taisandbox.Collect(until, stream, in.Body.StdinB64[at:], feed, spec.MaxOutput)
	switch {
	case errors.Is(context.Cause(ctx), rest.ErrUnauthenticated):
		return nil, context.Cause(ctx)
	case err != nil && s.stopping.Err() != nil:
		return nil, &detailedError{fmt.Errorf("exec %s in box %s goes on: %w", stream.ID(), in.ID, rest.ErrStopping), map[string]any{"exec_id": stream.ID()}}
	case err != nil:
		return nil, fmt.Errorf("exec %s in box %s: %w", stream.ID(), in.ID, err)
	}
	return ok[any](resultOf(&res)), nil
}

func (s *Server) execDetached(ctx context.Context, b *sandbox.Box, in *execInput, spec taisandbox.ExecSpec) (*output[any], error) {
	switch {
	case len(in.Body.StdinB64) > 0:
		return nil, fmt.Errorf("%w: stdin_b64 with detach: set stdin, and attach to feed it", taisandbox.ErrInvalidSpec)
	case spec.OnDisconnect == taisandbox.OnDisconnectKill:
		return nil, fmt.Errorf("%w: on_disconnect kill with detach: nobody is connected", taisandbox.ErrInvalidSpec)
	}
	stream, _, _, err := s.openExec(ctx, b, in, spec)
	if err != nil {
		return nil, err
	}
	id := stream.ID()
	if err := stream.Close(); err != nil {
		return nil, fmt.Errorf("detach from exec %s: %w", id, err)
	}
	info, err := b.InspectExec(ctx, id)
	if err != nil {
		return nil, err
	}
	return &output[any]{Status: http.StatusCreated, Body: execOf(&info)}, nil
}

type listExecsInput struct {
	ID string `path:"id"`
	Paging
}

func (s *Server) listExecs(ctx context.Context, in *listExecsInput) (*output[rest.ExecList], error) {
	b, err := s.box(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	infos, err := b.Execs(ctx)
	if err != nil {
		return nil, err
	}
	started := func(e *taisandbox.ExecInfo) cursor { return cursor{e.Started.UnixNano(), e.ID} }
	items, next, err := page(in.Paging, inOrder(infos, started), started, always(execOf))
	if err != nil {
		return nil, err
	}
	return ok(rest.ExecList{Items: items, NextToken: next}), nil
}

// execPath is the input of a route about one exec.
type execPath struct {
	ID   string `path:"id"`
	Exec string `path:"exec"`
}

// execBox returns the box of an exec, and refuses ids that no exec can have.
func (s *Server) execBox(ctx context.Context, verb Verb, id, exec string) (*sandbox.Box, error) {
	b, err := s.box(ctx, verb, id)
	if err != nil {
		return nil, err
	}
	if err := taisandbox.ValidateID(exec); err != nil {
		return nil, err
	}
	noteExec(ctx, exec)
	return b, nil
}

func (s *Server) getExec(ctx context.Context, in *execPath) (*output[rest.Exec], error) {
	b, err := s.execBox(ctx, VerbGet, in.ID, in.Exec)
	if err != nil {
		return nil, err
	}
	return execAnswer(b.InspectExec(ctx, in.Exec))
}

func (s *Server) waitExec(ctx context.Context, in *execPath) (*output[rest.Exec], error) {
	b, err := s.execBox(ctx, VerbGet, in.ID, in.Exec)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.patient(ctx)
	defer cancel()
	return execAnswer(b.WaitExec(ctx, in.Exec))
}

func execAnswer(info taisandbox.ExecInfo, err error) (*output[rest.Exec], error) {
	if err != nil {
		return nil, err
	}
	return ok(execOf(&info)), nil
}

type killInput struct {
	ID   string `path:"id"`
	Exec string `path:"exec"`
	Body *rest.KillExec
}

func (s *Server) killExec(ctx context.Context, in *killInput) (*nothing, error) {
	b, err := s.execBox(ctx, VerbExec, in.ID, in.Exec)
	if err != nil {
		return nil, err
	}
	var opts taisandbox.KillOptions
	if in.Body != nil {
		opts = taisandbox.KillOptions{Signal: in.Body.Signal, Tree: in.Body.Tree, Group: in.Body.Group}
	}
	return nil, b.KillExec(ctx, in.Exec, opts)
}

func (s *Server) execOutput(w http.ResponseWriter, r *http.Request) error {
	ctx, id := r.Context(), r.PathValue("exec")
	b, err := s.execBox(ctx, VerbGet, r.PathValue("id"), id)
	if err != nil {
		return err
	}
	since, err := parseSince(r)
	if err != nil {
		return err
	}
	stream, err := b.AttachExec(ctx, id, taisandbox.AttachOptions{Since: since, NoFollow: true})
	if err != nil {
		return err
	}
	defer stream.Close()                                      //nolint:errcheck // what counts was read
	defer context.AfterFunc(ctx, func() { stream.Close() })() //nolint:errcheck // it makes Recv return
	return copyOutput(w, stream, since)
}

// copyOutput writes a stream's output, from the first byte that is kept.
func copyOutput(w http.ResponseWriter, stream taisandbox.Stream, at int64) error {
	for began := false; ; {
		c, err := stream.Recv()
		end := errors.Is(err, io.EOF)
		gap := err == nil && c.Source == taisandbox.Gap
		switch {
		case began && (gap || err != nil && !end):
			panic(http.ErrAbortHandler) // the client must not take a part for the whole
		case gap:
			at = c.End()
			continue
		case err != nil && !end:
			return err
		case err == nil && !began:
			at = c.Offset
		}
		if !began {
			began = true
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set(rest.HeaderOffset, strconv.FormatInt(at, 10))
			w.WriteHeader(http.StatusOK)
		}
		if end {
			return nil
		}
		if _, err := w.Write(c.Data); err != nil {
			return nil //nolint:nilerr // the client is gone, and there is nobody else to tell
		}
	}
}

func parseSince(r *http.Request) (int64, error) {
	v := r.URL.Query().Get("since")
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < -1 {
		return 0, fmt.Errorf("%w: query.since: %.32q: an offset, or -1 for the present end, is expected", rest.ErrRequest, v)
	}
	return n, nil
}
