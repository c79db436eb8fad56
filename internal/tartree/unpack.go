package tartree

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/tai/sandbox"
)

// Options say how to unpack.
type Options struct {
	// From and To, if From is set, rename the archive's only tree: an entry that
	// is not From, or below it, is refused.
	From, To string
	// Owners gives files the numeric owners of the archive.
	Owners bool
	// Outside is for archives from a box: nothing is written through a link,
	// and links that could lead out of the tree are left out and told to LeftOut.
	Outside bool
	LeftOut func(name, target string)
}

// Unpack makes the files of a tar stream below root, each of them whole or not
// at all, over those that are there. Directories that are there keep their
// mode. The set-user-ID and set-group-ID bits are not taken over, and the holes
// of files stay holes. What was made before an error is removed again.
func Unpack(ctx context.Context, r io.Reader, root *os.Root, o Options) error {
	tail := &tailReader{r: r}
	u := &unpacker{ctx: ctx, root: root, o: o, made: map[string]bool{}, plain: map[string]bool{".": true}, tidied: map[string]bool{}, buf: make([]byte, copyBuffer)}
	err := u.all(tail)
	if err == nil {
		err = tail.end()
	}
	if err == nil {
		err = u.finishDirs()
	}
	if err != nil {
		for name := range u.made {
			root.RemoveAll(name) //nolint:errcheck // the first error counts
		}
	}
	return err
}

type unpacker struct {
	ctx   context.Context //nolint:containedctx // it lives for one call
	root  *os.Root
	o     Options
	made  map[string]bool // the topmost of what was made
	plain map[string]bool // known to be directories, and reached through no link
	dirs  []*tar.Header   // made, to get their mode in the end
	count int
	buf   []byte

	tidied map[string]bool // the directories in which nothing is left half written
}

func bad(name, why string) error {
	return fmt.Errorf("%w: %.256q: %s", sandbox.ErrArchive, name, why)
}

func (u *unpacker) all(r io.Reader) error {
	for {
		if err := context.Cause(u.ctx); err != nil {
			return err
		}
		e, err := nextEntry(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return archiveError(err)
		}
		if u.count++; u.count > maxEntries {
			return bad(e.h.Name, fmt.Sprintf("more than %d entries", maxEntries))
		}
		if err := u.entry(e); err != nil {
			return escapeError(e.h.Name, err)
		}
		if err := e.end(); err != nil {
			return archiveError(err)
		}
	}
}

// escapeError names what [os.Root] has no error number for: a path that leads out.
func escapeError(name string, err error) error {
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return err
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return bad(name, pe.Err.Error())
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok {
		return bad(name, le.Err.Error())
	}
	return err
}

// archiveError tells what is wrong with an archive from what is wrong with its source.
func archiveError(err error) error {
	if err == nil || errors.Is(err, sandbox.ErrArchive) {
		return err
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrFieldTooLong) {
		return fmt.Errorf("%w: %w", sandbox.ErrArchive, err)
	}
	return err
}

// place is where an entry goes.
func (u *unpacker) place(name string) (string, error) {
	clean := path.Clean(name)
	switch {
	case name == "" || strings.ContainsRune(name, 0):
		return "", bad(name, "no name")
	case path.IsAbs(name), slices.Contains(strings.Split(name, "/"), ".."):
		return "", bad(name, "a name that leads out")
	case len(clean) > maxName || strings.Count(clean, "/") >= maxDepth:
		return "", bad(name, "too long or too deep")
	case u.o.From == "":
		return clean, nil
	case clean == u.o.From:
		return path.Clean(u.o.To), nil
	}
	rest, ok := strings.CutPrefix(clean, u.o.From+"/")
	if u.o.From == "." {
		rest, ok = clean, true
	}
	if !ok {
		return "", bad(name, "not of the tree that was asked for")
	}
	return path.Join(u.o.To, rest), nil
}

func (u *unpacker) entry(e *entry) error {
	h := e.h
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeGNUSparse:
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return bad(h.Name, "devices and pipes are refused")
	default:
		return bad(h.Name, fmt.Sprintf("unknown type %q", h.Typeflag))
	}
	name, err := u.place(h.Name)
	if err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return u.dir(name, h)
	}
	if name == "." {
		return bad(h.Name, "a directory is expected")
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		if u.o.Outside && !u.inside(name, h.Linkname) {
			if u.o.LeftOut != nil {
				u.o.LeftOut(name, h.Linkname)
			}
			return nil
		}
		return u.put(name, func(tmp string) error {
			err := u.root.Symlink(h.Linkname, tmp)
			if err == nil && u.o.Owners {
				err = u.root.Lchown(tmp, h.Uid, h.Gid)
			}
			return err
		})
	case tar.TypeLink:
		return u.hardLink(name, h)
	}
	return u.put(name, func(tmp string) error { return u.file(tmp, e) })
}

