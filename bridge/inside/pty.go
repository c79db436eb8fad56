package inside

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/sandbox"
)

// ttyGroup and ttyMode are what a login gives a terminal: write(1) and wall(1)
// run with the group.
const (
	ttyGroup = 5
	ttyMode  = 0o620
)

// openPTY makes a terminal of the given size that belongs to uid. The slave
// comes from the master itself, not from a path that the box could have
// replaced.
func openPTY(size sandbox.Size, uid uint32) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "terminal")
	if slave, err = openSlave(fd, size, uid); err != nil {
		master.Close() //nolint:errcheck // the first error counts
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	return master, slave, nil
}

func openSlave(master int, size sandbox.Size, uid uint32) (*os.File, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	if err := setSize(master, size); err != nil {
		return nil, err
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, errno
	}
	slave := os.NewFile(fd, "terminal")
	// Where the group has no number in the box, the user's own part matters.
	if unix.Fchown(int(fd), int(uid), ttyGroup) != nil {
		unix.Fchown(int(fd), int(uid), -1) //nolint:errcheck // an ordinary user can give nothing away, and has it already
	}
	unix.Fchmod(int(fd), ttyMode) //nolint:errcheck // as above
	return slave, nil
}

func setSize(fd int, size sandbox.Size) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}

// resize sets the size of a running terminal.
func resize(master *os.File, size sandbox.Size) error {
	rc, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := rc.Control(func(fd uintptr) { serr = setSize(int(fd), size) }); err != nil {
		return err
	}
	return serr
}
