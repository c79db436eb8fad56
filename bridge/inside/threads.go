package inside

import (
	goruntime "runtime"
	"sync"
)

// ownThreads is how many threads the bridge makes before there is any command.
// A program of Go ends when it cannot have one more, and the box with it:
// commands that take every process that the box may have must find those of
// the bridge there already. It is within what the node adds to the box's limit
// for the bridge.
const ownThreads = 40

// workerThreads is the same for a process that works on one file.
const workerThreads = 3

// maxBlocking is how many requests at a time may be in calls that keep a thread
// each: fewer than there are threads, so that none has to be made.
const maxBlocking = 8

// ReserveThreads makes the bridge's threads ahead.
func ReserveThreads() { reserveThreads(ownThreads) }

// reserveThreads makes threads, which the program keeps.
func reserveThreads(n int) {
	var there, done sync.WaitGroup
	there.Add(n)
	release := make(chan struct{})
	for range n {
		done.Go(func() {
			goruntime.LockOSThread() // all at a time, so that each has one of its own
			defer goruntime.UnlockOSThread()
			there.Done()
			<-release
		})
	}
	there.Wait()
	close(release)
	done.Wait()
}
