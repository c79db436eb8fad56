package oci

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// poolDir is where what is made ahead of a box waits. No ID of a box ends like that.
func (pp *pairPool) poolDir(index int) string {
	return filepath.Join(pp.dir, "pool-"+strconv.Itoa(index)+"-")
}

// pair is a user namespace and the network namespace that it owns, kept alive
// by mounts in a directory: pool-<index>- while it waits, the box's afterwards.
// The move is one rename, so a crash leaves one or the other.
type pair struct {
	index int
	dir   string
}

func (p pair) userNS() string { return filepath.Join(p.dir, "ns", "user") }
func (p pair) netNS() string  { return filepath.Join(p.dir, "ns", "net") }

// pairPool makes pairs ahead, because a namespace takes the kernel longer than
// a box should wait. It also hands out the indices that a box's ids, address
// and interface come from.
type pairPool struct {
	dir    string                 // where boxes have their run directories
	bridge func() (string, error) // the helper inside
	slot   *slot
	net    *network
	log    *slog.Logger

	mu    sync.Mutex
	used  map[int]string // the directory of who has an index
	next  int            // where the search for an index begins, so that numbers rest after use
	ready chan pair
}

func newPairPool(dir string, bridge func() (string, error), s *slot, n *network, size int, log *slog.Logger) *pairPool {
	return &pairPool{dir: dir, bridge: bridge, slot: s, net: n, log: log, used: map[int]string{}, ready: make(chan pair, size)}
}

// run keeps the pool full until ctx ends.
func (pp *pairPool) run(ctx context.Context) {
	for ctx.Err() == nil {
		p, err := pp.make(ctx)
		if err != nil {
			if ctx.Err() == nil {
				pp.log.Warn("no namespaces made ahead", slog.Any("err", err))
			}
			select {
			case <-ctx.Done():
			case <-time.After(poolRetry):
			}
			continue
		}
		select {
		case pp.ready <- p:
		case <-ctx.Done():
			if err := pp.discard(p); err != nil {
				pp.log.Warn("namespaces left behind", slog.Any("err", err))
			}
		}
	}
}

// take hands a pair over to a box's directory.
func (pp *pairPool) take(ctx context.Context, boxDir string, commit func(index int) error) (pair, error) {
	var p pair
	select {
	case p = <-pp.ready:
	default:
		var err error
		if p, err = pp.make(ctx); err != nil {
			return pair{}, err
		}
	}
	err := commit(p.index)
	if err == nil {
		err = os.Rename(p.dir, boxDir)
	}
	if err != nil {
		return pair{}, errors.Join(err, pp.discard(p))
	}
	p.dir = boxDir
	pp.reserve(p.index, p.dir)
	return p, nil
}

// close discards what waits in the pool.
func (pp *pairPool) close() error {
	var errs []error
	for {
		select {
		case p := <-pp.ready:
			errs = append(errs, pp.discard(p))
		default:
			return errors.Join(errs...)
		}
	}
}

// reserve marks an index as belonging to a directory that is there already.
func (pp *pairPool) reserve(index int, dir string) {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	pp.used[index] = dir
}

// release gives an index back, unless it has another owner by now.
func (pp *pairPool) release(index int, dir string) {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	if pp.used[index] == dir {
		delete(pp.used, index)
	}
}

func (pp *pairPool) allocate() (int, error) {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	for range boxesPerSlot {
		i := pp.next
		pp.next = (pp.next + 1) % boxesPerSlot
		if pp.used[i] == "" {
			pp.used[i] = pp.poolDir(i)
			return i, nil
		}
	}
	return 0, fmt.Errorf("all %d id ranges of this instance are in use by running boxes", boxesPerSlot)
}

// make builds one pair.
func (pp *pairPool) make(ctx context.Context) (_ pair, err error) {
	index, err := pp.allocate()
	if err != nil {
		return pair{}, err
	}
	p := pair{index: index, dir: pp.poolDir(index)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make namespaces: %w", err), pp.discard(p))
		}
	}()
	if err := mkdirs(0o700, p.dir, filepath.Join(p.dir, "ns")); err != nil {
		return p, err
	}
	// The box's root has to get to its root file system, and nobody else on
	// the machine.
	if err := errors.Join(os.Chown(p.dir, 0, int(pp.slot.hostID(index))), os.Chmod(p.dir, 0o710)); err != nil {
		return p, err
	}
	bridge, err := pp.bridge()
	if err != nil {
		return p, err
	}
	pid, end, err := startHelper(ctx, bridge, pp.slot.hostID(index))
	if err != nil {
		return p, err
	}
	for ns, file := range map[string]string{"user": p.userNS(), "net": p.netNS()} {
		err = errors.Join(err, bindNS(fmt.Sprintf("/proc/%d/ns/%s", pid, ns), file))
	}
	if err = errors.Join(err, end()); err != nil {
		return p, err
	}
	return p, pp.net.attach(p, pp.slot.addr(index))
}

// startHelper runs the bridge's pair command as root of new namespaces. It
// returns when the namespaces are set up; end lets the helper go.
func startHelper(ctx context.Context, bridge string, hostID uint32) (pid int, end func() error, err error) {
	cmd := exec.CommandContext(ctx, bridge, "pair")
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:                 syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(hostID), Size: idsPerBox}},
		GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(hostID), Size: idsPerBox}},
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0},
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, nil, err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("start %s pair: %w", bridge, err)
	}
	end = func() error { return errors.Join(stdin.Close(), cmd.Wait()) }
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		return 0, nil, fmt.Errorf("%s pair said %q: %w: %s", bridge, line, errors.Join(err, end()), stderr.String())
	}
	return cmd.Process.Pid, end, nil
}

// bindNS keeps a namespace alive at a path.
func bindNS(ns, file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := unix.Mount(ns, file, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("keep %s at %s: %w", ns, file, err)
	}
	return nil
}

// discard ends a pair and its interface, and removes its directory.
func (pp *pairPool) discard(p pair) error {
	err := errors.Join(pp.net.detach(p.index), removeRunDir(p.dir))
	if err == nil {
		pp.release(p.index, p.dir)
	}
	return err
}

// removeRunDir unmounts all that a run directory holds and deletes it.
func removeRunDir(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range mounts {
		errs = append(errs, unmountAll(m))
	}
	if err := errors.Join(errs...); err != nil {
		return err // never delete through a mount
	}
	return os.RemoveAll(dir)
}

// mountsBelow lists the mount points at and below dir, the last made first.
func mountsBelow(dir string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("list mounts below %s: %w", dir, err)
	}
	points := make([]string, 0, len(mounts))
	for _, m := range slices.Backward(mounts) {
		points = append(points, m.Mountpoint)
	}
	return points, nil
}
