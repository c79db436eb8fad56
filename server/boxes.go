package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/workspace"
)

func (s *Server) boxRoutes() {
	handle(s, http.MethodPost, "/v1/sandboxes", "Create a box and start it", s.createBox)
	handle(s, http.MethodGet, "/v1/sandboxes", "Boxes, oldest first", s.listBoxes)
	handle(s, http.MethodGet, "/v1/sandboxes/{id}", "One box", s.getBox)
	handle(s, http.MethodDelete, "/v1/sandboxes/{id}", "Remove a box, whatever its state", s.removeBox)
	handle(s, http.MethodPost, "/v1/sandboxes/{id}/start", "Start a stopped box", s.startBox)
	handle(s, http.MethodPost, "/v1/sandboxes/{id}/stop", "Stop a box; its files stay", s.stopBox)
	handle(s, http.MethodGet, "/v1/sandboxes/{id}/wait", "Wait until a box does not run", s.waitBox)
	handle(s, http.MethodGet, "/v1/sandboxes/{id}/ports", "What listens in a box", s.ports)
	handle(s, http.MethodGet, "/v1/sandboxes/{id}/stats", "Measure a running box", s.stats)
}

// boxPath is the input of a route about one box.
type boxPath struct {
	ID string `path:"id"`
}

type createBoxInput struct {
	Key  string `header:"Idempotency-Key" maxLength:"256" doc:"The same key with the same body is the same box"`
	Body rest.CreateBox
}

func (s *Server) createBox(ctx context.Context, in *createBoxInput) (*output[rest.Box], error) {
	opts, err := s.createOptions(in)
	if opts.Owner == "" {
		opts.Owner = owner(ctx)
	}
	if denied := s.allow(ctx, VerbCreate, Object{Kind: KindBox, ID: opts.ID, Owner: opts.Owner, Node: opts.NodeID}); denied != nil {
		return nil, denied
	}
	if err != nil {
		return nil, err
	}
	if err := s.mayUse(ctx, &opts); err != nil {
		return nil, fmt.Errorf("create box: %w", err)
	}
	began := time.Now()
	b, err := s.cfg.Manager.Create(ctx, opts)
	s.metrics.created(b, began, err)
	if err != nil {
		return nil, s.discreet(ctx, &opts, err)
	}
	s.noteID(ctx, b.ID())
	info := b.Snapshot()
	return &output[rest.Box]{Status: http.StatusCreated, Body: boxOf(&info)}, nil
}

// mayUse asks the authoriser about what a box is to have of the machine and of
// workspaces. It is those very workspaces that the box gets.
func (s *Server) mayUse(ctx context.Context, o *sandbox.CreateOptions) error {
	for _, d := range o.Devices {
		if err := s.allow(ctx, VerbExec, Object{Kind: KindHost, ID: d, Node: o.NodeID}); err != nil {
			return fmt.Errorf("device %.64q of the machine: %w", d, err)
		}
	}
	mounts := o.Mounts
	if o.WorkspaceID != "" {
		mounts = append([]sandbox.Mount{{WorkspaceID: o.WorkspaceID, ReadOnly: o.MountMode == string(workspace.MountRO)}}, mounts...)
	}
	for _, m := range mounts {
		if m.WorkspaceID == "" {
			// Read-only or not: a socket in it takes commands all the same.
			if err := s.allow(ctx, VerbExec, Object{Kind: KindHost, ID: m.Source, Node: o.NodeID}); err != nil {
				return fmt.Errorf("mount a directory of the machine: %w", err)
			}
			continue
		}
		verb := VerbExec // a box can write
		if m.ReadOnly {
			verb = VerbGet
		}
		w, err := s.workspace(ctx, verb, m.WorkspaceID)
		if err != nil {
			return err
		}
		o.Workspaces = append(o.Workspaces, w)
	}
	return nil
}

// discreet keeps what a failed create says of others from a caller that may
// not know of them.
func (s *Server) discreet(ctx context.Context, o *sandbox.CreateOptions, err error) error {
	if caller, _ := ctx.Value(callerKey).(Caller); caller.Admin {
		return err
	}
	switch {
	case errors.Is(err, sandbox.ErrTooManyContainers):
		return fmt.Errorf("create box: %w: yours or all there may be", sandbox.ErrTooManyContainers)
	case errors.Is(err, sandbox.ErrAlreadyExists):
		if b, gone := s.cfg.Manager.Get(ctx, o.ID); gone == nil && b.Owner() == o.Owner {
			return err
		}
		return reason.WithHint(fmt.Errorf("create box %s: %w", o.ID, sandbox.ErrAlreadyExists), "choose another id")
	}
	return err
}

