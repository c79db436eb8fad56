package hostfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	tmpPrefix = ".tmp-"
	// recipeVersion is part of a layer's ID: it changes with what this file makes.
	recipeVersion = "1"
	// maxEtcBytes bounds what is copied from /etc.
	maxEtcBytes = 128 << 20
)

// etcList is what a box gets of the machine's /etc: what programs need, and
// nothing that says anything about the machine's users, services or secrets.
var etcList = []string{
	// How programs are found, and their libraries.
	"alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	// Certificates of authorities.
	"ca-certificates", "ca-certificates.conf", "ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "pki/ca-trust/extracted", "pki/tls/certs",
	"pki/tls/cert.pem", "pki/tls/openssl.cnf", "crypto-policies",
	// Names, types and places.
	"nsswitch.conf", "host.conf", "gai.conf", "protocols", "services", "rpc", "mime.types", "localtime", "timezone",
	"os-release", "debian_version", "lsb-release", "alpine-release", "redhat-release", "fedora-release", "system-release",
	// Terminals, fonts, languages.
	"terminfo", "inputrc", "fonts", "locale.alias", "locale.conf", "default/locale", "java", "java-*", "python*", "perl",
}

// ours are the files that a box has instead of the machine's.
var ours = map[string]string{
	"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
		"user:x:1000:1000:user:/home:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"etc/group":  "root:x:0:\ndaemon:x:1:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
	"etc/shells": "/bin/sh\n/bin/bash\n/usr/bin/sh\n/usr/bin/bash\n",
	// Written at each start.
	"etc/hosts": "", "etc/hostname": "", "etc/resolv.conf": "",
}

// ourDirs are the directories of a box, with their modes, parents first.
var ourDirs = []struct {
	name string
	mode uint32
}{
	{"etc", 0o755},
	{"home", 0o755},
	{"root", 0o700},
	{"tmp", 0o1777},
	{"opt", 0o755},
	{"srv", 0o755},
	{"mnt", 0o755},
	{"media", 0o755},
	{"run", 0o755},
	{"run/lock", 0o1777},
	{"workspace", 0o1777},
	{"proc", 0o555},
	{"sys", 0o555},
	{"dev", 0o755},
	{"usr", 0o755},
	{"var", 0o755},
}

// ourLinks are the links of every box.
var ourLinks = map[string]string{"etc/mtab": "/proc/self/mounts"}

// userID is the one ordinary user, whose home is /home itself.
const userID = 1000

// layer is one made from the machine.
type layer struct {
	id      string
	root    string
	sources []string // what it was made from: files and directories
	sign    string   // of the sources
}

// changed reports whether the machine's files are other ones by now. A link
// cannot change without its directory.
func (l *layer) changed() bool { return sign(l.sources) != l.sign }

// build makes the layer for the machine as it is, unless it is there already.
func (h *HostFS) build(ctx context.Context) (layer, error) {
	c, err := openCopier(h.cfg.Machine)
	if err != nil {
		return layer{}, err
	}
	defer c.close()
	l := layer{sources: c.sources()}
	l.sign = sign(l.sources) // first: what changes while it is copied has changed

	tmp := filepath.Join(h.cfg.Dir, fmt.Sprintf("%s%d", tmpPrefix, os.Getpid()))
	if err := os.RemoveAll(tmp); err != nil {
		return layer{}, err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // Open does
	root := filepath.Join(tmp, "root")
	if err := forEverybody(func() error { return h.fill(ctx, root, c) }); err != nil {
		return layer{}, err
	}
	l.id = hex.EncodeToString(c.sum.Sum(nil))[:32]
	l.root = filepath.Join(h.cfg.Dir, l.id, "root")
	if _, err := os.Lstat(l.root); err == nil {
		return l, nil
	}
	if err := syncFS(tmp); err != nil {
		return layer{}, err
	}
	if err := os.Rename(tmp, filepath.Join(h.cfg.Dir, l.id)); err != nil {
		return layer{}, err
	}
	return l, syncFS(h.cfg.Dir)
}

// forEverybody runs f on a thread of its own with the umask that modes are
// meant for: the server's is for its own files.
func forEverybody(f func() error) error {
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			unix.Umask(0o022)
			err = f()
		}
		done <- err
	}()
	return <-done
}

