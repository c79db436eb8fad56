// Command taibox-bridge is PID 1 of a box. Without arguments it serves the
// node on the listening socket it inherited as descriptor 3.
//
// Small jobs use the same program: "hold" blocks until it is told to end and is
// what an image's entrypoint gets as its arguments; "pair" prepares a fresh pair
// of user and network namespace for the node; "files" is what PID 1 runs as
// some user to read and write files.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/inside"
)

// init makes the process unreadable for everybody in the box, its root
// included, before there is anybody.
func init() {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fail(fmt.Errorf("make the bridge unreadable: %w", err))
	}
}

// version is set when the program is built.
var version = "dev"

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 0:
		err = serve()
	case len(args) == 1 && args[0] == "hold":
		hold()
	case len(args) == 1 && args[0] == "pair":
		err = pair(os.Stdin, os.Stdout)
	case len(args) == 1 && args[0] == "--version":
		_, err = fmt.Fprintln(os.Stdout, "taibox-bridge", version)
	case len(args) == 1 && args[0] == inside.FileWorker:
		err = inside.ServeFile()
	default:
		err = fmt.Errorf("unknown arguments %q: none, hold, pair or --version are possible", args)
	}
	if err != nil {
		fail(err)
	}
}

// hold blocks until SIGTERM or SIGINT.
func hold() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	<-ctx.Done()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "taibox-bridge:", err)
	os.Exit(1)
}
