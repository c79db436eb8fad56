package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// libexecDirs lists where our other programs may be, the best place first.
func libexecDirs(executable string) []string {
	var dirs []string
	if executable != "" {
		dir := filepath.Dir(executable)
		dirs = append(dirs, dir, filepath.Join(dir, "..", "lib", "taibox"))
	}
	return append(dirs, "/usr/lib/taibox", "/usr/local/lib/taibox")
}

// FindProgram returns the path of one of our programs: from dirs, else from
// PATH, else "".
func FindProgram(name string, dirs []string) string {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return ""
}

// serverProgram returns the program that serves.
func (e *Env) serverProgram() (string, error) {
	if e.Server == "" {
		return "", withHint(
			fmt.Errorf("taibox-server: %w: it is neither beside %s nor in /usr/lib/taibox, /usr/local/lib/taibox or PATH", errdefs.ErrUnavailable, e.Executable),
			"make and make install put it in place")
	}
	return e.Server, nil
}

// handOver becomes the program that has the server linked, with the same
// arguments. It returns only if that is not possible.
func (e *Env) handOver() error {
	program, err := e.serverProgram()
	if err != nil {
		return err
	}
	err = unix.Exec(program, append([]string{"taibox-server"}, e.args...), os.Environ())
	return fmt.Errorf("run %s: %w", program, err)
}
