package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits on what others may take to answer.
const (
	programTimeout = 5 * time.Second
	dockerTimeout  = 3 * time.Second
)

var (
	errNoAnswer  = errors.New("no answer in time")
	errNotSocket = errors.New("not a socket")
)

// Free space below which a check warns, and below which it fails.
const (
	warnFreeBytes = 2 << 30
	failFreeBytes = 200 << 20
	warnFreeFiles = 10_000
)

func checkProgram(ctx context.Context, name, path string) Check {
	const fix = "build it (make build) or install it (make install)"
	if path == "" {
		return Check{name, Fail, "not found", fix}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, programTimeout, errNoAnswer)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Check{name, Fail, fmt.Sprintf("%s does not run: %v", path, err), fix}
	}
	version, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return Check{name, OK, fmt.Sprintf("%s (%s)", path, version), ""}
}

func checkDisk(dir string) Check {
	const name = "disk"
	parent, err := nearest(dir)
	if err != nil {
		return Check{name, Fail, err.Error(), "choose another data directory (TAIBOX_DATA_DIR)"}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(parent, &st); err != nil {
		return Check{name, Warn, err.Error(), ""}
	}
	free := st.Bavail * uint64(st.Bsize)
	return diskCheck(parent, free, st.Files, st.Ffree)
}

// diskCheck judges free bytes and free files. Some file systems have no fixed
// number of files, and say 0.
func diskCheck(dir string, freeBytes, files, freeFiles uint64) Check {
	const name = "disk"
	const fix = "make room, or choose another data directory (TAIBOX_DATA_DIR)"
	detail := fmt.Sprintf("%.1f GiB free at %s", float64(freeBytes)/(1<<30), dir)
	switch {
	case freeBytes < failFreeBytes:
		return Check{name, Fail, detail, fix}
	case freeBytes < warnFreeBytes:
		return Check{name, Warn, detail, fix}
	case files != 0 && freeFiles < warnFreeFiles:
		return Check{name, Warn, fmt.Sprintf("%s, but only %d files more", detail, freeFiles), fix}
	}
	return Check{name, OK, detail, ""}
}

var instanceName = regexp.MustCompile(`^[0-9a-f]{8}$`)

func checkInstances(dataDir, runDir string) Check {
	const name = "instances"
	own, err := os.ReadFile(filepath.Join(dataDir, "instance"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if c, ok := needsRoot(name, err); ok {
			return c
		}
		return Check{name, Warn, err.Error(), ""}
	}
	entries, err := os.ReadDir(runDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if c, ok := needsRoot(name, err); ok {
			return c
		}
		return Check{name, Warn, err.Error(), ""}
	}
	var others []string
	for _, e := range entries {
		if instanceName.MatchString(e.Name()) && e.Name() != strings.TrimSpace(string(own)) {
			others = append(others, e.Name())
		}
	}
	if len(others) == 0 {
		return Check{name, OK, "no other instance on this machine", ""}
	}
	return Check{name, OK, "beside this one: " + strings.Join(others, ", "), ""}
}

func checkDocker(ctx context.Context, socket string) Check {
	const name = "docker"
	info, err := os.Stat(socket)
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		err = fmt.Errorf("%s: %w", socket, errNotSocket)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Check{name, OK, "none; not needed", ""}
	}
	version := ""
	if err == nil {
		version, err = dockerVersion(ctx, socket)
	}
	if c, ok := needsRoot(name, err); ok {
		return c
	}
	if err != nil {
		return Check{name, Warn, "does not answer: " + err.Error(), "not needed, unless boxes are to run on it"}
	}
	return Check{name, OK, fmt.Sprintf("version %s at %s", version, socket), ""}
}

func dockerVersion(ctx context.Context, socket string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dockerTimeout, errNoAnswer)
	defer cancel()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/version", nil)
	if err != nil {
		return "", err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %s", resp.Status)
	}
	var body struct{ Version string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&body); err != nil {
		return "", fmt.Errorf("read version: %w", err)
	}
	return body.Version, nil
}

func defaultKubeconfig() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return filepath.Join(u.HomeDir, ".kube", "config")
}

func checkKubernetes(kubeconfig string) Check {
	const name = "kubeconfig"
	switch _, err := os.Stat(kubeconfig); {
	case err == nil:
		return Check{name, OK, kubeconfig, ""}
	case errors.Is(err, fs.ErrNotExist):
		return Check{name, OK, "none; not needed", ""}
	default:
		return Check{name, Warn, err.Error(), ""}
	}
}
