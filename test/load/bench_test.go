package load

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// benchMachine is a machine on the disk that tests have, with idle boxes.
func benchMachine(b *testing.B, idle int) *machine {
	b.Helper()
	need(b)
	m := newMachine(b, 0)
	m.revive(b.Context())
	var g errgroup.Group
	g.SetLimit(4)
	for i := range idle {
		g.Go(func() error {
			_, err := m.api.CreateBox(b.Context(), rest.CreateBox{ID: fmt.Sprintf("idle-%d", i), Image: taisandbox.HostFS, Policy: "persistent"})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		list, err := m.api.ListBoxes(context.Background(), rest.ListBoxes{})
		for _, box := range list {
			if err == nil {
				err = m.api.RemoveBox(context.Background(), box.ID)
			}
		}
		if err != nil {
			b.Error(err)
		}
		m.dismantle()
	})
	return m
}

// BenchmarkCreate is a create through the API, from the request to the answer,
// on a machine with so many idle boxes.
func BenchmarkCreate(b *testing.B) {
	for _, idle := range []int{0, 50, 200} {
		b.Run(fmt.Sprintf("idle=%d", idle), func(b *testing.B) {
			m := benchMachine(b, idle)
			var took []time.Duration
			for n := 0; b.Loop(); n++ {
				id := fmt.Sprintf("b-%d", n)
				begin := time.Now()
				if _, err := m.api.CreateBox(b.Context(), rest.CreateBox{ID: id, Image: taisandbox.HostFS, Policy: "persistent"}); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
				b.StopTimer()
				if err := m.api.RemoveBox(b.Context(), id); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			report(b, took, "")
		})
	}
}

// report gives the median and the 99th percentile.
func report(b *testing.B, took []time.Duration, what string) {
	b.Helper()
	slices.Sort(took)
	at := func(p int) float64 { return float64(took[min(len(took)-1, len(took)*p/100)].Microseconds()) / 1000 }
	b.ReportMetric(at(50), what+"p50-ms")
	b.ReportMetric(at(99), what+"p99-ms")
}

// BenchmarkIdle is what 200 boxes cost that do nothing: memory, processor time
// of the server, and a look at them by command line.
func BenchmarkIdle(b *testing.B) {
	const boxes, watched = 200, 10 * time.Second
	m := benchMachine(b, boxes)
	wait(b.Context(), 5*time.Second) // what begins with the creates is over
	stats, err := m.api.AllStats(b.Context())
	if err != nil || len(stats) != boxes {
		b.Fatalf("measurements of %d boxes: %v", len(stats), err)
	}
	var memory int64
	for _, s := range stats {
		memory += s.OverheadBytes
	}
	shared := proportional(b, m)
	var ls []time.Duration
	var busy time.Duration
	for b.Loop() {
		before := processorTime(b, m.serverPID())
		wait(b.Context(), watched)
		busy += processorTime(b, m.serverPID()) - before
		for range 10 {
			begin := time.Now()
			if r := m.run(b.Context(), nil, "ls", "-q"); r.code != 0 || len(strings.Fields(r.stdout)) != boxes {
				b.Fatalf("ls: code %d, %d lines, %s", r.code, len(strings.Fields(r.stdout)), r.stderr)
			}
			ls = append(ls, time.Since(begin))
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(memory)/boxes/(1<<20), "MiB/box")
	b.ReportMetric(float64(shared)/boxes/(1<<20), "PSS-MiB/box")
	b.ReportMetric(float64(resident(b, m.serverPID()))/(1<<20), "server-MiB")
	b.ReportMetric(100*busy.Seconds()/(watched.Seconds()*float64(b.N)), "server-cpu-%")
	report(b, ls, "ls-")
}

// processorTime returns what a process has used.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // the kernel tells hundredths to everybody
}

// resident returns the resident memory of a process.
func resident(b *testing.B, pid int) int64 {
	return kib(b, fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")
}

// proportional is the memory of all bridges, in which what they share counts once.
func proportional(b *testing.B, m *machine) (total int64) {
	for _, file := range glob("/proc/[0-9]*/smaps_rollup") {
		if inCgroup(filepath.Dir(file), m.instance) {
			total += kib(b, file, "Pss:")
		}
	}
	return total
}

// kib returns a number of a file of /proc that is in units of 1024 bytes.
func kib(b *testing.B, file, field string) int64 {
	b.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n << 10
		}
	}
	b.Fatalf("%s has no %s", file, field)
	return 0
}

// BenchmarkPull has an image of 500 MB pulled and unpacked by each peer that
// there is, by command line, from one registry in this process. Skopeo copies
// the blobs into a layout and unpacks nothing: it is what the network, the
// hashes and the disk take at the least.
func BenchmarkPull(b *testing.B) {
	need(b)
	host := bigImage(b)
	b.Run("taibox", func(b *testing.B) {
		m := benchMachine(b, 0)
		pulls(b, func() { m.mustRun("image", "pull", "-q", host) }, func() {
			m.mustRun("image", "rm", host)
			m.mustRun("image", "prune")
		})
	})
	b.Run("docker", func(b *testing.B) {
		if err := exec.CommandContext(b.Context(), "docker", "info").Run(); err != nil {
			b.Skipf("docker info: %v", err)
		}
		pulls(b, func() { command(b, "docker", "pull", "-q", host) }, func() { command(b, "docker", "rmi", host) })
	})
	b.Run("skopeo-copy", func(b *testing.B) {
		if _, err := exec.LookPath("skopeo"); err != nil {
			b.Skip(err)
		}
		dir := filepath.Join(b.TempDir(), "layout")
		pulls(b, func() {
			command(b, "skopeo", "copy", "-q", "--src-tls-verify=false", "docker://"+host, "oci:"+dir+":1")
		}, func() {
			if err := os.RemoveAll(dir); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// pulls measures pull, with everything on disk in the end.
func pulls(b *testing.B, pull, remove func()) {
	b.Helper()
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		pull()
		took = append(took, time.Since(begin))
		b.StopTimer()
		remove()
		command(b, "sync")
		b.StartTimer()
	}
	report(b, took, "")
}

func command(b *testing.B, args ...string) {
	b.Helper()
	if out, err := exec.CommandContext(b.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		b.Fatalf("%q: %v: %s", args, err, out)
	}
}

// bigImage serves an image of five layers of 100 MB, half of which compresses
// well, and returns its name.
func bigImage(b *testing.B) string {
	b.Helper()
	reg := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)))
	s := httptest.NewServer(reg)
	b.Cleanup(s.Close)
	img := empty.Image
	rnd := rand.New(rand.NewPCG(1, 2)) // the same one each time
	for i := range 5 {
		data := bigLayer(b, rnd, i)
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
			tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithCompressedCaching)
		if err != nil {
			b.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			b.Fatal(err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		b.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", goruntime.GOARCH
	if img, err = mutate.ConfigFile(img, config); err != nil {
		b.Fatal(err)
	}
	push(b, reg, img)
	return strings.TrimPrefix(s.URL, "http://") + "/big:1"
}

// push puts an image into a registry, as big:1.
func push(b *testing.B, reg http.Handler, img v1.Image) {
	b.Helper()
	put := func(method, path, mediaType string, body io.Reader) {
		b.Helper()
		r := httptest.NewRequestWithContext(b.Context(), method, "/v2/big/"+path, body)
		r.Header.Set("Content-Type", mediaType)
		w := httptest.NewRecorder()
		if reg.ServeHTTP(w, r); w.Code != http.StatusCreated {
			b.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	config, err := partial.ConfigLayer(img)
	if err != nil {
		b.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		b.Fatal(err)
	}
	for _, l := range append(layers, config) {
		digest, err := l.Digest()
		if err != nil {
			b.Fatal(err)
		}
		blob, err := l.Compressed()
		if err != nil {
			b.Fatal(err)
		}
		put(http.MethodPost, "blobs/uploads/?digest="+digest.String(), "application/octet-stream", blob)
	}
	raw, err := img.RawManifest()
	if err != nil {
		b.Fatal(err)
	}
	mediaType, err := img.MediaType()
	if err != nil {
		b.Fatal(err)
	}
	put(http.MethodPut, "manifests/1", string(mediaType), bytes.NewReader(raw))
}

func bigLayer(b *testing.B, rnd *rand.Rand, n int) []byte {
	b.Helper()
	const files, size = 400, 250_000
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	content := make([]byte, size)
	for i := range files {
		for j := range content {
			if content[j] = 'x'; j%2 == 0 && j < size/2 || j >= size/2 && j%4 == 0 {
				content[j] = byte(rnd.Uint32())
			}
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("layer%d/dir%d/file%d", n, i%20, i), Mode: 0o644, Size: size}); err != nil {
			b.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return out.Bytes()
}

// mustRun runs a program that has to work.
func (m *machine) mustRun(args ...string) {
	m.t.Helper()
	if r := m.run(context.Background(), nil, args...); r.code != 0 {
		m.t.Fatalf("taibox %q: code %d: %s", args, r.code, r.stderr)
	}
}
