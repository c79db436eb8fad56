package load

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/drivers/oci"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// settle waits until boxes that are to go by themselves have gone.
func (m *machine) settle(clients []*actor) {
	for _, a := range clients {
		for len(a.left) > 0 && m.failures.Load() < maxTold {
			a.lookAtLeft()
			wait(context.Background(), 20*time.Millisecond)
		}
	}
}

// wantTruth compares what is told with what is on disk, what runs, and what
// the clients know.
func (m *machine) wantTruth(clients []*actor) {
	m.eventually("what is told is what there is", func() error {
		list, err := m.api.ListBoxes(context.Background(), rest.ListBoxes{})
		if err != nil {
			return err
		}
		var told, running []string
		state := map[string]rest.Box{}
		for _, b := range list {
			state[b.ID] = b
			told = append(told, b.ID)
			if b.Status == string(taisandbox.StateRunning) {
				running = append(running, b.ID)
			}
		}
		slices.Sort(told)
		slices.Sort(running)
		byName := strings.Fields(m.run(context.Background(), nil, "ls", "-q").stdout)
		slices.Sort(byName)
		for what, got := range map[string][]string{"the command line": byName, "the disk": names(filepath.Join(m.data, "boxes"))} {
			if !slices.Equal(got, told) {
				return fmt.Errorf("%w: %s has boxes %v, the API %v", errDiffers, what, got, told)
			}
		}
		for what, dir := range map[string]string{"the runtime": "/runc", "run directories": "/b"} {
			got := names("/run/taibox/" + m.instance + dir)
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], "taibox-"+m.instance+"-")
			}
			if !slices.Equal(got, running) {
				return fmt.Errorf("%w: %s have running boxes %v, the API %v", errDiffers, what, got, running)
			}
		}
		known := 0
		for _, a := range clients {
			for _, b := range a.boxes {
				known++
				got, ok := state[b.id]
				if want := map[bool]taisandbox.State{true: taisandbox.StateRunning, false: taisandbox.StateStopped}[b.running]; b.kind == stays && (!ok || got.Status != string(want)) {
					return fmt.Errorf("%w: box %s is %q (%s), its client knows %s", errDiffers, b.id, got.Status, got.StopReason, want)
				}
			}
		}
		if known < len(told) {
			return fmt.Errorf("%w: there are boxes %v, of which clients know %d", errDiffers, told, known)
		}
		return nil
	})
}

// names lists a directory, without what is made ahead.
func names(dir string) []string {
	var out []string
	entries, _ := os.ReadDir(dir) // none is empty
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "pool-") {
			out = append(out, e.Name())
		}
	}
	return out
}

// removeImages removes all images, and what is kept of them.
func (m *machine) removeImages() {
	ctx := context.Background()
	images, err := m.api.ListImages(ctx)
	if err != nil {
		m.fail("list images: %v", err)
	}
	for _, im := range images {
		if !im.BuiltIn {
			if err := m.api.RemoveImage(ctx, im.Name); err != nil {
				m.fail("remove image %s: %v", im.Name, err)
			}
		}
	}
	if _, err := m.api.PruneImages(ctx, true); err != nil {
		m.fail("prune images: %v", err)
	}
}

// wantNoTraces looks for what boxes and calls may have left on the machine.
func (m *machine) wantNoTraces() {
	m.eventually("nothing is left of boxes", func() error {
		if left := m.traces(); len(left) > 0 {
			return fmt.Errorf("%d traces: %s", len(left), strings.Join(left[:min(len(left), 20)], "\n"))
		}
		return nil
	})
}

var temporary = regexp.MustCompile(`/\.[^/]+\.[0-9]+$|/\.?tmp[^/]*$|\.tmp-|/ingest/.|/new-[0-9]`)

func (m *machine) traces() []string {
	var left []string
	run := "/run/taibox/" + m.instance
	for _, point := range mounts() {
		if (strings.HasPrefix(point, run+"/b/") || strings.HasPrefix(point, m.data)) && point != m.data+"/server.log" && !strings.Contains(point, "/pool-") {
			left = append(left, "mount "+point)
		}
	}
	pool := 0
	for _, dir := range []string{"/b", "/runc"} {
		for _, e := range glob(run + dir + "/*") {
			if strings.Contains(e, "/pool-") {
				pool++
			} else {
				left = append(left, "run file "+e)
			}
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/taibox-%s/*/", "/sys/fs/cgroup/*/taibox-%s/*/"} {
		left = append(left, prefixed("cgroup ", glob(fmt.Sprintf(pattern, m.instance)))...)
	}
	if links := glob("/sys/class/net/tb" + m.instance + "*"); len(links) > pool {
		left = append(left, fmt.Sprintf("%d interfaces for a pool of %d: %v", len(links), pool, links))
	}
	left = append(left, prefixed("process ", m.processes())...)
	left = append(left, prefixed("file ", m.files())...)
	return left
}

// files lists what boxes, images and half-done writes left in the data
// directory.
func (m *machine) files() []string {
	left := glob(m.data + "/boxes/*")
	for _, what := range []string{"/images/content/blobs/sha256/*", "/images/snapshots/*/"} {
		left = append(left, glob(m.data+what)...)
	}
	filepath.WalkDir(m.data, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && temporary.MatchString(path) && !strings.HasPrefix(path, m.data+"/hostfs/") {
			left = append(left, path)
		}
		return nil
	})
	return left
}

