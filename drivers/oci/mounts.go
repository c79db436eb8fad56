package oci

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/probe"
	"github.com/taibox/taibox/tai/sandbox"
)

// stager makes the mounts of a box ready for the OCI runtime: each is a detached
// clone of its directory alone, id-mapped, put where only the box's root and we
// get to. The runtime binds it from there.
type stager struct {
	pair   pair
	hostID uint32   // the id outside of root inside
	rootfs string   // mounted; has the users' names
	user   string   // the box's own
	boxNS  *os.File // whose mapping keeps numbers as they are

	swapped *os.File // see workspaceNS; nil until it is needed
}

// stageMounts mounts what the box asks for, in order, and returns how the
// runtime is to bind it.
func (b *box) stageMounts(p pair, rootfs string) (_ []specs.Mount, err error) {
	mounts := b.rec.Spec.Mounts
	if len(mounts) == 0 {
		return nil, nil
	}
	boxNS, err := os.Open(p.userNS())
	if err != nil {
		return nil, err
	}
	defer boxNS.Close()
	s := &stager{pair: p, hostID: b.d.slot.hostID(p.index), rootfs: rootfs, user: b.rec.user(), boxNS: boxNS}
	defer func() {
		if s.swapped != nil && s.swapped != boxNS {
			s.swapped.Close()
		}
	}()
	targets := []string{b.rec.workDir()}
	for _, m := range mounts {
		targets = append(targets, m.Target)
	}
	binds := make([]specs.Mount, len(mounts))
	for i := range mounts {
		if binds[i], err = s.stage(i, &mounts[i], targets); err != nil {
			return nil, fmt.Errorf("mount %s: %w", mountName(&mounts[i]), err)
		}
	}
	return binds, nil
}

// mountName names what is mounted to whoever may read of the box: where a
// workspace lies on the machine is not for its owner.
func mountName(m *sandbox.Mount) string {
	if m.Workspace != "" {
		return "workspace " + m.Workspace
	}
	return m.Source
}

func (s *stager) stage(i int, m *sandbox.Mount, targets []string) (specs.Mount, error) {
	src, err := openSource(m)
	if err != nil {
		return specs.Mount{}, err
	}
	defer src.Close()
	ns := s.boxNS
	if m.Workspace != "" {
		if ns, err = s.workspaceNS(); err != nil {
			return specs.Mount{}, err
		}
		if err := makeInside(src, m, targets); err != nil {
			return specs.Mount{}, err
		}
	}
	dir := s.dir(i)
	if err := mkdirs(0o711, filepath.Dir(dir), dir); err != nil {
		return specs.Mount{}, err
	}
	opts := []string{"bind", "nosuid", "nodev", "private"}
	if m.ReadOnly {
		opts = append(opts, "ro")
	}
	return specs.Mount{Destination: m.Target, Type: "bind", Source: dir, Options: opts}, mountMapped(src, m, dir, ns)
}

func (s *stager) dir(i int) string { return filepath.Join(s.pair.dir, "mounts", strconv.Itoa(i)) }

// unstageMounts takes away what the runtime has bound into the box by now.
func (b *box) unstageMounts(p pair) error {
	s := &stager{pair: p}
	var errs []error
	for i := range b.rec.Spec.Mounts {
		errs = append(errs, unmountAll(s.dir(i)))
	}
	return errors.Join(errs...)
}

// openSource opens a directory that is to be mounted. No link may lead to it:
// it was named, not what somebody else makes of the name.
func openSource(m *sandbox.Mount) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, m.Source, &how)
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), m.Source), nil
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("%w: it is not there", sandbox.ErrMountSource)
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%w: a link leads to it, where its real path is expected", sandbox.ErrMountSource)
	case errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("%w: it is no directory", sandbox.ErrMountSource)
	}
	return nil, fmt.Errorf("%w: %w", sandbox.ErrMountSource, err)
}

// makeInside makes the directories of a workspace that something is mounted
// on, or begins in, as its owner. The runtime would make them as the box's
// root.
func makeInside(src *os.File, m *sandbox.Mount, targets []string) error {
	if m.ReadOnly {
		return nil
	}
	for _, t := range targets {
		rel, below := strings.CutPrefix(filepath.Clean(t), m.Target+"/")
		if !below {
			continue
		}
		fd, err := mkdirIn(int(src.Fd()), rel)
		if err == nil {
			unix.Close(fd)
		} else if !inTheWay(err) {
			return fmt.Errorf("make %s: %w", t, noSpace(err))
		}
	}
	return nil
}

