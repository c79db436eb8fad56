package image_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/taibox/taibox/drivers/oci/image"
	"github.com/taibox/taibox/tai/sandbox"
)

// htpasswd lets u in with the tests' secret.
const htpasswd = "u:$2a$04$.r9/nL.HZZK4FWzNZdArdeFIq5ykcSrj1Oi0AAqn93PCqgPle8bDK\n"

// distribution is the registry that most people run, as Debian ships it: a
// program of its own beside the one in this process.
type distribution struct {
	t    *testing.T
	host string
	auth bool
	log  lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startDistribution runs one that keeps its images for the test.
func startDistribution(t *testing.T, auth bool) *distribution {
	t.Helper()
	needRoot(t)
	for _, program := range []string{"docker-registry", "skopeo"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err) // continuous integration installs both
		}
	}
	dir := t.TempDir()
	d := &distribution{t: t, auth: auth}
	config := fmt.Sprintf("version: 0.1\nlog: {level: info}\nstorage:\n  filesystem: {rootdirectory: %s}\n  delete: {enabled: true}\nhttp: {addr: '127.0.0.1:0'}\n", filepath.Join(dir, "images"))
	if auth {
		write(t, filepath.Join(dir, "htpasswd"), htpasswd)
		config += fmt.Sprintf("auth:\n  htpasswd: {realm: test, path: %s}\n", filepath.Join(dir, "htpasswd"))
	}
	write(t, filepath.Join(dir, "config.yml"), config)
	cmd := exec.Command("docker-registry", "serve", filepath.Join(dir, "config.yml"))
	cmd.Stdout, cmd.Stderr = &d.log, &d.log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "OTEL_TRACES_EXPORTER=none"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the registry says:\n%s", d.log.String())
		}
	})
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, after, ok := strings.Cut(d.log.String(), `"listening on `); ok {
			d.host, _, _ = strings.Cut(after, `"`)
			return d
		}
	}
	t.Fatal("the registry does not listen")
	return nil
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// skopeo runs it on the registry and returns what it says.
func (d *distribution) skopeo(args ...string) string {
	d.t.Helper()
	cmd := exec.Command("skopeo", append([]string{"--insecure-policy"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		d.t.Fatalf("skopeo %s: %v\n%s", args[0], err, out)
	}
	return strings.TrimSpace(string(out))
}

// with are skopeo's options for how to reach the registry, with a prefix.
func (d *distribution) with(prefix string) []string {
	opts := []string{"--" + prefix + "tls-verify=false"}
	if d.auth {
		opts = append(opts, "--"+prefix+"creds=u:"+secret)
	}
	return opts
}

// push has skopeo push a new image, and returns its digest there.
func (d *distribution) push(repo string, layers int) string {
	d.t.Helper()
	img, err := random.Image(20<<10, int64(layers))
	if err != nil {
		d.t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		d.t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Config = "linux", goruntime.GOARCH, v1.Config{Cmd: []string{"/hello"}}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		d.t.Fatal(err)
	}
	file := filepath.Join(d.t.TempDir(), "image.tar")
	tag, err := name.NewTag("local/test:1")
	if err != nil {
		d.t.Fatal(err)
	}
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		d.t.Fatal(err)
	}
	d.skopeo(append(append([]string{"copy", "-q"}, d.with("dest-")...), "docker-archive:"+file, "docker://"+d.host+"/"+repo)...)
	return d.skopeo(append(append([]string{"inspect", "--format", "{{.Digest}}"}, d.with("")...), "docker://"+d.host+"/"+repo)...)
}

// TestDistribution: what skopeo has pushed is pulled, by tag and by digest, and
// is what skopeo says; what is deleted is not there.
func TestDistribution(t *testing.T) {
	d := startDistribution(t, false)
	digest := d.push("team/app:1", 3)
	s := openFor(t, nil)
	ref := d.host + "/team/app:1"
	if last := mustPull(t, s, ref); last.Digest != digest {
		t.Errorf("it is %s, skopeo says %s", last.Digest, digest)
	}
	got, err := s.Resolve(t.Context(), ref)
	if err != nil || len(got.Lowers) != 3 || strings.Join(got.Info.Config.Cmd, " ") != "/hello" {
		t.Fatalf("%+v, %v", got, err)
	}
	got.Release()

	other := openFor(t, nil)
	byDigest := d.host + "/team/app@" + digest
	if last := mustPull(t, other, byDigest); last.Digest != digest {
		t.Errorf("by digest it is %s", last.Digest)
	}

	// The tag moves: a pull gets the new one, the old one stays by its digest.
	next := d.push("team/app:1", 2)
	if last := mustPull(t, s, ref); last.Digest != next || next == digest {
		t.Errorf("pulled again it is %s, skopeo says %s", last.Digest, next)
	}
	mustPull(t, other, byDigest)

	for _, absent := range []string{"/team/app:2", "/team/other:1", "/team/app@sha256:" + strings.Repeat("0", 64)} {
		if _, err := pull(t, t.Context(), s, d.host+absent, nil); !errors.Is(err, sandbox.ErrRegistryNotFound) {
			t.Errorf("%s: %v", absent, err)
		}
	}
	d.skopeo(append(append([]string{"delete"}, d.with("")...), "docker://"+ref)...)
	if _, err := pull(t, t.Context(), s, ref, nil); !errors.Is(err, sandbox.ErrRegistryNotFound) {
		t.Errorf("a tag that was deleted: %v", err)
	}
	if there, err := s.Exists(t.Context(), ref); !there || err != nil {
		t.Errorf("what was pulled before is there: %v, %v", there, err)
	}
}

// TestDistributionMirror: the registry stands in for another one.
func TestDistributionMirror(t *testing.T) {
	d := startDistribution(t, false)
	digest := d.push("team/app:1", 1)
	s := openFor(t, func(c *image.Config) {
		c.Registries = map[string]image.Registry{"example.test": {Mirrors: []string{d.host}}}
	})
	if last := mustPull(t, s, "example.test/team/app:1"); last.Digest != digest {
		t.Errorf("it is %s, want %s", last.Digest, digest)
	}
}

// TestDistributionAuth: it lets in whom its password file names.
func TestDistributionAuth(t *testing.T) {
	d := startDistribution(t, true)
	digest := d.push("team/app:1", 2)
	ref := d.host + "/team/app:1"
	s := openFor(t, nil)
	for name, auth := range map[string]*sandbox.RegistryAuth{
		"nobody": nil, "wrong_password": {Username: "u", Password: "wrong-" + secret}, "wrong_name": {Username: "v", Password: secret},
		"for_another": {Username: "u", Password: secret, Server: "other.test"},
	} {
		if _, err := pull(t, t.Context(), s, ref, auth); !errors.Is(err, sandbox.ErrRegistryAuth) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
	last, err := pull(t, t.Context(), s, ref, &sandbox.RegistryAuth{Username: "u", Password: secret})
	if err != nil || last.Digest != digest {
		t.Errorf("%s, %v; want %s", last.Digest, err, digest)
	}
}
