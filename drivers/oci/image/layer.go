package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const xattrRecord = "SCHILY.xattr."

// unpacker unpacks one layer into an empty directory, for an overlay.
//
// containerd's own goes by path names and makes deletions as they come, so
// that files of the layer itself or the order of entries undo or break them,
// and trips over a file below that became a directory. This one opens
// everything beneath the layer's directory, where the kernel holds it, and
// makes deletions last, see whiteout.go.
type unpacker struct {
	layers tree // this layer, then those below, topmost first

	limit     int64 // of file contents
	size      int64
	nameBytes int
	entries   int

	deleted map[string]bool   // names of the layers below that this one deletes
	opaque  map[string]bool   // directories of the layers below whose contents it deletes
	copied  map[string]string // files of the layers below, copied as targets of hard links, to where they are meanwhile
	times   map[string]time.Time
}

func newUnpacker(dir string, below []string, limit int64) (*unpacker, error) {
	layers, err := openTree(append([]string{dir}, below...)...)
	if err != nil {
		return nil, err
	}
	return &unpacker{
		layers: layers, limit: limit,
		deleted: map[string]bool{}, opaque: map[string]bool{}, copied: map[string]string{}, times: map[string]time.Time{},
	}, nil
}

func (u *unpacker) close() { u.layers.close() }

func (u *unpacker) apply(ctx context.Context, r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := u.entry(ctx, hdr, contextReader{ctx, tr}); err != nil {
			return fmt.Errorf("%.200q: %w", hdr.Name, err)
		}
	}
	if err := u.placeCopies(); err != nil {
		return err
	}
	if err := u.delete(ctx); err != nil {
		return err
	}
	// What is made in a directory changes its time: these come last.
	for name, t := range u.times {
		if err := u.setDirTime(name, t); err != nil {
			return fmt.Errorf("time of %.200q: %w", name, err)
		}
	}
	return nil
}

func (u *unpacker) setDirTime(name string, t time.Time) error {
	dir, err := openNode(u.layers[0], name)
	if dir == nil || err != nil {
		return err
	}
	defer dir.close()
	if !dir.isDir() {
		return nil
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, dir.path(), timespecs(t), 0)
}

// timespecs returns times of access and modification. The file system moves
// what it cannot express into its range.
func timespecs(t time.Time) []unix.Timespec {
	ts := unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
	if t.IsZero() {
		ts = unix.Timespec{}
	}
	return []unix.Timespec{ts, ts}
}

