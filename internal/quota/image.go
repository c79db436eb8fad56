package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	blockSize = 4096
	// inodeSize is what a file takes of an image beside its contents.
	inodeSize = 256
	// maxImage is what ext4 can be with blocks of 4 KiB, less some.
	maxImage = 15 << 40
	// reserve is the directory of an image that has what makes it as small as
	// it is to be: file systems come in steps.
	reserve = "reserve"
	ballast = "ballast"

	mkfsTimeout = 2 * time.Minute

	ext4Resize = 0x40086610 // EXT4_IOC_RESIZE_FS
)

// MakeImage makes a sparse file with an empty file system for l, and mounts it
// on an empty directory. What fails leaves nothing mounted.
func (e *Enforcer) MakeImage(ctx context.Context, file, dir string, l Limits) (err error) {
	size, err := e.imageSize(l)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	if err := e.format(ctx, file, l); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := AttachImage(file, dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, DetachImage(dir))
		}
	}()
	if err := os.Mkdir(filepath.Join(dir, reserve), 0o700); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, "lost+found")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fill(ctx, file, dir, l)
}

// features are those of the file system, whatever the machine's own defaults.
const features = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// format runs mkfs.ext4.
func (e *Enforcer) format(ctx context.Context, file string, l Limits) error {
	ctx, cancel := context.WithTimeoutCause(ctx, mkfsTimeout, errors.New("mkfs.ext4 takes too long"))
	defer cancel()
	args := []string{
		"-q", "-F", "-O", features, "-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize), "-m", "0", "-J", "size=4",
		// The file is all holes, which are zeros: nobody need write any.
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0",
	}
	if l.Files > 0 {
		args = append(args, "-N", strconv.FormatInt(l.Files+32, 10))
	} else {
		args = append(args, "-i", strconv.Itoa(bytesPerFile(l.Bytes)))
	}
	cmd := exec.CommandContext(ctx, e.mkfs, append(args, file)...)
	cmd.Env = []string{"PATH=" + strings.Join(toolDirs, ":"), "LC_ALL=C", "MKE2FS_CONFIG=/dev/null"}
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("mkfs.ext4: %w: %.500s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// bytesPerFile is how many bytes of an image without a limit of files there are
// for each file that it can have. A large one has room for enough of them.
func bytesPerFile(bytes int64) int {
	if bytes <= 16<<30 {
		return 8192
	}
	return 16384
}

// imageSize returns how large the file must be that has room for l.
func (e *Enforcer) imageSize(l Limits) (int64, error) {
	bytes := l.Bytes
	if bytes == 0 { // as large as the disk below
		var on unix.Statfs_t
		if err := unix.Statfs(e.dir, &on); err != nil {
			return 0, os.NewSyscallError("statfs", err)
		}
		bytes = int64(on.Blocks) * on.Bsize
	}
	files := l.Files
	if files == 0 {
		files = bytes/int64(bytesPerFile(bytes)) + 1
	}
	// The journal, the tables of files, what ext4 keeps for itself, and something
	// for the rest. What is too much is taken by the ballast.
	size := bytes + 8<<20 + files*inodeSize + bytes/50 + min(bytes/50, 4096*blockSize)
	size = (size + blockSize - 1) / blockSize * blockSize
	if size > maxImage {
		if l.Bytes == 0 && l.Files*inodeSize < maxImage/2 {
			return maxImage, nil
		}
		return 0, fmt.Errorf("a quota of %d bytes and %d files: %w", l.Bytes, l.Files, unix.EFBIG)
	}
	return size, nil
}

// fill takes what an image has beyond its limits, and gives back what was
// taken too much.
func fill(ctx context.Context, file, dir string, l Limits) error {
	if l.Files > 0 {
		if err := fillFiles(ctx, dir, l.Files); err != nil {
			return err
		}
	}
	if l.Bytes > 0 {
		return fillBytes(file, dir, l.Bytes)
	}
	return nil
}

// fillFiles leaves room for so many files, ours not counted.
func fillFiles(ctx context.Context, dir string, files int64) error {
	room := filepath.Join(dir, reserve)
	d, err := os.Open(room)
	if err != nil {
		return err
	}
	defer d.Close()
	taken, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	var on unix.Statfs_t
	if err := unix.Statfs(dir, &on); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	used := int64(on.Files-on.Ffree) - int64(len(taken)) - reservedInodes
	want := int64(on.Files) - reservedInodes - files - ownFiles // placeholders, the ballast among them
	if want < 0 {
		return fmt.Errorf("%d files, where there is room for %d: %w", files, int64(on.Files)-reservedInodes-ownFiles, unix.ENOSPC)
	}
	if used-ownFiles > files {
		return fmt.Errorf("%d files, where there are %d: %w", files, used-ownFiles, unix.ENOSPC)
	}
	for n := int64(len(taken)); n < want; n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		name := ballast
		if n > 0 {
			name = strconv.FormatInt(n, 10)
		}
		if err := unix.Mknodat(int(d.Fd()), name, unix.S_IFREG|0o600, 0); err != nil {
			return os.NewSyscallError("mknodat", err)
		}
	}
	for n := int64(len(taken)); n > max(want, 1); n-- {
		if err := os.Remove(filepath.Join(room, strconv.FormatInt(n-1, 10))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

const (
	// reservedInodes are those that ext4 keeps for itself: it counts them as used.
	reservedInodes = 10
	// ownFiles are the directories of ours in an image: the reserve, data, tmp
	// and snapshots.
	ownFiles = 4
)

// fillBytes leaves room for so many bytes, by a file that has blocks which are
// never written and so take nothing of the disk below.
func fillBytes(image, dir string, bytes int64) error {
	f, err := os.OpenFile(filepath.Join(dir, reserve, ballast), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var on unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Statfs(dir, &on), unix.Fstat(int(f.Fd()), &st)); err != nil {
		return err
	}
	info, err := os.Stat(image)
	if err != nil {
		return err
	}
	// ext4 keeps some for itself, and says so only while there are some.
	kept := min(info.Size()/blockSize/50, 4096) * blockSize
	want := int64(on.Blocks)*on.Bsize - kept - bytes - ownBytes
	want = want / blockSize * blockSize
	switch {
	case want < 0:
		return fmt.Errorf("%d bytes, where there is room for %d: %w", bytes, int64(on.Blocks)*on.Bsize, unix.ENOSPC)
	case want < st.Size:
		return f.Truncate(want)
	case want > st.Size:
		return os.NewSyscallError("fallocate", unix.Fallocate(int(f.Fd()), 0, st.Size, want-st.Size))
	}
	return nil
}

// ownBytes is what our directories take.
const ownBytes = 5 * blockSize

// GrowImage changes the limits of a mounted image to larger ones. What fails
// leaves the old ones, or some of the new.
func (e *Enforcer) GrowImage(ctx context.Context, file, dir string, l Limits) error {
	// There may be room enough: an image is a bit larger than its limits.
	err := fill(ctx, file, dir, l)
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	size, err := e.imageSize(l)
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	err = growFile(file, dir, max(size, info.Size()))
	if errors.Is(err, unix.EPERM) {
		return errors.Join(fmt.Errorf("to make it larger needs CAP_SYS_RESOURCE: %w", err), os.Truncate(file, info.Size()))
	}
	if err != nil {
		return err
	}
	return fill(ctx, file, dir, l)
}

// growFile makes the file, its loop device and the file system larger.
func growFile(file, dir string, size int64) error {
	if err := os.Truncate(file, size); err != nil {
		return err
	}
	dev, err := backing(file, dir)
	if err != nil {
		return err
	}
	loop, err := os.OpenFile(dev, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer loop.Close()
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return os.NewSyscallError("LOOP_SET_CAPACITY", err)
	}
	root, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return resize(root, uint64(size/blockSize))
}
