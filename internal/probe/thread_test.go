package probe_test

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/probe"
)

// The process's first thread is never the one that is changed: it would stay
// so, and /proc/self is what it sees.
func TestOnOwnThread(t *testing.T) {
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			err := probe.OnOwnThread(func() error {
				if unix.Gettid() == os.Getpid() {
					t.Error("runs on the process's first thread")
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
