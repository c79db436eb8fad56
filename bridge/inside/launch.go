package inside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultTerm = "xterm"
	// oomRaise makes the kernel choose a command before the bridge.
	oomRaise = 500
)

// Codes of commands that could not be started.
const (
	codeCannotRun = 126
	codeNotFound  = 127
)

// startError says why a command could not be started, with the code for it.
type startError struct {
	code int
	text string
}

func (c *startError) Error() string { return c.text }

// environment adds to the given variables those a command may expect.
func environment(given [][]byte, home string, tty bool) []string {
	env := make([]string, 0, len(given)+4)
	for _, kv := range given {
		env = append(env, string(kv))
	}
	missing := func(name string) bool {
		return !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	if missing("PATH") {
		env = append(env, "PATH="+defaultPath)
	}
	if missing("HOME") {
		env = append(env, "HOME="+home)
	}
	if missing("LANG") && missing("LC_ALL") {
		env = append(env, "LANG=C.UTF-8")
	}
	if tty && missing("TERM") {
		env = append(env, "TERM="+defaultTerm)
	}
	return env
}

// lookPath returns the files that name may mean, best first, all absolute
// unless name says where it is. denied tells of one that is there and is no
// program.
func lookPath(name string, env []string, dir string) (files []string, denied string) {
	if strings.ContainsRune(name, '/') {
		return []string{name}, ""
	}
	path := defaultPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok && v != "" {
			path = v
		}
	}
	for d := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		file := filepath.Join(d, name)
		var st unix.Stat_t
		switch err := unix.Stat(file, &st); {
		case err != nil:
		case st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0:
			files = append(files, file)
		case denied == "":
			denied = file
		}
	}
	return files, denied
}

// launch forks and executes. The error is a *startError if the command is at
// fault.
func (r *reaper) launch(args, env []string, attr *syscall.ProcAttr) (int, <-chan unix.WaitStatus, error) {
	attr.Env = env
	files, denied := lookPath(args[0], env, attr.Dir)
	var failed error
	for _, file := range files {
		pid, exited, err := r.start(func() (int, error) { return syscall.ForkExec(file, args, attr) })
		if err == nil {
			raiseOOMScore(pid)
			return pid, exited, nil
		}
		if errors.Is(err, unix.E2BIG) {
			return 0, nil, &startError{codeCannotRun, file + ": " + sandbox.ExplainTooLong(args, env)}
		}
		if failed = explainStart(file, attr.Dir, err); !errors.Is(err, unix.EACCES) {
			return 0, nil, failed
		}
	}
	switch {
	case failed != nil:
		return 0, nil, failed
	case denied != "":
		return 0, nil, explainStart(denied, attr.Dir, unix.EACCES)
	}
	return 0, nil, &startError{codeNotFound, fmt.Sprintf("%s: command not found", args[0])}
}

// explainStart says what an error of fork or exec means.
func explainStart(file, dir string, err error) error {
	at := file
	if !filepath.IsAbs(at) {
		at = filepath.Join(dir, at)
	}
	st, statErr := os.Stat(at)
	isDir := statErr == nil && st.IsDir()
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	cannot := func(code int, text string) error {
		return &startError{code, file + ": " + text}
	}
	switch errno {
	case unix.ENOENT, unix.ENOTDIR:
		if statErr == nil {
			return cannot(codeNotFound, "its interpreter or loader is not in the box")
		}
		return cannot(codeNotFound, "no such file or directory")
	case unix.EACCES, unix.EISDIR, unix.EPERM:
		if isDir {
			return cannot(codeCannotRun, "is a directory")
		}
		return cannot(codeCannotRun, "permission denied")
	case unix.ENOEXEC:
		return cannot(codeCannotRun, "not a program for this machine (exec format error)")
	case unix.EAGAIN, unix.ENOMEM:
		return fmt.Errorf("%w: %w", sandbox.ErrProcessLimit, errno)
	case unix.EINVAL:
		return fmt.Errorf("%w: its number is outside the box's range of ids", sandbox.ErrUserNotFound)
	case unix.ENOSYS, unix.ENODEV, unix.EOPNOTSUPP, unix.EBUSY, unix.EBADF:
		return fmt.Errorf("fork into a cgroup: %w", errno)
	}
	return cannot(codeCannotRun, errno.Error())
}

// raiseOOMScore may come too late for a command that has ended; then it does
// not matter.
func raiseOOMScore(pid int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	unix.Write(fd, []byte(strconv.Itoa(oomRaise))) //nolint:errcheck // see above
	unix.Close(fd)                                 //nolint:errcheck // see above
}
