package server

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/taibox/taibox/internal/errmap"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

const (
	scrapeTimeout = 5 * time.Second // for what a scrape asks of nodes
	// maxLabelValues bounds the values of a label that come from nodes; more
	// are counted as "other".
	maxLabelValues = 64
)

// metrics is what the server counts. No label has a value that callers choose.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec   // by route and status
	streams  prometheus.Gauge         // of events
	creates  *prometheus.CounterVec   // by result
	phases   *prometheus.HistogramVec // of creates
	removes  *prometheus.CounterVec   // by reason
	execs    *prometheus.CounterVec   // by reason of their end
	execTime prometheus.Histogram
	ooms     prometheus.Counter

	phaseNames, removeNames, execNames bounded
}

func newMetrics(s *Server) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "taibox_" + name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: counter("http_requests_total", "HTTP requests, by route and status.", "route", "status"),
		streams:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "taibox_event_streams", Help: "Open streams of events."}),
		creates:  counter("creates_total", "Creates of boxes, by result: ok, or the code of the error.", "result"),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "taibox_create_duration_seconds", Help: "Where the time of successful creates went; phase total is all of it.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 18),
		}, []string{"phase"}),
		removes: counter("removes_total", "Boxes that are gone, by reason.", "reason"),
		execs:   counter("execs_total", "Commands that ended, by reason.", "reason"),
		execTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "taibox_exec_duration_seconds", Help: "How long commands ran.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 12),
		}),
		ooms: prometheus.NewCounter(prometheus.CounterOpts{Name: "taibox_oom_kills_total", Help: "Times that the kernel killed a process of a box for memory."}),
	}
	m.creates.WithLabelValues("ok")
	m.registry.MustRegister(
		m.requests, m.streams, m.creates, m.phases, m.removes, m.execs, m.execTime, m.ooms, &gauges{s: s},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// bounded lets so many values of a label pass. The zero value is ready to use.
type bounded struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (b *bounded) value(v string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.seen[v]:
	case len(b.seen) >= maxLabelValues:
		return "other"
	case b.seen == nil:
		b.seen = map[string]bool{v: true}
	default:
		b.seen[v] = true
	}
	return v
}

// request counts a request. A route is a pattern of the mux, or "".
func (m *metrics) request(route string, status int) {
	if route == "" {
		route = "none"
	}
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
}

// created counts a create, and where its time went.
func (m *metrics) created(b *sandbox.Box, began time.Time, err error) {
	m.creates.WithLabelValues(resultOfCreate(err)).Inc()
	if err != nil {
		return
	}
	m.phases.WithLabelValues("total").Observe(time.Since(began).Seconds())
	info := b.Snapshot()
	for _, p := range info.Phases {
		m.phases.WithLabelValues(m.phaseNames.value(p.Name)).Observe(p.Duration.Seconds())
	}
}

// resultOfCreate is the code that the caller is told; those are declared, and
// so few.
func resultOfCreate(err error) string {
	if err == nil {
		return "ok"
	}
	if code := reason.Of(err); code != "" {
		return code
	}
	return codeOf(errmap.HTTPStatus(err))
}

// follow counts and writes down what events tell, until ctx ends.
func (s *Server) follow(ctx context.Context) {
	at := ""
	for ctx.Err() == nil {
		sub, end := context.WithCancelCause(ctx)
		events, from, err := s.cfg.Manager.EventsSince(sub, at)
		if err != nil {
			end(nil)
			return // the manager has ended
		}
		if at == "" {
			s.auditFailed(ctx)
		}
		at = from
		for e := range events {
			if e.ID == "" {
				break // behind: what was missed may be kept
			}
			at = e.ID
			s.metrics.event(&e)
			s.auditEnd(ctx, &e)
		}
		end(nil)
	}
}

