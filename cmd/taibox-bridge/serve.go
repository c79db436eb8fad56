package main

import (
	"fmt"
	"net"
	"os"
	goruntime "runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/inside"
)

// listenerFD is where the node leaves the listening socket.
const listenerFD = 3

// A bridge is one of many on its machine and mostly asleep: memory counts for
// more than speed of its own computations.
const (
	gcPercent   = 25
	memoryLimit = 64 << 20
	maxProcs    = 2
)

func serve() error {
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	goruntime.GOMAXPROCS(min(maxProcs, goruntime.NumCPU()))
	inside.ReserveThreads()
	unix.Umask(0o022)
	if err := os.Chdir("/"); err != nil {
		return err
	}
	f := os.NewFile(listenerFD, "listener")
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("descriptor %d is no listening socket: %w", listenerFD, err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	return inside.Run(inside.Config{Listener: l, Version: version})
}
