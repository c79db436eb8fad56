package local

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/volume"
)

const (
	// maxWatched bounds the directories of one watch.
	maxWatched = 1 << 16
	// maxWatchNames bounds the names in all directories of one watch.
	maxWatchNames = 1 << 20
	// watchShares is into how many parts the directories of all watches are
	// divided. A watch has one for sure, and more of the first half alone: the 16
	// that an owner may have leave a quarter to others.
	watchShares = 64
)

// inotifyShare is what all watches of a volume have taken of inotify.
type inotifyShare struct {
	most watchLimits

	mu            sync.Mutex
	watches, dirs int
}

// watchLimits bound watches.
type watchLimits struct {
	watches, dirs     int // of all
	ownDirs, ownNames int // of each
	share             int // directories of each, once half of all are taken
}

// shareOfInotify leaves half of what the machine has for root to root's own
// programs.
func shareOfInotify() *inotifyShare {
	dirs := inotifyLimit("max_user_watches", 8192) / 2
	return &inotifyShare{most: watchLimits{
		watches: inotifyLimit("max_user_instances", 128) / 2, dirs: dirs,
		ownDirs: maxWatched, ownNames: maxWatchNames, share: dirs / watchShares,
	}}
}

// inotifyLimit reads a limit of the kernel.
func inotifyLimit(name string, usual int) int {
	data, err := os.ReadFile("/proc/sys/fs/inotify/" + name)
	if err != nil {
		return usual
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return usual
	}
	return n
}

// begin takes a watch.
func (i *inotifyShare) begin() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.watches >= i.most.watches {
		return fmt.Errorf("%w: the node has %d watches, as many as it may (half of sysctl fs.inotify.max_user_instances)", volume.ErrFileBusy, i.watches)
	}
	i.watches++
	return nil
}

// end gives back a watch.
func (i *inotifyShare) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watches--
}

// follow takes a directory for a watch that has so many.
func (i *inotifyShare) follow(has int) error {
	if has >= i.most.ownDirs {
		return fmt.Errorf("%w: more than %d directories are there to be watched", volume.ErrFileBusy, i.most.ownDirs)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.dirs >= i.most.dirs {
		return fmt.Errorf("%w: the node watches %d directories, as many as it may (half of sysctl fs.inotify.max_user_watches)", volume.ErrFileBusy, i.dirs)
	}
	if has >= i.most.share && i.dirs >= i.most.dirs/2 {
		return fmt.Errorf("%w: more than %d directories are there to be watched, and the node watches %d already: the rest is for others (sysctl fs.inotify.max_user_watches)",
			volume.ErrFileBusy, has, i.dirs)
	}
	i.dirs++
	return nil
}

// forget gives back directories.
func (i *inotifyShare) forget(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.dirs -= n
}

// inotifyEvent is struct inotify_event.
type inotifyEvent struct {
	id   int
	mask uint32
	size int // of the name with its padding
	name string
}

func parseEvent(b []byte) inotifyEvent {
	e := inotifyEvent{
		id:   int(int32(binary.NativeEndian.Uint32(b))),
		mask: binary.NativeEndian.Uint32(b[4:]),
		size: int(binary.NativeEndian.Uint32(b[12:])),
	}
	e.name = strings.TrimRight(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+e.size]), "\x00")
	return e
}
