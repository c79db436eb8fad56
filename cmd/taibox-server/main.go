// Command taibox-server is taibox with the server linked.
//
// It knows the same commands. Nobody needs to call it: taibox becomes it for
// `serve`, and starts it in the background where no server answers. The two
// are apart because containerd, huma and Docker's client take longer to
// initialise than a whole taibox exec may take.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/containerd/errdefs"
	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/trace"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/internal/bench"
	"github.com/taibox/taibox/internal/bench/dockerapi"
	"github.com/taibox/taibox/internal/cli"
	"github.com/taibox/taibox/internal/daemon"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/internal/tracing/export"
	"github.com/taibox/taibox/node"
	"github.com/taibox/taibox/server"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Set by the linker.
var (
	version = "dev"
	commit  = ""
	// The programs of this build, of which no others are run. Without, as in
	// tests, any are.
	runcSHA256   = ""
	bridgeSHA256 = ""
)

func main() {
	// containerd's libraries speak through logrus' global logger. What matters
	// of it reaches our own log; the rest is not for the machine's operator.
	logrus.SetOutput(io.Discard)
	env := cli.System(version, commit)
	env.Serve = serve
	env.DockerAPI = func(ctx context.Context) (bench.Peer, error) { return dockerapi.Open(ctx) }
	os.Exit(cli.Main(context.Background(), env, os.Args[1:]))
}

func registries(in map[string]cli.Registry) map[string]image.Registry {
	out := map[string]image.Registry{}
	for host, r := range in {
		out[host] = image.Registry(r)
	}
	return out
}

// serve runs a server with the embedded driver.
func serve(ctx context.Context, o cli.ServeOptions) error {
	log, err := newLogger(o.Log)
	if err != nil {
		return err
	}
	for name, path := range map[string]string{"taibox-runc": o.RuncPath, "taibox-bridge": o.BridgePath} {
		if path == "" {
			return reason.WithHint(fmt.Errorf("%s is not found: %w", name, errdefs.ErrUnavailable), "it belongs beside taibox, or in /usr/lib/taibox: make builds it, make install puts it in place")
		}
	}
	return daemon.Run(ctx, daemon.Config{
		Socket: o.Socket, DataDir: o.DataDir, Group: o.Group, MaxBoxes: o.Max, Runtime: "oci",
		TCP:  daemon.TCP{Listen: o.Listen, TLS: o.TLS, Cert: o.TLSCert, Key: o.TLSKey, Names: o.TLSNames},
		Rate: o.Rate, Burst: o.Burst,
		Driver: func(ctx context.Context, cfg node.DriverConfig) (taisandbox.Sandbox, taisandbox.Image, error) {
			d, err := oci.Open(ctx, oci.Config{
				DataDir: cfg.DataDir, Instance: cfg.Instance, RuncPath: o.RuncPath, BridgePath: o.BridgePath, Logger: cfg.Logger,
				RuncSHA256: runcSHA256, BridgeSHA256: bridgeSHA256,
				KeepExecs: o.KeepExecs, KeepExecBytes: o.KeepExecBytes,
				Registries: registries(o.Registries), OrphanAfter: o.OrphanAfter,
			})
			if err != nil {
				return nil, nil, err
			}
			return d, d, nil
		},
		Defaults:    server.Defaults{Image: o.Image, Memory: o.Memory, CPUs: o.CPUs, Pids: o.Pids, IdleTimeout: o.IdleTimeout},
		Max:         server.Limits{Memory: o.MaxMemory, CPUs: o.MaxCPUs, Pids: o.MaxPids, Disk: o.MaxWorkspaceDisk},
		OrphanAfter: o.OrphanAfter, MaxPerOwner: o.MaxPerOwner, MaxPerImage: o.MaxPerImage, MaxPerNode: o.MaxPerNode,
		MaxWorkspacesPerOwner: o.MaxWorkspacesPerOwner,
		Traces:                traces(&o, log),
		Version:               o.Version, Commit: o.Commit, Logger: log,
	})
}

// traces returns what opens the way of spans to their collector, or nil.
func traces(o *cli.ServeOptions, log *slog.Logger) func(context.Context, string) (trace.TracerProvider, func(context.Context) error, error) {
	if o.Traces.Endpoint == "" {
		return nil
	}
	return func(ctx context.Context, instance string) (trace.TracerProvider, func(context.Context) error, error) {
		e, err := export.Open(ctx, export.Config{
			Endpoint: o.Traces.Endpoint, Headers: o.Traces.Headers, CAFile: o.Traces.CAFile, Timeout: o.Traces.Timeout,
			Sampler: o.Traces.Sampler, SamplerArg: o.Traces.SamplerArg,
			Service: o.Traces.Service, Version: o.Version, Instance: instance, Attributes: o.Traces.Attributes, Logger: log,
		})
		if err != nil {
			return nil, nil, err
		}
		return e.Provider(), e.Close, nil
	}
}

// newLogger logs to stderr, which is DATA/server.log in the background.
func newLogger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: %w", level, errdefs.ErrInvalidArgument)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}
