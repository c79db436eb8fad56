// The limits of our own cgroup are not worth reading the list of all mounts,
// which on a machine full of boxes is long.
//go:debug containermaxprocs=0

// Command taibox runs commands in isolated boxes on this machine.
//
// It is a client of the server, which the program taibox-server beside it is:
// what a server links takes longer to initialise than a command may take.
package main

import (
	"context"
	"os"

	"github.com/taibox/taibox/internal/cli"
)

// Set by the linker.
var (
	version = "dev"
	commit  = ""
)

func main() {
	os.Exit(cli.Main(context.Background(), cli.System(version, commit), os.Args[1:]))
}
