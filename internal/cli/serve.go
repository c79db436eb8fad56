package cli

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

// ServeOptions say what a server is to be.
type ServeOptions struct {
	Socket  string // path
	DataDir string
	Group   string // may use the socket; "" for nobody but root
	Log     string // debug, info, warn or error

	Image  string  // of a box that names none
	Memory int64   // of a box that says nothing of it, in bytes; 0 = no limit
	CPUs   float64 // likewise
	Max    int     // boxes at a time; 0 = no limit

	IdleTimeout time.Duration // of a session box that says nothing of it; 0 = none
	OrphanAfter time.Duration // of a box whose server does not come back; 0 = never
	Pids        int64         // of a box that says nothing of it; 0 = no limit
	// Boxes at a time, and what one may ask for; 0 = no limit.
	MaxPerOwner, MaxPerImage, MaxPerNode int
	MaxMemory                            int64
	MaxCPUs                              float64
	MaxPids                              int64
	MaxWorkspacesPerOwner                int
	MaxWorkspaceDisk                     int64 // bytes; what says nothing gets it

	KeepExecs     int   // finished ones of a box
	KeepExecBytes int64 // with so much output

	Listen          string   // host:port over TCP; "" for none
	TLS             string   // auto, on or off
	TLSCert, TLSKey string   // files
	TLSNames        []string // of a certificate of our own
	Rate            float64  // requests of a key a second; 0 = no limit
	Burst           int      // and at once

	Traces TraceOptions

	Registries map[string]Registry // how to reach some, by host

	RuncPath, BridgePath string // empty: not found
	Version, Commit      string
}

func newServe(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "serve [flags]",
		GroupID: groupOther,
		Short:   "Run the server in the foreground",
		Long: `Run the server in the foreground until INT or TERM. Boxes and their commands go
on without it. There is usually no need for this: the first command that needs
a server starts one in the background. It listens on a Unix socket, and with
--listen on the network too; --tls off is possible on loopback only.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := env.resolve(cmd)
			if err != nil {
				return err
			}
			socket := socketPath(s.Host)
			if socket == "" {
				return usage("--host %s: a server listens on a Unix socket: unix:///path", s.Host)
			}
			if env.Serve == nil {
				return env.handOver()
			}
			if env.UID != 0 {
				return withHint(fmt.Errorf("serve: %w: only root can run boxes", errdefs.ErrPermissionDenied), "sudo taibox serve")
			}
			traces, err := s.traces()
			if err != nil {
				return err
			}
			return env.Serve(cmd.Context(), ServeOptions{
				Socket: socket, DataDir: s.DataDir, Group: s.Group, Log: s.Log,
				Image: s.Image, Memory: s.Memory, CPUs: s.CPUs, Max: s.Max,
				IdleTimeout: s.IdleTimeout, OrphanAfter: s.OrphanAfter, Pids: s.Pids, MaxPerOwner: s.MaxPerOwner, MaxPerImage: s.MaxPerImage, MaxPerNode: s.MaxPerNode,
				MaxMemory: s.MaxMemory, MaxCPUs: s.MaxCPUs, MaxPids: s.MaxPids,
				MaxWorkspacesPerOwner: s.MaxWorkspacesPerOwner, MaxWorkspaceDisk: s.MaxWorkspaceDisk,
				KeepExecs: s.KeepExecs, KeepExecBytes: s.KeepExecBytes,
				Listen: s.listenAddress(), TLS: s.TLS, TLSCert: s.TLSCert, TLSKey: s.TLSKey, TLSNames: s.TLSNames, Rate: s.Rate, Burst: s.Burst,
				Registries: s.Registries, Traces: traces,
				RuncPath:   FindProgram("taibox-runc", env.Libexec),
				BridgePath: FindProgram("taibox-bridge", env.Libexec),
				Version:    env.Version, Commit: env.Commit,
			})
		},
	}
	cmd.Flags().String("group", "", "let the members of this `group` use the socket: they are then root on this machine")
	cmd.Flags().String("orphan-after", "", "stop boxes whose server has been gone for this `time`; 0 for never (default 0)")
	addListenFlags(cmd)
	addTraceFlags(cmd)
	cmd.Flags().String("log", "", "log from this `level` on: debug, info, warn or error (default info)")
	return cmd
}