func (m *metrics) event(e *sandbox.Event) {
	switch e.Type {
	case sandbox.EventRemoved:
		m.removes.WithLabelValues(m.removeNames.value(e.Reason)).Inc()
	case sandbox.EventOOM:
		m.ooms.Inc()
	case sandbox.EventExec:
		if !e.Exec.Done() {
			return
		}
		m.execs.WithLabelValues(m.execNames.value(string(e.Exec.Reason))).Inc()
		if !e.Exec.Ended.IsZero() && !e.Exec.Started.IsZero() {
			m.execTime.Observe(max(0, e.Exec.Ended.Sub(e.Exec.Started).Seconds()))
		}
	case sandbox.EventState, sandbox.EventGap:
	}
}

// gauges looks when it is asked.
type gauges struct{ s *Server }

var (
	boxesDesc   = prometheus.NewDesc("taibox_boxes", "Boxes, by state.", []string{"state"}, nil)
	socketsDesc = prometheus.NewDesc("taibox_websockets", "Open WebSockets: execs that are attached to.", nil, nil)
	imagesDesc  = prometheus.NewDesc("taibox_images", "Images of a node.", []string{"node"}, nil)
	storeDesc   = prometheus.NewDesc("taibox_image_bytes", "Size of the images of a node, each counted by itself.", []string{"node"}, nil)
	cgroupsDesc = prometheus.NewDesc("taibox_cgroups", "Cgroups of ours on a node, over all hierarchies.", []string{"node"}, nil)
	mountsDesc  = prometheus.NewDesc("taibox_mounts", "Mounts of ours on a node, without pinned namespaces.", []string{"node"}, nil)
	nsDesc      = prometheus.NewDesc("taibox_namespaces", "Namespaces that are pinned on a node.", []string{"node"}, nil)
	infoDesc    = prometheus.NewDesc("taibox_build_info", "Always 1; the labels say which server this is.", []string{"version", "commit"}, nil)
)

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{boxesDesc, socketsDesc, imagesDesc, storeDesc, cgroupsDesc, mountsDesc, nsDesc, infoDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. What a node does not tell in time
// is left out.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeoutCause(g.s.stopping, scrapeTimeout, context.DeadlineExceeded)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(infoDesc, 1, g.s.cfg.Version, g.s.cfg.Commit)
	states := map[taisandbox.State]int{}
	for _, state := range []taisandbox.State{
		taisandbox.StateCreating, taisandbox.StateCreated, taisandbox.StateRunning, taisandbox.StateStopping,
		taisandbox.StateStopped, taisandbox.StateRemoving, taisandbox.StateFailed,
	} {
		states[state] = 0
	}
	if boxes, err := g.s.cfg.Manager.List(ctx, sandbox.ListOptions{}); err == nil {
		for _, b := range boxes {
			states[taisandbox.State(b.Snapshot().Status)]++
		}
	}
	for state, n := range states {
		gauge(boxesDesc, float64(n), string(state))
	}
	gauge(socketsDesc, float64(g.s.sockets.open()))
	for _, n := range g.s.cfg.Manager.Nodes() {
		if h, err := g.s.cfg.Manager.Holdings(ctx, n.TaiID); err == nil {
			gauge(cgroupsDesc, float64(h.Cgroups), n.TaiID)
			gauge(mountsDesc, float64(h.Mounts), n.TaiID)
			gauge(nsDesc, float64(h.Namespaces), n.TaiID)
		}
		images, err := g.s.images(n.TaiID)
		if err != nil {
			continue
		}
		if list, err := images.ListImages(ctx); err == nil {
			var size int64
			for i := range list {
				size += list[i].SizeBytes
			}
			gauge(imagesDesc, float64(len(list)), n.TaiID)
			gauge(storeDesc, float64(size), n.TaiID)
		}
	}
}

func (s *Server) metricsRoutes() {
	h := promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, DisableCompression: true})
	s.raw(http.MethodGet, "/metrics", "Metrics for Prometheus, for admins", nil, func(w http.ResponseWriter, r *http.Request) error {
		if err := s.allow(r.Context(), VerbGet, Object{Kind: KindMetrics}); err != nil {
			return err
		}
		h.ServeHTTP(w, r)
		return nil
	})
}
