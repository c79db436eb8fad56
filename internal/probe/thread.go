package probe

import (
	goruntime "runtime"

	"golang.org/x/sys/unix"
)

// OnOwnThread runs f on a thread that ends with it, so that f may change the
// thread's credentials, namespaces and working directory.
func OnOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The process's first thread never ends, and what /proc/self says of
			// the process is true of it. While it is locked here, the next
			// goroutine cannot have it.
			defer goruntime.UnlockOSThread()
			done <- OnOwnThread(f)
			return
		}
		done <- f() // never unlocked: the thread ends with the goroutine
	}()
	return <-done
}
