package quota

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the kernel's headers say, and no package.
const (
	fsIocFSGetXattr = 0x801c581f // FS_IOC_FSGETXATTR
	fsIocFSSetXattr = 0x401c5820 // FS_IOC_FSSETXATTR
	projInherit     = 0x200      // FS_XFLAG_PROJINHERIT

	prjQuota   = 2        // PRJQUOTA
	qGetQuota  = 0x800007 // Q_GETQUOTA
	qSetQuota  = 0x800008 // Q_SETQUOTA
	qXGetQStat = 'X'<<8 + 5
	prjEnforce = 1 << 5 // FS_QUOTA_PDQ_ENFD

	qifLimits = 1 | 4 // QIF_BLIMITS | QIF_ILIMITS
)

// fsxattr is struct fsxattr.
type fsxattr struct {
	XFlags, ExtSize, NExtents, ProjID, CowExtSize uint32
	_                                             [8]byte
}

// dqblk is struct if_dqblk. Limits of space are in blocks of 1 KiB.
type dqblk struct {
	BHardLimit, BSoftLimit, CurSpace, IHardLimit, ISoftLimit, CurInodes, BTime, ITime uint64
	Valid                                                                             uint32
	_                                                                                 uint32
}

// lacksProject says what is missing for project quotas.
func lacksProject(dir string) (missing string, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer d.Close()
	if os.Geteuid() != 0 {
		return "project quotas need root", nil
	}
	// The state is a struct of which the flags are bytes 2 and 3.
	var stat [128]byte
	err = quotactl(d, qXGetQStat, 0, unsafe.Pointer(&stat))
	if err == nil && binary.NativeEndian.Uint16(stat[2:])&prjEnforce != 0 {
		if _, err = getXattr(d); err == nil {
			return "", nil
		}
	}
	if err != nil && !unsupported(err) {
		return "", err
	}
	return "the file system has no project quota (mount option prjquota of XFS and ext4)", nil
}

// NewProject returns an id that nothing on the file system uses. taken says
// which ids are used by what is not there yet.
func (e *Enforcer) NewProject(taken func(uint32) bool) (uint32, error) {
	d, err := os.Open(e.dir)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	for range 1000 {
		id := 1<<20 + rand.Uint32N(1<<31-1<<20) //nolint:gosec // it is checked to be free, not secret
		if taken(id) {
			continue
		}
		var q dqblk
		err := quotactl(d, qGetQuota, id, unsafe.Pointer(&q))
		if unsupported(err) || err == nil && q.CurInodes == 0 && q.CurSpace == 0 && q.BHardLimit == 0 && q.IHardLimit == 0 {
			return id, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("no free project id: %w", unix.ENOSPC)
}

// SetProject makes an empty directory the root of a project's tree: all that
// is made in it belongs to the project.
func (e *Enforcer) SetProject(dir string, id uint32) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	x, err := getXattr(d)
	if err != nil {
		return err
	}
	x.ProjID, x.XFlags = id, x.XFlags|projInherit
	return ioctl(d, fsIocFSSetXattr, unsafe.Pointer(&x))
}

// LimitProject sets the limits of a project; none at all for zero ones.
func (e *Enforcer) LimitProject(id uint32, l Limits) error {
	d, err := os.Open(e.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	q := dqblk{BHardLimit: uint64((l.Bytes + 1023) / 1024), IHardLimit: uint64(l.Files), Valid: qifLimits}
	return quotactl(d, qSetQuota, id, unsafe.Pointer(&q))
}

func getXattr(f *os.File) (x fsxattr, err error) {
	err = ioctl(f, fsIocFSGetXattr, unsafe.Pointer(&x))
	return x, err
}

func ioctl(f *os.File, req uintptr, arg unsafe.Pointer) error {
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, f.Fd(), req, uintptr(arg)); no != 0 {
		return os.NewSyscallError("ioctl", no)
	}
	return nil
}

func quotactl(f *os.File, cmd uintptr, id uint32, arg unsafe.Pointer) error {
	if _, _, no := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), cmd<<8|prjQuota, uintptr(id), uintptr(arg), 0, 0); no != 0 {
		return os.NewSyscallError("quotactl_fd", no)
	}
	return nil
}
