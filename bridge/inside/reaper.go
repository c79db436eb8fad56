package inside

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reaper owns all waiting for processes: those of execs, and whatever the box
// leaves to PID 1. Nothing else in the program may wait for a child.
type reaper struct {
	// forks has a token for each fork that is under way: each may keep one of
	// the threads that there are, see ReserveThreads.
	forks chan struct{}
	// starts is held for reading from a fork until its child is in waiting, so
	// that a child that ends at once is not taken for a stray.
	starts sync.RWMutex

	// mu is held from before a child is waited for until it is out of waiting:
	// while a process is in waiting, its number is its own.
	mu      sync.Mutex
	waiting map[int]chan<- unix.WaitStatus
}

const maxForks = 4

func newReaper() *reaper {
	return &reaper{forks: make(chan struct{}, maxForks), waiting: map[int]chan<- unix.WaitStatus{}}
}

// run reaps until stop is closed.
func (r *reaper) run(stop <-chan struct{}) {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	for {
		r.reap()
		select {
		case <-died:
		case <-stop:
			return
		}
	}
}

// start forks. The channel gets the child's end once it was reaped.
func (r *reaper) start(fork func() (int, error)) (int, <-chan unix.WaitStatus, error) {
	r.forks <- struct{}{}
	defer func() { <-r.forks }()
	r.starts.RLock()
	defer r.starts.RUnlock()
	pid, err := fork()
	if err != nil {
		return 0, nil, err
	}
	exited := make(chan unix.WaitStatus, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[pid] = exited
	return pid, exited, nil
}

// kill signals a child, or its process group, unless the child was reaped.
func (r *reaper) kill(pid int, sig unix.Signal, group bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.waiting[pid]; !ok {
		return unix.ESRCH
	}
	if group {
		pid = -pid
	}
	return unix.Kill(pid, sig)
}

func (r *reaper) reap() {
	for pid := nextZombie(); pid > 0; pid = nextZombie() {
		if r.take(pid) {
			continue
		}
		r.starts.Lock()
		if !r.take(pid) {
			wait(pid)
		}
		r.starts.Unlock()
	}
}

// take reaps a child that somebody waits for.
func (r *reaper) take(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	exited, ok := r.waiting[pid]
	if !ok {
		return false
	}
	if status, ok := wait(pid); ok {
		delete(r.waiting, pid)
		exited <- status
	}
	return true
}

// nextZombie returns a child that ended, without reaping it, or 0.
func nextZombie() int {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		switch {
		case err == nil:
			// The package does not name the fields after si_code; in a SIGCHLD the
			// first of them is the process.
			return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), 16)))
		case !errors.Is(err, unix.EINTR):
			return 0
		}
	}
}

func wait(pid int) (unix.WaitStatus, bool) {
	var status unix.WaitStatus
	for {
		got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
		if !errors.Is(err, unix.EINTR) {
			return status, err == nil && got == pid
		}
	}
}