// dir makes a directory; one that is there stays as it is.
func (u *unpacker) dir(name string, h *tar.Header) error {
	if name == "." {
		return nil
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return err
	}
	made, err := u.mkdir(name)
	if err != nil || !made {
		return err
	}
	h.Name = name
	u.dirs = append(u.dirs, h)
	return nil
}

// mkdir makes one directory, open to its owner while it is filled.
func (u *unpacker) mkdir(name string) (made bool, err error) {
	if u.plain[name] {
		return false, nil
	}
	err = u.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		look := u.root.Stat
		if u.o.Outside {
			look = u.root.Lstat
		}
		info, err := look(name)
		switch {
		case err != nil:
			return false, err
		case !info.IsDir():
			return false, &fs.PathError{Op: "unpack", Path: name, Err: unix.ENOTDIR}
		}
		u.plain[name] = true
		return false, nil
	}
	if err != nil {
		return false, err
	}
	u.plain[name], u.tidied[name] = true, true
	u.note(name)
	return true, nil
}

// parents makes the directories above an entry that the archive does not name.
func (u *unpacker) parents(dir string) error {
	if u.plain[dir] {
		return nil
	}
	if err := u.parents(path.Dir(dir)); err != nil {
		return err
	}
	made, err := u.mkdir(dir)
	if made {
		u.dirs = append(u.dirs, &tar.Header{Name: dir, Mode: 0o755, Uid: os.Geteuid(), Gid: os.Getegid()})
	}
	return err
}

// note remembers what is to be removed after an error.
func (u *unpacker) note(name string) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if u.made[dir] {
			return
		}
	}
	u.made[name] = true
}

// put makes something under a name of its own and moves it to its place.
func (u *unpacker) put(name string, write func(tmp string) error) error {
	switch info, err := u.root.Lstat(name); {
	case err == nil && info.IsDir():
		return &fs.PathError{Op: "unpack", Path: name, Err: unix.EISDIR}
	case errors.Is(err, fs.ErrNotExist):
		u.note(name)
	case err != nil:
		return err
	}
	dir := path.Dir(name)
	u.tidy(dir)
	tmp := path.Join(dir, nofollow.TempName(tempPrefix))
	err := write(tmp)
	if err == nil {
		err = u.root.Rename(tmp, name)
	}
	if err != nil {
		u.root.Remove(tmp) //nolint:errcheck // the first error counts
	}
	return err
}

// tempPrefix begins the names of what is half written.
const tempPrefix = ".taibox-unpack-"

// tidy removes what an unpacking that was killed left half written in a
// directory that was there before.
func (u *unpacker) tidy(dir string) {
	if u.tidied[dir] {
		return
	}
	u.tidied[dir] = true
	root, err := u.root.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	d, err := nofollow.Of(root)
	if err != nil {
		return
	}
	defer d.Close()
	names, err := d.Names()
	if err != nil {
		return
	}
	for _, name := range names {
		d.RemoveLeft(name, tempPrefix)
	}
}

func (u *unpacker) file(tmp string, e *entry) (err error) {
	h := e.h
	f, err := u.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	nofollow.InUse(f)
	if e.holes {
		err = u.sparse(f, e)
	} else {
		err = u.whole(f, h, e.body)
	}
	if err != nil {
		return err
	}
	if u.o.Owners {
		if err := f.Chown(h.Uid, h.Gid); err != nil {
			return err
		}
	}
	if err := f.Chmod(modeOf(h)); err != nil {
		return err
	}
	return u.times(tmp, h)
}

func (u *unpacker) whole(f *os.File, h *tar.Header, r io.Reader) error {
	if err := room(f, h.Size); err != nil {
		return &fs.PathError{Op: "unpack", Path: h.Name, Err: err}
	}
	_, err := io.CopyBuffer(onlyWriter{f}, r, u.buf)
	return archiveError(err)
}

