package inside

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// FileWorker is the argument with which the program, run by itself, carries
// out one request for a file: see [ServeFile].
const FileWorker = "files"

// file has a request for a file carried out by a process that has no more
// rights than the user it is for. That process gets the connection.
func (s *Server) file(conn *wire.Conn, req *wire.Request) error {
	b, err := decode[wire.File](req)
	if err != nil {
		return err
	}
	ready, begun, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	pid, exited, err := s.forkWorker(conn, b, begun)
	begun.Close()
	if err != nil {
		return err
	}
	ready.SetReadDeadline(time.Now().Add(workerStart)) //nolint:errcheck // a pipe has deadlines
	if _, err := ready.Read(make([]byte, 1)); err == nil {
		return nil
	}
	s.reaper.kill(pid, unix.SIGKILL, false) //nolint:errcheck // it has ended, or somebody in the box has stopped it
	end := <-exited
	if end.ExitStatus() == goThrow {
		return fmt.Errorf("%w: not even for the threads of one", sandbox.ErrProcessLimit)
	}
	return fmt.Errorf("%w: the process for the file ended before it began, wait status %#x", sandbox.ErrBridgeLost, uint32(end))
}

// forkWorker starts the process for a file, which says on begun that it has the
// connection.
func (s *Server) forkWorker(conn *wire.Conn, b *wire.File, begun *os.File) (pid int, exited <-chan unix.WaitStatus, err error) {
	s.blocking <- struct{}{}
	defer func() { <-s.blocking }()
	who, err := lookupUser(b.User)
	if err != nil {
		return 0, nil, err
	}
	uc, ok := conn.Conn.(*net.UnixConn)
	if !ok {
		return 0, nil, fmt.Errorf("%w: files over this transport", sandbox.ErrUnsupported)
	}
	sock, err := uc.File()
	if err != nil {
		return 0, nil, err
	}
	defer sock.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer r.Close()
	defer w.Close()
	// A request is smaller than a pipe.
	if err := json.NewEncoder(w).Encode(b); err != nil {
		return 0, nil, err
	}
	attr := &syscall.ProcAttr{Dir: "/", Env: []string{}, Files: []uintptr{r.Fd(), begun.Fd(), s.null.Fd(), sock.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}}
	if os.Geteuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: who.uid, Gid: who.gid, Groups: who.groups}
	}
	pid, exited, err = s.reaper.start(func() (int, error) {
		return syscall.ForkExec("/proc/self/exe", []string{"taibox-bridge", FileWorker}, attr)
	})
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", sandbox.ErrProcessLimit, err)
	}
	raiseOOMScore(pid)
	return pid, exited, nil
}

// workerStart bounds how long a process for a file may take to begin.
const workerStart = 30 * time.Second

// goThrow is the code with which a program of Go ends that can have no more threads.
const goThrow = 2

// ServeFile carries out one request, which it reads from descriptor 0, on the
// connection that is descriptor 3.
func ServeFile() error {
	f := os.NewFile(3, "connection")
	nc, err := net.FileConn(f)
	if err != nil {
		return err
	}
	f.Close() //nolint:errcheck // nc is a copy
	conn := wire.NewConn(nc)
	defer conn.Close()
	var req wire.File
	if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
		return err
	}
	reserveThreads(workerThreads)
	// From here on the connection is this process's alone.
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return err
	}
	os.Stdout.Close() //nolint:errcheck // it has served
	unix.Umask(0)
	if err := handleFile(conn, &req); err != nil {
		return conn.WriteJSON(wire.TypeError, wire.NewError(err))
	}
	return nil
}
