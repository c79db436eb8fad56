package inside

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// stdio is the three descriptors of a command and our ends of them.
type stdio struct {
	child  [3]*os.File
	made   []*os.File // those of child that are not shared
	output []*pump
	input  inputWriter // nil without
	tty    *os.File    // the terminal's master, or nil
}

// openStdio makes pipes, or a terminal, that belong to uid. Without input the
// command reads null.
func openStdio(req *wire.Exec, uid uint32, null *os.File, log *execLog, progress chan<- struct{}) (*stdio, error) {
	s := &stdio{}
	if req.TTY {
		master, slave, err := openPTY(req.Size, uid)
		if err != nil {
			return nil, err
		}
		s.tty, s.made, s.child = master, []*os.File{slave}, [3]*os.File{slave, slave, slave}
		s.output = []*pump{newPump(sandbox.Stdout, master, log, progress)}
		if req.Stdin {
			s.input = &ttyInput{f: master}
		}
		return s, nil
	}

	s.child[0] = null
	if req.Stdin {
		r, w, err := openPipe(uid, 1)
		if err != nil {
			return nil, err
		}
		s.child[0], s.made, s.input = r, append(s.made, r), pipeInput{w}
	}
	for _, source := range []sandbox.Source{sandbox.Stdout, sandbox.Stderr} {
		r, w, err := openPipe(uid, 0)
		if err != nil {
			s.abandon()
			return nil, err
		}
		s.child[source], s.made = w, append(s.made, w)
		s.output = append(s.output, newPump(source, r, log, progress))
		if req.Merged {
			s.child[sandbox.Stderr] = w
			break
		}
	}
	return s, nil
}

// openPipe makes a pipe of which end ours (0 to read, 1 to write) does not
// block. It belongs to uid, so that /dev/stdout can be opened.
func openPipe(uid uint32, ours int) (r, w *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if uid != 0 {
		unix.Fchown(p[0], int(uid), -1) //nolint:errcheck // a convenience; an ordinary user has it already
	}
	if err := unix.SetNonblock(p[ours], true); err != nil {
		unix.Close(p[0]) //nolint:errcheck // nothing was written
		unix.Close(p[1]) //nolint:errcheck // nothing was written
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(p[0]), "pipe"), os.NewFile(uintptr(p[1]), "pipe"), nil
}

// started closes what the command now has.
func (s *stdio) started() {
	for _, f := range s.made {
		f.Close() //nolint:errcheck // nothing is buffered
	}
	s.made = nil
}

// abandon closes everything; nothing was started.
func (s *stdio) abandon() {
	s.started()
	for _, p := range s.output {
		p.f.Close() //nolint:errcheck // nothing is buffered
	}
	if in, ok := s.input.(pipeInput); ok {
		in.closeWrite()
	}
}