// sparse writes a file that was packed with its holes: what is in none, and of
// that not what is all zeros. The size is set first, for there may be none as
// large. It takes as long as the contents are, however large the holes.
func (u *unpacker) sparse(f *os.File, e *entry) error {
	if err := f.Truncate(e.h.Size); err != nil {
		return err
	}
	for _, run := range e.runs {
		for at, end := run.at, run.at+run.len; at < end; {
			buf := u.buf[:min(int64(len(u.buf)), end-at)]
			if _, err := io.ReadFull(e.raw, buf); err != nil {
				return archiveError(unexpected(err))
			}
			if !bytes.Equal(buf, zeros[:len(buf)]) {
				if _, err := f.WriteAt(buf, at); err != nil {
					return err
				}
			}
			at += int64(len(buf))
		}
	}
	return nil
}

// room refuses a file that is larger than what is free, before any of it is
// written.
func room(f *os.File, size int64) error {
	if size < copyBuffer {
		return nil
	}
	on, err := statfs(f)
	if err == nil && uint64(size)/uint64(on.Bsize) > on.Bavail {
		err = unix.ENOSPC
	}
	return err
}

func (u *unpacker) times(name string, h *tar.Header) error {
	if h.ModTime.IsZero() || h.ModTime.Equal(time.Unix(0, 0)) {
		return nil
	}
	return u.root.Chtimes(name, time.Time{}, h.ModTime)
}

func modeOf(h *tar.Header) fs.FileMode {
	return h.FileInfo().Mode() & (fs.ModePerm | fs.ModeSticky)
}

// hardLink makes another name of a file that the archive had before.
func (u *unpacker) hardLink(name string, h *tar.Header) error {
	old, err := u.place(h.Linkname)
	if err != nil {
		return err
	}
	info, err := u.root.Lstat(old)
	if err != nil || !info.Mode().IsRegular() || u.o.Outside && !u.plain[path.Dir(old)] {
		return bad(h.Name, "a hard link to what is no file of the archive")
	}
	if old == name {
		return nil
	}
	return u.put(name, func(tmp string) error { return u.root.Link(old, tmp) })
}

// inside reports whether a link can only lead to what is in the tree itself.
func (u *unpacker) inside(name, target string) bool {
	if top := path.Clean(u.o.To); u.o.From != "" && top != "." {
		var below bool
		if name, below = strings.CutPrefix(name, top+"/"); !below {
			return false // the top itself: nothing but it was copied
		}
	}
	return Inside(name, target)
}

// Inside reports whether a link of a tree can only lead to what is in the tree:
// its target goes up first, by no more than there is, and only then down. With
// ".." behind a name, another link could be climbed from.
func Inside(name, target string) bool {
	if path.IsAbs(target) || target == "" {
		return false
	}
	ups, down := 0, false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if down {
				return false
			}
			ups++
		default:
			down = true
		}
	}
	return ups <= strings.Count(name, "/")
}

// finishDirs gives the directories that were made their mode, the deepest first.
func (u *unpacker) finishDirs() error {
	for _, h := range slices.Backward(u.dirs) {
		if u.o.Owners {
			if err := u.root.Lchown(h.Name, h.Uid, h.Gid); err != nil {
				return err
			}
		}
		if err := u.root.Chmod(h.Name, modeOf(h)); err != nil {
			return err
		}
		if err := u.times(h.Name, h); err != nil {
			return err
		}
	}
	return nil
}

// endMark is how an archive ends: two empty blocks.
const endMark = 2 * 512

// maxPadding is what may follow the end mark.
const maxPadding = 1 << 20

// tailReader remembers whether what it read last is the end mark. Without it an
// archive that was cut between two entries would look whole.
type tailReader struct {
	r     io.Reader
	zeros int
	err   error // of the source
}

func (t *tailReader) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if rest := bytes.TrimRight(p[:n], "\x00"); len(rest) > 0 {
		t.zeros = n - len(rest)
	} else {
		t.zeros = min(t.zeros+n, endMark)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.err = err
	}
	return n, err
}

// end reads what follows the archive, which is padding.
func (t *tailReader) end() error {
	n, err := io.Copy(io.Discard, io.LimitReader(t, maxPadding+1))
	switch {
	case err != nil:
		return archiveError(err)
	case n > maxPadding:
		return fmt.Errorf("%w: something follows its end", sandbox.ErrArchive)
	case t.zeros < endMark:
		return fmt.Errorf("%w: it is cut", sandbox.ErrArchive)
	}
	return nil
}
