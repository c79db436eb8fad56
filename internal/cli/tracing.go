package cli

import (
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// traceKeys are the settings of traces, with OpenTelemetry's own names in the
// environment. They are OpenTelemetry's, too, in that other programs of the
// same environment may have use for values that we do not know: only serve
// looks at them, and a server in the background is not given them.
var traceKeys = []key{
	traceKey(key{name: "otlp_endpoint", env: "OTEL_EXPORTER_OTLP_ENDPOINT", flag: "otlp-endpoint"}),
	traceKey(key{name: "otlp_traces_endpoint", env: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}),
	traceKey(key{name: "otlp_protocol", env: "OTEL_EXPORTER_OTLP_PROTOCOL", def: otlpProtocol}),
	traceKey(key{name: "otlp_traces_protocol", env: "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"}),
	traceKey(key{name: "otlp_headers", env: "OTEL_EXPORTER_OTLP_HEADERS", secret: true}),
	traceKey(key{name: "otlp_traces_headers", env: "OTEL_EXPORTER_OTLP_TRACES_HEADERS", secret: true}),
	traceKey(key{name: "otlp_certificate", env: "OTEL_EXPORTER_OTLP_CERTIFICATE"}),
	traceKey(key{name: "otlp_timeout", env: "OTEL_EXPORTER_OTLP_TIMEOUT", def: "10000"}),
	traceKey(key{name: "otel_service_name", env: "OTEL_SERVICE_NAME", def: "taibox"}),
	traceKey(key{name: "otel_resource_attributes", env: "OTEL_RESOURCE_ATTRIBUTES"}),
	traceKey(key{name: "otel_traces_exporter", env: "OTEL_TRACES_EXPORTER", def: "otlp"}),
	traceKey(key{name: "otel_sdk_disabled", env: "OTEL_SDK_DISABLED", def: "false"}),
	traceKey(key{name: "trace_sampler", env: "OTEL_TRACES_SAMPLER", def: "parentbased_always_on"}),
	traceKey(key{name: "trace_sampler_arg", env: "OTEL_TRACES_SAMPLER_ARG", def: "1"}),
}

func traceKey(k key) key {
	k.set = func(s *settings, v string) error {
		if s.trace == nil {
			s.trace = map[string]string{}
		}
		s.trace[k.name] = v
		return nil
	}
	return k
}

const (
	otlpProtocol = "http/protobuf"
	tracesPath   = "/v1/traces"
	maxOTLPWait  = 10 * time.Minute
)

// addTraceFlags adds those that serve has.
func addTraceFlags(cmd *cobra.Command) {
	cmd.Flags().String("otlp-endpoint", "", "send traces to this OpenTelemetry collector, by OTLP over HTTP: its `URL`")
}

// TraceOptions say where a server sends its traces.
type TraceOptions struct {
	Endpoint   string            // URL for traces; "" = none are made
	Headers    map[string]string // may hold a secret
	CAFile     string
	Timeout    time.Duration
	Sampler    string
	SamplerArg float64
	Service    string
	Attributes map[string]string
}

// traces resolves where traces go, if anywhere.
func (s *settings) traces() (TraceOptions, error) {
	var o TraceOptions
	if strings.EqualFold(s.trace["otel_sdk_disabled"], "true") || s.trace["otel_traces_exporter"] == "none" {
		return o, nil
	}
	endpoint, err := s.traceEndpoint()
	if endpoint == "" || err != nil {
		return o, err
	}
	if e := s.trace["otel_traces_exporter"]; e != "otlp" {
		return o, usage("traces exporter %q: otlp and none are possible", e)
	}
	for _, name := range []string{"otlp_protocol", "otlp_traces_protocol"} {
		if p := s.trace[name]; p != "" && p != otlpProtocol && (name != "otlp_protocol" || s.trace["otlp_traces_protocol"] == "") {
			return o, usage("OTLP protocol %q: only %s is spoken", p, otlpProtocol)
		}
	}
	o.Sampler, o.Service = s.trace["trace_sampler"], s.trace["otel_service_name"]
	if !slices.Contains([]string{"always_on", "always_off", "traceidratio"}, strings.TrimPrefix(o.Sampler, "parentbased_")) {
		return o, usage("trace sampler %q: always_on, always_off, traceidratio, or one of these with parentbased_ in front is expected", o.Sampler)
	}
	if o.SamplerArg, err = strconv.ParseFloat(s.trace["trace_sampler_arg"], 64); err != nil || !(o.SamplerArg >= 0 && o.SamplerArg <= 1) {
		return o, usage("trace sampler's ratio %q: a number from 0 to 1 is expected", s.trace["trace_sampler_arg"])
	}
	ms, err := strconv.Atoi(s.trace["otlp_timeout"])
	if o.Timeout = time.Duration(ms) * time.Millisecond; err != nil || ms < 1 || o.Timeout > maxOTLPWait {
		return o, usage("OTLP timeout %q: from 1 to %d milliseconds are expected", s.trace["otlp_timeout"], maxOTLPWait.Milliseconds())
	}
	if f := s.trace["otlp_certificate"]; f != "" {
		if o.CAFile, err = filepath.Abs(f); err != nil {
			return o, err
		}
	}
	if o.Attributes, err = otelPairs("resource attributes", s.trace["otel_resource_attributes"]); err != nil {
		return o, err
	}
	headers := s.trace["otlp_traces_headers"]
	if headers == "" {
		headers = s.trace["otlp_headers"]
	}
	if o.Headers, err = otelPairs("OTLP headers", headers); err != nil {
		return o, err
	}
	o.Endpoint = endpoint
	return o, nil
}

// traceEndpoint returns the address for traces. One for traces in particular
// is taken as it is, the general one gets the path for traces; of two the
// flag's wins.
func (s *settings) traceEndpoint() (string, error) {
	general, own := s.trace["otlp_endpoint"], s.trace["otlp_traces_endpoint"]
	for _, src := range s.sources {
		if src.Key == "otlp_endpoint" && strings.HasPrefix(src.Origin, "flag ") {
			own = ""
		}
	}
	v := own
	if v == "" && general != "" {
		v = strings.TrimSuffix(general, "/") + tracesPath
	}
	if v == "" {
		return "", nil
	}
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		// The address is not shown: a password may be in it.
		return "", usage("OTLP endpoint: http(s)://host:port[/path] is expected; what is secret belongs into the headers")
	}
	return v, nil
}

// otelPairs reads k=v,k=v with values in percent-encoding. They may be secret,
// and so are not shown.
func otelPairs(what, v string) (map[string]string, error) {
	out := map[string]string{}
	for pair := range strings.SplitSeq(v, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		k, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if k = strings.TrimSpace(k); !ok || k == "" || err != nil || strings.ContainsAny(k+value, "\r\n\x00") {
			return nil, usage("%s: KEY=VALUE,KEY=VALUE is expected, with values in percent-encoding", what)
		}
		out[k] = value
	}
	return out, nil
}
