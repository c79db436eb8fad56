package inside

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

var defaultSize = sandbox.Size{Cols: 80, Rows: 24}

// startExec starts a command. One that cannot be started is an exec all the
// same, which has ended; the error is for what makes none.
func (s *Server) startExec(req *wire.Exec, files *passed) (*exec, error) {
	if err := checkExec(req); err != nil {
		return nil, err
	}
	s.blocking <- struct{}{}
	defer func() { <-s.blocking }()
	who, err := lookupUser(req.User)
	if err != nil {
		return nil, err
	}
	if err := checkDir(string(req.Dir)); err != nil {
		return nil, err
	}
	e := newExec(s, req, files)
	if err := s.add(e); err != nil {
		e.forget()
		return nil, err
	}
	if err := s.launch(e, req, who); err != nil {
		s.drop(e)
		e.forget()
		return nil, fmt.Errorf("start exec %s: %w", req.ID, err)
	}
	return e, nil
}

// checkExec refuses what a node never sends, and fills in defaults.
func checkExec(req *wire.Exec) error {
	if err := sandbox.ValidateID(req.ID); err != nil {
		return err
	}
	if len(req.Args) == 0 || len(req.Args[0]) == 0 {
		return fmt.Errorf("%w: a command is required", sandbox.ErrInvalidSpec)
	}
	if len(req.Dir) == 0 {
		req.Dir = []byte("/")
	}
	if req.User == "" {
		req.User = "0"
	}
	if req.Size == (sandbox.Size{}) {
		req.Size = defaultSize
	}
	return req.Size.Validate()
}

func checkDir(dir string) error {
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return fmt.Errorf("%w: %q", sandbox.ErrDirNotFound, dir)
	}
	return nil
}

// launch forks, and sets the exec going or ends it.
func (s *Server) launch(e *exec, req *wire.Exec, who account) error {
	stdio, err := openStdio(req, who.uid, s.null, e.log, e.progress)
	if err != nil {
		return err
	}
	defer stdio.started()
	args := make([]string, len(req.Args))
	for i, a := range req.Args {
		args[i] = string(a)
	}
	env := environment(req.Env, who.home, req.TTY)
	attr := &syscall.ProcAttr{Dir: string(req.Dir), Sys: &syscall.SysProcAttr{Setsid: true, Setctty: req.TTY}}
	if os.Geteuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: who.uid, Gid: who.gid, Groups: who.groups}
	}
	for _, f := range stdio.child {
		attr.Files = append(attr.Files, f.Fd())
	}
	if e.tree.cgroup != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(e.tree.cgroup.Fd())
	}
	e.oomBefore = s.oom.look()

	pid, exited, err := s.reaper.launch(args, env, attr)
	var cannot *startError
	if err != nil {
		stdio.abandon()
		if !errors.As(err, &cannot) {
			return err
		}
		e.refuse(cannot, envNames(env), req.Merged)
		return nil
	}
	e.mu.Lock()
	e.info.PID, e.info.State, e.info.EnvNames = pid, sandbox.ExecRunning, envNames(env)
	e.info.Clip()
	e.mu.Unlock()
	e.tree.begin(pid)
	e.output, e.tty, e.stdin = stdio.output, stdio.tty, stdio.input
	for _, p := range e.output {
		if e.tty != nil {
			p.reaped = e.reaped
		}
		go p.run()
	}
	if e.in != nil {
		go e.in.feed(e.stdin, e.done)
	}
	s.changed(e)
	go e.supervise(pid, exited)
	return nil
}

// refuse ends an exec whose command could not be started.
func (e *exec) refuse(cannot *startError, names []string, merged bool) {
	source := sandbox.Stderr
	if merged {
		source = sandbox.Stdout
	}
	line := "taibox: " + cannot.text + "\n"
	if e.info.TTY {
		line = strings.ReplaceAll(line, "\n", "\r\n")
	}
	for text := []byte(line); len(text) > 0; {
		n := min(len(text), e.log.maxChunk())
		e.log.append(source, append(make([]byte, wire.LogHead), text[:n]...))
		text = text[n:]
	}
	e.finish(func(info *sandbox.ExecInfo) {
		info.EnvNames = names
		info.Ended, info.Reason, info.Error = time.Now(), sandbox.ReasonExit, cannot.text
		info.ExitCode = &cannot.code
	})
}
