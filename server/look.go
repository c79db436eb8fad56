package server

import (
	"context"
	"errors"
	"net/http"
	"sync"

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
}

// allStats measures what runs, oldest first. A box that ends meanwhile, or
// whose node does not measure, is left out.
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
	var mu sync.Mutex
	found := map[string]rest.BoxStats{}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(measureAtOnce)
	for _, b := range boxes {
		info := b.Snapshot()
		if info.Status != string(taisandbox.StateRunning) ||
			s.allow(ctx, VerbGet, Object{Kind: KindBox, ID: info.ID, Owner: info.Owner, Node: info.NodeID}) != nil {
			continue
		}
		g.Go(func() error {
			stats, err := b.Stats(gctx)
			if passed(err) {
				return nil
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			found[info.ID] = rest.BoxStats{ID: info.ID, Owner: info.Owner, Stats: statsOf(&stats)}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	list := rest.StatsList{Items: make([]rest.BoxStats, 0, len(found))}
	for _, b := range boxes {
		if st, ok := found[b.ID()]; ok {
			list.Items = append(list.Items, st)
		}
	}
	return ok(list), nil
}

// passed reports whether a box could not be measured because it does not run
// any more, or never can.
func passed(err error) bool {
	for _, e := range []error{sandbox.ErrNotFound, sandbox.ErrNotRunning, sandbox.ErrRemoving, sandbox.ErrLost, sandbox.ErrUnsupported, taisandbox.ErrBridgeLost} {
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
		list.Items = append(list.Items, rest.Process{
			PID: p.PID, PPID: p.PPID, UID: p.UID, State: p.State, CPUMs: millis(p.CPU), RSSBytes: p.RSSBytes,
			StartedAt: p.StartedAt, Command: p.Command,
		})
	}
	return ok(list), nil
}
