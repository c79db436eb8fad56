package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// measureAtOnce bounds how many boxes are measured at the same time.
const measureAtOnce = 8

func (s *Server) lookRoutes() {
	handle(s, http.MethodGet, "/v1/stats", "Measure all boxes that run", s.allStats)
	handle(s, http.MethodGet, "/v1/sandboxes/{id}/processes", "Processes of a running box", s.processes)
	s.eventRoutes()
	s.metricsRoutes()
}

type allStatsInput struct {
	Owner string   `query:"owner"`
	Node  string   `query:"node"`
	Label []string `query:"label,explode" doc:"key=value; all must match"`
	Paging
}

// allStats measures what runs, oldest first. A box that ends meanwhile, or
// whose node does not measure, is left out; one that does not answer is not.
func (s *Server) allStats(ctx context.Context, in *allStatsInput) (*output[rest.StatsList], error) {
	if err := s.allow(ctx, VerbList, Object{Kind: KindBox, Owner: in.Owner, Node: in.Node}); err != nil {
		return nil, err
	}
	labels, err := parseLabels(in.Label)
	if err != nil {
		return nil, err
	}
	boxes, err := s.cfg.Manager.List(ctx, sandbox.ListOptions{Owner: in.Owner, NodeID: in.Node, Labels: labels})
	if err != nil {
		return nil, err
	}
	looks := func(yield func(look) bool) {
		for _, b := range boxes {
			if !yield(look{b, b.Snapshot()}) {
				return
			}
		}
	}
	created := func(l *look) cursor { return cursor{l.info.CreatedAt.UnixNano(), l.info.ID} }
	running := func(l *look) (look, bool) {
		return *l, l.info.Status == string(taisandbox.StateRunning) &&
			s.allow(ctx, VerbGet, Object{Kind: KindBox, ID: l.info.ID, Owner: l.info.Owner, Node: l.info.NodeID}) == nil
	}
	asked, next, err := page(in.Paging, looks, created, running)
	if err != nil {
		return nil, err
	}
	measured := make([]*rest.BoxStats, len(asked))
	var g errgroup.Group
	g.SetLimit(measureAtOnce)
	for i := range asked {
		g.Go(func() error {
			measured[i] = s.measure(ctx, &asked[i])
			return context.Cause(ctx)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	list := rest.StatsList{Items: make([]rest.BoxStats, 0, len(measured)), NextToken: next}
	for _, m := range measured {
		if m != nil {
			list.Items = append(list.Items, *m)
		}
	}
	return ok(list), nil
}

// look is a box as it was when a list was made.
type look struct {
	box  *sandbox.Box
	info sandbox.BoxInfo
}

// measure measures a box of a list, which it does not hold up for long. It
// returns nil for one that does not run any more, or never can be measured.
func (s *Server) measure(ctx context.Context, l *look) *rest.BoxStats {
	short, cancel := context.WithTimeoutCause(ctx, measureTimeout, errMeasureTimeout)
	defer cancel()
	stats, err := l.box.Stats(short)
	m := &rest.BoxStats{ID: l.info.ID, Owner: l.info.Owner}
	switch {
	case err == nil:
		m.Stats = statsOf(&stats)
		return m
	case passed(err):
		return nil
	case context.Cause(short) == errMeasureTimeout: //nolint:errorlint // its own, and not what a driver made of it
		err = errMeasureTimeout
	}
	m.Error = s.fail(ctx, err).Body.Message
	m.Time, m.MemoryLimitBytes = time.Now(), l.info.Memory
	return m
}

// errMeasureTimeout is a box of a list that lets one wait.
var errMeasureTimeout = fmt.Errorf("%w within %v", taisandbox.ErrBridgeLost, measureTimeout)

// passed reports whether a box could not be measured because it does not run
// any more, or never can.
func passed(err error) bool {
	for _, e := range []error{sandbox.ErrNotFound, sandbox.ErrNotRunning, sandbox.ErrRemoving, sandbox.ErrLost, sandbox.ErrUnsupported} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *Server) processes(ctx context.Context, in *boxPath) (*output[rest.ProcessList], error) {
	b, err := s.box(ctx, VerbGet, in.ID)
	if err != nil {
		return nil, err
	}
	found, err := b.Processes(ctx)
	if err != nil {
		return nil, err
	}
	list := rest.ProcessList{Items: make([]rest.Process, 0, len(found))}
	for _, p := range found {
		item := rest.Process{PID: p.PID, PPID: p.PPID, UID: p.UID, State: p.State, CPUMs: millis(p.CPU), RSSBytes: p.RSSBytes, StartedAt: p.StartedAt}
		item.Command, item.CommandB64 = shownBytes(p.Command)
		list.Items = append(list.Items, item)
	}
	return ok(list), nil
}
