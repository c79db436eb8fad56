package cli

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// served runs serve and returns what it would have served with.
func served(t *testing.T, file string, vars map[string]string, flags ...string) (ServeOptions, string, int) {
	t.Helper()
	home := t.TempDir()
	writeConfig(t, filepath.Join(home, ".config/taibox/config.yaml"), file)
	var out, errs bytes.Buffer
	var got ServeOptions
	env := Env{
		In: strings.NewReader(""), Out: &out, Err: &errs, Home: home, LookupEnv: variables(vars),
		Serve: func(_ context.Context, o ServeOptions) error { got = o; return nil },
	}
	code := Main(t.Context(), env, append([]string{"serve"}, flags...))
	return got, errs.String(), code
}

func TestTraceSettings(t *testing.T) {
	defaults := func(endpoint string) TraceOptions {
		return TraceOptions{
			Endpoint: endpoint, Headers: map[string]string{}, Timeout: 10 * time.Second, Sampler: "parentbased_always_on", SamplerArg: 1,
			Service: "taibox", Attributes: map[string]string{},
		}
	}
	full := defaults("https://c/otlp/v1/traces")
	full.Headers = map[string]string{"x-key": "a b", "x-more": "c=d"}
	full.Timeout, full.Sampler, full.SamplerArg, full.Service, full.CAFile = time.Second, "parentbased_traceidratio", 0.25, "boxes", "/ca.pem"
	full.Attributes = map[string]string{"site": "lab"}
	for name, c := range map[string]struct {
		file  string
		vars  map[string]string
		flags []string
		want  TraceOptions
	}{
		"off":           {"", nil, nil, TraceOptions{}},
		"flag":          {"", nil, []string{"--otlp-endpoint", "http://c:4318"}, defaults("http://c:4318/v1/traces")},
		"slash":         {"", nil, []string{"--otlp-endpoint", "http://c:4318/"}, defaults("http://c:4318/v1/traces")},
		"file":          {"otlp_endpoint: http://c:4318\n", nil, nil, defaults("http://c:4318/v1/traces")},
		"env":           {"otlp_endpoint: http://file\n", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://env"}, nil, defaults("http://env/v1/traces")},
		"traces_env":    {"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://all", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces/x"}, nil, defaults("http://traces/x")},
		"flag_over_env": {"", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces/x"}, []string{"--otlp-endpoint", "http://flag"}, defaults("http://flag/v1/traces")},
		"disabled":      {"", map[string]string{"OTEL_SDK_DISABLED": "TRUE"}, []string{"--otlp-endpoint", "http://c"}, TraceOptions{}},
		"none":          {"otlp_endpoint: http://c\n", map[string]string{"OTEL_TRACES_EXPORTER": "none"}, nil, TraceOptions{}},
		"not_ours":      {"", map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_SAMPLER": "xray", "OTEL_EXPORTER_OTLP_HEADERS": "%"}, nil, TraceOptions{}},
		"all": {"", map[string]string{
			"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/otlp", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b, x-more=c=d", "OTEL_EXPORTER_OTLP_TIMEOUT": "1000",
			"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25", "OTEL_SERVICE_NAME": "boxes",
			"OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem", "OTEL_RESOURCE_ATTRIBUTES": "site=lab", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
		}, nil, full},
	} {
		t.Run(name, func(t *testing.T) {
			got, errs, code := served(t, c.file, c.vars, c.flags...)
			if code != exitOK {
				t.Fatalf("code %d, %s", code, errs)
			}
			if diff := cmp.Diff(c.want, got.Traces); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTraceSettingsErrors(t *testing.T) {
	for name, c := range map[string]struct {
		vars map[string]string
		want string
	}{
		"no_url":   {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4317"}, "OTLP endpoint"},
		"password": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:hush@c"}, "OTLP endpoint"},
		"protocol": {map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, `"grpc"`},
		"headers":  {map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "hush"}, "OTLP headers"},
		"two_line": {map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "a=hush%0d%0ab:c"}, "OTLP headers"},
		"sampler":  {map[string]string{"OTEL_TRACES_SAMPLER": "xray"}, `"xray"`},
		"ratio":    {map[string]string{"OTEL_TRACES_SAMPLER_ARG": "2"}, `"2"`},
		"timeout":  {map[string]string{"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, `"soon"`},
		"exporter": {map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, `"zipkin"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs, code := served(t, "otlp_endpoint: http://c\n", c.vars)
			if code != exitUsage || !strings.Contains(errs, c.want) || strings.Contains(errs, "hush") {
				t.Errorf("code %d, stderr %q; want code 2 and %q", code, errs, c.want)
			}
		})
	}
	// Other commands do not look at what may be meant for other programs.
	got, errs, code := dump(t, t.TempDir(), map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_HEADERS": "x=hush"})
	if code != exitOK || got["otlp_headers"].Value != "[redacted]" {
		t.Errorf("code %d, %q, %v", code, errs, got["otlp_headers"])
	}
}

func TestOrphanAfter(t *testing.T) {
	for name, c := range map[string]struct {
		file  string
		vars  map[string]string
		flags []string
		want  time.Duration
	}{
		"default": {"", nil, nil, 0},
		"file":    {"orphan_after: 24h\n", nil, nil, 24 * time.Hour},
		"env":     {"orphan_after: 24h\n", map[string]string{"TAIBOX_ORPHAN_AFTER": "1h"}, nil, time.Hour},
		"flag":    {"", map[string]string{"TAIBOX_ORPHAN_AFTER": "1h"}, []string{"--orphan-after", "10s"}, 10 * time.Second},
		"off":     {"orphan_after: 24h\n", nil, []string{"--orphan-after", "0"}, 0},
	} {
		if got, errs, code := served(t, c.file, c.vars, c.flags...); code != exitOK || got.OrphanAfter != c.want {
			t.Errorf("%s: code %d, %v, %s", name, code, got.OrphanAfter, errs)
		}
	}
	for _, bad := range []string{"9s", "-1h", "soon", "200000h"} {
		if _, errs, code := served(t, "", nil, "--orphan-after", bad); code != exitUsage || !strings.Contains(errs, bad) {
			t.Errorf("%s: code %d, %q", bad, code, errs)
		}
	}
}

// A socket's path has a bound of the kernel's, and that is said.
func TestLongSocketPath(t *testing.T) {
	fits := "unix:///" + strings.Repeat("s", maxSocketPath-1)
	if _, errs, code := dump(t, t.TempDir(), nil, "--host", fits); code != exitOK {
		t.Errorf("%d bytes: code %d, %s", maxSocketPath, code, errs)
	}
	if _, errs, code := dump(t, t.TempDir(), nil, "--host", fits+"s"); code != exitUsage || !strings.Contains(errs, "107 bytes") {
		t.Errorf("one more: code %d, %s", code, errs)
	}
}

func TestRegistrySettings(t *testing.T) {
	got, errs, code := served(t, "registries:\n  r.test:5000: {ca_file: /etc/r.pem, anonymous_retry: true}\n  p.test: {plain_http: true, mirrors: [m.test]}\n", nil)
	want := map[string]Registry{"r.test:5000": {CAFile: "/etc/r.pem", AnonymousRetry: true}, "p.test": {PlainHTTP: true, Mirrors: []string{"m.test"}}}
	if diff := cmp.Diff(want, got.Registries); code != exitOK || diff != "" {
		t.Errorf("code %d, %s, %s", code, errs, diff)
	}
	for text, want := range map[string]string{
		"r.test: {ca_file: r.pem}":                      "an absolute path",
		"r.test: {ca_file: /r.pem, plain_http: true}":   "no certificate",
		"r.test: {insecure: true}":                      "insecure",
		"http://r.test: {plain_http: true}":             "host or host:port",
		"r.test: {anonymous_retry: perhaps}":            "anonymous_retry",
		"r.test: {mirrors: ['https://m.test']}":         "host or host:port",
		"r.test: {plain_http: true, plain_http: false}": "plain_http",
	} {
		if _, errs, code := served(t, "registries:\n  "+text+"\n", nil); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q; want %q", text, code, errs, want)
		}
	}
}

// A server in the background is given every setting, but for what is an argument
// or the client's own. What a user's environment says of OpenTelemetry is for
// programs of the user's.
func TestBackgroundEnvironment(t *testing.T) {
	others := []string{"", "TAIBOX_HOST", "TAIBOX_DATA_DIR", "TAIBOX_API_KEY", "TAIBOX_TLS_CA"}
	for _, k := range keys {
		if !slices.Contains(others, k.env) && !strings.HasPrefix(k.env, "OTEL_") && !slices.Contains(serverEnv, k.env) {
			t.Errorf("%s is not passed on", k.env)
		}
	}
	for _, name := range serverEnv {
		if strings.HasPrefix(name, "OTEL_") {
			t.Errorf("%s is passed on", name)
		}
	}
}