// entry does what one entry of the layer says.
func (u *unpacker) entry(ctx context.Context, hdr *tar.Header, r io.Reader) error {
	name, ok := cleanName(hdr.Name)
	if !ok {
		return corrupt("the name leads out of the layer")
	}
	u.entries++
	u.nameBytes += len(hdr.Name) + len(hdr.Linkname)
	if u.entries > maxLayerEntries || u.nameBytes > maxLayerNameBytes {
		return corrupt("more than %d files, or %d bytes of names", maxLayerEntries, maxLayerNameBytes)
	}
	if err := u.grow(hdr.Size); err != nil {
		return err
	}
	switch hdr.Typeflag {
	case tar.TypeBlock, tar.TypeChar, tar.TypeXGlobalHeader:
		// A box makes its devices itself, and could open no others.
		return nil
	}
	if special, err := u.note(name); special || err != nil {
		return err
	}
	if name == "." {
		return nil // every box has a root of its own
	}
	dir, err := u.openDir(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.close()
	if hdr.Typeflag == tar.TypeDir {
		u.times[name] = hdr.ModTime
	}
	return u.create(ctx, dir.fd, name, hdr, r)
}

func (u *unpacker) grow(size int64) error {
	if u.size += size; size < 0 || u.size > u.limit {
		return corrupt("the layer's files have more than %d bytes", u.limit)
	}
	return nil
}

// inLayer opens a directory as if the layer's were the root of all.
var inLayer = unix.OpenHow{
	Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
	Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
}

// openDir opens the directory that an entry goes into, and makes it if need
// be. A link to it is followed inside the layer, as if that were all there is.
func (u *unpacker) openDir(name string) (*node, error) {
	fd, err := unix.Openat2(u.layers[0], name, &inLayer)
	if err == nil {
		return &node{fd: fd}, nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	dir, err := u.makeDir(name)
	if dir == nil && err == nil {
		err = fmt.Errorf("%.200q is no directory: %w", name, unix.ENOTDIR)
	}
	return dir, err
}

// makeDir opens a directory of this layer. One that is missing is made with
// its parents, as they are in the layers below if they are there. It returns
// nil where something that is no directory is in the way.
func (u *unpacker) makeDir(name string) (*node, error) {
	own, err := openNode(u.layers[0], name)
	if err != nil {
		return nil, err
	}
	if own != nil {
		if !own.isDir() {
			own.close()
			return nil, nil //nolint:nilnil // see above
		}
		return own, nil
	}
	parent, err := u.makeDir(path.Dir(name))
	if parent == nil || err != nil {
		return nil, err
	}
	defer parent.close()
	from, err := u.layers[1:].lookup(name)
	if err != nil {
		return nil, err
	}
	defer from.close()
	if err := unix.Mkdirat(parent.fd, path.Base(name), 0o700); err != nil {
		return nil, err
	}
	if own, err = openNode(u.layers[0], name); own == nil || err != nil {
		return nil, err
	}
	if from != nil && from.isDir() {
		u.times[name] = from.modTime()
		err = copyAttributes(own.path(), from)
	} else {
		err = unix.Chmod(own.path(), 0o755)
	}
	if err != nil {
		own.close()
		return nil, err
	}
	return own, nil
}

// create makes a file in a directory, in place of what is there already.
func (u *unpacker) create(ctx context.Context, dir int, name string, hdr *tar.Header, r io.Reader) error {
	base := path.Base(name)
	var st unix.Stat_t
	err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	exists := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if exists && (hdr.Typeflag != tar.TypeDir || st.Mode&unix.S_IFMT != unix.S_IFDIR) {
		if err := os.RemoveAll(fdPath(dir) + "/" + base); err != nil {
			return err
		}
		exists = false
		if hdr.Typeflag == tar.TypeDir {
			u.deleted[name] = true // as the layers below had it, it was gone already
		}
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		if !exists {
			err = unix.Mkdirat(dir, base, 0o700)
		} else {
			err = nil
		}
	case tar.TypeReg:
		err = writeFile(dir, base, r)
	case tar.TypeSymlink:
		err = unix.Symlinkat(hdr.Linkname, dir, base)
	case tar.TypeFifo:
		err = unix.Mknodat(dir, base, unix.S_IFIFO|0o600, 0)
	case tar.TypeLink:
		err = u.link(ctx, dir, base, hdr.Linkname)
	default:
		err = corrupt("entry of unknown type %q", hdr.Typeflag)
	}
	if err != nil {
		return err
	}
	return setAttributes(dir, base, hdr)
}

func writeFile(dir int, base string, r io.Reader) error {
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	return errors.Join(copySparse(f, r), f.Close())
}

// copySparse fills an empty file, but for zeros: a layer writes out what were
// holes where it was made, see pack.go.
func copySparse(f *os.File, r io.Reader) error {
	w := &sparseWriter{f: f}
	if _, err := io.Copy(w, r); err != nil {
		return err
	}
	return f.Truncate(w.size)
}

// sparseWriter passes over writes of nothing but zeros.
type sparseWriter struct {
	f    *os.File
	size int64
}

func (w *sparseWriter) Write(p []byte) (n int, err error) {
	n = len(p)
	if isZero := n > 0 && p[0] == 0 && bytes.Equal(p[1:], p[:n-1]); !isZero {
		n, err = w.f.WriteAt(p, w.size)
	}
	w.size += int64(n)
	return n, err
}

// setAttributes gives a file what its entry says of it. The mode comes after
// the owner, whose change takes set-user-ID away, as it does capabilities.
func setAttributes(dir int, base string, hdr *tar.Header) error {
	const maxID = 1<<32 - 2
	if hdr.Uid < 0 || hdr.Gid < 0 || hdr.Uid > maxID || hdr.Gid > maxID {
		return corrupt("owner %d:%d", hdr.Uid, hdr.Gid)
	}
	if err := unix.Fchownat(dir, base, hdr.Uid, hdr.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("owner %d:%d: %w", hdr.Uid, hdr.Gid, err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	isLink := st.Mode&unix.S_IFMT == unix.S_IFLNK
	for record, value := range hdr.PAXRecords {
		key, is := strings.CutPrefix(record, xattrRecord)
		if !is || !keptXattr(key) || isLink {
			continue
		}
		err := unix.Lsetxattr(fdPath(dir)+"/"+base, key, []byte(value), 0)
		if err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("attribute %s: %w", key, err)
		}
	}
	if !isLink {
		if err := unix.Fchmodat(dir, base, uint32(hdr.Mode&0o7777), 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dir, base, timespecs(hdr.ModTime), unix.AT_SYMLINK_NOFOLLOW)
}

// keptXattr reports whether an image may set an attribute. Those that mean
// something to the machine are its own business.
func keptXattr(key string) bool {
	return key == "security.capability" || strings.HasPrefix(key, "system.posix_acl_") ||
		strings.HasPrefix(key, "user.") && !strings.HasPrefix(key, "user.overlay.")
}

// link makes a hard link. A target that only the layers below have is copied,
// as an overlay would have done when the link was made.
func (u *unpacker) link(ctx context.Context, dir int, base, linkname string) error {
	name, ok := cleanName(linkname)
	if !ok {
		return corrupt("hard link to %.200q, out of the layer", linkname)
	}
	err := u.linkOwn(dir, base, name)
	if errors.Is(err, unix.ENOENT) {
		err = u.linkCopy(ctx, dir, base, name)
	}
	if err != nil {
		return fmt.Errorf("hard link to %.200q: %w", linkname, err)
	}
	return nil
}

// linkOwn links to a file that the layer has itself.
func (u *unpacker) linkOwn(dir int, base, name string) error {
	parent, err := unix.Openat2(u.layers[0], path.Dir(name), &inLayer)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return unix.Linkat(parent, path.Base(name), dir, base, 0)
}
