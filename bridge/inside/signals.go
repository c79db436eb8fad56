package inside

import (
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// termFromOutside becomes 1 when a SIGTERM came from a process that this pid
// namespace does not know. The handler in assembly sets it.
var termFromOutside uint32

// catchSignals catches every signal that can be: PID 1 dies of none of them.
// outside is told when a SIGTERM came from outside the box; those from inside
// do nothing.
func catchSignals() (outside <-chan struct{}, stop func()) {
	all := make(chan os.Signal, 16)
	for s := syscall.Signal(1); s <= 64; s++ {
		switch s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG:
			// The first two cannot be caught, the next has its own receiver, and
			// the last is the Go scheduler's.
		default:
			signal.Notify(all, s)
		}
	}
	discard(32, 33, 34)
	hookTerm()
	told := make(chan struct{}, 1)
	quit := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case s := <-all:
				if s == syscall.SIGTERM && atomic.SwapUint32(&termFromOutside, 0) == 1 {
					select {
					case told <- struct{}{}:
					default:
					}
				}
			case <-quit:
				return
			}
		}
	}()
	return told, func() {
		signal.Stop(all)
		close(quit)
		<-done
	}
}

// kernelSigaction is the kernel's struct sigaction on 64-bit machines.
type kernelSigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// discard catches signals that os/signal leaves to C libraries, and does nothing
// about them. Ignored ones would stay so in every command; by default they end
// PID 1 if they come while its first thread has them blocked, as in each fork:
// the kernel then does not look at whose they are.
func discard(signals ...syscall.Signal) {
	var act kernelSigaction
	if discardHandlerPC == 0 || !sigaction(unix.SIGTERM, nil, &act) {
		return
	}
	act.handler = discardHandlerPC // with the flags of a handler of Go's
	for _, s := range signals {
		sigaction(s, &act, nil)
	}
}

// hookTerm puts a handler in front of Go's that looks at who sent the signal:
// os/signal does not say.
func hookTerm() {
	if termHandlerPC == 0 || nextTermHandler != 0 {
		return
	}
	var act kernelSigaction
	if !sigaction(unix.SIGTERM, nil, &act) {
		return
	}
	nextTermHandler = act.handler
	act.handler = termHandlerPC
	sigaction(unix.SIGTERM, &act, nil)
}

func sigaction(s syscall.Signal, act, old *kernelSigaction) bool {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s),
		uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(act.mask), 0, 0)
	return errno == 0
}
