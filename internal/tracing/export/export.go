// Package export sends spans to a collector, by OTLP over HTTP.
//
// # Model
//
// [Open] returns an [Exporter], whose Provider makes the first span of a
// request. Spans wait in a bounded queue and are sent in batches; where the
// collector does not answer, they are dropped, and that is logged from time to
// time. Nothing waits for a collector but [Exporter.Close], and that not for long.
//
// # Errors
//
// What is wrong with a configuration is told by Open, all of it.
//
// # Concurrency
//
// An Exporter is safe for concurrent use.
package export

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// The samplers, by the names that OTEL_TRACES_SAMPLER has for them.
const (
	AlwaysOn       = "always_on"
	AlwaysOff      = "always_off"
	Ratio          = "traceidratio"
	ParentOn       = "parentbased_always_on"
	ParentOff      = "parentbased_always_off"
	ParentRatio    = "parentbased_traceidratio"
	DefaultSampler = ParentOn
)

// Limits of what is kept, and of how long anything takes.
const (
	DefaultTimeout = 10 * time.Second // of one batch
	closeTimeout   = 5 * time.Second
	batchEvery     = 2 * time.Second
	queueSize      = 4096
	batchSize      = 512
	complainEvery  = time.Minute
	retryFirst     = time.Second
	retryMost      = 5 * time.Second
	retryFor       = 15 * time.Second
)

// limits bound one span, whatever the environment says.
var limits = sdktrace.SpanLimits{
	AttributeValueLengthLimit: 512, AttributeCountLimit: 32, EventCountLimit: 16, LinkCountLimit: 8,
	AttributePerEventCountLimit: 8, AttributePerLinkCountLimit: 8,
}

// Config says where spans go, and which.
type Config struct {
	Endpoint string            // URL that takes traces; required
	Headers  map[string]string // sent along; may hold a secret
	CAFile   string            // PEM file with what the collector's certificate is checked against; default the machine's
	Timeout  time.Duration     // of one batch; default DefaultTimeout

	Sampler    string  // default DefaultSampler
	SamplerArg float64 // of those with a ratio: from 0 to 1

	Service    string            // default "taibox"
	Version    string            // of the program
	Instance   string            // what tells this server from others
	Attributes map[string]string // more about the server

	Logger *slog.Logger // default none
}

// Exporter sends spans. Make it with [Open].
type Exporter struct {
	provider *sdktrace.TracerProvider
	exporter sdktrace.SpanExporter
	idle     func() // closes connections
}

// Open returns an exporter. The collector need not be there.
func Open(ctx context.Context, cfg Config) (*Exporter, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	u, err := url.Parse(cfg.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("OTLP endpoint: http(s)://host:port/path without a password is expected: %w", errdefs.ErrInvalidArgument)
	}
	sampler, err := newSampler(cfg.Sampler, cfg.SamplerArg)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if cfg.CAFile != "" {
		pool, err := rootCAs(cfg.CAFile)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	client := &http.Client{
		Transport: transport, Timeout: cfg.Timeout,
		// A redirect would take the headers, and what is in them, elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	exp, err := otlptracehttp.New(ctx,
		otlptracehttp.WithEndpointURL(cfg.Endpoint), otlptracehttp.WithHeaders(cfg.Headers), otlptracehttp.WithTimeout(cfg.Timeout),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression), otlptracehttp.WithHTTPClient(client),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: retryFirst, MaxInterval: retryMost, MaxElapsedTime: retryFor}),
	)
	if err != nil {
		return nil, fmt.Errorf("OTLP exporter: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sampler), sdktrace.WithResource(cfg.resource()), sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithBatcher(&quiet{SpanExporter: exp, log: cfg.Logger},
			sdktrace.WithBatchTimeout(batchEvery), sdktrace.WithMaxQueueSize(queueSize), sdktrace.WithMaxExportBatchSize(batchSize), sdktrace.WithExportTimeout(retryFor)),
	)
	return &Exporter{provider: provider, exporter: exp, idle: transport.CloseIdleConnections}, nil
}

// Provider makes the spans that are sent.
func (e *Exporter) Provider() trace.TracerProvider { return e.provider }

// Close sends what waits, for as long as that may take, and ends. What is made
// afterwards is dropped.
func (e *Exporter) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), closeTimeout, errors.New("the collector does not answer"))
	defer cancel()
	err := e.provider.Shutdown(ctx)
	if err != nil {
		// What is still being tried in the background ends by it.
		e.exporter.Shutdown(context.WithoutCancel(ctx)) //nolint:errcheck // only the first failure says something
	}
	e.idle()
	if err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

func (c *Config) resource() *resource.Resource {
	attrs := []attribute.KeyValue{}
	for k, v := range c.Attributes {
		attrs = append(attrs, attribute.String(k, v))
	}
	service := c.Service
	if service == "" {
		service = "taibox"
	}
	attrs = append(attrs, attribute.String("service.name", service))
	if c.Version != "" {
		attrs = append(attrs, attribute.String("service.version", c.Version))
	}
	if c.Instance != "" {
		attrs = append(attrs, attribute.String("service.instance.id", c.Instance))
	}
	return resource.NewSchemaless(attrs...)
}

func newSampler(name string, arg float64) (sdktrace.Sampler, error) {
	if !(arg >= 0 && arg <= 1) {
		return nil, fmt.Errorf("trace sampler: a ratio from 0 to 1 is expected, not %v: %w", arg, errdefs.ErrInvalidArgument)
	}
	switch name {
	case "", ParentOn:
		return sdktrace.ParentBased(sdktrace.AlwaysSample()), nil
	case ParentOff:
		return sdktrace.ParentBased(sdktrace.NeverSample()), nil
	case ParentRatio:
		return sdktrace.ParentBased(sdktrace.TraceIDRatioBased(arg)), nil
	case AlwaysOn:
		return sdktrace.AlwaysSample(), nil
	case AlwaysOff:
		return sdktrace.NeverSample(), nil
	case Ratio:
		return sdktrace.TraceIDRatioBased(arg), nil
	}
	return nil, fmt.Errorf("trace sampler %.64q: %s, %s, %s, or one of these with parentbased_ in front is expected: %w", name, AlwaysOn, AlwaysOff, Ratio, errdefs.ErrInvalidArgument)
}

func rootCAs(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("certificate of the OTLP collector: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("certificate of the OTLP collector: %s has none: %w", file, errdefs.ErrInvalidArgument)
	}
	return pool, nil
}

// quiet logs what cannot be sent, once in a while: the library would write to
// the process's own log, each time.
type quiet struct {
	sdktrace.SpanExporter
	log *slog.Logger

	mu      sync.Mutex
	said    time.Time
	dropped int
}

// ExportSpans sends a batch. That it failed concerns nobody else.
func (q *quiet) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := q.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropped += len(spans)
	if time.Since(q.said) < complainEvery {
		return nil
	}
	q.log.Warn("spans were dropped: the collector does not take them", slog.Int("spans", q.dropped), slog.String("err", fmt.Sprintf("%.300v", err)))
	q.said, q.dropped = time.Now(), 0
	return nil
}
