package load

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plan says what a load is.
type plan struct {
	length    time.Duration
	clients   int
	boxesEach int           // at a time, for each client
	killEvery time.Duration // kill -9 of the server
	fillEvery time.Duration // the disk is full
	fillFor   time.Duration
	diskMiB   int64
}

// TestLoad is the long one: TAIBOX_TEST_LOAD says how long, e.g. 10m.
func TestLoad(t *testing.T) {
	text := os.Getenv("TAIBOX_TEST_LOAD")
	if text == "" || text == short {
		t.Skip("TAIBOX_TEST_LOAD is no duration: see make load")
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	need(t)
	underLoad(t, plan{
		length: length, clients: 20, boxesEach: 10, diskMiB: 4096,
		killEvery: 30 * time.Second, fillEvery: 45 * time.Second, fillFor: 6 * time.Second,
	})
}

// short is the value of TAIBOX_TEST_LOAD for the short load.
const short = "short"

// TestLoadShort is the same in small.
func TestLoadShort(t *testing.T) {
	if os.Getenv("TAIBOX_TEST_LOAD") != short {
		t.Skip("TAIBOX_TEST_LOAD is not short: see make load")
	}
	need(t)
	underLoad(t, plan{
		length: 20 * time.Second, clients: 8, boxesEach: 3, diskMiB: 1024,
		killEvery: 8 * time.Second, fillEvery: 13 * time.Second, fillFor: 2 * time.Second,
	})
}

// need skips a test where the programs cannot run, or fails it where they must.
func need(t testing.TB) {
	t.Helper()
	missing := ""
	if os.Geteuid() != 0 {
		missing = "root is needed"
	}
	for _, p := range []string{"taibox", "taibox-server", "taibox-runc", "taibox-bridge"} {
		if _, err := os.Stat(filepath.Join(binDir(t), p)); err != nil {
			missing = err.Error() + " (make build)"
		}
	}
	switch {
	case missing == "":
	case slices.Contains(strings.Split(os.Getenv("TAIBOX_TEST_REQUIRE"), ","), "oci"), os.Getenv("TAIBOX_TEST_LOAD") != "":
		t.Fatal(missing)
	default:
		t.Skip(missing)
	}
}

func binDir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("TAIBOX_BIN"); dir != "" {
		return dir
	}
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func underLoad(t *testing.T, p plan) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %+v", seed, p)
	m := newMachine(t, p.diskMiB)
	beside := newOutside(t, filepath.Join(m.dir, "disk", "canary"))
	m.revive(t.Context())
	archive := busybox(t, m.imageName("base"), nil)
	if _, err := m.api.LoadImage(t.Context(), bytes.NewReader(archive), ""); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeoutCause(t.Context(), p.length, errOver)
	defer cancel()
	viewCtx, endView := context.WithCancelCause(t.Context())
	view := newView(m)
	var viewing, faults, working sync.WaitGroup
	viewing.Go(func() { view.follow(viewCtx) })
	faults.Go(func() { m.killing(ctx, p.killEvery) })
	faults.Go(func() { m.filling(ctx, p.fillEvery, p.fillFor) })
	clients := make([]*actor, p.clients)
	for i := range clients {
		clients[i] = newActor(m, i, p.boxesEach, rand.New(rand.NewPCG(seed, uint64(i))))
		working.Go(func() { clients[i].work(ctx) })
	}
	working.Wait()
	faults.Wait()
	m.tally.log(t)

	// Disk free, one more death with all that is there, and a new server.
	m.kill()
	m.revive(t.Context())
	m.wantTruth(clients)

	// The last server works a while without faults: nothing excuses anything.
	wait(t.Context(), afterFault)
	calm, end := context.WithTimeoutCause(t.Context(), p.length/10, errOver)
	defer end()
	for _, a := range clients {
		working.Go(func() { a.work(calm) })
	}
	working.Wait()
	m.settle(clients)
	m.wantTruth(clients)
	for _, a := range clients {
		a.removeAll()
	}
	m.removeImages()
	m.wantTruth(nil)
	view.wantEmpty()
	endView(errOver)
	viewing.Wait()
	m.wantServerLikeNew()
	m.wantNoTraces()
	m.dismantle()
	beside.wantUnchanged()
}

var errOver = fmt.Errorf("the load is over")
