package testimage

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrNoBusybox reports a machine without a static busybox (Debian: busybox-static).
var ErrNoBusybox = errors.New("no static /bin/busybox on this machine")

// Busybox returns an image of two layers: busybox with its tools, and one that
// deletes /etc/gone of the first and adds /etc/made. It has a user "user"
// (1000), PATH=/bin, FROM_IMAGE=yes, the working directory /home and, without
// an entrypoint, the command "sh -c 'echo from-cmd'"; with one it is "from-cmd".
func Busybox(name string, entrypoint ...string) (Image, error) {
	program, err := staticBusybox()
	if err != nil {
		return Image{}, err
	}
	first := Layer{
		Dir("bin", 0o755), Dir("etc", 0o755), Dir("tmp", 0o1777), Dir("root", 0o700), Dir("home", 0o755),
		File("bin/busybox", program, 0o755),
		File("etc/passwd", []byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\n"), 0o644),
		File("etc/group", []byte("root:x:0:\nuser:x:1000:\n"), 0o644),
		File("etc/gone", []byte("a lower layer's file\n"), 0o644),
	}
	for _, tool := range tools {
		first = append(first, Symlink("bin/"+tool, "busybox"))
	}
	im := Image{
		Name:   name,
		Layers: []Layer{first, {Whiteout("etc/gone"), File("etc/made", []byte("by the upper layer\n"), 0o644)}},
		Config: v1.ImageConfig{
			Env:        []string{"PATH=/bin", "FROM_IMAGE=yes"},
			WorkingDir: "/home",
			Entrypoint: slices.Clone(entrypoint),
			Cmd:        []string{"/bin/sh", "-c", "echo from-cmd"},
		},
	}
	if len(entrypoint) > 0 {
		im.Config.Cmd = []string{"from-cmd"}
	}
	return im, nil
}

var tools = []string{
	"awk", "cat", "cut", "date", "dd", "echo", "env", "false", "grep", "head", "httpd", "id", "kill", "ln", "ls", "mkdir", "mount",
	"mv", "nc", "nohup", "od", "printf", "ps", "pwd", "rm", "sed", "seq", "setsid", "sh", "sha256sum", "sleep", "sort", "stat",
	"stty", "tail", "test", "touch", "tr", "true", "uname", "wc", "wget", "yes",
}

func staticBusybox() ([]byte, error) {
	const file = "/bin/busybox"
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoBusybox, err)
	}
	defer f.Close() //nolint:errcheck // only read
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		return nil, fmt.Errorf("%w: it is linked with %v", ErrNoBusybox, libs)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoBusybox, err)
	}
	return data, nil
}