// processes lists those of the instance beside its server.
func (m *machine) processes() []string {
	var left []string
	for _, file := range glob("/proc/[0-9]*/cmdline") {
		cmd, err := os.ReadFile(file)
		line := strings.ReplaceAll(string(cmd), "\x00", " ")
		if err != nil || !strings.Contains(line, m.instance) && !strings.Contains(line, m.dir) && !inCgroup(filepath.Dir(file), m.instance) {
			continue
		}
		if strings.HasPrefix(file, fmt.Sprintf("/proc/%d/", m.serverPID())) {
			continue
		}
		left = append(left, file+" "+line)
	}
	return left
}

func inCgroup(proc, instance string) bool {
	data, err := os.ReadFile(proc + "/cgroup")
	return err == nil && strings.Contains(string(data), "taibox-"+instance)
}

func prefixed(what string, list []string) []string {
	for i := range list {
		list[i] = what + list[i]
	}
	return list
}

func glob(pattern string) []string {
	found, err := filepath.Glob(pattern)
	if err != nil {
		panic(err)
	}
	return found
}

func mounts() []string {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		points = append(points, strings.Fields(line)[4])
	}
	return points
}

// wantServerLikeNew compares the server, which has done much, with a new one.
func (m *machine) wantServerLikeNew() {
	pid := m.serverPID()
	m.api.Close()
	type holds struct{ goroutines, files int }
	look := func() holds {
		m.api.Close()
		return holds{m.metric("go_goroutines"), len(glob(fmt.Sprintf("/proc/%d/fd/*", m.serverPID())))}
	}
	var old holds
	for range 50 { // it may still be about to let go
		now := look()
		if old == (holds{}) || now.goroutines < old.goroutines || now.files < old.files {
			old = now
		}
		wait(context.Background(), 100*time.Millisecond)
	}
	unix.Kill(pid, unix.SIGTERM)
	m.eventually("the server ends when it is asked to", func() error {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			return fmt.Errorf("process %d is there", pid)
		}
		return nil
	})
	m.revive(context.Background())
	var fresh holds
	for range 20 {
		if now := look(); now.goroutines > fresh.goroutines || now.files > fresh.files {
			fresh = now
		}
		wait(context.Background(), 100*time.Millisecond)
	}
	m.t.Logf("server: %+v, a new one %+v", old, fresh)
	const slack = 6 // connections that come and go
	if old.goroutines > fresh.goroutines+slack || old.files > fresh.files+slack {
		m.fail("the server holds %+v with no box there, a new one %+v", old, fresh)
	}
}

// metric reads a number from the server.
func (m *machine) metric(name string) int {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", m.socket)
	}}
	resp, err := (&http.Client{Transport: tr}).Get("http://taibox/metrics")
	if err != nil {
		m.fail("metrics: %v", err)
		return 0
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				m.fail("metric %s: %v", name, err)
			}
			return int(n)
		}
	}
	m.fail("metric %s is not there", name)
	return 0
}

// dismantle ends the server and takes the instance off the machine, which then
// has nothing of it.
func (m *machine) dismantle() {
	m.endServer(unix.SIGTERM)
	d, err := oci.Open(context.Background(), oci.Config{
		DataDir: m.data, Instance: m.instance, PoolSize: -1,
		RuncPath: filepath.Join(filepath.Dir(m.taibox), "taibox-runc"), BridgePath: filepath.Join(filepath.Dir(m.taibox), "taibox-bridge"),
	})
	if err != nil {
		m.fail("open to dismantle: %v", err)
		return
	}
	if err := d.Dismantle(context.Background()); err != nil {
		m.fail("dismantle: %v", err)
	}
	var left []string
	for _, pattern := range []string{"/run/taibox/%s", "/sys/fs/cgroup/taibox-%s", "/sys/fs/cgroup/*/taibox-%s", "/sys/class/net/tb%s*"} {
		left = append(left, glob(fmt.Sprintf(pattern, m.instance))...)
	}
	if tables := m.system("nft", "list", "tables"); strings.Contains(tables, m.instance) {
		left = append(left, tables)
	}
	if len(left) > 0 {
		m.fail("left after the end of the instance: %q", left)
	}
}

// endServer ends the server with a signal, if there is one.
func (m *machine) endServer(sig unix.Signal) {
	pid := m.serverPID()
	if pid == 0 {
		return
	}
	unix.Kill(pid, sig)
	for range 300 {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
			return
		}
		wait(context.Background(), 100*time.Millisecond)
	}
	m.fail("server %d does not end", pid)
}

// wreck takes off what a failed test left: no box and no server stays.
func (m *machine) wreck() {
	m.endServer(unix.SIGKILL)
	for range 5 {
		for _, line := range m.processes() {
			var pid int
			if _, err := fmt.Sscanf(line, "/proc/%d/", &pid); err == nil && inCgroup(fmt.Sprintf("/proc/%d", pid), m.instance) {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
		wait(context.Background(), 100*time.Millisecond)
	}
	points := mounts()
	slices.Reverse(points)
	for _, point := range points {
		if m.instance != "" && strings.HasPrefix(point, "/run/taibox/"+m.instance+"/") || strings.HasPrefix(point, m.data) && point != m.data+"/server.log" {
			unix.Unmount(point, unix.MNT_DETACH)
		}
	}
}