// createOptions fills in the server's defaults.
func (s *Server) createOptions(in *createBoxInput) (sandbox.CreateOptions, error) {
	r, d := &in.Body, &s.cfg.Defaults
	entrypoint, err := entrypointOf(r)
	if err != nil {
		return sandbox.CreateOptions{}, err
	}
	o := sandbox.CreateOptions{
		ID: r.ID, Owner: r.Owner, Labels: r.Labels, NodeID: r.NodeID, Policy: sandbox.LifecyclePolicy(r.Policy),
		Image: r.Image, User: r.User, WorkDir: r.WorkDir, Env: r.Env, Entrypoint: entrypoint, NoStart: r.NoStart,
		Hostname: r.Hostname, ExtraHosts: r.ExtraHosts,
		Isolation: taisandbox.Isolation(r.Isolation), Network: taisandbox.Network(r.Network),
		Memory: d.Memory, CPUs: d.CPUs, Pids: d.Pids, OpenFiles: r.OpenFiles, ReadOnly: r.ReadOnly, Tmpfs: r.Tmpfs, Devices: r.Devices,
		WorkspaceID: r.WorkspaceID, MountMode: r.MountMode, MountPath: r.MountPath,
		KeepAlive: r.KeepAlive, IdempotencyKey: in.Key,
	}
	for _, m := range r.Mounts {
		o.Mounts = append(o.Mounts, sandbox.Mount(m))
	}
	inWorkspace := o.WorkspaceID != "" || slices.ContainsFunc(o.Mounts, func(m sandbox.Mount) bool { return m.WorkspaceID != "" })
	if o.NodeID == "" && !inWorkspace { // else it is where the workspace is
		o.NodeID = d.Node
	}
	if o.Image == "" {
		o.Image = d.Image
	}
	if r.MemoryBytes != nil {
		o.Memory = *r.MemoryBytes
	}
	if r.CPUs != nil {
		o.CPUs = *r.CPUs
	}
	if r.Pids != nil {
		o.Pids = *r.Pids
	}
	errs := [3]error{s.cfg.Max.check(&o), timeouts(&o, r)}
	o.IdempotencyBody, errs[2] = json.Marshal(r)
	if r.IdleTimeoutMs == nil && (o.Policy == "" || o.Policy == sandbox.Session) {
		o.IdleTimeout = d.IdleTimeout
	}
	return o, errors.Join(errs[:]...)
}

// boxStates are the states that a box of a list can have.
var boxStates = []string{
	string(taisandbox.StateCreating), string(taisandbox.StateCreated), string(taisandbox.StateRunning), string(taisandbox.StateStopping),
	string(taisandbox.StateStopped), string(taisandbox.StateRemoving), string(taisandbox.StateFailed),
}

type listBoxesInput struct {
	Owner  string   `query:"owner"`
	Node   string   `query:"node"`
	Label  []string `query:"label,explode" doc:"key=value; all must match"`
	Status string   `query:"status"`
	Paging
}

func (s *Server) listBoxes(ctx context.Context, in *listBoxesInput) (*output[rest.BoxList], error) {
	if err := s.allow(ctx, VerbList, Object{Kind: KindBox, Owner: in.Owner, Node: in.Node}); err != nil {
		return nil, err
	}
	labels, err := parseLabels(in.Label)
	if err != nil {
		return nil, err
	}
	if in.Status != "" && !slices.Contains(boxStates, in.Status) {
		return nil, fmt.Errorf("%w: query.status: %.64q: %s are possible", rest.ErrRequest, in.Status, strings.Join(boxStates, ", "))
	}
	boxes, err := s.cfg.Manager.List(ctx, sandbox.ListOptions{Owner: in.Owner, NodeID: in.Node, Labels: labels})
	if err != nil {
		return nil, err
	}
	s.cfg.Manager.CountProcesses(ctx)
	infos := func(yield func(sandbox.BoxInfo) bool) {
		for _, b := range boxes {
			if !yield(b.Snapshot()) {
				return
			}
		}
	}
	show := func(b *sandbox.BoxInfo) (rest.Box, bool) {
		hidden := in.Status != "" && b.Status != in.Status ||
			s.allow(ctx, VerbGet, Object{Kind: KindBox, ID: b.ID, Owner: b.Owner, Node: b.NodeID}) != nil
		return boxOf(b), !hidden
	}
	items, next, err := page(in.Paging, infos, func(b *sandbox.BoxInfo) cursor { return cursor{b.CreatedAt.UnixNano(), b.ID} }, show)
	if err != nil {
		return nil, err
	}
	return ok(rest.BoxList{Items: items, NextToken: next}), nil
}