// fill makes the root file system of a box in an empty directory.
func (h *HostFS) fill(ctx context.Context, root string, c *copier) error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	for _, d := range ourDirs {
		dir := filepath.Join(root, d.name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := unix.Chmod(dir, d.mode); err != nil {
			return err
		}
	}
	if err := os.Lchown(filepath.Join(root, "home"), userID, userID); err != nil {
		return err
	}
	for name, target := range ourLinks {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	if err := h.linkPrograms(root, c.sum); err != nil {
		return err
	}
	if err := c.copyAll(ctx, root); err != nil {
		return err
	}
	for name, data := range ours {
		if err := os.WriteFile(filepath.Join(root, name), []byte(data), 0o644); err != nil { //nolint:gosec // everybody reads these
			return err
		}
	}
	return nil
}

// linkPrograms makes /bin and its like: links where the machine has links,
// mount points where it has directories.
func (h *HostFS) linkPrograms(root string, sum io.Writer) error {
	for _, name := range programDirs[1:] {
		from, to := filepath.Join(h.cfg.Machine, name), filepath.Join(root, name)
		fi, err := os.Lstat(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		target := ""
		switch {
		case fi.IsDir():
			err = os.Mkdir(to, 0o755)
		case fi.Mode()&fs.ModeSymlink != 0:
			if target, err = os.Readlink(from); err == nil {
				err = os.Symlink(target, to)
			}
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(sum, name, fi.Mode(), target)
	}
	return nil
}

// copier copies what everybody may read from the machine's /etc.
type copier struct {
	dir string
	etc int // descriptor of dir
	sum interface {
		io.Writer
		Sum([]byte) []byte
	}
	list []string // names in etc that exist, from etcList
	left int64
}

func openCopier(machine string) (*copier, error) {
	c := &copier{dir: filepath.Join(machine, "etc"), sum: sha256.New(), left: maxEtcBytes}
	fmt.Fprintln(c.sum, recipeVersion)
	for _, pattern := range etcList {
		for _, n := range expand(c.dir, pattern) {
			c.list = append(c.list, strings.TrimPrefix(n, c.dir+"/"))
		}
	}
	fd, err := unix.Open(c.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", c.dir, err)
	}
	c.etc = fd
	return c, nil
}

func (c *copier) close() { unix.Close(c.etc) } //nolint:errcheck // nothing was written through it

// sources lists what decides on the contents of a copy: the directories, and
// the files in them.
func (c *copier) sources() []string {
	sources := []string{c.dir}
	for _, name := range c.list {
		filepath.WalkDir(filepath.Join(c.dir, name), func(p string, d fs.DirEntry, err error) error { //nolint:errcheck // the function returns none
			if err == nil && d.Type()&fs.ModeSymlink == 0 {
				sources = append(sources, p)
			}
			return nil
		})
	}
	return sources
}

func (c *copier) copyAll(ctx context.Context, root string) error {
	for _, name := range c.list {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if parent := path.Dir(name); parent != "." {
			if err := os.MkdirAll(filepath.Join(root, "etc", parent), 0o755); err != nil {
				return err
			}
		}
		if err := c.copy(name, filepath.Join(root, "etc", name)); err != nil {
			return fmt.Errorf("copy %s: %w", filepath.Join(c.dir, name), err)
		}
	}
	return nil
}

// copy copies a file, link or tree. What it passes over is what not everybody
// may read, and what is neither. Links are copied, never followed; a name that
// becomes a link meanwhile is passed over as well.
func (c *copier) copy(name, to string) error {
	fd, err := unix.Openat2(c.etc, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return passOver(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return c.copyLink(fd, name, to)
	case st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&0o005 == 0o005:
		return c.copyDir(fd, name, to)
	case st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o004 != 0:
		return c.copyFile(fd, name, to)
	}
	return nil
}

func passOver(err error) error {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

func (c *copier) copyLink(fd int, name, to string) error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.sum, "link", name, string(buf[:n]))
	return os.Symlink(string(buf[:n]), to)
}

func (c *copier) copyDir(fd int, name, to string) error {
	dir, err := os.Open(fdPath(fd))
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.sum, "dir", name)
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	slices.Sort(names)
	for _, n := range names {
		if err := c.copy(path.Join(name, n), filepath.Join(to, n)); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) copyFile(fd int, name, to string) error {
	src, err := os.Open(fdPath(fd)) // the very file that was looked at
	if err != nil {
		return err
	}
	defer src.Close()
	fi, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.sum, "file", name, fi.Mode().Perm()&0o111 != 0, fi.Size())
	n, err := io.Copy(io.MultiWriter(dst, c.sum), io.LimitReader(src, c.left+1))
	if c.left -= n; err == nil && c.left < 0 {
		err = fmt.Errorf("more than %d bytes in all", maxEtcBytes)
	}
	mode := fs.FileMode(0o644)
	if fi.Mode()&0o001 != 0 {
		mode = 0o755
	}
	return errors.Join(err, dst.Chmod(mode), os.Chtimes(to, fi.ModTime(), fi.ModTime()), dst.Close())
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// syncFS writes what is below dir to the disk.
func syncFS(dir string) error {
	f, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
