package bridge

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

// Bounds of text that comes from a box.
const (
	maxName    = 256
	maxMessage = 4096
)

// clean makes text from a box fit for a terminal and a log.
func clean(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return plain(s, "")
}

// plain puts spaces for control characters, but for those of keep.
func plain(s, keep string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && !strings.ContainsRune(keep, r) {
			return ' '
		}
		return r
	}, s)
}

// plainWord is plain for an argument, which may be a script, and any bytes:
// those that are no characters stay.
func plainWord(s string) string {
	const keep = "\n\t"
	if utf8.ValidString(s) {
		return plain(s, keep)
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		c := s[:n]
		if r != utf8.RuneError {
			c = plain(c, keep)
		}
		b.WriteString(c)
		s = s[n:]
	}
	return b.String()
}

var reasons = reason.NewTable(sandbox.Reasons())

// maxErrno is beyond the kernel's own numbers.
const maxErrno = 4096

// bridgeError is an error of a bridge, with the sentinel or the error number
// it named.
type bridgeError struct {
	message string
	class   error
}

func (e *bridgeError) Error() string { return e.message }
func (e *bridgeError) Unwrap() error { return e.class }

func remoteError(payload []byte) error {
	var w wire.Error
	if err := json.Unmarshal(payload, &w); err != nil {
		return fmt.Errorf("%w: %w: %w", sandbox.ErrBridgeLost, wire.ErrProtocol, err)
	}
	e := &bridgeError{message: clean(w.Message, maxMessage)}
	if known := reasons[w.Reason]; known != nil {
		e.class = known
	} else if w.Errno > 0 && w.Errno < maxErrno {
		e.class = w.Errno
	}
	return e
}

// checkRecord refuses a record that no exec can have, and bounds and cleans the
// text of any other.
func checkRecord(info *sandbox.ExecInfo, id string) error {
	bad := func(what string) error {
		return fmt.Errorf("%w: %w: record of exec %.64q: %s", sandbox.ErrBridgeLost, wire.ErrProtocol, info.ID, what)
	}
	switch {
	case info.ID != id || sandbox.ValidateID(info.ID) != nil:
		return bad("not the one asked for")
	case !slices.Contains([]sandbox.ExecState{sandbox.ExecStarting, sandbox.ExecRunning, sandbox.ExecExited, sandbox.ExecLost}, info.State):
		return bad("unknown state")
	case info.Bytes < 0 || info.FirstOffset < 0 || info.FirstOffset > info.Bytes || info.Leftover < 0 || info.OOMKills < 0 || info.PID < 0 || info.InputBytes < 0:
		return bad("impossible number")
	case info.ExitCode != nil && (*info.ExitCode < 0 || *info.ExitCode > 255):
		return bad("impossible exit code")
	case info.State == sandbox.ExecExited && info.ExitCode == nil:
		return bad("ended without a code")
	case !slices.Contains([]sandbox.ExecReason{
		"", sandbox.ReasonExit, sandbox.ReasonSignal, sandbox.ReasonOOM, sandbox.ReasonTimeout,
		sandbox.ReasonKilled, sandbox.ReasonStop, sandbox.ReasonLost,
	}, info.Reason):
		return bad("unknown reason")
	}
	info.Clip()
	for _, s := range []*string{&info.Box, &info.User, &info.WorkDir, &info.Signal, &info.Error} {
		*s = plain(*s, "")
	}
	for i := range info.Args {
		info.Args[i] = plainWord(info.Args[i])
	}
	for i := range info.EnvNames {
		info.EnvNames[i] = plain(info.EnvNames[i], "")
	}
	return nil
}

// socketOf makes a connection of a descriptor from a box, if it is a TCP
// socket and no other thing that could surprise its reader.
func socketOf(f *os.File) (net.Conn, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var domain, kind int
	var derr, kerr error
	err = rc.Control(func(fd uintptr) {
		domain, derr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		kind, kerr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE)
	})
	if err != nil || derr != nil || kerr != nil || kind != unix.SOCK_STREAM || domain != unix.AF_INET && domain != unix.AF_INET6 {
		return nil, fmt.Errorf("%w: %w: not a TCP socket", sandbox.ErrBridgeLost, wire.ErrProtocol)
	}
	return net.FileConn(f)
}