func parseLabels(pairs []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, p := range pairs {
		k, v, found := strings.Cut(p, "=")
		if !found || k == "" {
			return nil, fmt.Errorf("%w: label %.64q: key=value is expected", rest.ErrRequest, p)
		}
		labels[k] = v
	}
	return labels, nil
}

func (s *Server) getBox(ctx context.Context, in *boxPath) (*output[rest.Box], error) {
	b, err := s.box(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	return boxAnswer(ctx, b)
}

func boxAnswer(ctx context.Context, b *sandbox.Box) (*output[rest.Box], error) {
	info, err := b.Info(ctx)
	if err != nil {
		return nil, err
	}
	return ok(boxOf(info)), nil
}

func (s *Server) removeBox(ctx context.Context, in *boxPath) (*nothing, error) {
	b, err := s.box(ctx, VerbRemove, in.ID)
	if err != nil {
		return nil, err
	}
	return nil, b.Remove(ctx)
}

// startBoxInput may have a body, in which there is nothing to say.
type startBoxInput struct {
	ID   string `path:"id"`
	Body *rest.StartBox
}

func (s *Server) startBox(ctx context.Context, in *startBoxInput) (*output[rest.Box], error) {
	b, err := s.box(ctx, VerbStart, in.ID)
	if err != nil {
		return nil, err
	}
	if err := b.Start(ctx); err != nil {
		return nil, err
	}
	return boxAnswer(ctx, b)
}

type stopBoxInput struct {
	ID   string `path:"id"`
	Body *rest.StopBox
}

func (s *Server) stopBox(ctx context.Context, in *stopBoxInput) (*output[rest.Box], error) {
	b, err := s.box(ctx, VerbStop, in.ID)
	if err != nil {
		return nil, err
	}
	if in.Body == nil || in.Body.GraceMs == nil {
		err = b.Stop(ctx)
	} else {
		var grace time.Duration
		if grace, err = duration("grace_ms", *in.Body.GraceMs); err == nil {
			err = b.StopWithin(ctx, grace)
		}
	}
	if err != nil {
		return nil, err
	}
	return boxAnswer(ctx, b)
}

// busyStates are those in which a box runs, or is about to.
var busyStates = []string{
	string(taisandbox.StateCreating), string(taisandbox.StateRunning), string(taisandbox.StateStopping), string(taisandbox.StateRemoving),
}

// waitBox answers with the box as it was when it ended; one that was removed
// meanwhile is told by its status.
func (s *Server) waitBox(ctx context.Context, in *boxPath) (*output[rest.Box], error) {
	b, err := s.box(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.patient(ctx)
	defer cancel()
	events, err := s.cfg.Manager.Events(ctx) // before the first look, so that nothing is missed
	if err != nil {
		return nil, err
	}
	for {
		info, err := b.Info(ctx)
		switch {
		case errors.Is(err, sandbox.ErrNotFound):
			last := b.Snapshot()
			last.Status = statusRemoved
			return ok(boxOf(&last)), nil
		case err != nil:
			return nil, err
		case !slices.Contains(busyStates, info.Status):
			return ok(boxOf(info)), nil
		}
		if err := awaitEvent(ctx, events, in.ID); err != nil {
			return nil, fmt.Errorf("wait for box %s: %w", in.ID, err)
		}
	}
}

// statusRemoved is the status of a box that is gone.
const statusRemoved = "removed"

// awaitEvent waits for something that may concern the box.
func awaitEvent(ctx context.Context, events <-chan sandbox.Event, id string) error {
	for {
		select {
		case e, open := <-events:
			switch {
			case !open && ctx.Err() != nil:
				return context.Cause(ctx)
			case !open:
				return rest.ErrStopping
			case e.Type == sandbox.EventGap, e.Box == id && e.Type != sandbox.EventExec:
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// patient returns a context for a request that waits: it ends as soon as the
// server begins to stop, while those that work may finish.
func (s *Server) patient(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(s.stopping, func() { cancel(context.Cause(s.stopping)) })
	return ctx, func() {
		unhook()
		cancel(nil)
	}
}

func (s *Server) ports(ctx context.Context, in *boxPath) (*output[rest.PortList], error) {
	b, err := s.box(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	ports, err := b.Ports(ctx)
	if err != nil {
		return nil, err
	}
	return ok(portsOf(ports)), nil
}

func (s *Server) stats(ctx context.Context, in *boxPath) (*output[rest.Stats], error) {
	b, err := s.box(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	stats, err := b.Stats(ctx)
	if err != nil {
		return nil, err
	}
	return ok(statsOf(&stats)), nil
}