// mountMapped mounts a directory alone, without what is mounted below it, and
// cut off from what will be.
func mountMapped(src *os.File, m *sandbox.Mount, dir string, ns *os.File) error {
	tree, err := unix.OpenTree(int(src.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Propagation: unix.MS_PRIVATE,
		Userns_fd:   uint64(ns.Fd()),
	}
	if m.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("its file system, %s, cannot be id-mapped: %w: %w", fileSystem(m.Source), sandbox.ErrUnsupported, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("put in place: %w", err)
	}
	return nil
}

// fileSystem names the type of the file system that a path is on.
func fileSystem(path string) string {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil || len(mounts) == 0 {
		return "unknown"
	}
	best := mounts[0]
	for _, m := range mounts {
		if len(m.Mountpoint) >= len(best.Mountpoint) { // of several at one place the last is seen
			best = m
		}
	}
	return best.FSType
}

// workspaceNS returns a user namespace whose mapping gives what belongs to 0 on
// disk to the box's user, and what belongs to that user's number to the box's
// root, so that nothing is without an owner inside.
func (s *stager) workspaceNS() (*os.File, error) {
	if s.swapped != nil {
		return s.swapped, nil
	}
	uid, gid, err := s.lookUser()
	if err != nil {
		return nil, err
	}
	s.swapped = s.boxNS
	if uid != 0 || gid != 0 {
		if s.swapped, err = newUserNS(swap(s.hostID, uid), swap(s.hostID, gid)); err != nil {
			s.swapped = nil
			return nil, fmt.Errorf("user namespace for its owner: %w", err)
		}
	}
	return s.swapped, nil
}

// swap maps the ids of a box so that 0 and id change places.
func swap(hostID uint32, id int) []syscall.SysProcIDMap {
	first := int(hostID)
	if id == 0 {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: idsPerBox}}
	}
	all := []syscall.SysProcIDMap{
		{ContainerID: 0, HostID: first + id, Size: 1},
		{ContainerID: 1, HostID: first + 1, Size: id - 1},
		{ContainerID: id, HostID: first, Size: 1},
		{ContainerID: id + 1, HostID: first + id + 1, Size: idsPerBox - id - 1},
	}
	var some []syscall.SysProcIDMap
	for _, m := range all {
		if m.Size > 0 {
			some = append(some, m)
		}
	}
	return some
}

// newUserNS makes a user namespace with a mapping. The process that it takes
// is stopped by the kernel before its first instruction.
func newUserNS(uids, gids []syscall.SysProcIDMap) (*os.File, error) {
	type result struct {
		ns  *os.File
		err error
	}
	res := make(chan result, 1)
	// The tracer is a thread, and must be the same all the time.
	err := probe.OnOwnThread(func() error {
		proc, err := os.StartProcess("/proc/self/exe", []string{"taibox-userns"}, &os.ProcAttr{
			Env: []string{},
			Sys: &syscall.SysProcAttr{
				Cloneflags: unix.CLONE_NEWUSER, UidMappings: uids, GidMappings: gids,
				Ptrace: true, Pdeathsig: unix.SIGKILL,
			},
		})
		if err != nil {
			return err
		}
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", proc.Pid))
		res <- result{ns, err}
		// It is our child and not waited for yet: the pid is still its own.
		if err := proc.Kill(); err != nil {
			return err
		}
		for {
			st, err := proc.Wait()
			if err != nil || st.Exited() || st.Sys().(syscall.WaitStatus).Signaled() {
				return err
			}
		}
	})
	select {
	case r := <-res:
		if err == nil {
			err = r.err
		}
		if err != nil && r.ns != nil {
			r.ns.Close()
		}
		return r.ns, err
	default:
		return nil, err
	}
}

// lookUser finds the numbers of the box's own user in its files, as the bridge
// does.
func (s *stager) lookUser() (uid, gid int, err error) {
	name := s.user
	if name == "" {
		name = "0"
	}
	root, err := unix.Open(s.rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("open root: %w", err)
	}
	defer unix.Close(root)
	u, err := user.GetExecUser(name, &user.ExecUser{}, bytes.NewReader(readIn(root, "etc/passwd")), bytes.NewReader(readIn(root, "etc/group")))
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %q: %w", sandbox.ErrUserNotFound, name, err)
	}
	for _, id := range []int{u.Uid, u.Gid} {
		if id < 0 || id >= idsPerBox || id > math.MaxInt32 {
			return 0, 0, fmt.Errorf("%w: %q has the number %d: a box has those below %d", sandbox.ErrInvalidSpec, name, id, idsPerBox)
		}
	}
	return u.Uid, u.Gid, nil
}

// smallFile bounds the files of a box that we read.
const smallFile = 1 << 20

// readIn reads a file of a box. One that is not a small regular one counts as
// empty.
func readIn(root int, name string) []byte {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(root, name, &how)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, smallFile+1))
	if err != nil || len(data) > smallFile {
		return nil
	}
	return data
}
