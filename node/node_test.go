package node_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/node"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

// holdVar makes the test binary hold the data directory it names.
const holdVar = "TAIBOX_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdVar); dir != "" {
		hold(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func hold(dir string) {
	if _, err := node.Open(context.Background(), config(dir)); err != nil {
		panic(err)
	}
	fmt.Println("held")
	bufio.NewReader(os.Stdin).ReadByte() // until it is killed
}

func config(dir string) node.Config {
	return node.Config{DataDir: dir, Runtime: "fake", Driver: openFake}
}

func openFake(_ context.Context, _ node.DriverConfig) (taisandbox.Sandbox, taisandbox.Image, error) {
	d := fake.New()
	return d, d, nil
}

func open(t *testing.T, dir string) *node.Node {
	t.Helper()
	n, err := node.Open(t.Context(), config(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// refused checks that a directory cannot be opened, with an error that says
// what is the matter, and that nothing is held afterwards.
func refused(t *testing.T, dir string, want error, text string) {
	t.Helper()
	n, err := node.Open(t.Context(), config(dir))
	if err == nil {
		n.Close()
	}
	if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("got error %v, want %v with %q", err, want, text)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "data")
	var got node.DriverConfig
	cfg := config(dir)
	cfg.Driver = func(ctx context.Context, c node.DriverConfig) (taisandbox.Sandbox, taisandbox.Image, error) {
		got = c
		return openFake(ctx, c)
	}
	n, err := node.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got.DataDir != dir || got.Instance != n.Instance() || got.Logger == nil {
		t.Errorf("the driver got %+v", got)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}$`).MatchString(n.Instance()) || n.ID() != "local" || n.DataDir() != dir {
		t.Errorf("instance %q, id %q, directory %q", n.Instance(), n.ID(), n.DataDir())
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	pid, err := os.ReadFile(filepath.Join(dir, "lock"))
	if err != nil || string(pid) != fmt.Sprintln(os.Getpid()) {
		t.Errorf("lock holds %q, %v", pid, err)
	}

	reg := registry.New()
	if err := n.Register(reg); err != nil {
		t.Fatal(err)
	}
	if err := n.Register(reg); !errors.Is(err, registry.ErrAlreadyExists) {
		t.Errorf("registered twice: %v", err)
	}
	l := reg.List()
	if len(l) != 1 || l[0].Mode != "local" || l[0].Runtime != "fake" || len(l[0].Capabilities) == 0 || l[0].System.CPUs == 0 ||
		l[0].System.MemoryBytes == 0 || l[0].System.Kernel == "" || l[0].System.Hostname == "" {
		t.Errorf("registered as %+v", l)
	}
	if !slices.Contains(l[0].Capabilities, string(volume.FeatureMount)) {
		t.Errorf("the volume is not among its capabilities: %v", l[0].Capabilities)
	}
	if _, err := n.Client().Volume().Create(t.Context(), "ws-a", volume.Options{}); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(filepath.Join(dir, "workspaces")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("workspaces are in %v, %v", st, err)
	}
	if err := errors.Join(n.Close(), n.Close()); err != nil {
		t.Error(err)
	}
	if _, err := n.Client().Volume().Get(t.Context(), "ws-a"); err == nil {
		t.Error("the volume is still open")
	}
	if l := reg.List(); len(l) != 0 {
		t.Errorf("still registered: %+v", l)
	}
	if _, err := n.Client().Sandbox().List(t.Context(), taisandbox.Filter{}); err == nil {
		t.Error("the driver is still open")
	}
	if err := n.Register(reg); err == nil {
		t.Error("a closed node was registered")
	}

	again := open(t, dir)
	if again.Instance() != n.Instance() {
		t.Errorf("instance %s became %s", n.Instance(), again.Instance())
	}
	if _, err := again.Client().Volume().Get(t.Context(), "ws-a"); err != nil {
		t.Error(err)
	}
	for _, e := range leftovers(t, dir) {
		t.Errorf("left: %s", e)
	}
}

func leftovers(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		switch e.Name() {
		case "lock", "layout", "instance", "workspaces":
		default:
			names = append(names, e.Name())
		}
	}
	return names
}

func TestInUse(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), holdVar+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("%q, %v", line, err)
	}
	refused(t, dir, node.ErrInUse, fmt.Sprintf("pid %d", cmd.Process.Pid))

	// However the owner ends, its lock ends with it.
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	in.Close()
	open(t, dir)
}

func TestInUseHere(t *testing.T) {
	dir := t.TempDir()
	n := open(t, dir)
	refused(t, dir, node.ErrInUse, fmt.Sprintf("pid %d", os.Getpid()))
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	refused(t, link, node.ErrInUse, dir)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, link)
}

func TestPermissions(t *testing.T) {
	open755 := func(t *testing.T) string {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "data")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	t.Run("empty_is_closed", func(t *testing.T) {
		dir := open755(t)
		open(t, dir)
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", st.Mode(), err)
		}
	})
	t.Run("used_is_refused", func(t *testing.T) {
		dir := open755(t)
		write(t, dir, "layout", "1\n")
		refused(t, dir, node.ErrDataDir, "0755")
		_, err := node.Open(t.Context(), config(dir))
		if hint := reason.Hint(err); !strings.Contains(hint, "chmod") {
			t.Errorf("hint %q", hint)
		}
	})
	t.Run("file", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "f", "")
		refused(t, filepath.Join(dir, "f"), node.ErrDataDir, "not a directory")
	})
	t.Run("lock_is_a_link", func(t *testing.T) {
		dir, other := t.TempDir(), t.TempDir()
		write(t, other, "precious", "text")
		if err := os.Symlink(filepath.Join(other, "precious"), filepath.Join(dir, "lock")); err != nil {
			t.Fatal(err)
		}
		refused(t, dir, node.ErrDataDir, "lock")
		if b, err := os.ReadFile(filepath.Join(other, "precious")); err != nil || string(b) != "text" {
			t.Errorf("%q, %v", b, err)
		}
	})
	t.Run("owner", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root to give a directory away")
		}
		dir := t.TempDir()
		if err := os.Chown(dir, 1234, 1234); err != nil {
			t.Fatal(err)
		}
		refused(t, dir, node.ErrDataDir, "uid 1234")
	})
	t.Run("not_writable", func(t *testing.T) {
		if os.Geteuid() == 0 {
			refused(t, "/proc/taibox", node.ErrDataDir, "/proc/taibox") // root can write anywhere else
			return
		}
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		refused(t, filepath.Join(dir, "data"), node.ErrDataDir, "permission denied")
	})
}

func private(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLayout(t *testing.T) {
	for text, want := range map[string]string{
		fmt.Sprintln(node.Layout + 1): "layout 2", "": "instead of a version", "x": `"x"`, "-1": `"-1"`,
	} {
		dir := private(t)
		write(t, dir, "layout", text)
		refused(t, dir, node.ErrLayout, want)
		write(t, dir, "layout", fmt.Sprintln(node.Layout)) // nothing is held by the refusal
		open(t, dir)
	}
	for _, text := range []string{"", "xyz", "0123456", "ABCDEF01", "../../.."} {
		dir := private(t)
		write(t, dir, "instance", text)
		refused(t, dir, node.ErrLayout, "instance")
	}
}

func TestDriverFails(t *testing.T) {
	dir := t.TempDir()
	why := errors.New("no such kernel")
	cfg := config(dir)
	cfg.Driver = func(context.Context, node.DriverConfig) (taisandbox.Sandbox, taisandbox.Image, error) {
		return nil, nil, why
	}
	if _, err := node.Open(t.Context(), cfg); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	open(t, dir)
}

func TestConfig(t *testing.T) {
	if _, err := node.Open(t.Context(), node.Config{}); err == nil {
		t.Error("an empty configuration was taken")
	}
}

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	n, err := node.Open(context.Background(), node.Config{
		DataDir: dir,
		Runtime: "fake",
		Driver: func(context.Context, node.DriverConfig) (taisandbox.Sandbox, taisandbox.Image, error) {
			d := fake.New()
			return d, d, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer n.Close()
	reg := registry.New()
	if err := n.Register(reg); err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range reg.List() {
		fmt.Println(s.TaiID, s.Mode, s.Runtime, len(n.Instance()))
	}
	// Output: local local fake 8
}
